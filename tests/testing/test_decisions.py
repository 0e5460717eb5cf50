"""What people decide and what things cost, in a lab."""

from __future__ import annotations

from decimal import Decimal

import pytest

from holdfast import Agent, Holdfast
from holdfast.app import core_of
from holdfast.errors import BadSetting, NotFound, UsageError
from holdfast.models import Price
from holdfast.testing import Lab, Labs, Script, Stuck, call, calls, expect, lab, say

APPROVED = Script(call("refund", number="A1", amount="80"), expect(tool="refund", is_error=False).say("Done."))
DENIED = Script(call("refund", number="A1", amount="80"), expect(result="too much", is_error=True).say("Sorry."))


@pytest.fixture
def support(hf: Holdfast) -> Agent[str]:
    @hf.tool(approve=True)
    def refund(number: str, amount: str) -> str:
        """Refund an order."""
        return f"{amount} for {number}"

    @hf.tool(effect="read")
    def look() -> str:
        """Look."""
        return "seen"

    return hf.agent("support", model="scripted:", tools=[refund, look, hf.inquiries.question()])


async def test_a_person_approves(hf: Holdfast, labs: Labs, support: Agent[str]) -> None:
    lab = await labs.use(hf, APPROVED)
    run = await support.enqueue("Go")
    await lab.drain()
    (inquiry,) = lab.inquiries()
    assert (inquiry.kind, inquiry.run_id) == ("approval", run.id)
    decided = await lab.approve(run, by="ann", input={"number": "A1", "amount": "40"})
    assert (decided.state, decided.decided_by, run.state) == ("approved", "ann", "pending_tools")
    assert lab.inquiries() == []
    await lab.drain()
    assert await run.text() == "Done."
    assert "40 for A1" in lab.asked[-1].results[0].text


async def test_a_person_denies_and_answers(hf: Holdfast, labs: Labs, support: Agent[str]) -> None:
    lab = await labs.use(hf, DENIED)
    run = await support.enqueue("Go")
    await lab.drain()
    await lab.deny(run, "too much")
    await lab.drain()
    assert await run.text() == "Sorry."
    await lab.close()
    lab = await labs.use(hf, Script(call("ask_person", question="Which?"), expect(result="the red one").say("Red.")))
    run = await support.enqueue("Go")
    await lab.drain()
    await lab.answer(run.id, "the red one")
    await lab.drain()
    assert await run.text() == "Red."


async def test_what_is_meant_must_be_clear(hf: Holdfast, labs: Labs, support: Agent[str]) -> None:
    both = calls(call("refund", number="A1", amount="80"), call("ask_person", question="Which?"))
    lab = await labs.use(hf, Script(both, say("Done.")))
    run = await support.enqueue("Go")
    with pytest.raises(UsageError, match=r"nothing is asked of a person by Run.*Drain first"):
        await lab.approve(run)
    await lab.drain()
    refund, question = sorted(lab.inquiries(run), key=lambda each: each.kind)
    with pytest.raises(UsageError) as caught:
        await lab.approve(run)
    assert f"{refund.id}: approval of refund(" in str(caught.value)
    assert f'{question.id}: question of ask_person({{"question":"Which?"}})' in str(caught.value)
    assert refund.call is not None
    await lab.approve(refund.call.id)
    await lab.answer(question, "this")
    with pytest.raises(NotFound):
        await lab.approve("nothing")
    await lab.drain()
    assert await run.text() == "Done."


async def test_what_agents_below_ask_is_asked_by_the_run(hf: Holdfast, labs: Labs, support: Agent[str]) -> None:
    chief = hf.agent("chief", model="scripted:", agents=[support])
    script = Script.by_agent(
        {"chief": Script(call("support", task="Refund A1"), say("All done.")), "support": APPROVED}
    )
    lab = await labs.use(hf, script)
    run, other = await chief.enqueue("Go"), await chief.enqueue("Go", mode="batch")
    await lab.pass_time(run, other)  # a person is asked, below
    assert run.state == "pending_tools"
    assert (len(lab.inquiries()), len(lab.inquiries(run))) == (2, 1)
    await lab.approve(run)
    await lab.drain()
    assert await run.text() == "All done."
    assert len(lab.inquiries(other)) == 1


async def test_inline_what_follows_a_decision_runs_at_once(hf: Holdfast, labs: Labs, support: Agent[str]) -> None:
    lab = await labs.use(hf, APPROVED, inline=True)
    run = await support.enqueue("Go")
    assert run.state == "awaiting_input" or (await run.refresh()).state == "awaiting_input"
    await lab.approve(run)
    assert run.state == "completed"


