"""Workers of a lab are killed at their commits, and nothing of them runs on."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from holdfast import Holdfast, JobContext
from holdfast.errors import UsageError
from holdfast.testing import Crash, Labs
from holdfast.testing.crashes import Commit
from holdfast.testing.labs import around
from tests.testing.isolated_jobs import app, count

FEW = {"sqlite": None, "postgres": 6}  # each run makes a database


def add(effects: Counter[str], name: str) -> str:
    effects[name] += 1
    return name


async def test_a_job_whose_steps_are_kept_survives_a_crash_at_every_commit(
    hf: Holdfast, labs: Labs, dialect: str
) -> None:
    @hf.job
    async def resize(ctx: JobContext, url: str) -> str:
        original = await ctx.step("download", str.upper, url)
        return await ctx.step("shrink", str.lower, original)

    crashes: list[Crash] = []
    async for lab in labs.crash_everywhere(hf, at_most=FEW[dialect]):
        job = await resize.enqueue("a.png")
        await lab.drain()
        assert await job.result() == "a.png"
        crashes += lab.crashes
    if dialect == "sqlite":
        for commit in ("register", "claim", "store_step", "complete", "unregister"):
            assert {Crash("before", commit, 1), Crash("after", commit, 1)} <= set(crashes)
        assert {Crash("before", "store_step", 2), Crash("after", "store_step", 2)} <= set(crashes)
    else:
        assert len(crashes) == 6


async def test_what_a_handler_does_outside_of_steps_is_seen_to_happen_twice(hf: Holdfast, labs: Labs) -> None:
    effects: Counter[str] = Counter()

    @hf.job
    async def careless(ctx: JobContext) -> None:
        add(effects, "outside")
        await ctx.step("step", add, effects, "inside")

    seen: dict[str, int] = {}
    lab = await labs.use(hf)
    for commit in ("claim", "store_step", "complete"):
        for when in ("before", "after"):
            effects.clear()
            lab.crash(before=commit) if when == "before" else lab.crash(after=commit)
            await careless.enqueue()
            await lab.drain()
            seen[f"{when} {commit}"] = effects["outside"] * 10 + effects["inside"]
    assert seen == {
        "before claim": 11,
        "after claim": 11,
        "before store_step": 22,
        "after store_step": 21,
        "before complete": 21,
        "after complete": 11,
    }


async def test_a_crash_costs_a_rescue_and_the_time_of_a_lease(hf: Holdfast, labs: Labs) -> None:
    @hf.job
    async def work() -> None: ...

    lab = await labs.use(hf)
    begun = lab.clock.now()
    lab.crash(before="complete")
    job = await work.enqueue()
    await lab.drain()
    row = await job.refresh()
    assert (row.state, row.attempts, row.rescues) == ("succeeded", 1, 1)
    assert lab.crashes == (Crash("before", "complete", 1),)
    assert lab.clock.now() - begun == hf.settings.lease_ttl


async def test_a_crash_after_the_commit_loses_nothing_but_the_answer(hf: Holdfast, labs: Labs) -> None:
    @hf.job
    async def work() -> None: ...

    lab = await labs.use(hf)
    lab.crash(after="complete")
    job = await work.enqueue()
    await lab.drain()
    row = await job.refresh()
    assert (row.state, row.attempts, row.rescues) == ("succeeded", 1, 0)
    assert lab.crashes == (Crash("after", "complete", 1),)


async def test_a_commit_is_counted_from_when_the_crash_was_asked_for(hf: Holdfast, labs: Labs) -> None:
    @hf.job
    async def work(ctx: JobContext) -> None:
        for name in ("a", "b", "c"):
            await ctx.step(name, str)

    lab = await labs.use(hf)
    await work.run()
    lab.crash(before="store_step", nth=2)
    await work.run()
    assert lab.crashes == (Crash("before", "store_step", 5),)


async def test_the_dead_run_nothing_any_more(hf: Holdfast, labs: Labs) -> None:
    said: list[str] = []
    released = asyncio.Event()

    @hf.job
    async def bystander(ctx: JobContext) -> None:
        life = ctx.token
        said.append(f"{life} begins")
        try:
            if not said[1:]:
                await released.wait()  # its worker is killed meanwhile
            released.set()
            await asyncio.sleep(0)
            said.append(f"{life} goes on")
        finally:
            said.append(f"{life} ends")

    @hf.job
    async def victim(ctx: JobContext) -> None:
        await ctx.step("fatal", str)

    lab = await labs.use(hf)
    lab.crash(before="store_step")
    await bystander.enqueue()
    await victim.enqueue()
    await lab.drain()
    for _ in range(10):
        await asyncio.sleep(0)
    first, second = said[0].split()[0], said[1].split()[0]
    assert first != second
    assert said == [f"{first} begins", f"{second} begins", f"{second} goes on", f"{second} ends"]
    await labs.close_lab(lab)
    assert said[4:] == [f"{first} ends"]  # Python cannot drop it unheard; but nobody is left to be fooled


async def test_what_a_handler_started_dies_with_it(hf: Holdfast, labs: Labs) -> None:
    said: list[str] = []
    released = asyncio.Event()

    async def helper(life: str) -> None:
        await released.wait()
        said.append(life)

    lives: list[str] = []

    @hf.job
    async def crowd(ctx: JobContext) -> None:
        lives.append(ctx.token)
        async with asyncio.TaskGroup() as group:
            group.create_task(helper(ctx.token))
            if len(lives) == 1:
                await ctx.step("fatal", str)
            released.set()

    lab = await labs.use(hf)
    lab.crash(after="store_step")
    await crowd.run()
    await asyncio.sleep(0)
    assert lives[:1] != said == lives[1:]


async def test_a_handler_on_a_thread_is_stopped_at_its_next_question(hf: Holdfast, labs: Labs) -> None:
    effects: Counter[str] = Counter()

    @hf.job
    def on_thread(ctx: JobContext) -> str:
        effects["begun"] += 1
        ctx.step_sync("one", str)
        effects["went on"] += 1
        return ctx.step_sync("two", str, "done")

    lab = await labs.use(hf)
    lab.crash(after="store_step")
    job = await on_thread.enqueue()
    await lab.drain()
    assert await job.result() == "done"
    assert effects == {"begun": 2, "went on": 1}


async def test_a_process_of_its_own_dies_with_its_worker(labs: Labs) -> None:
    lab = await labs.use(app)
    lab.crash(before="store_step")
    job = await count.enqueue(1)
    await lab.drain()
    assert await job.result() == 2
    assert (await job.refresh()).rescues == 1


@pytest.mark.long
async def test_families_and_signals_survive_too(hf: Holdfast, labs: Labs, dialect: str) -> None:
    @hf.job
    async def child(n: int) -> int:
        return n

    @hf.job
    async def parent(ctx: JobContext) -> int:
        for n in (1, 2):
            await ctx.start(child, n)
        numbers = [int(each.result) for each in await ctx.join()]
        return sum(numbers) + int(await ctx.wait("more"))

    async for lab in labs.crash_everywhere(hf, at_most=FEW[dialect] or 30):
        job = await parent.enqueue()
        await lab.drain()
        await hf.signal("more", 10)
        await lab.drain()
        assert await job.result() == 13
        assert len(lab.enqueued(child)) == 2


async def test_one_drain_survives_several_crashes(hf: Holdfast, labs: Labs) -> None:
    @hf.job
    async def work(ctx: JobContext) -> str:
        return await ctx.step("one", str, "done")

    lab = await labs.use(hf)
    lab.crash(after="claim")
    lab.crash(before="complete")
    job = await work.enqueue()
    await lab.drain()
    row = await job.refresh()
    assert (row.state, row.rescues) == ("scheduled", 2)  # the second rescue waits a little
    await lab.clock.advance("1m")
    await lab.drain()
    assert await job.result() == "done"


async def test_a_crash_that_does_not_come_is_a_mistake(hf: Holdfast, labs: Labs) -> None:
    @hf.job
    async def work() -> None: ...

    lab = await labs.use(hf)
    lab.crash(before="store_step")
    await work.enqueue()
    with pytest.raises(UsageError, match=r"'store_step', so was not killed before it\. It committed: .*claim"):
        await lab.drain()
    await lab.drain()
    with pytest.raises(UsageError, match="say where to crash"):
        lab.crash()
    with pytest.raises(UsageError, match="say where to crash"):
        lab.crash(before="claim", after="claim")
    with pytest.raises(UsageError, match="nth counts from 1"):
        lab.crash(before="claim", nth=0)


async def test_a_body_without_a_drain_has_nothing_to_crash(hf: Holdfast, labs: Labs) -> None:
    with pytest.raises(UsageError, match="its body must enqueue something and drain"):
        async for _ in labs.crash_everywhere(hf):
            pass
    with pytest.raises(UsageError, match="at_most must be at least 1"):
        labs.crash_everywhere(hf, at_most=0)


async def test_a_place_that_no_other_run_comes_to_gives_way_to_one_that_they_do(hf: Holdfast, labs: Labs) -> None:
    @hf.job
    async def wash() -> None: ...

    crashes: list[Crash] = []
    drains = 6
    async for lab in labs.crash_everywhere(hf, at_most=6):
        for _ in range(drains):
            await wash.enqueue()
            await lab.drain()
        drains = 1
        crashes += lab.crashes
    assert len(crashes) == 6
    assert len(set(crashes)) == 6


def test_a_sample_is_spread_over_all_commits() -> None:
    commits = [Commit("claim", n) for n in range(1, 51)]
    everything = around(commits, None)
    assert len(everything) == 100
    assert everything[:2] == [Crash("before", "claim", 1), Crash("after", "claim", 1)]
    assert around(commits, 1_000) == everything
    assert around(commits, 3) == [everything[0], everything[50], everything[99]]
    assert around(commits, 1) == [everything[50]]


async def test_a_result_that_a_killed_worker_awaited_comes_to_those_who_ask_later(hf: Holdfast, labs: Labs) -> None:
    """One task looks for the results of a program: it does not die with the worker whose handler asked first."""

    @hf.job
    async def inner() -> str:
        return "done"

    @hf.job
    async def outer(ctx: JobContext) -> str:
        other = await inner.enqueue()
        awaited, _ = await asyncio.gather(other.result(), ctx.step("step", str))
        return awaited

    lab = await labs.use(hf)
    lab.crash(before="store_step")
    job = await outer.enqueue()
    await lab.drain()
    assert await job.result() == "done"


async def test_an_enqueue_that_a_crash_cut_off_does_not_stop_the_next_ones(hf: Holdfast, labs: Labs) -> None:
    """The handler is killed inside its call, which other callers of the program wait for."""

    @hf.job
    async def inner() -> None: ...

    @hf.job
    async def outer(ctx: JobContext) -> None:
        await asyncio.gather(ctx.step("step", str), *(inner.enqueue() for _ in range(4)))

    lab = await labs.use(hf)
    lab.crash(before="store_step")
    job = await outer.enqueue()
    await lab.drain()
    await inner.enqueue()
    await job.result()
    assert lab.crashes == (Crash("before", "store_step", 1),)
