"""The names of OpenTelemetry's conventions for generative AI, of one version.

They are not stable: a newer version may rename any of them. Readers of our spans get the names of this version
until this module changes.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import metrics, propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, StatusCode

from holdfast.agents.definition import TOOL_KIND
from holdfast.kernel import codec
from holdfast.models import ModelFailure
from holdfast.observe import TRACE, Event, ModelAnswer, ModelCall, PlayedRun, ReceivedJob, SentJobs
from holdfast.outcomes import Cancel, Discard, Done, Fail, Snooze, TryAgain
from holdfast.text import Redactor

VERSION = "1.41.0"
SCHEMA = f"https://opentelemetry.io/schemas/{VERSION}"

# gen_ai.operation.name
CHAT = "chat"
INVOKE_AGENT = "invoke_agent"
EXECUTE_TOOL = "execute_tool"

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
CONVERSATION = "gen_ai.conversation.id"
AGENT_ID = "gen_ai.agent.id"
AGENT_NAME = "gen_ai.agent.name"
AGENT_VERSION = "gen_ai.agent.version"

REQUEST_MODEL = "gen_ai.request.model"
REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
RESPONSE_ID = "gen_ai.response.id"
RESPONSE_MODEL = "gen_ai.response.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"

INPUT_TOKENS = "gen_ai.usage.input_tokens"  # with those of the cache
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE_TOKENS = "gen_ai.usage.cache_creation.input_tokens"

TOOL_NAME = "gen_ai.tool.name"
TOOL_TYPE = "gen_ai.tool.type"
TOOL_CALL_ID = "gen_ai.tool.call.id"

# What is said, which nobody gets who does not ask for it.
SYSTEM_INSTRUCTIONS = "gen_ai.system_instructions"
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
TOOL_ARGUMENTS = "gen_ai.tool.call.arguments"
TOOL_RESULT = "gen_ai.tool.call.result"

ERROR_TYPE = "error.type"


# What models and tools are told and answer, in the form of the conventions, without secrets.


Block = Mapping[str, Any]


def instructions(system: Iterable[Block]) -> str:
    return _text([_part(block) for block in system])


def said(messages: Iterable[Block]) -> str:
    """Messages as they are sent: each has a role, and content that is a text or blocks."""
    return _text([{"role": str(each.get("role")), "parts": _parts(each.get("content"))} for each in messages])


def answered(blocks: Iterable[Block], stop_reason: str | None) -> str:
    return _text([{"role": "assistant", "parts": [_part(each) for each in blocks], "finish_reason": stop_reason or ""}])


def arguments(payload: str) -> str:
    """The arguments of a call, as its job stores them."""
    return Redactor().json(payload, "arguments")


def result(value: object) -> str:
    return _text(value)


def _parts(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "content": content}]
    return [_part(block) for block in content or ()]


def _part(block: Block) -> dict[str, Any]:
    match block.get("type"):
        case "text":
            return {"type": "text", "content": block.get("text", "")}
        case "thinking":
            return {"type": "reasoning", "content": block.get("thinking", "")}
        case "tool_use" | "server_tool_use":
            about = {"id": block.get("id"), "name": block.get("name"), "arguments": block.get("input")}
            return {"type": "tool_call", **about}
        case "tool_result":
            return {"type": "tool_call_response", "id": block.get("tool_use_id"), "response": block.get("content")}
        case other:  # an image or a document: that there is one, not its bytes
            return {"type": str(other)}


def _text(value: object) -> str:
    return json.dumps(Redactor().value(value, "arguments"), ensure_ascii=False, separators=(",", ":"), default=str)


# How the span of an attempt says how it ended.


class AttemptSpan:
    """The span of one attempt, which says how it ended."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def conclude(self, outcome: object | None) -> None:
        self._span.set_attribute("holdfast.outcome", _word_for(outcome))
        match outcome:
            case None:
                self._fail("lost", "its lease was lost; the result is dropped")
            case TryAgain(_, message, type=kind, trace=stack):
                if stack:
                    details = {"exception.message": str(message), "exception.stacktrace": stack}
                    self._span.add_event("exception", {"exception.type": _exception(message), **details})
                self._fail(kind, message)
            case Fail(message, type=kind):
                self._fail(kind, message)
            case Discard():
                self._fail("discarded", outcome.reason)
            case Cancel():
                self._span.set_attribute("holdfast.reason", str(outcome.reason))
            case _:
                pass

    def _fail(self, kind: str, message: object) -> None:
        self._span.set_attribute("error.type", str(kind))
        self._span.set_status(StatusCode.ERROR, str(message))


