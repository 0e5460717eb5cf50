"""What a process tells whoever listens in it: the promised fields, in order, and never at the worker's expense."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, JobContext, Retry
from holdfast.app import core_of
from holdfast.errors import UsageError
from holdfast.kernel.workers import lose_workers
from holdfast.observe import EVENTS, Event, EventStream
from holdfast.workers.worker import Worker
from tests.support.apps import PATIENCE, MakeApp, working

QUICK = Retry(attempts=2, backoff="constant", base="10ms", jitter=0)
PAGE = Path(__file__).parents[2] / "docs" / "observing.md"


class CutLifeline:
    """Never reaches the store, so that leases run out while their worker lives."""

    async def open(self) -> None: ...

    def start(self, compose: object, heard: object) -> None: ...

    def poke(self) -> None: ...

    async def stop(self) -> None: ...


class Ear:
    """Keeps what it hears, if it is as promised."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def about(self, job: str) -> list[Event]:
        return [event for event in self.events if event.metadata.get("job") == job]

    def names(self) -> list[str]:
        return [event.name for event in self.events]


async def until(stream: EventStream, name: str, **metadata: Any) -> Event:
    """The next event of this name and with these metadata."""
    async with asyncio.timeout(PATIENCE):
        async for event in stream:
            if event.name == name and metadata.items() <= event.metadata.items():
                return event
    raise AssertionError(f"the stream ended without {name}")


def keeps_the_contract(events: Iterable[Event]) -> bool:
    for event in events:
        shape = EVENTS[event.name]
        assert set(event.measurements) == set(shape.measurements), event
        assert set(event.metadata) == set(shape.metadata), event
        assert all(value >= 0 for value in event.measurements.values()), event
        assert event.at > 1_600_000_000_000_000
    return True


async def test_a_jobs_life_is_told_in_order(make_app: MakeApp) -> None:
    app, ear = make_app(embedded=False), Ear()

    @app.job(name="shop.pay", queue="money", retry=QUICK)
    async def pay(ctx: JobContext) -> str:
        if ctx.attempt == 1:
            raise ConnectionError("down")
        return "paid"

    with app.events(to=ear):
        job = await pay.options(tenant="acme").enqueue()
        async with working(app) as worker:
            await job.result()
    enqueued, first, failed, second, done = ear.about(job.id)
    assert keeps_the_contract(ear.events)
    assert [event.name for event in (enqueued, first, failed, second, done)] == [
        "job.enqueued",
        "job.started",
        "job.ended",
        "job.started",
        "job.ended",
    ]
    who = {"job": job.id, "kind": "shop.pay", "queue": "money", "tenant": "acme"}
    assert enqueued.metadata == {**who, "committed": True, "parent": None}
    holder = {"worker": worker.id, "incarnation": worker.seq}
    assert first.metadata == {**who, **holder, "attempt": 1, "token": "1.1"}
    assert second.metadata == {**who, **holder, "attempt": 2, "token": "1.2"}
    assert second.measurements["age"] > first.measurements["age"] > 0
    assert (failed.metadata["outcome"], failed.metadata["state"]) == ("retried", "scheduled")
    assert (failed.metadata["error"]["type"], failed.metadata["error"]["message"]) == (
        "processing_error",
        "ConnectionError: down",
    )
    assert (done.metadata["outcome"], done.metadata["state"], done.metadata["error"]) == (
        "succeeded",
        "succeeded",
        None,
    )
    assert [event.at for event in ear.about(job.id)] == sorted(event.at for event in ear.about(job.id))


async def test_a_workers_life_is_told(make_app: MakeApp) -> None:
    app, ear = make_app(embedded=False, concurrency=3), Ear()

    @app.job
    async def work() -> None: ...

    job = await work.enqueue()
    with app.events(to=ear), app.events() as stream:
        async with working(app) as worker:
            await job.result()
            await until(stream, "heartbeat.done")
    assert keeps_the_contract(ear.events)
    assert ear.names()[0] == "worker.started"
    assert ear.names()[-1] == "worker.stopped"
    assert ear.events[0].measurements == {"slots": 3}
    assert ear.events[-1].measurements == {"jobs": 1}
    assert {event.metadata["worker"] for event in ear.events if "worker" in event.metadata} == {worker.id}
    for name in ("claim.done", "complete.done"):
        assert sum(event.measurements["jobs"] for event in ear.events if event.name == name) == 1


