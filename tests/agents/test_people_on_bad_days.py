"""People on bad days: nobody gets past them, what they said is kept as said, and the model is told the truth."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.agents.people.inquiring import channel_of
from holdfast.errors import AlreadyDecided, DigestMismatch, UsageError
from holdfast.models.script import call, say
from holdfast.testing import Labs
from tests.agents.test_people import Shop, asked, refunding
from tests.support.agents import Noting, results, settle

NOWHERE = "sqlite:////nowhere/at-all.db"


async def test_no_signal_opens_what_waits_for_a_person(labs: Labs) -> None:
    shop = Shop()
    lab = await labs.use(shop.hf, refunding("80"))
    run = await shop.agent.enqueue("Refund", session="s")
    inquiry = await asked(lab, run)
    for channel in (channel_of(inquiry.id), f"holdfast:session {run.session_id}"):
        with pytest.raises(UsageError, match="Holdfast's own"):
            await shop.hf.signal(channel, {"approved": True})
    await shop.hf.signal(f"inquiry {inquiry.id}")  # somebody's own channel
    await lab.drain()
    assert (shop.paid, (await run.refresh()).state) == ([], "awaiting_input")


async def test_a_decision_is_the_same_again_only_as_it_was(labs: Labs) -> None:
    shop = Shop()
    lab = await labs.use(shop.hf, refunding("80"))
    run = await shop.agent.enqueue("Refund")
    inquiry = await asked(lab, run)
    await shop.hf.deny(inquiry.id, message="too much", digest=inquiry.digest)
    assert (await shop.hf.deny(run.id, message="too much")).state == "denied"
    with pytest.raises(DigestMismatch):
        await shop.hf.deny(inquiry.id, message="too much", digest="another")
    with pytest.raises(AlreadyDecided):
        await shop.hf.deny(inquiry.id, message="too little")


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ("Oslo", "Oslo"),
        ({"city": "Oslo"}, '{"city":"Oslo"}'),
        (5, "5"),
        (True, "true"),
        ([1, {"a": 2}], '[1,{"a":2}]'),
        ("", None),
    ],
)
async def test_any_answer_becomes_a_result_that_the_provider_takes(labs: Labs, answer: Any, told: str | None) -> None:
    hf = Holdfast(NOWHERE)
    agent = hf.agent("guide", model="scripted:", tools=[hf.question()])
    script = Noting(call("ask_person", question="Where?"), say("done"))
    lab = await labs.use(hf, script)
    run = await agent.enqueue("Go")
    inquiry = await asked(lab, run)
    for _ in range(2):
        await hf.answer(inquiry.id, answer)
    await settle(lab, run)
    (result,) = await results(hf, run.session_id)
    assert result.get("content") == told


@pytest.mark.parametrize("how", ["expires", "is denied"])
async def test_a_model_is_not_told_that_what_may_have_run_was_not_run(labs: Labs, how: str) -> None:
    hf = Holdfast(NOWHERE)
    paid: list[Decimal] = []

    @hf.tool(effect="once", within="1h")
    def pay(amount: Decimal) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    agent = hf.agent("till", model="scripted:", tools=[pay])
    script = Noting(call("pay", amount="5"), say("done"))
    lab = await labs.use(hf, script)
    run = await agent.enqueue("Pay")
    lab.crash(before="complete")
    await lab.drain()
    await lab.clock.advance("1m")
    inquiry = await asked(lab, run)
    assert inquiry.kind == "review"
    if how == "expires":
        await lab.clock.advance("61m")
    else:
        await hf.deny(inquiry.id, message="Leave it")
    await settle(lab, run)
    (result,) = await results(hf, run.session_id)
    assert "may have taken effect" in result["content"]
    assert "was not run." not in result["content"]
    assert paid == [Decimal(5)]
