"""How work is found: by a hint at once, by polling when no hint comes, by the clock when it is due.

The polls and sweeps that a test must not be saved by are ten minutes away.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from holdfast import Holdfast, JobContext, Retry, Snooze
from tests.support.apps import MakeApp, attempts, in_state, working

NEVER: dict[str, Any] = {"poll_interval": "10m", "sweep_interval": "10m"}
SOON = "30s"  # far below ten minutes, far above what it takes


async def test_a_job_starts_by_hint(make_app: MakeApp) -> None:
    hf = make_app(**NEVER)

    @hf.job
    async def work(number: int) -> int:
        return number

    async with hf:
        for number in range(3):
            assert await (await work.enqueue(number)).result(timeout=SOON) == number


async def test_a_hint_reaches_a_worker_on_another_connection(make_app: MakeApp) -> None:
    server, client = make_app(**NEVER), make_app(embedded=False)

    @server.job(name="work")
    async def work() -> str:
        return "found"

    @client.job(name="work")
    async def called() -> str: ...  # type: ignore[empty-body]

    async with server:
        await (await work.enqueue()).result(timeout=SOON)
        for _ in range(3):
            assert await (await called.enqueue()).result(timeout=SOON) == "found"


async def test_without_a_hint_the_poll_finds_the_job(make_app: MakeApp) -> None:
    hf = make_app(poll_interval="50ms")

    @hf.job
    async def work() -> str:
        return "found"

    async with hf:
        await (await work.enqueue()).result()
        quiet = work.options(notify=False)
        assert await (await quiet.enqueue()).result(timeout=SOON) == "found"
        (many,) = await quiet.enqueue_many([{}])
        assert await many.result(timeout=SOON) == "found"


async def test_what_was_there_before_the_worker_is_found(make_app: MakeApp) -> None:
    hf = make_app(**NEVER)

    @hf.job
    async def work() -> str:
        return "found"

    job = await work.options(notify=False).enqueue()
    async with hf:
        assert await job.result(timeout=SOON) == "found"


async def test_delayed_jobs_start_when_they_are_due(make_app: MakeApp) -> None:
    """Each at its own time, also the ones right behind the first."""
    hf = make_app(**NEVER)

    @hf.job
    async def work() -> str:
        return "in time"

    delays = (300, 310, 450)
    jobs = [await work.options(delay=f"{ms}ms").enqueue() for ms in delays]
    assert {(await job.refresh()).state for job in jobs} == {"scheduled"}
    async with hf:
        for job, ms in zip(jobs, delays, strict=True):
            assert await job.result(timeout=SOON) == "in time"
            (attempt,) = await attempts(hf, job.id)
            assert attempt.started_at >= (await job.refresh()).created_at + timedelta(milliseconds=ms)


async def test_a_job_delayed_while_the_worker_runs_is_found_by_the_sweep(make_app: MakeApp) -> None:
    hf = make_app(poll_interval="10m", sweep_interval="50ms")

    @hf.job
    async def work() -> str:
        return "in time"

    async with hf:
        await (await work.enqueue()).result(timeout=SOON)
        job = await work.options(delay="100ms").enqueue()
        assert await job.result(timeout=SOON) == "in time"


async def test_a_retry_a_snooze_and_a_wait_come_back_when_they_are_due(make_app: MakeApp) -> None:
    hf = make_app(**NEVER)

    @hf.job(retry=Retry(backoff="constant", base="50ms"))
    async def work(ctx: JobContext) -> str:
        if ctx.token.endswith(".1"):
            raise Snooze("50ms")
        if ctx.attempt == 1:
            raise RuntimeError
        return str(await ctx.wait("never", timeout="50ms"))

    async with hf:
        assert await (await work.enqueue()).result(timeout=SOON) == "None"


async def test_a_signal_and_the_last_child_wake_by_hint(make_app: MakeApp) -> None:
    hf = make_app(**NEVER)

    @hf.job
    async def child(ctx: JobContext) -> str:
        return str(await ctx.wait("go"))

    @hf.job
    async def parent(ctx: JobContext) -> list[str]:
        await ctx.start(child)
        return [one.result for one in await ctx.join()]

    async with hf:
        job = await parent.enqueue()
        await in_state(hf, job.id, "waiting")
        await hf.signal("go", "on")
        assert await job.result(timeout=SOON) == ["on"]


async def test_what_a_leaving_worker_hands_back_is_taken_at_once(make_app: MakeApp) -> None:
    hf = make_app(embedded=False, concurrency=1, drain_grace="10ms", **NEVER)
    first = asyncio.Event()

    @hf.job
    async def work() -> str:
        if not first.is_set():
            first.set()
            await asyncio.Event().wait()
        return "taken"

    async with working(hf) as leaving:
        job = await work.enqueue()
        async with asyncio.timeout(60):
            await first.wait()
        async with working(hf):
            await leaving.stop()
            assert await job.result(timeout=SOON) == "taken"


async def test_a_burst_is_worked_off(hf: Holdfast) -> None:
    @hf.job
    async def work(number: int) -> int:
        return number

    async with hf:
        jobs = await work.enqueue_many([(number,) for number in range(500)])
        assert await asyncio.gather(*(job.result() for job in jobs)) == list(range(500))
