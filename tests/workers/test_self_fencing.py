"""A worker that cannot renew stops itself before its leases end, and what it still makes is dropped."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Holdfast, JobContext, Queue, RunFailed
from holdfast.app import core_of
from holdfast.clock import SystemClock
from holdfast.kernel.leases import Beat
from holdfast.values import moment
from holdfast.workers.lifeline import Pulse, ThreadLifeline
from holdfast.workers.worker import Worker
from tests.support.apps import MakeApp, attempts, eventually, in_state, outcomes, working
from tests.support.stores import TTL_US, Store

SHORT: dict[str, Any] = {"lease_ttl": "2s", "heartbeat": "500ms", "fence_margin": "500ms", "tick": "50ms"}


class CutLifeline:
    """Never reaches the store: the network to it is gone, while everything else goes on."""

    async def open(self) -> None: ...

    def start(self, compose: Callable[[], Pulse | None], heard: Callable[[float, Beat], None]) -> None: ...

    def poke(self) -> None: ...

    async def stop(self) -> None: ...


@asynccontextmanager
async def cut_off(app: Holdfast) -> AsyncIterator[Worker]:
    await core_of(app).runtime().open()
    worker = Worker(
        core_of(app).registry, core_of(app).runtime().database, app.settings, core_of(app).ports, lifeline=CutLifeline()
    )
    await worker.start()
    try:
        yield worker
    finally:
        await worker.stop()


async def test_an_attempt_is_interrupted_before_its_lease_ends(make_app: MakeApp) -> None:
    app = make_app(embedded=False, **SHORT)
    clock = SystemClock()
    stopped_at: list[int] = []

    @app.job
    async def work(ctx: JobContext) -> str:
        if ctx.token.endswith(".1"):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                stopped_at.append(clock.wall_us())
                assert ctx.cancelled
                return "too late"
        return "the second attempt"

    job = await work.enqueue()
    async with cut_off(app):
        assert await job.result() == "the second attempt"
    first, second = await attempts(app, job.id)
    assert (first.outcome, second.outcome) == ("lost", "succeeded")
    assert first.started_at < moment(stopped_at[0]) < first.started_at + timedelta(seconds=2)
    row = await job.refresh()
    assert (row.attempts, row.rescues) == (1, 1)


@pytest.mark.long
async def test_the_late_result_of_a_thread_is_dropped(make_app: MakeApp) -> None:
    app = make_app(embedded=False, concurrency=2, **SHORT)
    gate, saw = threading.Event(), threading.Event()

    @app.job
    def work(ctx: JobContext) -> str:
        if ctx.token.endswith(".1"):
            gate.wait(60)
            if ctx.cancelled:
                saw.set()
        return ctx.token

    job = await work.enqueue()
    try:
        async with cut_off(app):
            assert await job.result() == "1.2"
            gate.set()
            assert await asyncio.to_thread(saw.wait, 60)
    finally:
        gate.set()
    assert (await job.refresh()).result == "1.2"
    assert await outcomes(app, job.id) == ["lost", "succeeded"]


async def test_no_new_step_begins_once_the_lease_may_be_gone(make_app: MakeApp) -> None:
    app = make_app(embedded=False, **SHORT)
    effects: list[str] = []

    @app.job
    async def work(ctx: JobContext) -> str:
        if ctx.token.endswith(".1"):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await ctx.step("effect", effects.append, "by the fenced one")
        await ctx.step("effect", effects.append, "by its successor")
        return "done"

    job = await work.enqueue()
    async with cut_off(app):
        assert await job.result() == "done"
    assert effects == ["by its successor"]


@pytest.mark.long
async def test_what_was_stored_before_the_loss_is_not_repeated(make_app: MakeApp) -> None:
    app = make_app(embedded=False, **SHORT)
    fetched: list[int] = []

    def fetch() -> str:
        fetched.append(1)
        return "page"

    @app.job
    async def work(ctx: JobContext) -> str:
        page = await ctx.step("fetch", fetch)
        if ctx.token.endswith(".1"):
            await asyncio.Event().wait()
        return page

    job = await work.enqueue()
    async with cut_off(app):
        assert await job.result() == "page"
    assert fetched == [1]


@pytest.mark.long
async def test_the_queue_says_what_becomes_of_a_lost_job(make_app: MakeApp) -> None:
    app = make_app(embedded=False, max_rescues=0, **SHORT)
    app.queue("once", Queue(on_orphan="fail"))

    @app.job(queue="once")
    async def once() -> None:
        await asyncio.Event().wait()

    @app.job
    async def often() -> None:
        await asyncio.Event().wait()

    jobs = [await once.enqueue(), await often.enqueue()]
    async with cut_off(app):
        for job in jobs:
            with pytest.raises(RunFailed):
                await job.result()
    rows = [await job.refresh() for job in jobs]
    assert [row.error["type"] for row in rows] == ["instance_disconnected", "rescue_failed"]
    assert [await outcomes(app, job.id) for job in jobs] == [["lost"], ["lost"]]


async def test_a_worker_that_renews_keeps_its_lease(make_app: MakeApp) -> None:
    app = make_app(embedded=False, **SHORT)
    let_go = asyncio.Event()

    @app.job
    async def work() -> str:
        await let_go.wait()
        return "one attempt"

    job = await work.enqueue()
    async with working(app):
        taken = await in_state(app, job.id, "running")

        async def outlived() -> bool:
            (worker,) = await app.workers.list()
            assert taken.claimed_at is not None
            return worker.now > taken.claimed_at + timedelta(seconds=3)

        await eventually(outlived)
        let_go.set()
        assert await job.result() == "one attempt"
    assert await outcomes(app, job.id) == ["succeeded"]


async def test_a_lease_is_renewed_from_when_the_heartbeat_was_begun(store: Store) -> None:
    """The store may have renewed the lease as soon as it was asked, however late the answer comes."""
    worker = await store.worker()
    lease = await store.claimed(worker)
    heard: list[tuple[float, Beat]] = []
    answered = asyncio.Event()

    def compose() -> Pulse:
        store.clock.us += 5_000_000  # so long it takes until the answer is here
        return Pulse(worker, 1, [lease.held], TTL_US, 10 * TTL_US)

    def hear(sent_at: float, answer: Beat) -> None:
        heard.append((sent_at, answer))
        answered.set()

    lifeline = ThreadLifeline(store.database, store.ports, interval=3600)
    await lifeline.open()
    begun = store.clock.monotonic()
    lifeline.start(compose, hear)
    await answered.wait()
    await lifeline.stop()
    ((sent_at, answer),) = heard
    assert ([row.seq for row in answer.renewed], sent_at) == ([lease.seq], begun)


async def test_a_heartbeat_that_fails_names_its_worker(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()

    def compose() -> Pulse:
        loop.call_soon_threadsafe(asked.set)
        raise ValueError("planted")

    lifeline = ThreadLifeline(store.database, store.ports, interval=3600, worker="w-1")
    await lifeline.open()
    lifeline.start(compose, lambda sent_at, beat: None)
    await asked.wait()
    await lifeline.stop()
    (record,) = [each for each in caplog.records if each.name == "holdfast.lifeline"]
    assert record.getMessage() == "a heartbeat of worker w-1 failed: planted; the worker tries again"
    assert vars(record)["worker"] == "w-1"
