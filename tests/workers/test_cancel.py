"""Cancel: of a job that waits its turn, that runs, that is parked; and of a whole family."""

from __future__ import annotations

import asyncio
import threading

import pytest

from holdfast import Holdfast, JobContext, RunFailed
from holdfast.app import core_of
from holdfast.errors import NotFound, ParentCancelled
from holdfast.kernel.complete import error_json
from holdfast.kernel.database import Transaction
from holdfast.kernel.ids import new_id
from holdfast.kernel.statements import CancelSql
from tests.support.apps import MakeApp, happens, in_state, outcomes, working


async def test_a_pending_job_is_cancelled_at_once(make_app: MakeApp) -> None:
    app = make_app(embedded=False)
    seen: list[int] = []

    @app.job
    async def work() -> None:
        seen.append(1)

    @app.job
    async def after() -> None: ...

    job, later = await work.enqueue(), await work.options(delay="1h").enqueue()
    assert await job.cancel("not needed") == "cancelled"
    assert await later.cancel() == "cancelled"
    row = await job.refresh()
    assert row.error == {"type": "cancelled", "message": "not needed"}
    async with working(app):
        await (await after.enqueue()).result()
    assert seen == []


async def test_cancelling_a_finished_job_leaves_it_as_it_is(hf: Holdfast) -> None:
    @hf.job
    async def work() -> int:
        return 1

    async with hf:
        job = await work.enqueue()
        await job.result()
        assert await job.cancel() == "succeeded"
        assert await job.result() == 1


async def test_a_job_that_is_not_there_cannot_be_cancelled(hf: Holdfast) -> None:
    missing = new_id(core_of(hf).ports)
    with pytest.raises(NotFound, match=missing):
        await hf.jobs[missing].cancel()


async def test_a_running_async_handler_is_told_promptly(make_app: MakeApp) -> None:
    """By a hint: the next heartbeat, and the next poll, are half a minute away."""
    hf = make_app(heartbeat="30s", poll_interval="10m", sweep_interval="10m")
    started, told = asyncio.Event(), asyncio.Event()

    @hf.job
    async def work() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            told.set()
            raise

    async with hf:
        job = await work.enqueue()
        await happens(started)
        assert await job.cancel("changed my mind") == "running"
        async with asyncio.timeout(15):
            await told.wait()
        with pytest.raises(RunFailed, match="ended as cancelled: changed my mind"):
            await job.result()
        assert await outcomes(hf, job.id) == ["cancelled"]


async def test_a_cancel_comes_with_the_heartbeat_if_the_hint_is_lost(make_app: MakeApp) -> None:
    hf = make_app(heartbeat="100ms")
    started = asyncio.Event()

    @hf.job
    async def work() -> None:
        started.set()
        await asyncio.Event().wait()

    async def cancel_without_a_hint(tx: Transaction, seq: int) -> None:
        await tx.many(CancelSql.request_cancel, seqs=[seq], error=error_json("cancelled", "quietly"))

    async with hf:
        job = await work.enqueue()
        await happens(started)
        await core_of(hf).runtime().database.transact(cancel_without_a_hint, (await job.refresh()).seq)
        with pytest.raises(RunFailed, match="ended as cancelled: quietly"):
            await job.result()


async def test_a_handler_may_tidy_up_but_its_result_does_not_count(hf: Holdfast) -> None:
    started = asyncio.Event()

    @hf.job
    async def work() -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "tidied up"
        raise AssertionError

    async with hf:
        job = await work.enqueue()
        await happens(started)
        await job.cancel()
        with pytest.raises(RunFailed, match="ended as cancelled"):
            await job.result()
        assert (await job.refresh()).result is None


async def test_a_sync_handler_sees_that_it_is_cancelled(hf: Holdfast) -> None:
    started = asyncio.Event()
    loop = asyncio.get_running_loop()
    saw = threading.Event()

    @hf.job
    def work(ctx: JobContext) -> None:
        loop.call_soon_threadsafe(started.set)
        while not ctx.cancelled:
            saw.wait(0.005)
        saw.set()

    async with hf:
        job = await work.enqueue()
        await happens(started)
        await job.cancel()
        with pytest.raises(RunFailed, match="cancelled"):
            await job.result()
        assert await asyncio.to_thread(saw.wait, 60)


async def test_a_waiting_job_is_cancelled_at_once(hf: Holdfast) -> None:
    @hf.job
    async def work(ctx: JobContext) -> None:
        await ctx.wait("never")

    async with hf:
        job = await work.enqueue()
        await in_state(hf, job.id, "waiting")
        assert await job.cancel() == "cancelled"


async def test_a_family_is_cancelled_down_to_the_grandchildren(hf: Holdfast) -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()

    @hf.job
    async def grandchild() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    @hf.job
    async def child(ctx: JobContext) -> None:
        await ctx.start(grandchild)
        await ctx.start(grandchild.options(delay="1h"))
        await ctx.join()

    @hf.job
    async def parent(ctx: JobContext) -> None:
        await ctx.start(child)
        await ctx.join()

    async with hf:
        job = await parent.enqueue()
        await happens(begun)
        (under,) = await hf.jobs.list(kind=child.definition.kind)
        await in_state(hf, under.id, "waiting")
        await in_state(hf, job.id, "waiting")
        assert await job.cancel("stop all") == "cancelled"
        await happens(stopped)
        for row in await hf.jobs.list():
            ended = await in_state(hf, row.id, "cancelled")
            assert ended.error["message"] == "stop all"
        assert len(await hf.jobs.list()) == 4


async def test_cancelling_a_child_wakes_its_parent(hf: Holdfast) -> None:
    @hf.job
    async def child(ctx: JobContext) -> None:
        await ctx.wait("never")

    @hf.job
    async def parent(ctx: JobContext) -> list[str]:
        await ctx.start(child)
        return [ended.state for ended in await ctx.join()]

    async with hf:
        job = await parent.enqueue()
        await in_state(hf, job.id, "waiting")
        (row,) = await hf.jobs.list(kind=child.definition.kind)
        await hf.jobs[row.id].cancel()
        assert await job.result() == ["cancelled"]


async def test_a_cancelled_parent_starts_no_children(hf: Holdfast) -> None:
    begun = asyncio.Event()
    refused: list[str] = []

    @hf.job
    async def child() -> None: ...

    @hf.job
    async def parent(ctx: JobContext) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            with pytest.raises(ParentCancelled, match=ctx.id):
                await ctx.start(child)
            refused.append(ctx.id)
            raise

    async with hf:
        job = await parent.enqueue()
        await happens(begun)
        await job.cancel()
        with pytest.raises(RunFailed, match="cancelled"):
            await job.result()
        assert refused == [job.id]
        assert len(await hf.jobs.list()) == 1
