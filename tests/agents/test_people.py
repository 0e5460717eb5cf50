"""People: calls that wait for approval, questions, reviews, runs that were cut off or reached a limit."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator

from holdfast import Holdfast, Limits, ToolContext
from holdfast.agents.api.run import Run
from holdfast.agents.values import Inquiry
from holdfast.app import core_of
from holdfast.errors import AlreadyDecided, DigestMismatch, NotFound, UsageError
from holdfast.events import ApprovalRequested, InputGiven, QuestionAsked
from holdfast.models.script import Script, call, calls, say, truncate
from holdfast.testing import Lab, Labs
from tests.support.agents import Noting, results, settle


class Shop:
    """An agent that refunds, and a person who is asked about large amounts."""

    def __init__(self, **options: Any) -> None:
        self.hf = Holdfast("sqlite:////nowhere/at-all.db")
        self.paid: list[tuple[str, Decimal]] = []
        self.keys: list[str] = []
        self.looked: list[str] = []

        @self.hf.tool(effect="once", approve=lambda call: call.input["amount"] > 50, **options)
        def refund(ctx: ToolContext, number: str, amount: Decimal) -> str:
            """Refund."""
            self.keys.append(ctx.idempotency_key)
            self.paid.append((number, amount))
            return f"refunded {amount}"

        @self.hf.tool(effect="read")
        def look(number: str) -> str:
            """Look."""
            self.looked.append(number)
            return "an order"

        self.agent = self.hf.agent("till", model="scripted:", tools=[refund, look])


def refunding(amount: str) -> Script:
    return Script(call("refund", number="A1", amount=amount), say("done"))


async def asked(lab: Lab, run: Run[Any]) -> Inquiry:
    await lab.drain()
    assert run.state == "awaiting_input"
    (inquiry,) = await lab.app.inquiries.list(run=run.id)
    return inquiry


async def test_a_call_below_the_threshold_runs_and_one_above_waits(labs: Labs) -> None:
    shop = Shop()
    lab = await labs.use(shop.hf, refunding("20"))
    assert (await shop.agent.run("Refund")).text == "done"
    assert await shop.hf.inquiries.list(state=None) == []
    await lab.close()
    lab = await labs.use(shop.hf, refunding("80"))
    run = await shop.agent.enqueue("Refund")
    inquiry = await asked(lab, run)
    assert (inquiry.kind, inquiry.name, inquiry.state) == ("approval", "refund", "open")
    assert inquiry.call is not None
    assert (inquiry.call.name, inquiry.call.input) == ("refund", {"number": "A1", "amount": "80"})
    assert "tool refund has been waiting for approval since" in str(await shop.hf.why(run.id))
    assert len(shop.paid) == 1
    await shop.hf.approve(inquiry.call.id, digest=inquiry.digest, by="ann")
    await lab.drain()
    assert (await run.result()).text == "done"
    assert shop.paid[1:] == [("A1", Decimal("80"))]
    decided = await shop.hf.inquiries.get(inquiry.id)
    assert (decided.state, decided.decided_by) == ("approved", "ann")


async def test_nothing_holds_a_worker_meanwhile_and_siblings_run_on(labs: Labs) -> None:
    shop = Shop()
    both = Script(calls(call("refund", number="A1", amount="80"), call("look", number="A1")), say("done"))
    lab = await labs.use(shop.hf, both)
    run = await shop.agent.enqueue("Both")
    inquiry = await asked(lab, run)
    assert shop.looked == ["A1"]
    assert {row.state for row in await shop.hf.jobs.list() if row.kind != "system:expire"} == {"waiting", "succeeded"}
    await shop.hf.approve(inquiry.id)
    assert (await shop.hf.runs.get(run.id)).state == "pending_tools"
    await lab.drain()
    first, second = await results(shop.hf, run.session_id)
    assert (first["content"], second["content"]) == ("refunded 80", "an order")


async def test_a_denial_is_told_to_the_model(labs: Labs) -> None:
    shop = Shop()
    lab = await labs.use(shop.hf, refunding("80"))
    run = await shop.agent.enqueue("Refund")
    inquiry = await asked(lab, run)
    await shop.hf.deny(inquiry.id, by="ann", message="too much")
    await lab.drain()
    assert (await run.result()).text == "done"
    (told,) = await results(shop.hf, run.session_id)
    assert told["is_error"]
    assert "too much" in told["content"]
    assert shop.paid == []


async def test_changed_arguments_run_and_the_models_own_block_stays(labs: Labs) -> None:
    shop = Shop()
    lab = await labs.use(shop.hf, refunding("80"))
    run = await shop.agent.enqueue("Refund")
    inquiry = await asked(lab, run)
    await shop.hf.approve(inquiry.id, input={"number": "A1", "amount": "40"})
    await lab.drain()
    assert shop.paid == [("A1", Decimal("40"))]
    (told,) = await results(shop.hf, run.session_id)
    assert "A person changed the arguments" in told["content"][0]["text"]
    assert told["content"][1]["text"] == "refunded 40"
    assert run.session_id is not None
    use = (await shop.hf.sessions[run.session_id].messages())[1].blocks[0]
    assert use["input"] == {"number": "A1", "amount": "80"}


async def test_what_was_seen_is_what_is_approved_and_once(labs: Labs) -> None:
    shop = Shop()
    lab = await labs.use(shop.hf, refunding("80"))
    inquiry = await asked(lab, await shop.agent.enqueue("Refund"))
    with pytest.raises(DigestMismatch):
        await shop.hf.approve(inquiry.id, digest="of something else")
    with pytest.raises(NotFound):
        await shop.hf.tenant("other").approve(inquiry.id)
    with pytest.raises(NotFound):
        await shop.hf.approve("nothing")
    await shop.hf.approve(inquiry.id, by="ann")
    await shop.hf.approve(inquiry.id, by="ben")
    with pytest.raises(AlreadyDecided, match="ann"):
        await shop.hf.deny(inquiry.id)
    await lab.drain()
    assert len(shop.paid) == 1


@pytest.mark.parametrize(("otherwise", "paid"), [("deny", 0), ("approve", 1)])
async def test_nobody_decides_in_time(labs: Labs, otherwise: str, paid: int) -> None:
    shop = Shop(within="1h", otherwise=otherwise)
    lab = await labs.use(shop.hf, refunding("80"))
    run = await shop.agent.enqueue("Refund")
    inquiry = await asked(lab, run)
    await lab.clock.advance("59m")
    await lab.drain()
    assert run.state == "awaiting_input"
    await lab.clock.advance("2m")
    await lab.drain()
    assert (await run.result()).text == "done"
    assert (len(shop.paid), (await shop.hf.inquiries.get(inquiry.id)).state) == (paid, "expired")


async def test_a_cancelled_run_withdraws_what_it_asked(labs: Labs) -> None:
    shop = Shop()
    lab = await labs.use(shop.hf, refunding("80"))
    run = await shop.agent.enqueue("Refund")
    inquiry = await asked(lab, run)
    await run.cancel()
    await lab.drain()
    assert (await shop.hf.inquiries.get(inquiry.id)).state == "withdrawn"
    with pytest.raises(AlreadyDecided):
        await shop.hf.approve(inquiry.id)
    assert shop.paid == []


async def test_a_model_asks_a_person(labs: Labs) -> None:
    hf = Holdfast("sqlite:////nowhere/at-all.db")
    ask = hf.inquiries.question(within="1d", otherwise="nobody knows")
    agent = hf.agent("guide", model="scripted:", tools=[ask])
    script = Script(call("ask_person", question="Which?", choices=["a", "b"]), say("thanks"))
    lab = await labs.use(hf, script)
    run = await agent.enqueue("Go")
    inquiry = await asked(lab, run)
    assert (inquiry.kind, inquiry.data["question"]) == ("question", "Which?")
    with pytest.raises(UsageError, match="answer it"):
        await hf.approve(inquiry.id)
    await hf.answer(run.id, "b", by="ann")
    await lab.drain()
    (told,) = await results(hf, run.session_id)
    assert told["content"] == "b"
    events = await run.events()
    assert [event.question for event in events if isinstance(event, QuestionAsked)] == ["Which?"]
    assert [event.verdict for event in events if isinstance(event, InputGiven)] == ["answered"]
    late = await agent.enqueue("Again")
    await asked(lab, late)
    await lab.clock.advance("25h")
    await lab.drain()
    (told,) = await results(hf, late.session_id)
    assert told["content"] == "nobody knows"


async def test_arguments_that_do_not_fit_and_a_second_opinion_are_refused(labs: Labs) -> None:
    shop = Shop()
    lab = await labs.use(shop.hf, refunding("80"))
    inquiry = await asked(lab, await shop.agent.enqueue("Refund"))
    with pytest.raises(UsageError, match="these arguments do not fit tool:refund"):
        await shop.hf.approve(inquiry.id, input={"amount": "much"})
    await shop.hf.approve(inquiry.id, input={"number": "A1", "amount": "40"}, by="ann")
    with pytest.raises(AlreadyDecided, match="ann"):
        await shop.hf.approve(inquiry.id, input={"number": "A1", "amount": "50"})
    await shop.hf.approve(inquiry.id, input={"number": "A1", "amount": "40"})
    await lab.drain()
    assert shop.paid == [("A1", Decimal("40"))]


def large_enough(size: int) -> int:
    if size < 42:
        raise ValueError("these shoes do not fit: they are too small")
    return size


async def test_what_a_tool_says_of_changed_arguments_is_shown_whole(labs: Labs) -> None:
    hf = Holdfast("sqlite:////nowhere/at-all.db")

    @hf.tool(approve=True)
    def send(size: Annotated[int, AfterValidator(large_enough)]) -> str:
        """Send shoes."""
        return "sent"

    agent = hf.agent("shop", model="scripted:", tools=[send])
    lab = await labs.use(hf, Script(call("send", size=43), say("done")))
    inquiry = await asked(lab, await agent.enqueue("Shoes"))
    with pytest.raises(UsageError, match=r"do not fit tool:send: size: .*these shoes do not fit: they are too small"):
        await hf.approve(inquiry.id, input={"size": 40})


async def test_a_rule_that_fails_asks(labs: Labs) -> None:
    hf = Holdfast("sqlite:////nowhere/at-all.db")

    @hf.tool(approve=lambda call: call.input["nothing"])
    def act(n: int) -> str:
        """Act."""
        return "acted"

    agent = hf.agent("actor", model="scripted:", tools=[act])
    lab = await labs.use(hf, Script(calls(call("act", n=1), call("act", n="none")), say("done")))
    run = await agent.enqueue("Go")
    inquiry = await asked(lab, run)
    await hf.approve(inquiry.id)
    await lab.drain()
    first, second = await results(hf, run.session_id)
    assert (first["content"], second["is_error"]) == ("acted", True)  # what is no call of it needs nobody


async def test_what_a_run_below_asks_is_seen_from_above(labs: Labs) -> None:
    hf = Holdfast("sqlite:////nowhere/at-all.db")
    ask = hf.inquiries.question()
    core_of(hf).book.scripts.update(
        below=Script(call("ask_person", question="Which?"), say("thanks")),
        above=Script(call("below", task="find out"), say("found out")),
    )
    below = hf.agent("below", model="scripted:below", tools=[ask])
    above = hf.agent("above", model="scripted:above", agents=[below])
    lab = await labs.use(hf)
    run = await above.enqueue("Go")
    await lab.drain()
    (inquiry,) = await run.inquiries()
    assert (inquiry.kind, inquiry.run_id != run.id) == ("question", True)
    assert "Which?" in str(await run.why())
    await hf.answer(run.id, "the left one")
    await lab.drain()
    assert await run.text() == "found out"


async def test_the_events_and_the_bell(labs: Labs) -> None:
    shop = Shop()
    rung: list[str] = []

    @shop.hf.inquiries.on_open
    async def ring(inquiry: Inquiry) -> None:
        rung.append(inquiry.id)
        if len(rung) == 1:
            raise ConnectionError("the bell is broken")

    lab = await labs.use(shop.hf, refunding("80"))
    run = await shop.agent.enqueue("Refund")
    inquiry = await asked(lab, run)
    (event,) = [event for event in await run.events() if isinstance(event, ApprovalRequested)]
    assert (event.call.name, event.digest, event.inquiry) == ("refund", inquiry.digest, inquiry.id)
    await lab.clock.advance("10s")
    await lab.drain()
    assert rung == [inquiry.id] * 2


async def test_a_once_call_of_unknown_outcome_waits_for_review(labs: Labs) -> None:
    shop = Shop()
    lab = await labs.use(shop.hf, refunding("20"))
    for verdict in ("approve", "answer", "deny"):
        shop.paid.clear()
        run = await shop.agent.enqueue("Refund")
        lab.crash(before="complete")
        await settle_waiting(lab, run)
        (inquiry,) = await shop.hf.inquiries.list(run=run.id)
        assert (inquiry.kind, len(shop.paid)) == ("review", 1)
        assert "may have taken effect" in inquiry.data["reason"]
        match verdict:
            case "approve":
                await shop.hf.approve(inquiry.id)
            case "answer":
                await shop.hf.answer(inquiry.id, "it was paid, I looked")
            case _:
                await shop.hf.deny(inquiry.id, message="do not")
        await settle(lab, run)
        (told,) = await results(shop.hf, run.session_id)
        assert len(shop.paid) == (2 if verdict == "approve" else 1)
        assert len(set(shop.keys[-len(shop.paid) :])) == 1
        assert bool(told.get("is_error")) == (verdict == "deny")
        assert (await run.result()).text == "done"


async def settle_waiting(lab: Lab, run: Run[Any]) -> None:
    for _ in range(20):
        await lab.drain()
        if run.state == "awaiting_input":
            return
        await lab.clock.advance("1m")
    raise AssertionError(f"run {run.id} is {run.state}")


async def test_an_answer_that_was_cut_off_goes_on_by_itself(labs: Labs) -> None:
    hf = Holdfast("sqlite:////nowhere/at-all.db")
    agent = hf.agent("writer", model="scripted:", on_max_tokens="continue")
    script = Noting(truncate("Once upon"))
    lab = await labs.use(hf, script)
    run = await agent.enqueue("Tell")
    await settle(lab, run)
    result = await run.result()
    assert (result.outcome, result.turns, len(script.bodies)) == ("truncated", 4, 4)
    assert result.text == "Once upon" * 4
    assert script.bodies[1]["messages"][-1]["role"] == "user"
    assert "Continue" in script.bodies[1]["messages"][-1]["content"][0]["text"]


@pytest.mark.parametrize("verdict", ["approve", "answer", "deny"])
async def test_a_person_says_whether_an_answer_goes_on(labs: Labs, verdict: str) -> None:
    hf = Holdfast("sqlite:////nowhere/at-all.db")
    agent = hf.agent("writer", model="scripted:", on_max_tokens="ask")

    def first_cut(messages: list[dict[str, Any]]) -> Any:
        return truncate("Once upon") if len(messages) == 1 else say("a time.")

    script = Noting(first_cut)
    lab = await labs.use(hf, script)
    run = await agent.enqueue("Tell")
    inquiry = await asked(lab, run)
    assert (inquiry.kind, inquiry.data) == ("continuation", {"reason": "max_tokens", "text": "Once upon"})
    match verdict:
        case "approve":
            await hf.approve(run.id)
        case "answer":
            await hf.answer(run.id, "Shorter, please.")
        case _:
            await hf.deny(run.id)
    await lab.drain()
    result = await run.result()
    if verdict == "deny":
        assert (result.outcome, result.text, len(script.bodies)) == ("truncated", "Once upon", 1)
        return
    assert (result.outcome, result.text) == ("answered", "a time." if verdict == "answer" else "Once upona time.")
    said = script.bodies[1]["messages"][-1]["content"][0]["text"]
    assert said == "Shorter, please." if verdict == "answer" else said.startswith("Continue")


@pytest.mark.parametrize("allowed", [True, False])
async def test_a_run_at_its_limit_asks_for_more(labs: Labs, allowed: bool) -> None:
    shop = Shop()
    lab = await labs.use(shop.hf, Script(*[call("look", number="1")] * 5, say("seen enough")))
    run = await shop.agent.enqueue("Look", limits=Limits(turns=2, on_limit="ask"))
    for times in (1, 2):
        inquiry = await asked(lab, run)
        assert (inquiry.kind, inquiry.data["limit"]) == ("limit", "turns")
        assert f"{2 * times} turns of {2 * times}" in inquiry.data["reason"]
        if not allowed:
            await shop.hf.deny(inquiry.id)
            break
        await shop.hf.approve(inquiry.id)
    await lab.drain()
    result = await run.result()
    assert (result.outcome, result.turns) == (("answered", 6) if allowed else ("limited", 2))