async def test_parking_and_children_are_told(make_app: MakeApp) -> None:
    app, ear = make_app(embedded=False), Ear()

    @app.job(name="child")
    async def child() -> None: ...

    @app.job(name="parent")
    async def parent(ctx: JobContext) -> str:
        id = await ctx.start(child)
        await ctx.join()
        return id

    with app.events("job.enqueued", "job.ended", to=ear):
        job = await parent.enqueue()
        async with working(app):
            born = await job.result()
    assert keeps_the_contract(ear.events)
    told = [event for event in ear.about(job.id) if event.name == "job.ended"]
    assert [(event.metadata["state"], event.metadata["outcome"]) for event in told] == [
        ("waiting", "parked"),
        ("succeeded", "succeeded"),
    ]
    (started,) = [event for event in ear.about(born) if event.name == "job.enqueued"]
    assert started.metadata["parent"] == job.id, "told once, although its parent ran twice"


async def test_a_lost_lease_and_its_rescue_are_told(make_app: MakeApp, caplog: pytest.LogCaptureFixture) -> None:
    app, ear = make_app(embedded=False, lease_ttl="2s", heartbeat="500ms", fence_margin="500ms", tick="50ms"), Ear()

    @app.job(name="slow")
    async def slow(ctx: JobContext) -> None:
        if ctx.token.endswith(".1"):
            await asyncio.Event().wait()

    job = await slow.enqueue()
    await core_of(app).runtime().open()
    worker = Worker(
        core_of(app).registry, core_of(app).runtime().database, app.settings, core_of(app).ports, lifeline=CutLifeline()
    )
    with app.events(to=ear), caplog.at_level(logging.WARNING, "holdfast"):
        await worker.start()
        await job.result()
        await worker.stop()
    assert keeps_the_contract(ear.events)
    (lost,) = [event for event in ear.events if event.name == "job.lost"]
    assert (lost.metadata["job"], lost.metadata["token"], lost.metadata["worker"]) == (job.id, "1.1", worker.id)
    assert 0.5 < lost.measurements["duration"] < PATIENCE
    (rescued,) = [event for event in ear.events if event.name == "job.rescued"]
    assert (rescued.measurements, rescued.metadata) == ({"jobs": 1, "failed": 0}, {"ids": (job.id,)})
    (record,) = [record for record in caplog.records if "its result is dropped" in record.getMessage()]
    named = {name: getattr(record, name) for name in ("job", "kind", "queue", "attempt", "token", "worker")}
    assert named == {
        "job": job.id,
        "kind": "slow",
        "queue": "default",
        "attempt": 1,
        "token": "1.1",
        "worker": worker.id,
    }


async def test_a_worker_given_up_for_lost_is_told(make_app: MakeApp) -> None:
    app = make_app(embedded=False, heartbeat="100ms")

    @app.job
    async def work() -> None: ...

    with app.events("worker.lost_contact", "worker.reregistered") as stream:
        async with working(app) as worker:
            before = worker.seq
            await core_of(app).runtime().database.transact(lose_workers, gone={before}, reason="given up")
            lost = await until(stream, "worker.lost_contact")
            back = await until(stream, "worker.reregistered")
    assert keeps_the_contract([lost, back])
    assert (lost.metadata["incarnation"], back.metadata["incarnation"]) == (before, worker.seq)


async def test_a_schedule_tells_what_it_fired(make_app: MakeApp) -> None:
    app = make_app(embedded=False)

    @app.schedule("every 1s", name="pulse", queue="clock")
    async def pulse() -> None: ...

    with app.events() as stream:
        async with working(app):
            fired = await until(stream, "schedule.fired")
            (id,) = fired.metadata["ids"]
            await until(stream, "job.ended", job=id)
    assert keeps_the_contract([fired])
    assert (fired.metadata["schedule"], fired.metadata["queue"]) == ("pulse", "clock")


async def test_a_slow_listener_loses_its_own_oldest_events(make_app: MakeApp) -> None:
    app = make_app(embedded=False)

    @app.job
    async def work(number: int) -> None: ...

    with app.events("job.enqueued", buffer=2) as slow, app.events("job.enqueued") as other:
        jobs = await work.enqueue_many([(number,) for number in range(5)])
        ids = [job.id for job in jobs]
    assert [event.metadata["job"] async for event in slow] == ids[-2:]
    assert [event.metadata["job"] async for event in other] == ids
    assert (slow.dropped, other.dropped) == (3, 0)


