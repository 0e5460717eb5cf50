"""Inline: enqueuing a job runs it to its end."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta

import pytest

from holdfast import Holdfast, JobContext, Retry, RunFailed, Snooze
from holdfast.testing import Lab, Labs, Stuck, lab


async def test_a_job_has_ended_when_it_is_enqueued(hf: Holdfast, labs: Labs) -> None:
    @hf.job
    async def double(n: int) -> int:
        return 2 * n

    lab = await labs.use(hf, inline=True)
    job = await double.enqueue(1)
    assert (await job.refresh()).state == "succeeded"
    jobs = await double.enqueue_many([{"n": 2}, {"n": 3}])
    assert [(await job.refresh()).state for job in jobs] == ["succeeded"] * 2
    assert await asyncio.to_thread(lambda: double.enqueue_sync(4).result_sync()) == 8
    assert len(lab.enqueued(double)) == 4


async def test_retries_and_snoozes_are_waited_out(hf: Holdfast, labs: Labs) -> None:
    tries: list[int] = []

    @hf.job(retry=Retry(attempts=2, backoff="constant", base="10m", jitter=0))
    async def flaky(ctx: JobContext) -> str:
        tries.append(ctx.attempt)
        if len(tries) == 1:
            raise ConnectionError("try again")
        if len(tries) == 2:
            raise Snooze("1h")
        return "done"

    lab = await labs.use(hf, inline=True)
    begun = lab.clock.now()
    job = await flaky.enqueue()
    assert (await job.refresh()).state == "succeeded"
    assert tries == [1, 2, 2]
    assert lab.clock.now() - begun == timedelta(minutes=70)


async def test_a_job_that_never_ends_is_named(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[Lab.__module__], "_MOST_RETURNS", 5)

    @hf.job
    async def sleepy() -> None:
        raise Snooze("1h")

    async with lab(hf, inline=True):
        with pytest.raises(Stuck, match="came back 5 times and has not ended"):
            await sleepy.enqueue()


async def test_a_job_that_fails_for_good_has_failed(hf: Holdfast, labs: Labs) -> None:
    @hf.job(retry=Retry(attempts=2))
    async def broken() -> None:
        raise LookupError("no such page")

    await labs.use(hf, inline=True)
    job = await broken.enqueue()
    with pytest.raises(RunFailed, match="no such page"):
        await job.result()


async def test_what_the_program_delays_is_not_run(hf: Holdfast, labs: Labs) -> None:
    @hf.job
    async def work() -> str:
        return "done"

    lab = await labs.use(hf, inline=True)
    job = await work.options(delay="1h").enqueue()
    assert (await job.refresh()).state == "scheduled"
    await lab.clock.advance("1h")
    assert await job.result() == "done"


async def test_a_signal_is_acted_on_at_once(hf: Holdfast, labs: Labs) -> None:
    @hf.job
    async def approval(ctx: JobContext) -> str:
        return f"approved by {await ctx.wait('approved')}"

    await labs.use(hf, inline=True)
    job = await approval.enqueue()
    assert (await job.refresh()).state == "waiting"
    await hf.signal("approved", "Ann")
    assert (await job.refresh()).state == "succeeded"


async def test_what_a_handler_enqueues_runs_after_it(hf: Holdfast, labs: Labs) -> None:
    order: list[str] = []

    @hf.job
    async def second() -> None:
        order.append("second")

    @hf.job
    def third() -> None:
        order.append("third")

    @hf.job
    def from_a_thread() -> None:
        third.enqueue_sync()

    @hf.job
    async def first() -> None:
        await second.enqueue()
        await from_a_thread.enqueue()
        order.append("first")

    await labs.use(hf, inline=True)
    await first.enqueue()
    assert sorted(order) == ["first", "second", "third"]
    assert order.index("second") < order.index("third")