def _word_for(outcome: object | None) -> str:
    """The outcome as dashboards know it: a `TryAgain` is still a "retry" there, and every `Snooze` a "snooze"."""
    match outcome:
        case None:
            return "lost"
        case TryAgain():
            return "retry"
        case Snooze():
            return "snooze"
        case _:
            return type(outcome).__name__.lower()


def _exception(message: object) -> str:
    return str(message).partition(":")[0]


# Spans and metrics of jobs. Names of attributes are those of the conventions for messaging.


_SYSTEM = {"messaging.system": "holdfast"}
_SECONDS = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600]


class AppSpans:
    """The spans of one app: those of its jobs, and inside of them those of its agents."""

    def __init__(self, tracer: trace.Tracer, agents: AgentSpans) -> None:
        self._tracer = tracer
        self._agents = agents

    @contextmanager
    def sending(self, sent: SentJobs) -> Iterator[Mapping[str, str]]:
        attributes: dict[str, Any] = {**_described("send", sent.kind, sent.queue)}
        if len(sent.ids) == 1:
            (attributes["messaging.message.id"],) = sent.ids
        else:
            attributes["messaging.batch.message_count"] = len(sent.ids)
        with self._tracer.start_as_current_span(f"send {sent.kind}", kind=SpanKind.PRODUCER, attributes=attributes):
            yield self.carried()

    @contextmanager
    def processing(self, received: ReceivedJob) -> Iterator[Attempt]:
        # A worker may have been started inside some span; its jobs do not belong to that.
        sender = propagate.extract(_carrier(received.metadata), Context())
        origin = trace.get_current_span(sender).get_span_context()
        span = self._tracer.start_span(
            f"process {received.kind}",
            context=Context(),
            kind=SpanKind.CONSUMER,
            links=[Link(origin)] if origin.is_valid else [],
            attributes={
                **_described("process", received.kind, received.queue),
                "messaging.message.id": received.id,
                "messaging.client.id": received.worker,
                "holdfast.attempt": received.attempt,
            },
        )
        surroundings = contexts.attach(trace.set_span_in_context(span, sender))
        try:
            with self._agents.executing(received) as tool:
                yield Attempt(AttemptSpan(span), tool)
        except asyncio.CancelledError:
            span.set_attribute("holdfast.outcome", "released")
            raise
        finally:
            contexts.detach(surroundings)
            span.end()

    def invoking(self, played: PlayedRun) -> AbstractContextManager[AttemptSpan]:
        return self._agents.invoking(played)

    def asking(self, call: ModelCall) -> AbstractContextManager[ChatSpan]:
        return self._agents.asking(call)

    def carried(self) -> Mapping[str, str]:
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        return carrier


class Attempt:
    """An attempt with its span, and inside of that the span of a tool, if it is one."""

    def __init__(self, *spans: AttemptSpan | None) -> None:
        self._spans = spans

    def conclude(self, outcome: object | None) -> None:
        for span in self._spans:
            if span is not None:
                span.conclude(outcome)


