"""Signals: durable, taken once, before or after someone waits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Holdfast, JobContext, Retry
from holdfast.errors import BadPayload
from tests.support.apps import MakeApp, eventually, in_state, outcomes

QUICK = Retry(attempts=3, backoff="constant", base="10ms", jitter=0)


async def test_a_signal_sent_after_the_wait_wakes_the_job(hf: Holdfast) -> None:
    @hf.job
    async def work(ctx: JobContext) -> Any:
        return await ctx.wait("approval")

    async with hf:
        job = await work.enqueue()
        await in_state(hf, job.id, "waiting")
        await hf.signal("approval", {"by": "Ann"})
        assert await job.result() == {"by": "Ann"}
        assert await outcomes(hf, job.id) == ["parked", "succeeded"]


async def test_a_signal_sent_before_the_wait_is_there(hf: Holdfast) -> None:
    @hf.job
    async def work(ctx: JobContext) -> Any:
        return await ctx.wait("approval")

    await hf.signal("approval", "early")
    async with hf:
        job = await work.enqueue()
        assert await job.result() == "early"
        assert await outcomes(hf, job.id) == ["succeeded"], "there was nothing to wait for"


async def test_each_signal_is_taken_once_in_order(hf: Holdfast) -> None:
    @hf.job
    async def work(ctx: JobContext) -> list[Any]:
        return [await ctx.wait("letters") for _ in range(3)]

    async with hf:
        for letter in ("a", "b", "c", "d"):
            await hf.signal("letters", letter)
        assert await (await work.enqueue()).result() == ["a", "b", "c"]
        rest = await work.enqueue()
        await in_state(hf, rest.id, "waiting")
        await hf.signal("letters", "e")
        await hf.signal("letters", "f")
        assert await rest.result() == ["d", "e", "f"]


async def test_what_was_taken_stays_taken_across_retries(hf: Holdfast) -> None:
    @hf.job(retry=QUICK)
    async def work(ctx: JobContext) -> list[Any]:
        first = await ctx.wait("letters")
        if ctx.attempt == 1:
            raise RuntimeError
        return [first, await ctx.wait("letters")]

    async with hf:
        await hf.signal("letters", 1)
        await hf.signal("letters", 2)
        assert await (await work.enqueue()).result() == [1, 2]


async def test_a_signal_with_the_same_key_is_one_signal(hf: Holdfast) -> None:
    @hf.job
    async def two_letters(ctx: JobContext) -> list[object]:
        return [await ctx.wait("letters", timeout="500ms") for _ in range(2)]

    async with hf:
        job = await two_letters.enqueue()
        for _ in range(2):
            await hf.signal("letters", "a", key="webhook 17")
        assert await job.result() == ["a", None]
        await hf.signal("letters", "a", key="webhook 17")
        assert await (await two_letters.enqueue()).result() == [None, None]


async def test_one_signal_serves_one_of_many_waiters(hf: Holdfast) -> None:
    @hf.job
    async def work(ctx: JobContext) -> Any:
        return await ctx.wait("tickets")

    async with hf:
        jobs = await work.enqueue_many([{}] * 3)
        for job in jobs:
            await in_state(hf, job.id, "waiting")
        await hf.signal("tickets", "one")

        async def served() -> list[str]:
            return [row.id for row in await hf.jobs.list(state="succeeded")]

        assert len(await eventually(served)) == 1
        await hf.signal("tickets", "two")
        await hf.signal("tickets", "three")
        assert sorted([await job.result() for job in jobs]) == ["one", "three", "two"]


async def test_a_wait_that_times_out_gives_none(hf: Holdfast) -> None:
    @hf.job
    async def work(ctx: JobContext) -> Any:
        return [await ctx.wait("never", timeout="100ms"), ctx.attempt]

    async with hf:
        job = await work.enqueue()
        assert await job.result() == [None, 1]
        assert "parked" in await outcomes(hf, job.id)


async def test_a_wait_that_timed_out_stays_timed_out(hf: Holdfast) -> None:
    """A signal that comes too late is for the next wait."""
    failed: list[bool] = []

    @hf.job(retry=QUICK)
    async def work(ctx: JobContext) -> list[Any]:
        first = await ctx.wait("door", timeout="1ms")
        if not failed:
            failed.append(True)
            await hf.signal("door", "late")
            raise RuntimeError
        return [first, await ctx.wait("door")]

    async with hf:
        assert await (await work.enqueue()).result() == [None, "late"]


async def test_a_signal_in_time_beats_the_timeout(hf: Holdfast) -> None:
    @hf.job
    async def work(ctx: JobContext) -> Any:
        return await ctx.wait("door", timeout="1h")

    async with hf:
        job = await work.enqueue()
        row = await in_state(hf, job.id, "waiting")
        assert row.due_at is not None
        await hf.signal("door", "open")
        assert await job.result() == "open"


async def test_a_signal_of_nothing_is_a_signal(hf: Holdfast) -> None:
    @hf.job
    async def work(ctx: JobContext) -> str:
        await ctx.wait("go")
        return "gone"

    async with hf:
        job = await work.enqueue()
        await in_state(hf, job.id, "waiting")
        await hf.signal("go")
        assert await job.result() == "gone"


async def test_two_waits_at_once_take_both(hf: Holdfast) -> None:
    @hf.job
    async def gathered(ctx: JobContext) -> list[Any]:
        return list(await asyncio.gather(ctx.wait("a"), ctx.wait("b")))

    @hf.job
    async def grouped(ctx: JobContext) -> list[Any]:
        async with asyncio.TaskGroup() as group:
            first, second = group.create_task(ctx.wait("c")), group.create_task(ctx.wait("d"))
        return [first.result(), second.result()]

    async with hf:
        for function, channels in ((gathered, "ba"), (grouped, "dc")):
            job = await function.enqueue()
            await in_state(hf, job.id, "waiting")
            for channel in channels:
                await hf.signal(channel, channel.upper())
            assert await job.result() == [channel.upper() for channel in reversed(channels)]


async def test_a_sync_handler_waits_too(hf: Holdfast) -> None:
    @hf.job
    def work(ctx: JobContext) -> list[Any]:
        return [ctx.wait_sync("never", timeout="1ms"), ctx.wait_sync("door")]

    async with hf:
        job = await work.enqueue()
        await hf.signal("door", 5)
        assert await job.result() == [None, 5]


async def test_a_signal_has_a_cap_and_must_be_json(make_app: MakeApp) -> None:
    hf = make_app(result_cap=10)
    with pytest.raises(BadPayload, match="a signal is 22 bytes of JSON, over the cap of 10"):
        await hf.signal("door", "x" * 20)
    with pytest.raises(BadPayload, match="a signal is not JSON"):
        await hf.signal("door", object())
    with pytest.raises(BadPayload, match="a channel"):
        await hf.signal("", 1)
