"""How a run ends that nobody foresaw, or that has no time left."""

from __future__ import annotations

import asyncio

from holdfast import Holdfast, Limits
from holdfast.app import core_of
from holdfast.models.script import Script, call, ends, say
from tests.support.agents import Counting, in_run_state


async def test_a_stop_reason_nobody_knows_fails_the_run_with_its_answer(hf: Holdfast) -> None:
    core_of(hf).book.substitute = model = Counting(Script(ends("surprise", say("hm"))))
    run = await hf.agent("odd", model="scripted:").enqueue("Hello")
    await hf.ensure_worker()
    await in_run_state(run, "failed")
    row = await hf.runs.get(run.id)
    assert (row.error_type, row.turns, model.calls) == ("streaming_error", 1, 1)
    assert "surprise" in (row.error or "")
    assert (await hf.jobs.get(run.id)).state == "failed"


async def test_time_is_up_also_for_a_run_that_waits_for_a_tool(hf: Holdfast) -> None:
    @hf.tool
    async def forever() -> str:
        """Never ends."""
        await asyncio.sleep(3600)
        return ""

    hf.script("late", Script(call("forever"), say("never")))
    agent = hf.agent("late", model="scripted:late", tools=[forever], limits=Limits(time="1s"))
    result = await agent.run("Go")
    assert (result.outcome, result.limit) == ("limited", "1s of wall clock")