class JobMetrics:
    """Counts and durations, from the events."""

    def __init__(self, meter: metrics.Meter) -> None:
        self._running: set[tuple[str, str]] = set()
        self._ended = meter.create_counter("holdfast.jobs.ended", "{attempt}", "Attempts that ended, by state")
        self._lost = meter.create_counter("holdfast.jobs.lost", "{attempt}", "Attempts whose lease was lost")
        self._rescued = meter.create_counter("holdfast.jobs.rescued", "{job}", "Jobs this process took back")
        self._active = meter.create_up_down_counter("holdfast.jobs.running", "{attempt}", "Attempts running now")
        self._duration = meter.create_histogram(
            "holdfast.attempt.duration", "s", "How long handlers take", explicit_bucket_boundaries_advisory=_SECONDS
        )
        self._wait = meter.create_histogram(
            "holdfast.job.wait",
            "s",
            "From enqueuing to the start of the first attempt",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )

    def note(self, event: Event) -> None:
        match event.name:
            case "job.started":
                self._note_started(event)
            case "job.ended":
                ending = {"holdfast.outcome": event.metadata["outcome"]}
                self._ended.add(1, {**_line(event), **ending, "holdfast.state": event.metadata["state"]})
                self._note_over(event, ending)
            case "job.lost":
                self._lost.add(1, _line(event))
                self._note_over(event, {"holdfast.outcome": "lost"})
            case "job.rescued":
                self._rescued.add(event.measurements["jobs"], _SYSTEM)

    def _note_started(self, event: Event) -> None:
        self._running.add(_attempt(event))
        self._active.add(1, _line(event))
        if event.metadata["token"].endswith(".1"):  # its first claim
            self._wait.record(event.measurements["age"], _line(event))

    def _note_over(self, event: Event, ending: Mapping[str, str]) -> None:
        """Some attempts are over that never started: handed back, or lost before."""
        if _attempt(event) in self._running:
            self._running.discard(_attempt(event))
            self._active.add(-1, _line(event))
            self._duration.record(event.measurements["duration"], {**_line(event), **ending})


def _described(operation: str, kind: str, queue: str) -> dict[str, str]:
    return {
        **_SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": queue,
        "holdfast.kind": kind,
    }


def _line(event: Event) -> dict[str, str]:
    about = event.metadata
    return {**_SYSTEM, "messaging.destination.name": about["queue"], "holdfast.kind": about["kind"]}


def _attempt(event: Event) -> tuple[str, str]:
    return event.metadata["job"], event.metadata["token"]


def _carrier(metadata: str) -> Mapping[str, str]:
    stored = codec.decode(metadata)
    carried = stored.get(TRACE) if isinstance(stored, dict) else None
    return carried if isinstance(carried, dict) else {}


# Spans of agents: a run as far as one worker plays it, each call of a model, each call of a tool.
#
# Their names and attributes are those of `conventions`.


_used: ContextVar[Counter[str] | None] = ContextVar("holdfast_tokens_used", default=None)


