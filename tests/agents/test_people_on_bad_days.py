"""People on bad days: nobody gets past them, what they said is kept as said, and the model is told the truth."""

from __future__ import annotations

import asyncio
import threading
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.agents.people.people import Notifier
from holdfast.agents.people.questions import channel_of
from holdfast.agents.values import Inquiry
from holdfast.cli.inquiries import about
from holdfast.errors import AlreadyDecided, DigestMismatch, UsageError
from holdfast.events import ApprovalRequested
from holdfast.models.script import call, say
from holdfast.testing import Labs
from holdfast.workers.threads import NoThread
from tests.agents.test_people import Shop, asked, refunding
from tests.support.agents import Noting, results, settle

NOWHERE = "sqlite:////nowhere/at-all.db"


async def test_no_signal_opens_what_waits_for_a_person(labs: Labs) -> None:
    shop = Shop()
    lab = await labs.use(shop.hf, refunding("80"))
    run = await shop.agent.enqueue("Refund", session="s")
    inquiry = await asked(lab, run)
    for channel in (channel_of(inquiry.id), f"holdfast:session {run.session_id}"):
        with pytest.raises(UsageError, match="is reserved for Holdfast"):
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
    agent = hf.agent("guide", model="scripted:", tools=[hf.inquiries.question()])
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


@pytest.mark.parametrize("how", ["run again", "changed again", "answered"])
async def test_a_review_is_about_the_arguments_that_ran(labs: Labs, how: str) -> None:
    shop = Shop()
    script = Noting(call("refund", number="A1", amount="80"), say("done"))
    lab = await labs.use(shop.hf, script)
    run = await shop.agent.enqueue("Refund")
    approval = await asked(lab, run)
    changed, asked_for = {"number": "A1", "amount": "40"}, {"number": "A1", "amount": "80"}
    await shop.hf.approve(approval.id, input=changed, by="ann")
    lab.crash(before="complete")
    await lab.drain()
    await lab.clock.advance("1m")
    review = await asked(lab, run)
    assert review.kind == "review"
    assert review.call is not None
    assert review.call.input == changed
    assert review.digest not in ("", approval.digest)
    assert review.data["changed"] == {"asked": asked_for, "by": "ann"}
    assert "ann had changed its arguments before it ran" in str(await run.why())
    (told,) = [e for e in await run.events() if isinstance(e, ApprovalRequested) and e.kind == "review"]
    assert (told.call.input, told.changed) == (changed, {"asked": asked_for, "by": "ann"})
    assert about(review).endswith("(changed by ann)")
    with pytest.raises(DigestMismatch):
        await shop.hf.approve(review.id, digest=approval.digest)
    ran, last = [Decimal(40)], "40"
    if how == "run again":
        await shop.hf.approve(review.id, digest=review.digest)
        ran.append(Decimal(40))
    elif how == "changed again":
        await shop.hf.approve(review.id, digest=review.digest, input={"number": "A1", "amount": "30"})
        ran, last = [*ran, Decimal(30)], "30"
    else:
        await shop.hf.answer(review.id, "it was paid")
    await settle(lab, run)
    assert [amount for _, amount in shop.paid] == ran
    (result,) = await results(shop.hf, run.session_id)
    note, said = [part["text"] for part in result["content"]]
    assert note.startswith("A person changed the arguments")
    assert f'"amount":"{last}"' in note
    assert said == ("it was paid" if how == "answered" else f"refunded {last}")
    assert script.bodies[-1]["messages"][-1]["content"][0]["content"] == result["content"]


async def test_a_sync_on_open_runs_on_a_thread_and_again_when_it_fails(
    labs: Labs, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Shop()
    rung: list[tuple[str, bool]] = []
    loop = threading.get_ident()

    @shop.hf.inquiries.on_open
    def ring(inquiry: Inquiry) -> None:
        rung.append((inquiry.id, threading.get_ident() == loop))
        if len(rung) == 1:
            raise StopIteration("the mail server is away")

    lab = await labs.use(shop.hf, refunding("80"))
    inquiry = await asked(lab, await shop.agent.enqueue("Refund"))
    assert f"hf.inquiries.on_open failed for inquiry {inquiry.id}" in caplog.text
    await lab.clock.advance("1m")
    await lab.drain()
    assert rung == [(inquiry.id, False)] * 2


async def test_an_on_open_that_hangs_is_given_up_and_its_threads_are_bounded() -> None:
    freed, telling, begun = threading.Event(), Notifier(patience=0.05), []

    def ring(inquiry: Any) -> None:
        begun.append(inquiry)
        freed.wait(60)

    async def ring_async(inquiry: Any) -> None:
        await asyncio.Event().wait()

    try:
        for _ in range(8):
            with pytest.raises(TimeoutError, match=r"hf\.inquiries\.on_open has not returned"):
                await telling.tell(ring, SimpleNamespace(id="i"))
        with pytest.raises(NoThread, match=r"8 in hf\.inquiries\.on_open"):
            await telling.tell(ring, SimpleNamespace(id="i"))
        assert len(begun) == 8
        with pytest.raises(TimeoutError, match=r"hf\.inquiries\.on_open has not returned"):
            await telling.tell(ring_async, SimpleNamespace(id="i"))
    finally:
        freed.set()
