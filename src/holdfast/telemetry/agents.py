"""Spans of agents: a run as far as one worker plays it, each call of a model, each call of a tool.

Their names and attributes are those of `conventions`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, StatusCode

from holdfast.agents.definition import TOOL_KIND
from holdfast.kernel import codec
from holdfast.models import ModelFailure
from holdfast.observe import ModelAnswer, ModelCall, Played, Received
from holdfast.outcomes import Done
from holdfast.telemetry import contents
from holdfast.telemetry import conventions as names
from holdfast.telemetry.endings import AttemptSpan

_used: ContextVar[Counter[str] | None] = ContextVar("holdfast_tokens_used", default=None)


class AgentSpans:
    def __init__(self, tracer: trace.Tracer, *, contents: bool) -> None:
        self._tracer = tracer
        self._contents = contents

    @contextmanager
    def invoking(self, played: Played) -> Iterator[AttemptSpan]:
        attributes: dict[str, Any] = {
            names.OPERATION: names.INVOKE_AGENT,
            names.PROVIDER: played.provider,
            names.AGENT_ID: played.agent_id,
            names.AGENT_NAME: played.agent,
            names.AGENT_VERSION: str(played.version),
            names.CONVERSATION: played.session,
            names.REQUEST_MODEL: played.model,
            "holdfast.run": played.run,
        }
        used = Counter[str]()
        before = _used.set(used)
        try:
            with self._span(f"{names.INVOKE_AGENT} {played.agent}", SpanKind.INTERNAL, attributes) as span:
                yield AttemptSpan(span)
                span.set_attributes(used)
        finally:
            _used.reset(before)

    @contextmanager
    def asking(self, call: ModelCall) -> Iterator[ChatSpan]:
        attributes: dict[str, Any] = {
            names.OPERATION: names.CHAT,
            names.PROVIDER: call.provider,
            names.CONVERSATION: call.session,
            names.REQUEST_MODEL: call.model,
            names.REQUEST_MAX_TOKENS: call.max_tokens,
        }
        if call.agent:
            attributes[names.AGENT_NAME] = call.agent
        if call.run:
            attributes["holdfast.run"] = call.run
        if self._contents:
            attributes[names.INPUT_MESSAGES] = contents.said(call.messages)
            attributes[names.SYSTEM_INSTRUCTIONS] = contents.instructions(call.system)
        with self._span(f"{names.CHAT} {call.model}", SpanKind.CLIENT, attributes) as span:
            yield ChatSpan(span, contents=self._contents)

    @contextmanager
    def executing(self, received: Received) -> Iterator[AttemptSpan | None]:
        """Around an attempt, if it is one of a tool that a model has called."""
        about = _call_of(received)
        if about is None:
            yield None
            return
        name = received.kind.removeprefix(TOOL_KIND)
        attributes: dict[str, Any] = {
            names.OPERATION: names.EXECUTE_TOOL,
            names.TOOL_NAME: name,
            names.TOOL_TYPE: "function",
            names.TOOL_CALL_ID: str(about.get("tool_use_id", "")),
            names.CONVERSATION: str(about.get("session", "")),
            names.AGENT_NAME: str(about.get("agent", "")),
            "holdfast.run": str(about.get("run", "")),
        }
        if self._contents:
            attributes[names.TOOL_ARGUMENTS] = contents.arguments(received.payload)
        with self._span(f"{names.EXECUTE_TOOL} {name}", SpanKind.INTERNAL, attributes) as span:
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
                span.set_attribute(names.ERROR_TYPE, kind_of)
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
        self._span.set_attributes({**used, names.RESPONSE_MODEL: answer.model, names.RESPONSE_ID: answer.id})
        self._span.set_attribute(names.FINISH_REASONS, [answer.stop_reason or ""])
        if self._contents:
            self._span.set_attribute(names.OUTPUT_MESSAGES, contents.answered(answer.blocks, answer.stop_reason))


class ToolSpan(AttemptSpan):
    """The span of one attempt of a tool."""

    def __init__(self, span: Span, *, contents: bool) -> None:
        super().__init__(span)
        self._contents = contents

    def conclude(self, outcome: object | None) -> None:
        super().conclude(outcome)
        if self._contents and isinstance(outcome, Done):
            self._span.set_attribute(names.TOOL_RESULT, contents.result(outcome.result))


def _tokens(usage: Mapping[str, Any]) -> dict[str, int]:
    """The provider counts what it took from the cache, or put there, apart from the other input."""
    read = int(usage.get("cache_read_input_tokens") or 0)
    written = int(usage.get("cache_creation_input_tokens") or 0)
    return {
        names.INPUT_TOKENS: int(usage.get("input_tokens") or 0) + read + written,
        names.OUTPUT_TOKENS: int(usage.get("output_tokens") or 0),
        names.CACHE_READ_TOKENS: read,
        names.CACHE_WRITE_TOKENS: written,
    }


def _call_of(received: Received) -> Mapping[str, Any] | None:
    if not received.kind.startswith(TOOL_KIND):
        return None
    stored = codec.decode(received.metadata)
    about = stored.get("call") if isinstance(stored, dict) else None
    return about if isinstance(about, dict) else {}
