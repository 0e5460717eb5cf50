"""What a reviewer found about limits, inquiries, messages and money, each shown to be mended."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from holdfast import Compaction, Holdfast, Limits, Snooze
from holdfast.errors import UsageError
from holdfast.models.provider.strict import check_request
from holdfast.models.script import Script, call, say, truncate
from holdfast.models.wire import KEY
from holdfast.testing import Labs
from tests.support.agents import MODEL, Noting, settle
from tests.support.compaction import SUMMARY, talk, talker

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


async def test_a_call_that_ends_while_it_waits_for_approval_is_answered(labs: Labs) -> None:
    hf = Holdfast(NOWHERE)

    @hf.tool(approve=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    agent = hf.agent("payer", model="scripted:", tools=[pay])
    script = Noting(call("pay"), say("so be it"))
    lab = await labs.use(hf, script)
    run = await agent.enqueue("Go", session="s", limits=Limits(time="1h"))
    await lab.drain()
    assert run.state == "awaiting_input"
    await lab.clock.advance("2h")
    await settle(lab, run)
    assert await hf.inquiries.list() == []
    await agent.enqueue("And now?", session="s")
    await lab.drain()
    assert len(script.bodies) == 2
    for body in script.bodies:
        check_request(body, key=KEY, account="")


async def test_a_message_for_a_run_that_ends_otherwise_is_read_by_the_next(labs: Labs) -> None:
    hf = Holdfast(NOWHERE)
    waited: list[int] = []

    @hf.tool(effect="read")
    def wait() -> str:
        """Wait."""
        waited.append(1)
        if len(waited) == 1:
            raise Snooze("1h")
        return "waited"

    agent = hf.agent("waiter", model="scripted:", tools=[wait])
    script = Noting(call("wait"), say("done"))
    lab = await labs.use(hf, script)
    run = await agent.enqueue("Go", session="s", limits=Limits(turns=1))
    await lab.drain()
    await run.steer("Do not forget this.")
    await lab.clock.advance("1h")
    await settle(lab, run)
    assert (await run.result()).outcome == "limited"
    await (await agent.enqueue("And?", session="s")).result()
    assert "Do not forget this." in str(script.bodies[-1]["messages"])
    check_request(script.bodies[-1], key=KEY, account="")


async def test_tenants_may_use_one_key_for_messages_that_join(labs: Labs) -> None:
    hf = Holdfast(NOWHERE)
    agent = hf.agent("guide", model="scripted:")
    script = Noting(say("read"))
    lab = await labs.use(hf, script)
    for tenant in ("a", "b"):
        first = await agent.enqueue("One", session="s", tenant=tenant)
        joined = await agent.enqueue(f"for {tenant}", session="s", tenant=tenant, key="k", during="coalesce")
        assert joined.id == first.id
    await lab.drain()
    assert {"for a", "for b"} <= {part["text"] for body in script.bodies for part in body["messages"][0]["content"]}


async def test_steering_in_a_callers_transaction_is_refused(labs: Labs) -> None:
    hf = Holdfast(NOWHERE)
    agent = hf.agent("guide", model="scripted:")
    await labs.use(hf, Script(say("hello")))
    with pytest.raises(UsageError, match="leave tx out"):
        await agent.enqueue("Hi", session="s", during="steer", tx=object())


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
    hf.book.scripts.update(
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


async def test_a_summary_that_was_cut_off_replaces_nothing(hf: Holdfast) -> None:
    from holdfast.models import ModelFailure
    from holdfast.models.scripted import ScriptedModel

    agent, _ = talker(hf, {"scripted:cut": ScriptedModel(Script(truncate(SUMMARY[:10])))})
    session = await hf.session("s")
    await talk(session, agent, 4)
    before = [message.id for message in await session.messages()]
    config = Compaction(strategy="summarize", protected_tokens=50, preserve_last=2, summarizer="scripted:cut")
    with pytest.raises(ModelFailure):
        await session.compact(config)
    assert [message.id for message in await session.messages()] == before
