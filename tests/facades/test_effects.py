"""UA-31 and UA-32: the tool ledger's replay policies are the effects of tools, and hold when a worker dies."""

from __future__ import annotations

import pytest

from holdfast import Holdfast
from holdfast.errors import UsageError
from holdfast.facades.universal_agent.install import RELAUNCH, REPLAY_EXACT, REPLAY_IDEMPOTENT, effect_of
from holdfast.testing import Labs, call, say
from tests.support.agents import scripted, settle
from tests.testing.conftest import databases, labs, server

__all__ = ["databases", "labs", "server"]


def test_a_policy_is_another_word_for_an_effect() -> None:
    assert [effect_of(each) for each in (REPLAY_EXACT, REPLAY_IDEMPOTENT, RELAUNCH)] == ["once", "idempotent", "read"]
    with pytest.raises(UsageError, match="REPLAY_EXACT"):
        effect_of("exactly")


async def test_ua_31_a_recorded_call_is_not_made_again(labs: Labs) -> None:
    hf = Holdfast("sqlite:////nowhere/at-all.db")
    made: list[str] = []

    @hf.tool(effect=effect_of(REPLAY_EXACT))
    def pay() -> str:
        """Pay."""
        made.append("paid")
        return "receipt 7"

    agent = hf.agent("payer", model=scripted(hf, call("pay"), say("done")), tools=[pay])
    lab = await labs.use(hf)
    run = await agent.enqueue("Pay")
    lab.crash(after="complete")  # the call is recorded, and its worker dies before it knows
    await settle(lab, run)
    assert (await run.result()).text == "done"
    assert made == ["paid"]
    (stored,) = await run.calls()
    assert (stored.state, stored.name) == ("completed", "pay")


async def test_ua_32_a_call_of_unknown_outcome_follows_its_policy(labs: Labs) -> None:
    hf = Holdfast("sqlite:////nowhere/at-all.db")
    made: list[str] = []

    @hf.tool(effect=effect_of(REPLAY_EXACT))
    def pay() -> str:
        """Pay."""
        made.append("pay")
        return "paid"

    @hf.tool(effect=effect_of(REPLAY_IDEMPOTENT))
    def put() -> str:
        """Put."""
        made.append("put")
        return "put"

    @hf.tool(effect=effect_of(RELAUNCH))
    def look() -> str:
        """Look."""
        made.append("look")
        return "seen"

    lab = await labs.use(hf)
    for tool in (put, look):
        agent = hf.agent(f"{tool.name}_agent", model=scripted(hf, call(tool.name), say("done")), tools=[tool])
        run = await agent.enqueue("Go")
        lab.crash(before="complete")  # the effect has happened, and is not recorded
        await settle(lab, run)
        assert made == [tool.name, tool.name]
        made.clear()
    agent = hf.agent("payer", model=scripted(hf, call("pay"), say("done")), tools=[pay])
    run = await agent.enqueue("Pay")
    lab.crash(before="complete")
    await lab.drain()
    (inquiry,) = await run.inquiries()
    assert (inquiry.kind, made, (await run.refresh()).state) == ("review", ["pay"], "awaiting_input")
    await hf.deny(inquiry.id, by="ann", message="it was paid")
    await settle(lab, run)
    assert made == ["pay"]
