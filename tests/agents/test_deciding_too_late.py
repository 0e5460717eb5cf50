"""Deciding too late: the time of an inquiry is over when the store says so, whether or not a worker has noticed."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import pytest

from holdfast import Holdfast, Limits
from holdfast.errors import AlreadyDecided
from holdfast.events import InputGiven
from holdfast.models.script import Script, call, say, truncate
from holdfast.testing import Lab, Labs
from tests.agents.test_people import Shop, asked, refunding
from tests.support.agents import results, settle

NOWHERE = "sqlite:////nowhere/at-all.db"
MOMENT = r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC"


async def refused(deciding: Any, *words: str) -> str:
    """What a late decider is told: when the time was over, and what was done instead."""
    with pytest.raises(AlreadyDecided) as told:
        await deciding
    assert told.value.state == "expired"
    message = str(told.value)
    assert re.search(f"is expired: its time limit passed at {MOMENT}", message), message
    for word in words:
        assert word in message, message
    return message


@pytest.mark.parametrize(
    ("otherwise", "paid", "word"), [("deny", [], "was denied"), ("approve", [("A1", Decimal(80))], "was approved")]
)
async def test_an_expired_approval_is_not_approved_though_no_worker_has_noticed(
    labs: Labs, otherwise: str, paid: list[Any], word: str
) -> None:
    shop = Shop(within="1h", otherwise=otherwise)
    lab = await labs.use(shop.hf, refunding("80"))
    run = await shop.agent.enqueue("Refund")
    inquiry = await asked(lab, run)
    await lab.clock.advance("61m")  # and nobody works
    await refused(shop.hf.deny(inquiry.id), f"so the call of refund {word}")
    await refused(shop.hf.approve(run.id, input={"number": "A1", "amount": "40"}), f"so the call of refund {word}")
    decided = await shop.hf.inquiries.get(inquiry.id)
    assert (decided.state, decided.decided_by, decided.decision) == ("expired", None, {})
    await settle(lab, run)
    await refused(shop.hf.approve(inquiry.id), word)
    assert shop.paid == paid
    given = [event for event in await run.events() if isinstance(event, InputGiven)]
    assert [event.verdict for event in given] == ["expired"]
    (told,) = await results(shop.hf, run.session_id)
    assert bool(told.get("is_error")) == (otherwise == "deny")


async def test_what_is_decided_in_the_last_minute_holds(labs: Labs) -> None:
    shop = Shop(within="1h")
    lab = await labs.use(shop.hf, refunding("80"))
    run = await shop.agent.enqueue("Refund")
    inquiry = await asked(lab, run)
    await lab.clock.advance("59m")
    await shop.hf.approve(inquiry.id)
    await lab.clock.advance("2m")
    assert (await shop.hf.approve(inquiry.id)).state == "approved"
    await settle(lab, run)
    assert len(shop.paid) == 1


async def test_a_review_that_expired_is_not_run_again(labs: Labs) -> None:
    shop = Shop(within="1h", otherwise="approve")
    lab = await labs.use(shop.hf, refunding("20"))
    run = await shop.agent.enqueue("Refund")
    lab.crash(before="complete")
    await lab.drain()
    await lab.clock.advance("1m")
    inquiry = await asked(lab, run)
    assert inquiry.kind == "review"
    await lab.clock.advance("61m")
    await refused(shop.hf.approve(inquiry.id), "was not run again")
    await settle(lab, run)
    assert len(shop.paid) == 1


async def test_a_question_that_expired_has_the_answer_that_nobody_gave(labs: Labs) -> None:
    hf = Holdfast(NOWHERE)
    agent = hf.agent("guide", model="scripted:", tools=[hf.inquiries.question(within="1h", otherwise="Oslo")])
    lab = await labs.use(hf, Script(call("ask_person", question="Where?"), say("done")))
    run = await agent.enqueue("Go")
    inquiry = await asked(lab, run)
    await lab.clock.advance("61m")
    await refused(hf.answer(inquiry.id, "Rome"), "so the model was told 'Oslo'")
    await settle(lab, run)
    (told,) = await results(hf, run.session_id)
    assert told["content"] == "Oslo"


async def limited(hf: Holdfast, labs: Labs) -> tuple[Lab, Any]:
    @hf.tool(effect="read")
    def look() -> str:
        """Look."""
        return "seen"

    agent = hf.agent("looker", model="scripted:", tools=[look])
    lab = await labs.use(hf, Script(*[call("look")] * 3, say("done")))
    return lab, await agent.enqueue("Go", limits=Limits(turns=1, on_limit="ask", within="1h"))


async def cut_off(hf: Holdfast, labs: Labs) -> tuple[Lab, Any]:
    agent = hf.agent("bard", model="scripted:", on_max_tokens="ask")
    lab = await labs.use(hf, Script(truncate("Once upon"), say("a time.")))
    return lab, await agent.enqueue("Go", limits=Limits(within="1h"))


@pytest.mark.parametrize(("begin", "outcome"), [(limited, "limited"), (cut_off, "truncated")])
async def test_a_run_whose_inquiry_expired_does_not_go_on(labs: Labs, begin: Any, outcome: str) -> None:
    hf = Holdfast(NOWHERE)
    lab, run = await begin(hf, labs)
    await asked(lab, run)
    await lab.clock.advance("61m")
    await refused(hf.approve(run.id), f"so the run ended as {outcome}")
    assert (await run.result()).outcome == outcome