async def test_a_listener_that_fails_harms_nobody(make_app: MakeApp, caplog: pytest.LogCaptureFixture) -> None:
    app, ear = make_app(embedded=False), Ear()
    heard: list[str] = []

    def explode(event: Event) -> None:
        heard.append(event.name)
        raise RuntimeError("listeners may be wrong")

    @app.job
    async def work() -> str:
        return "done"

    with app.events(to=explode), app.events(to=ear), caplog.at_level(logging.ERROR, "holdfast"):
        job = await work.enqueue()
        async with working(app):
            assert await job.result() == "done"
    assert heard == ear.names()
    assert len(heard) > 3
    assert [record.name for record in caplog.records] == ["holdfast.observe"], "once, not for every event"


async def test_nothing_is_made_while_nobody_listens(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(*given: object) -> Event:
        raise AssertionError("an event was made for nobody")

    monkeypatch.setattr("holdfast.clock.Event", made)

    @hf.job
    async def work() -> str:
        return "done"

    with hf.events(to=print):
        pass
    async with hf:
        assert await work.run() == "done"
        with hf.events(to=print), pytest.raises(AssertionError):
            await work.enqueue()


async def test_a_stream_waits_for_the_next_event(hf: Holdfast) -> None:
    @hf.job
    async def work() -> None: ...

    async with hf:
        stream = hf.events("job.ended")
        reader = asyncio.create_task(until(stream, "job.ended"))
        job = await work.enqueue()
        assert (await reader).metadata["job"] == job.id
        waiting = asyncio.create_task(anext(stream, None))
        await asyncio.sleep(0)
        stream.close()
        assert await waiting is None, "closing ends a wait"


async def test_a_cancelled_reader_takes_no_event_with_it(make_app: MakeApp) -> None:
    app = make_app(embedded=False)

    @app.job
    async def work() -> None: ...

    with app.events("job.enqueued") as stream:
        first, second = (asyncio.create_task(anext(stream)) for _ in range(2))
        await asyncio.sleep(0)
        job = await work.enqueue()
        first.cancel()
        async with asyncio.timeout(PATIENCE):
            answers = await asyncio.gather(first, second, return_exceptions=True)
    assert isinstance(answers[0], asyncio.CancelledError)
    assert isinstance(answers[1], Event)
    assert answers[1].metadata["job"] == job.id


async def test_a_stream_that_is_let_go_of_is_forgotten(hf: Holdfast) -> None:
    stream: EventStream | None = hf.events()
    assert stream is not None
    assert core_of(hf).ports.events.heard
    del stream
    gc.collect()
    assert not core_of(hf).ports.events.heard


async def test_events_come_from_other_threads_too(make_app: MakeApp) -> None:
    app = make_app(embedded=False)

    @app.job
    def work() -> None: ...

    with app.events("job.enqueued") as stream:
        reader = asyncio.create_task(until(stream, "job.enqueued"))
        job = await asyncio.to_thread(work.enqueue_sync)
        await asyncio.to_thread(app.sync.close)
        assert (await reader).metadata["job"] == job.id


async def test_what_cannot_be_heard_is_refused(hf: Holdfast) -> None:
    with pytest.raises(UsageError, match=r"there is no event 'job.end'; there are job.enqueued"):
        hf.events("job.end")
    with pytest.raises(UsageError, match="at least one event"):
        hf.events(buffer=0)
    assert not core_of(hf).ports.events.heard


def test_the_library_installs_no_log_handlers() -> None:
    loggers = [logging.getLogger("holdfast"), *map(logging.getLogger, logging.root.manager.loggerDict)]
    ours = [logger for logger in loggers if logger.name.partition(".")[0] == "holdfast"]
    assert [logger.name for logger in ours if logger.handlers] == []


def test_the_page_documents_every_event_and_field() -> None:
    page = PAGE.read_text()
    groups = {name: names(text) for name, text in re.findall(r"^- \*([a-z]+)\*: (.*)\.$", page, re.MULTILINE)}
    documented = {}
    for line in page.partition("| event | when |")[2].partition("\n\n")[0].splitlines()[2:]:
        event, _, measurements, metadata = line.strip("|").split("|")
        meant = [name for group in re.findall(r"\*([a-z]+)\*", metadata) for name in groups[group]]
        documented[names(event)[0]] = set(names(measurements)), {*names(metadata), *meant}
    assert documented == {name: (set(shape.measurements), set(shape.metadata)) for name, shape in EVENTS.items()}


def names(text: str) -> list[str]:
    return re.findall(r"`([\w.]+)`", text)