class AgentSpans:
    def __init__(self, tracer: trace.Tracer, *, contents: bool) -> None:
        self._tracer = tracer
        self._contents = contents

    @contextmanager
    def invoking(self, played: PlayedRun) -> Iterator[AttemptSpan]:
        attributes: dict[str, Any] = {
            OPERATION: INVOKE_AGENT,
            PROVIDER: played.provider,
            AGENT_ID: played.agent_id,
            AGENT_NAME: played.agent,
            AGENT_VERSION: str(played.version),
            CONVERSATION: played.session,
            REQUEST_MODEL: played.model,
            "holdfast.run": played.run,
        }
        used = Counter[str]()
        before = _used.set(used)
        try:
            with self._span(f"{INVOKE_AGENT} {played.agent}", SpanKind.INTERNAL, attributes) as span:
                yield AttemptSpan(span)
                span.set_attributes(used)
        finally:
            _used.reset(before)

    @contextmanager
    def asking(self, call: ModelCall) -> Iterator[ChatSpan]:
        attributes: dict[str, Any] = {
            OPERATION: CHAT,
            PROVIDER: call.provider,
            CONVERSATION: call.session,
            REQUEST_MODEL: call.model,
            REQUEST_MAX_TOKENS: call.max_tokens,
        }
        if call.agent:
            attributes[AGENT_NAME] = call.agent
        if call.run:
            attributes["holdfast.run"] = call.run
        if self._contents:
            attributes[INPUT_MESSAGES] = said(call.messages)
            attributes[SYSTEM_INSTRUCTIONS] = instructions(call.system)
        with self._span(f"{CHAT} {call.model}", SpanKind.CLIENT, attributes) as span:
            yield ChatSpan(span, contents=self._contents)

    @contextmanager
    def executing(self, received: ReceivedJob) -> Iterator[AttemptSpan | None]:
        """Around an attempt, if it is one of a tool that a model has called."""
        about = _call_of(received)
        if about is None:
            yield None
            return
        name = received.kind.removeprefix(TOOL_KIND)
        attributes: dict[str, Any] = {
            OPERATION: EXECUTE_TOOL,
            TOOL_NAME: name,
            TOOL_TYPE: "function",
            TOOL_CALL_ID: str(about.get("tool_use_id", "")),
            CONVERSATION: str(about.get("session", "")),
            AGENT_NAME: str(about.get("agent", "")),
            "holdfast.run": str(about.get("run", "")),
        }
        if self._contents:
            attributes[TOOL_ARGUMENTS] = arguments(received.payload)
        with self._span(f"{EXECUTE_TOOL} {name}", SpanKind.INTERNAL, attributes) as span:
            yield ToolSpan(span, contents=self._contents)

    @contextmanager
    def _span(self, name: str, kind: SpanKind, attributes: Mapping[str, Any]) -> Iterator[Span]:
        """A span in the current one. What leaves it by an error other than the end of the task is its status."""
        with self._tracer.start_as_current_span(
            name, kind=kind, attributes=attributes, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield span
            except Exception as problem:
                kind_of = problem.kind if isinstance(problem, ModelFailure) else type(problem).__name__
                span.set_attribute(ERROR_TYPE, kind_of)
                span.set_status(StatusCode.ERROR, str(problem))
                raise


class ChatSpan:
    """The span of one call of a model, which hears the answer."""

    def __init__(self, span: Span, *, contents: bool) -> None:
        self._span = span
        self._contents = contents

    def answered(self, answer: ModelAnswer) -> None:
        used = _tokens(answer.usage)
        whole = _used.get()
        if whole is not None:
            whole.update(used)
        self._span.set_attributes({**used, RESPONSE_MODEL: answer.model, RESPONSE_ID: answer.id})
        self._span.set_attribute(FINISH_REASONS, [answer.stop_reason or ""])
        if self._contents:
            self._span.set_attribute(OUTPUT_MESSAGES, answered(answer.blocks, answer.stop_reason))


class ToolSpan(AttemptSpan):
    """The span of one attempt of a tool."""

    def __init__(self, span: Span, *, contents: bool) -> None:
        super().__init__(span)
        self._contents = contents

    def conclude(self, outcome: object | None) -> None:
        super().conclude(outcome)
        if self._contents and isinstance(outcome, Done):
            self._span.set_attribute(TOOL_RESULT, result(outcome.result))


def _tokens(usage: Mapping[str, Any]) -> dict[str, int]:
    """The provider counts what it took from the cache, or put there, apart from the other input."""
    read = int(usage.get("cache_read_input_tokens") or 0)
    written = int(usage.get("cache_creation_input_tokens") or 0)
    return {
        INPUT_TOKENS: int(usage.get("input_tokens") or 0) + read + written,
        OUTPUT_TOKENS: int(usage.get("output_tokens") or 0),
        CACHE_READ_TOKENS: read,
        CACHE_WRITE_TOKENS: written,
    }


def _call_of(received: ReceivedJob) -> Mapping[str, Any] | None:
    if not received.kind.startswith(TOOL_KIND):
        return None
    stored = codec.decode(received.metadata)
    about = stored.get("call") if isinstance(stored, dict) else None
    return about if isinstance(about, dict) else {}
