"""OpenTelemetry: spans and metrics of jobs, for an app that you `instrument`.

An enqueue is a producer span and every attempt a consumer span in a trace of its own, linked to the enqueue: a job may
run much later, more than once, and in another process. Names of attributes are those of the conventions for messaging.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from holdfast.app import Holdfast, core_of
from holdfast.errors import MissingExtra, UsageError
from holdfast.kernel import codec
from holdfast.observe import TRACE, Event, Received, Sent
from holdfast.outcomes import Cancel, Discard, Fail, TryAgain
from holdfast.version import VERSION

try:
    from opentelemetry import context as contexts
    from opentelemetry import metrics, propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Link, Span, SpanKind, StatusCode, TracerProvider
except ModuleNotFoundError as missing:
    raise MissingExtra("otel", "holdfast.telemetry") from missing

_NAME = "holdfast"
_SYSTEM = {"messaging.system": "holdfast"}
_SECONDS = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600]


def instrument(
    app: Holdfast, *, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
) -> None:
    """Trace and measure the jobs of an app with OpenTelemetry, by these providers or by those of the process.

    Call it once, in every process that enqueues or works. It needs `pip install 'holdfast[otel]'`.
    """
    bus = core_of(app).ports.events
    if bus.spans is not None:
        raise UsageError("this app is already instrumented; call instrument() only once.")
    bus.spans = JobSpans(trace.get_tracer(_NAME, VERSION, tracer_provider))
    bus.listen(JobMetrics(metrics.get_meter(_NAME, VERSION, meter_provider)).note)


class JobSpans:
    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    @contextmanager
    def sending(self, sent: Sent) -> Iterator[Mapping[str, str]]:
        attributes: dict[str, Any] = {**_described("send", sent.kind, sent.queue)}
        if len(sent.ids) == 1:
            (attributes["messaging.message.id"],) = sent.ids
        else:
            attributes["messaging.batch.message_count"] = len(sent.ids)
        with self._tracer.start_as_current_span(f"send {sent.kind}", kind=SpanKind.PRODUCER, attributes=attributes):
            carrier: dict[str, str] = {}
            propagate.inject(carrier)
            yield carrier

    @contextmanager
    def processing(self, received: Received) -> Iterator[AttemptSpan]:
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
            yield AttemptSpan(span)
        except asyncio.CancelledError:
            span.set_attribute("holdfast.outcome", "released")
            raise
        finally:
            contexts.detach(surroundings)
            span.end()


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


def _word_for(outcome: object | None) -> str:
    """The outcome as dashboards know it: a `TryAgain` is still a "retry" there."""
    if outcome is None:
        return "lost"
    return "retry" if isinstance(outcome, TryAgain) else type(outcome).__name__.lower()


def _exception(message: object) -> str:
    return str(message).partition(":")[0]
