"""A run that reaches its limits: who may lift them, and what becomes of its money."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from holdfast import Holdfast, Limits
from holdfast.app import core_of
from holdfast.errors import UsageError
from holdfast.models.script import Script, call, say
from holdfast.testing import Labs
from tests.support.agents import MODEL, settle

NOWHERE = "sqlite:////nowhere/at-all.db"


def looking(hf: Holdfast, **options: Any) -> Any:
    @hf.tool(effect="read")
    def look() -> str:
        """Look."""
        return "seen"

    return hf.agent("looker", model="scripted:", tools=[look], **options)


async def test_a_run_that_reaches_two_limits_asks_twice(labs: Labs) -> None:
    hf = Holdfast(NOWHERE)
    agent = looking(hf)
    lab = await labs.use(hf, Script(*[call("look")] * 3, say("done")))
    run = await agent.enqueue("Go", limits=Limits(turns=1, tokens=1, on_limit="ask"))
    seen = []
    for _ in range(40):
        await lab.drain()
        if run.state != "awaiting_input":
            break
        (inquiry,) = await run.inquiries()
        seen.append(inquiry.data["limit"])
        with pytest.raises(UsageError, match="approve it, or deny it"):
            await hf.answer(inquiry.id, "no, stop")
        await hf.approve(inquiry.id)
    assert (await run.result()).text == "done"
    assert set(seen) == {"turns", "tokens"}


async def test_a_limit_that_nobody_lifts_in_time_ends_the_run(labs: Labs) -> None:
    hf = Holdfast(NOWHERE)
    agent = looking(hf)
    lab = await labs.use(hf, Script(*[call("look")] * 3, say("done")))
    run = await agent.enqueue("Go", limits=Limits(turns=1, on_limit="ask", within="1h"))
    await lab.drain()
    assert run.state == "awaiting_input"
    await lab.clock.advance("61m")
    await lab.drain()
    assert (await run.result()).outcome == "limited"


async def test_what_was_reserved_is_free_when_a_run_ends_without_an_answer(provided: Labs) -> None:
    hf = Holdfast(NOWHERE)
    agent = hf.agent("writer", model=MODEL)
    lab = await provided.use(hf, Script(say("hello")))
    await hf.budgets.set("1", tenant="acme")
    run = await agent.enqueue("Go", tenant="acme", mode="batch")
    await lab.drain()
    assert (await hf.budgets.list())[0].reserved > 0
    await run.interrupt()
    (budget,) = await hf.budgets.list()
    assert ((await run.refresh()).outcome, budget.reserved) == ("truncated", Decimal(0))
    await hf.budgets.delete(budget.id)
    assert (await hf.budgets.set("1", tenant="acme")).reserved == 0


@pytest.mark.parametrize("whose", ["the agent's", "the run's"])
async def test_a_limit_at_the_top_binds_what_is_below(labs: Labs, whose: str) -> None:
    hf = Holdfast(NOWHERE)

    @hf.tool(effect="read")
    def look() -> str:
        """Look."""
        return "seen"

    limits = Limits(turns=6)
    core_of(hf).book.scripts.update(
        below=Script(*[call("look")] * 30, say("never")), above=Script(call("below", task="look"), say("done"))
    )
    below = hf.agent("below", model="scripted:below", tools=[look])
    above = hf.agent("above", model="scripted:above", agents=[below], limits=limits if whose == "the agent's" else None)
    lab = await labs.use(hf)
    run = await above.enqueue("Go", limits=limits if whose == "the run's" else None)
    await settle(lab, run)
    result = await run.result()
    assert result.outcome == "limited"
    assert result.usage.turns <= 7
    (child,) = await run.children()
    assert (child.outcome, "6 turns of 6" in (child.limited or "")) == ("limited", True)
