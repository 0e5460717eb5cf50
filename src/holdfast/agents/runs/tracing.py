"""Spans of runs and of model calls, for an app that is traced. While nobody traces, nothing is made here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from holdfast.agents.definition import AgentSpec
from holdfast.agents.providers import ModelAccess
from holdfast.agents.rows import LoadedRun
from holdfast.agents.runs.decision import Decision, ToolCallRequest
from holdfast.clock import Ports
from holdfast.kernel import codec
from holdfast.models import Reply, Request
from holdfast.observe import AnswerObserver, AttemptObserver, ModelAnswer, ModelCall, PlayedRun
from holdfast.workers.telemetry import carrying


class _Untraced:
    def conclude(self, outcome: object | None) -> None: ...


def invoking(ports: Ports, models: ModelAccess, run: LoadedRun | None) -> AbstractContextManager[AttemptObserver]:
    """Around what one attempt does for a run; the run may be gone."""
    spans = ports.events.spans
    if spans is None or run is None:
        return nullcontext(_Untraced())
    spec = AgentSpec.parse(run.definition)
    model = spec.model_for(codec.decode(run.options).get("model"), run.fallback)
    provider = models.provider(model)
    return spans.invoking(PlayedRun(run.id, run.session, run.agent_name, run.agent, run.version, model, provider))


class AnswerTrace:
    """Who gives an answer to the span of its call, if there is one."""

    def __init__(self, span: AnswerObserver | None) -> None:
        self._span = span

    def answered(self, reply: Reply) -> Reply:
        if self._span is not None:
            stop, usage, blocks = reply.stop_reason, reply.usage, reply.blocks
            self._span.answered(ModelAnswer(reply.id, reply.model, stop, usage, blocks))
        return reply


@contextmanager
def asking(ports: Ports, models: ModelAccess, request: Request, about: LoadedRun | str) -> Iterator[AnswerTrace]:
    """Around a call of a model: for a run, or for a summary of a session."""
    spans = ports.events.spans
    if spans is None:
        yield AnswerTrace(None)
        return
    provider = models.provider(request.model)
    session, run, agent = (about, "", "") if isinstance(about, str) else (about.session, about.id, about.agent_name)
    said = request.max_tokens, request.system, request.messages
    call = ModelCall(request.model, provider, session, *said, run, agent)
    with spans.asking(call) as span:
        yield AnswerTrace(span)


def linked(ports: Ports, decision: Decision) -> Decision:
    """The same, with calls whose jobs name the present span."""
    spans = ports.events.spans
    if spans is None or not decision.calls:
        return decision
    carrier = spans.carried()

    def with_trace(call: ToolCallRequest) -> ToolCallRequest:
        return call if call.job is None or not carrier else call._replace(job=carrying(call.job, carrier))

    return decision._replace(calls=tuple(map(with_trace, decision.calls)))
