"""Spans and metrics of jobs. Names of attributes are those of the conventions for messaging."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import metrics, propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind

from holdfast.kernel import codec
from holdfast.observe import TRACE, Event, ModelCall, Played, Received, SentJobs
from holdfast.telemetry.agents import AgentSpans, ChatSpan
from holdfast.telemetry.endings import AttemptSpan

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
    def processing(self, received: Received) -> Iterator[Attempt]:
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

    def invoking(self, played: Played) -> AbstractContextManager[AttemptSpan]:
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
