"""Parents and children: started once, awaited without a worker, told apart by how they ended."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass, replace
from typing import Any

import pytest

from holdfast import Discard, Holdfast, JobContext, Retry
from holdfast.errors import UsageError
from tests.support.apps import happens, in_state, outcomes


@dataclass
class Parcel:
    grams: int


QUICK = Retry(attempts=3, backoff="constant", base="10ms", jitter=0)


async def test_a_parent_gets_its_childrens_results_in_order(hf: Holdfast) -> None:
    @hf.job
    async def square(number: int) -> int:
        return number * number

    @hf.job
    async def total(ctx: JobContext, upto: int) -> list[Any]:
        for number in range(upto):
            await ctx.start(square, number)
        return [child.result for child in await ctx.join()]

    async with hf:
        job = await total.enqueue(7)
        assert await job.result() == [0, 1, 4, 9, 16, 25, 36]
        row = await job.refresh()
        assert (row.attempts, row.open_children) == (1, 0), "waiting for children is no attempt"


async def test_a_waiting_parent_holds_no_worker(hf: Holdfast) -> None:
    gate = asyncio.Event()

    @hf.job
    async def child() -> None:
        await gate.wait()

    @hf.job
    async def parent(ctx: JobContext) -> int:
        await ctx.start(child)
        return len(await ctx.join())

    async with hf:
        job = await parent.enqueue()
        row = await in_state(hf, job.id, "waiting")
        assert (row.worker, row.lease_until, row.open_children) == (None, None, 1)
        gate.set()
        assert await job.result() == 1
        assert (await outcomes(hf, job.id))[-2:] == ["parked", "succeeded"]


async def test_children_that_fail_are_told_not_raised(hf: Holdfast) -> None:
    @hf.job(retry=Retry(attempts=1))
    async def child(how: str) -> str:
        if how == "raise":
            raise LookupError("no page")
        if how == "discard":
            raise Discard("no use")
        return how

    @hf.job
    async def parent(ctx: JobContext) -> list[Any]:
        for how in ("fine", "raise", "discard"):
            await ctx.start(child, how)
        ended = await ctx.join()
        return [(one.state, one.result, one.error and one.error["type"]) for one in ended]

    async with hf:
        job = await parent.enqueue()
        assert await job.result() == [
            ["succeeded", "fine", None],
            ["failed", None, "processing_error"],
            ["failed", None, "discarded"],
        ]


async def test_a_parent_that_runs_again_starts_no_second_set(hf: Holdfast) -> None:
    ran: list[int] = []

    @hf.job
    async def child(number: int) -> int:
        ran.append(number)
        return number

    @hf.job(retry=QUICK)
    async def parent(ctx: JobContext) -> list[Any]:
        ids = [await ctx.start(child, number) for number in (1, 2)]
        other = await ctx.start(child, 3, step="another")
        if ctx.attempt == 1:
            raise RuntimeError("after the launch")
        ended = await ctx.join()
        assert [one.id for one in ended] == [*ids, other]
        return [one.result for one in ended]

    async with hf:
        job = await parent.enqueue()
        assert await job.result() == [1, 2, 3]
        assert sorted(ran) == [1, 2, 3]
        assert len(await hf.jobs.list(kind=child.definition.kind)) == 3


async def test_what_join_lists_is_stored_whole_as_a_result(hf: Holdfast) -> None:
    @hf.job
    async def double(number: int) -> int:
        return 2 * number

    @hf.job
    async def parent(ctx: JobContext) -> list[Any]:
        id = await ctx.start(double, 1)
        (child,) = await ctx.join()
        assert child != replace(child, state="failed"), "its id is not all that it is"
        return [child, asdict(child), id]

    async with hf:
        listed, copied, id = await parent.run()
    assert (
        listed == copied == {"id": id, "kind": double.definition.kind, "state": "succeeded", "result": 2, "error": None}
    )


async def test_a_child_that_was_started_has_a_result_of_its_jobs_type(hf: Holdfast) -> None:
    @hf.job
    async def weigh(grams: int) -> Parcel:
        if grams < 0:
            raise Discard("it floats")
        return Parcel(grams)

    @hf.job
    async def parent(ctx: JobContext) -> list[Any]:
        heavy, light = await ctx.start(weigh, 900), await ctx.start(weigh, -1)
        with pytest.raises(UsageError, match=f"child {heavy} may not have ended yet: await ctx.join"):
            str(heavy.result)
        first, second = await ctx.join()
        assert (heavy.id, heavy.kind, str(heavy)) == (first.id, first.kind, first.id)
        assert (heavy.result, first.result) == (Parcel(900), {"grams": 900})
        assert (light.state, light.error) == (second.state, second.error)
        nothing: object = light.result
        assert nothing is None
        return [heavy.state, heavy.result.grams, light]

    async with hf:
        state, grams, light = await parent.run()
    assert (state, grams) == ("succeeded", 900)
    assert (await hf.jobs.get(light)).state == "failed"


async def test_children_take_the_tenant_and_know_their_parent(hf: Holdfast) -> None:
    @hf.job
    async def child(ctx: JobContext) -> str:
        return ctx.tenant

    @hf.job
    async def parent(ctx: JobContext) -> list[Any]:
        await ctx.start(child)
        await ctx.start(child.options(tenant="other"))
        return [one.result for one in await ctx.join()]

    async with hf:
        job = await parent.options(tenant="acme").enqueue()
        assert await job.result() == ["acme", "other"]
        row = await job.refresh()
        assert {one.parent for one in await hf.jobs.list(kind=child.definition.kind)} == {row.seq}


async def test_a_parent_may_end_before_its_children(hf: Holdfast) -> None:
    gate, begun = asyncio.Event(), asyncio.Event()

    @hf.job
    async def child() -> str:
        begun.set()
        await gate.wait()
        return "grown up"

    @hf.job
    async def parent(ctx: JobContext) -> str:
        return await ctx.start(child)

    async with hf:
        job = await parent.enqueue()
        id = await job.result()
        await happens(begun)
        gate.set()
        assert await hf.jobs[id].result() == "grown up"


async def test_joining_nobody_goes_on_at_once(hf: Holdfast) -> None:
    @hf.job
    async def parent(ctx: JobContext) -> list[Any]:
        return [one.id for one in await ctx.join()]

    async with hf:
        job = await parent.enqueue()
        assert await job.result() == []
        assert await outcomes(hf, job.id) == ["succeeded"]


async def test_grandchildren_join_upwards(hf: Holdfast) -> None:
    @hf.job
    async def count(ctx: JobContext, depth: int) -> int:
        if depth:
            for _ in range(2):
                await ctx.start(count, depth - 1)
        return 1 + sum(int(child.result) for child in await ctx.join())

    async with hf:
        assert await (await count.enqueue(3)).result() == 15


async def test_a_sync_parent_joins_too(hf: Holdfast) -> None:
    @hf.job
    def child(number: int) -> int:
        return number + 1

    @hf.job
    def parent(ctx: JobContext) -> list[Any]:
        for number in (1, 2):
            ctx.start_sync(child, number)
        return [one.result for one in ctx.join_sync()]

    async with hf:
        assert await (await parent.enqueue()).result() == [2, 3]


async def test_a_unique_child_is_one_of_its_tenant(hf: Holdfast) -> None:
    gate = asyncio.Event()

    @hf.job(unique="live")
    async def sync(what: str) -> str:
        await gate.wait()
        return what

    @hf.job
    async def parent(ctx: JobContext) -> list[Any]:
        await ctx.start(sync, "shop")
        return [child.result for child in await ctx.join()]

    async with hf:
        parents = [await parent.options(tenant=tenant).enqueue() for tenant in ("acme", "globex")]
        for job in parents:
            await in_state(hf, job.id, "waiting")
        own = await sync.options(tenant="acme").enqueue("shop")
        assert not own.fresh, "the child of its tenant is the same call"
        gate.set()
        assert [await job.result() for job in parents] == [["shop"], ["shop"]]
