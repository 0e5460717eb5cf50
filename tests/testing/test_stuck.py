"""A lab that cannot go on says what holds it up, and does not hang."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import Holdfast, JobContext, Snooze
from holdfast.errors import UsageError
from holdfast.testing import Labs, Script, Stuck, call, say
from tests.support.apps import eventually


async def test_a_handler_that_waits_for_what_cannot_come_is_named(hf: Holdfast, labs: Labs) -> None:
    patient = asyncio.Event()

    @hf.job(name="waits")
    async def waits() -> str:
        await patient.wait()
        return "done"

    lab = await labs.use(hf)
    job = await waits.enqueue()
    with pytest.raises(Stuck, match="no job moved for 2 s") as stuck:
        await lab.drain(patience="2s")
    assert f"waits {job.id}, running, in waits ({__file__}:" in str(stuck.value)
    assert (await job.refresh()).state == "pending"
    patient.set()
    await lab.drain()
    assert await job.result() == "done"


@pytest.mark.long
async def test_a_drain_is_as_patient_as_it_is_told(hf: Holdfast, labs: Labs) -> None:
    @hf.job
    async def steps(ctx: JobContext) -> str:
        for n in range(6):
            await ctx.step(f"{n}", asyncio.sleep, 0.5)  # each is a commit: it gets on
        return "done"

    lab = await labs.use(hf)
    job = await steps.enqueue()
    await lab.drain(patience="2s")
    assert await job.result() == "done"


@pytest.mark.long
async def test_a_job_that_comes_back_at_once_for_ever_is_named(hf: Holdfast, labs: Labs) -> None:
    @hf.job
    async def restless() -> None:
        raise Snooze("0s")

    lab = await labs.use(hf)
    job = await restless.enqueue()
    with pytest.raises(Stuck, match=f"job {job.id} was claimed .* times in one drain"):
        await lab.drain(patience="2s")


async def test_the_test_is_told_why_a_result_cannot_come(hf: Holdfast, labs: Labs) -> None:
    @hf.job
    async def letter(ctx: JobContext) -> str:
        return str(await ctx.wait("post"))

    @hf.job
    async def family(ctx: JobContext) -> int:
        await ctx.start(letter)
        return len(await ctx.join())

    lab = await labs.use(hf)
    with pytest.raises(Stuck, match=r'it is due in 1h. await lab.clock.advance\("1h"\)'):
        await letter.options(delay="1h").run()
    with pytest.raises(Stuck, match="it waits for a signal on 'post'"):
        await letter.run()
    with pytest.raises(Stuck, match="it waits for 1 child that has not ended"):
        await family.run()
    await lab.drain()  # what is parked stays parked


async def test_whoever_waits_beside_the_test_waits_until_it_acts(hf: Holdfast, labs: Labs) -> None:
    @hf.job
    async def letter(ctx: JobContext) -> str:
        return str(await ctx.wait("post"))

    lab = await labs.use(hf)
    waiting = asyncio.create_task(letter.run())
    await eventually(lambda: hf.jobs.list(state="waiting"))
    await hf.signal("post", "card")
    await lab.drain()
    assert await waiting == "card"


async def test_a_handler_does_not_drain(hf: Holdfast, labs: Labs) -> None:
    lab = await labs.use(hf)

    @hf.job
    async def impatient() -> str:
        with pytest.raises(UsageError, match="this code already runs inside a drain"):
            await lab.drain()
        with pytest.raises(UsageError, match="say where to crash before it begins"):
            lab.crash(before="complete")
        return "told"

    assert await impatient.run() == "told"


async def test_a_test_that_gives_up_takes_its_drain_along(hf: Holdfast, labs: Labs) -> None:
    begun = asyncio.Event()

    @hf.job
    async def endless() -> None:
        begun.set()
        await asyncio.Event().wait()

    lab = await labs.use(hf)
    await endless.enqueue()
    draining = asyncio.create_task(lab.drain())
    await begun.wait()
    await labs.close_lab(lab)
    assert draining.cancelled()


async def test_a_run_that_waits_for_a_person_says_so_and_how_to_decide(labs: Labs) -> None:
    hf = Holdfast("sqlite:///never.db")

    @hf.tool(approve=True)
    def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    desk = hf.agent("desk", model="scripted:", tools=[pay])
    lab = await labs.use(hf, Script(call("pay", amount=1), say("done")))
    run = await desk.enqueue("go", session="ann")
    behind = await desk.enqueue("go on", session="ann")
    with pytest.raises(
        Stuck, match=r"tool pay has been waiting for approval since .*\. Decide with lab\.approve\(run\)"
    ) as stuck:
        await run.result()
    assert "signal" not in str(stuck.value)
    with pytest.raises(Stuck, match=rf"run {run.id} \(awaiting_input\) of the same session comes first"):
        await behind.result()
    (inquiry,) = lab.inquiries()
    with pytest.raises(Stuck, match=r"a person decides about it\. Decide with lab\.approve\(run\)") as stuck:
        await hf.jobs[inquiry.id].result()
    assert "signal" not in str(stuck.value)
    late = await desk.enqueue("later", delay="1h")
    with pytest.raises(Stuck, match=r'it is due in 1h\. await lab\.clock\.advance\("1h"\)'):
        await late.result()
