"""Leaving: take nothing more, finish or hand back what runs, say goodbye."""

from __future__ import annotations

import asyncio
import threading

import pytest

from holdfast import Holdfast, JobContext
from holdfast.errors import NotFound
from holdfast.kernel.duties import DUTIES
from holdfast.workers.role import Role
from holdfast.workers.worker import Worker
from tests.support.apps import MakeApp, eventually, happens, in_state, outcomes, working


class Desk:
    """A job that stays until it is let go, and what became of its handlers."""

    def __init__(self, app: Holdfast) -> None:
        self.begun, self.let_go = asyncio.Event(), asyncio.Event()
        self.told: list[str] = []

        @app.job
        async def stay(ctx: JobContext) -> str:
            self.begun.set()
            try:
                await self.let_go.wait()
            except asyncio.CancelledError:
                self.told.append(ctx.id)
                assert ctx.cancelled
                raise
            return "finished"

        self.stay = stay


async def draining(app: Holdfast, worker: Worker) -> None:
    async def look() -> bool:
        return [row.status for row in await app.workers.list() if row.seq == worker.seq] == ["draining"]

    await eventually(look)


async def test_a_leaving_worker_finishes_what_runs(make_app: MakeApp) -> None:
    app = make_app(embedded=False, drain_grace="10m")
    desk = Desk(app)
    async with working(app) as worker:
        job = await desk.stay.enqueue()
        await happens(desk.begun)
        stopping = asyncio.create_task(worker.stop())
        await draining(app, worker)
        desk.let_go.set()
        await stopping
    assert await job.result() == "finished"
    assert desk.told == []


async def test_a_leaving_worker_takes_nothing_more(make_app: MakeApp) -> None:
    app = make_app(embedded=False, drain_grace="10m")
    desk = Desk(app)
    async with working(app) as worker:
        await desk.stay.enqueue()
        await happens(desk.begun)
        stopping = asyncio.create_task(worker.stop())
        await draining(app, worker)
        late = await desk.stay.enqueue()
        desk.let_go.set()
        await stopping
    row = await late.refresh()
    assert (row.state, row.token) == ("pending", "0.0")


async def test_after_the_grace_the_job_is_handed_back_at_no_cost(make_app: MakeApp) -> None:
    app = make_app(embedded=False, drain_grace="50ms")
    desk = Desk(app)
    async with working(app) as worker:
        job = await desk.stay.enqueue()
        await happens(desk.begun)
        await worker.stop()
        row = await job.refresh()
        assert (row.state, row.attempts, row.rescues) == ("pending", 0, 0)
        assert desk.told == [job.id]
        desk.let_go.set()
    async with working(app):
        assert await job.result() == "finished"
    assert await outcomes(app, job.id) == ["released", "succeeded"]
    assert (await job.refresh()).attempts == 1


async def test_hurry_ends_the_grace(make_app: MakeApp) -> None:
    app = make_app(embedded=False, drain_grace="10m")
    desk = Desk(app)
    async with working(app) as worker:
        job = await desk.stay.enqueue()
        await happens(desk.begun)
        stopping = asyncio.create_task(worker.stop())
        await draining(app, worker)
        worker.hurry()
        await stopping
        assert (await job.refresh()).state == "pending"


async def test_a_sync_handler_is_handed_back_and_its_late_result_dropped(make_app: MakeApp) -> None:
    app = make_app(embedded=False, drain_grace="50ms")
    begun, gate = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    saw: list[bool] = []

    @app.job
    def stay(ctx: JobContext) -> str:
        loop.call_soon_threadsafe(begun.set)
        gate.wait(60)
        saw.append(ctx.cancelled)
        return f"returned under token {ctx.token}"

    try:
        async with working(app) as worker:
            job = await stay.enqueue()
            await happens(begun)
            await worker.stop()
            await in_state(app, job.id, "pending")
    finally:
        gate.set()

    async def returned() -> bool:
        return bool(saw)

    await eventually(returned)
    assert saw == [True]
    async with working(app):
        assert await job.result() == "returned under token 1.2"


async def test_goodbye_is_said(make_app: MakeApp) -> None:
    app = make_app(embedded=False)
    Desk(app)
    async with working(app) as worker:

        async def on_duty() -> bool:
            return [duty.holder for duty in await app.workers.duties()] == [worker.seq] * len(DUTIES)

        await eventually(on_duty)
    assert await app.workers.list() == []
    assert await app.workers.duties() == []
    (row,) = await app.workers.list(all=True)
    assert (row.status, row.reason, row.active) == ("stopped", "stopped", 0)
    assert row.stopped_at is not None


async def test_stopping_twice_is_stopping_once(make_app: MakeApp) -> None:
    app = make_app(embedded=False)
    Desk(app)
    async with working(app) as worker:
        await worker.stop()
        await worker.stop()
    assert len(await app.workers.list(all=True)) == 1


async def test_cancelling_work_drains(make_app: MakeApp) -> None:
    app = make_app(embedded=False, drain_grace="10m")
    desk = Desk(app)
    job = await desk.stay.enqueue()
    work = asyncio.create_task(app.work(Role(name="w")))
    await happens(desk.begun)
    work.cancel()

    async def leaving() -> bool:
        return [row.status for row in await app.workers.list()] == ["draining"]

    await eventually(leaving)
    desk.let_go.set()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert await job.result() == "finished"
    assert await app.workers.list() == []


async def test_leaving_the_app_drains_its_worker(hf: Holdfast, make_app: MakeApp) -> None:
    desk = Desk(hf)
    watcher = make_app(embedded=False)
    async with hf:
        job = await desk.stay.enqueue()
        await happens(desk.begun)
        desk.let_go.set()
    assert (await watcher.jobs.get(job.id)).state == "succeeded"
    assert await watcher.workers.list() == []


async def test_a_handle_of_a_worker_and_of_a_queue_reads_and_changes_it(make_app: MakeApp) -> None:
    app = make_app(embedded=False, drain_grace="10m")
    desk = Desk(app)
    queue, worker = app.queues["default"], app.workers["w1"]
    with pytest.raises(NotFound, match="'w1'"):
        await worker.get()
    async with working(app, Role(id="w1")):
        job = await desk.stay.enqueue()
        await happens(desk.begun)
        assert [held.id for held in await worker.held()] == [job.id]
        await queue.pause(reason="stocktaking")
        assert (queue.name, await queue.load(), (await queue.get()).running) == ("default", 1, 1)
        assert await queue.lanes() == []
        assert (await queue.resume(), await queue.resume()) == (True, False)
        await worker.drain()
        desk.let_go.set()
        await job.result()
    assert (await worker.get()).status == "stopped"
    await worker.forget()
    with pytest.raises(NotFound, match="'w1'"):
        await worker.get()
