"""Waterfalls: what a run did, what it waited for and why, and the attempts that died."""

from __future__ import annotations

from decimal import Decimal

from holdfast import Holdfast
from holdfast.agents.api.waterfall import Span
from holdfast.models.script import Script, call, say
from holdfast.testing import Labs
from tests.support.agents import scripted, settle

NOWHERE = "sqlite:////nowhere/at-all.db"


def of(kind: str, spans: list[Span]) -> list[Span]:
    return [span for span in spans if span.kind == kind]


async def test_a_wait_for_a_person_stands_below_the_call_that_waits(labs: Labs) -> None:
    hf = Holdfast(NOWHERE)

    @hf.tool(approve=True)
    def pay(amount: int) -> str:
        """Pay."""
        return "paid"

    agent = hf.agent("till", model="scripted:", tools=[pay])
    lab = await labs.use(hf, Script(call("pay", amount=5), say("done")))
    run = await agent.enqueue("Pay")
    await lab.drain()
    await lab.clock.advance("1m")
    (waiting,) = [span for span in of("wait", await run.waterfall()) if span.name == "person"]
    assert (waiting.state, waiting.ended_at, waiting.reason) == ("lasting", None, "pay waited for approval")
    await hf.approve(run.id, by="ada")
    await settle(lab, run)
    spans = await run.waterfall()
    (waited,) = [span for span in of("wait", spans) if span.name == "person"]
    (done,) = of("call", spans)
    assert waited.parent == done.id
    assert waited.reason == "pay waited for approval; ada decided"
    assert waited.ended_at is not None
    assert (waited.ended_at - waited.started_at).total_seconds() >= 60


async def test_a_killed_turn_has_a_dead_attempt_with_its_worker_and_an_unknown_purchase(labs: Labs) -> None:
    hf = Holdfast(NOWHERE)
    agent = hf.agent("guide", model="scripted:")
    lab = await labs.use(hf, Script(say("Here is the way")))
    lab.crash(before="commit")
    run = await agent.enqueue("Where?", tenant="acme")
    await settle(lab, run)
    spans = await run.waterfall()
    (turn,) = of("turn", spans)
    (dead,) = of("attempt", spans)
    assert (dead.parent, dead.state, turn.unknown) == (turn.id, "lost", 1)
    assert dead.worker
    assert [span.worker for span in await hf.tenant("acme").runs[run.id].waterfall() if span.worker] == []


async def test_a_run_waits_for_the_run_before_it_in_its_session(labs: Labs) -> None:
    hf = Holdfast(NOWHERE)
    agent = hf.agent("guide", model=scripted(hf, say("one"), say("two")))
    lab = await labs.use(hf)
    first = await agent.enqueue("One", session="s")
    second = await agent.enqueue("Two", session="s")
    await lab.clock.advance("5s")
    (waiting,) = of("wait", await second.waterfall())
    assert (waiting.name, waiting.ended_at) == ("queue", None)
    assert waiting.reason == str(await second.why())
    await settle(lab, first, second)
    assert of("wait", await second.waterfall())[0].name == "session"


async def test_cost_and_tokens_are_those_of_each_row(labs: Labs) -> None:
    hf = Holdfast(NOWHERE)
    agent = hf.agent("guide", model="scripted:")
    lab = await labs.use(hf, Script(say("Here")))
    run = await agent.enqueue("Where?")
    await settle(lab, run)
    spans = await run.waterfall()
    (whole,), (turn,) = of("run", spans), of("turn", spans)
    assert turn.tokens == whole.tokens == (await run.usage()).total_tokens
    assert turn.cost == whole.cost >= Decimal()
