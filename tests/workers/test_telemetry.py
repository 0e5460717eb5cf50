"""With OpenTelemetry: spans that are linked from the enqueue to every attempt, and metrics; nothing without it."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from holdfast import Holdfast, JobContext, Retry
from holdfast.app import core_of
from holdfast.errors import MissingExtra, UsageError
from holdfast.telemetry import instrument
from tests.support.apps import MakeApp, happens, outcomes, working

QUICK = Retry(attempts=2, backoff="constant", base="10ms", jitter=0)


class Backend:
    """What one process exports."""

    def __init__(self, app: Holdfast) -> None:
        self._spans = InMemorySpanExporter()
        self._metrics = InMemoryMetricReader()
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        meters = MeterProvider([self._metrics], shutdown_on_exit=False)
        instrument(app, tracer_provider=self.tracers, meter_provider=meters)

    def spans(self, name: str) -> Sequence[ReadableSpan]:
        return [span for span in self._spans.get_finished_spans() if span.name == name]

    def points(self, name: str) -> list[Any]:
        data = self._metrics.get_metrics_data()
        assert data is not None
        found = [metric for r in data.resource_metrics for s in r.scope_metrics for metric in s.metrics]
        return [point for metric in found if metric.name == name for point in metric.data.data_points]


def told(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def own(span: ReadableSpan) -> trace.SpanContext:
    found = span.get_span_context()
    assert found is not None
    return found


def pair(make_app: MakeApp) -> tuple[Holdfast, Holdfast]:
    """One app that enqueues and one that works, as two processes would have them."""
    return make_app(embedded=False), make_app(embedded=False)


async def test_attempts_are_linked_to_the_enqueue_in_another_process(make_app: MakeApp) -> None:
    here, there = pair(make_app)
    sender, receiver = Backend(here), Backend(there)
    seen: list[Any] = []

    @here.job(name="shop.pay", queue="money")
    async def pay() -> None: ...

    @there.job(name="shop.pay", queue="money", retry=QUICK)
    async def really_pay(ctx: JobContext) -> None:
        seen.append((trace.get_current_span().get_span_context(), baggage.get_baggage("shop"), ctx.metadata))
        if ctx.attempt == 1:
            raise ConnectionError("down")

    surroundings = context.attach(baggage.set_baggage("shop", "one"))
    with sender.tracers.get_tracer("web").start_as_current_span("GET /pay") as request:
        job = await pay.options(metadata={"by": "Ann"}).enqueue()
        async with working(there) as worker:  # inside a span that its jobs are no part of
            await job.result()
    context.detach(surroundings)

    (send,) = sender.spans("send shop.pay")
    assert send.kind is SpanKind.PRODUCER
    assert send.parent is not None
    assert send.parent.span_id == request.get_span_context().span_id
    common = {"messaging.system": "holdfast", "messaging.destination.name": "money", "messaging.message.id": job.id}
    assert common.items() <= told(send).items()
    assert told(send)["messaging.operation.type"] == "send"

    first, second = receiver.spans("process shop.pay")
    for number, span in enumerate((first, second), 1):
        assert span.kind is SpanKind.CONSUMER
        assert span.parent is None
        (link,) = span.links
        assert (link.context.trace_id, link.context.span_id) == (own(send).trace_id, own(send).span_id)
        assert own(span).trace_id != own(send).trace_id
        expected = {**common, "messaging.client.id": worker.id, "holdfast.attempt": number}
        assert expected.items() <= told(span).items()
        assert seen[number - 1] == (own(span), "one", {"by": "Ann"}), "the key is hidden"
    assert own(first).trace_id != own(second).trace_id
    assert (first.status.status_code, first.status.description) == (StatusCode.ERROR, "ConnectionError: down")
    (exception,) = first.events
    assert (exception.attributes or {})["exception.type"] == "ConnectionError"
    assert second.status.status_code is StatusCode.UNSET
    assert [told(span)["holdfast.outcome"] for span in (first, second)] == ["retry", "done"]


async def test_the_trace_is_in_the_metadata_only_when_instrumented(make_app: MakeApp) -> None:
    plain, traced = pair(make_app)
    Backend(traced)
    stored: list[dict[str, Any]] = []
    for app in (plain, traced):

        @app.job(name="work")
        async def work() -> None: ...

        job = await work.options(metadata={"a": 1}).enqueue()
        stored.append((await job.refresh()).metadata)
    assert stored[0] == {"a": 1}
    assert stored[1].keys() == {"a", "holdfast.trace"}
    assert stored[1]["holdfast.trace"].keys() == {"traceparent"}


async def test_an_instrumented_worker_runs_jobs_of_plain_senders(make_app: MakeApp) -> None:
    plain, traced = pair(make_app)
    backend = Backend(traced)

    async def work() -> str:
        return "done"

    job = await plain.job(name="work")(work).enqueue()
    traced.job(name="work")(work)
    async with working(traced):
        assert await job.result() == "done"
    (span,) = backend.spans("process work")
    assert list(span.links) == []


async def test_many_jobs_share_one_span(make_app: MakeApp) -> None:
    app = make_app(embedded=False)
    backend = Backend(app)

    @app.job(name="work")
    async def work(number: int) -> None: ...

    jobs = await work.enqueue_many([(1,), (2,), (3,)])
    async with working(app):
        for job in jobs:
            await job.result()
    (send,) = backend.spans("send work")
    assert told(send)["messaging.batch.message_count"] == 3
    linked = {link.context.span_id for span in backend.spans("process work") for link in span.links}
    assert linked == {own(send).span_id}


@pytest.mark.parametrize("on_thread", [False, True], ids=["async", "sync"])
async def test_what_a_handler_does_is_inside_its_span(make_app: MakeApp, on_thread: bool) -> None:
    app = make_app(embedded=False)
    backend = Backend(app)
    tracer = backend.tracers.get_tracer("mine")

    @app.job(name="child")
    async def child() -> None: ...

    if on_thread:

        @app.job(name="parent")
        def parent(ctx: JobContext) -> None:
            with tracer.start_as_current_span("inner"):
                ctx.start_sync(child)
    else:

        @app.job(name="parent")
        async def parent(ctx: JobContext) -> None:
            with tracer.start_as_current_span("inner"):
                await ctx.start(child)

    job = await parent.enqueue()
    async with working(app):
        await job.result()
    (process,), (inner,), (send,) = (backend.spans(name) for name in ("process parent", "inner", "send child"))
    assert inner.parent is not None
    assert send.parent is not None
    assert (inner.parent.span_id, send.parent.span_id) == (own(process).span_id, own(inner).span_id)


async def test_metrics_count_and_time_attempts(make_app: MakeApp) -> None:
    app = make_app(embedded=False)
    backend = Backend(app)
    begun, let_go = asyncio.Event(), asyncio.Event()

    @app.job(name="work", queue="mill", retry=QUICK)
    async def work(ctx: JobContext) -> None:
        begun.set()
        await let_go.wait()
        if ctx.attempt == 1:
            raise RuntimeError

    job = await work.enqueue()
    async with working(app):
        await happens(begun)
        (running,) = backend.points("holdfast.jobs.running")
        assert running.value == 1
        let_go.set()
        await job.result()
    line = {"messaging.system": "holdfast", "messaging.destination.name": "mill", "holdfast.kind": "work"}
    assert dict(running.attributes) == line
    assert [point.value for point in backend.points("holdfast.jobs.running")] == [0]
    ended = {point.attributes["holdfast.state"]: point for point in backend.points("holdfast.jobs.ended")}
    assert {state: point.value for state, point in ended.items()} == {"scheduled": 1, "succeeded": 1}
    assert dict(ended["succeeded"].attributes) == {
        **line,
        "holdfast.state": "succeeded",
        "holdfast.outcome": "succeeded",
    }
    assert sum(point.count for point in backend.points("holdfast.attempt.duration")) == 2
    (wait,) = backend.points("holdfast.job.wait")
    assert wait.count == 1, "of its first start only"
    assert wait.sum > 0


async def test_a_job_that_is_handed_back_says_so(make_app: MakeApp) -> None:
    app = make_app(embedded=False, drain_grace="10ms")
    backend = Backend(app)
    begun = asyncio.Event()

    @app.job(name="work")
    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    job = await work.enqueue()
    async with working(app):
        await happens(begun)
    assert await outcomes(app, job.id) == ["released"]
    (span,) = backend.spans("process work")
    assert told(span)["holdfast.outcome"] == "released"
    assert [point.value for point in backend.points("holdfast.jobs.running")] == [0]


async def test_without_the_extra_it_says_what_to_install(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, "holdfast.telemetry", raising=False)
    with pytest.raises(MissingExtra, match=r"pip install 'holdfast-agents\[otel\]', or '\.\[otel\]' in a checkout"):
        importlib.import_module("holdfast.telemetry")
    assert not core_of(hf).ports.events.heard


async def test_wrong_use_is_refused(hf: Holdfast) -> None:
    Backend(hf)
    with pytest.raises(UsageError, match="already instrumented"):
        instrument(hf)

    @hf.job
    async def work() -> None: ...

    with pytest.raises(UsageError, match=r"'holdfast.trace' in a job's metadata is reserved for its trace"):
        await work.options(metadata={"holdfast.trace": {}}).enqueue()