async def test_every_call_costs_what_the_lab_says(hf: Holdfast, labs: Labs, support: Agent[str]) -> None:
    lab = await labs.use(hf, Script(*[call("look")] * 9, say("Done.")))
    lab.price("0.01")
    await lab.budget("0.035", tenant="acme")
    run = await support.enqueue("Go", tenant="acme")
    other = await support.enqueue("Go", tenant="other")
    await lab.drain()
    result = await run.result()
    assert (result.outcome, result.usage.turns) == ("limited", 3)
    assert (await other.result()).outcome == "answered"
    assert lab.spent(tenant="acme") == result.usage.cost == Decimal("0.03")
    assert lab.spent() == Decimal("0.13")
    await lab.close()
    lab = await labs.use(hf, Script(say("Done.")))
    assert (await (await support.enqueue("Go")).result()).usage.cost == 0  # scripts are free again
    assert lab.spent() == 0
    with pytest.raises(BadSetting, match="never as a float"):
        lab.price(0.01)  # type: ignore[arg-type]


async def test_a_batch_costs_half(hf: Holdfast, labs: Labs, support: Agent[str]) -> None:
    lab = await labs.use(hf, Script(*[call("look")] * 9, say("Done.")))
    lab.price("0.01")
    await lab.budget("0.035", tenant="acme")
    run = await support.enqueue("Go", tenant="acme", mode="batch")
    await lab.pass_time(run)
    assert (await run.result()).usage.turns == 7
    assert lab.spent() == Decimal("0.035")


async def test_a_person_lets_a_run_go_beyond_its_budget(hf: Holdfast, labs: Labs, support: Agent[str]) -> None:
    lab = await labs.use(hf, Script(call("look"), say("Done.")))
    lab.price("1")
    await lab.budget("1", policy="ask")
    run = await support.enqueue("Go")
    await lab.drain()
    assert run.state == "awaiting_input"
    (inquiry,) = lab.inquiries(run)
    assert inquiry.kind == "limit"
    await lab.approve(run)
    await lab.drain()
    assert (await run.text(), lab.spent()) == ("Done.", Decimal(2))


@pytest.mark.long
async def test_a_budget_of_a_day_is_waited_for(hf: Holdfast, labs: Labs, support: Agent[str]) -> None:
    lab = await labs.use(hf, Script(call("look"), say("Done.")))
    lab.price("1")
    await lab.budget("1", per="1d", policy="wait")
    run = await support.enqueue("Go")
    before = lab.clock.now().date()
    await lab.pass_time(run)
    assert await run.text() == "Done."
    assert lab.clock.now().date() > before


async def test_scripted_models_may_have_prices_like_others(hf: Holdfast, labs: Labs, support: Agent[str]) -> None:
    """A budget reserves what a call may cost, also where the model is a script."""
    lab = await labs.use(hf, Script(say("Done.")))
    hf.budgets.prices = [
        Price(model="scripted:", kind=kind, tier="standard", since=lab.clock.now().date(), usd=Decimal(10))
        for kind in ("input", "output", "cache_write_5m")
    ]
    try:
        await lab.budget("0.0001")
        assert (await support.run("Go")).outcome == "limited"
    finally:
        hf.budgets.prices = ()


async def test_time_passes_until_runs_end_or_wait_for_a_person(hf: Holdfast, labs: Labs, support: Agent[str]) -> None:
    lab = await labs.use(hf, APPROVED)
    later = await support.enqueue("Go", delay="2d")
    batched = await support.enqueue("Go", mode="batch")
    await lab.pass_time(batched, later)
    assert (batched.state, later.state) == ("awaiting_input", "awaiting_input")
    await lab.approve(batched)
    await lab.pass_time(batched)
    assert await batched.text() == "Done."
    with pytest.raises(UsageError, match="which runs"):
        await lab.pass_time()


async def test_time_alone_does_not_end_what_waits_for_the_test(hf: Holdfast, labs: Labs) -> None:
    @hf.tool
    async def hold() -> str:
        """Hold."""
        return "held"

    agent = hf.agent("holder", model="scripted:", tools=[hold])
    lab = await labs.use(hf, Script(call("hold"), say("Done.")))
    await hf.queues.pause("default")
    run = await agent.enqueue("Go")
    with pytest.raises(Stuck, match="nothing is due"):
        await lab.pass_time(run)


async def test_all_of_it_works_without_pytest(hf: Holdfast, support: Agent[str]) -> None:
    opened: Lab
    async with lab(hf, APPROVED) as opened:
        opened.price("0.01")
        run = await support.enqueue("Go")
        await opened.drain()
        await opened.approve(run)
        assert await run.text() == "Done."
        assert opened.spent() == Decimal("0.02")
    assert core_of(hf).book.per_call is None
