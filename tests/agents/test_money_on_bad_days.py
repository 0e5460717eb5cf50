"""Money on bad days: nothing is reserved for what is not asked, nobody waits for what cannot come, a grant is one."""

from __future__ import annotations

from decimal import Decimal

from holdfast import Holdfast, Limits
from holdfast.app import core_of
from holdfast.models.protocol import Wire
from holdfast.models.script import Script, ScriptedTurn, block, call, calls, ends, say
from holdfast.testing import Labs
from holdfast.values import moment
from tests.agents.test_batches import app, provided_batches
from tests.agents.test_budgets import looker
from tests.support.agents import MODEL, Gated, Noting, settle
from tests.support.apps import MakeApp, eventually

NOWHERE = "sqlite:////nowhere/at-all.db"
LOCKED_OUT = {"status": 401, "type": "authentication_error"}


async def test_a_call_that_no_period_holds_is_not_waited_for(provided: Labs) -> None:
    hf = Holdfast(NOWHERE)
    agent = hf.agent("writer", model=MODEL, max_tokens=4_000)
    lab = await provided.use(hf, Script(say("hello")))
    await hf.budgets.set("0.001", per="1d", policy="wait")
    run = await agent.enqueue("Go")
    await lab.drain()
    result = await run.result()
    assert result.outcome == "limited"
    assert "more than one period's budget" in (result.limit or "")


async def test_nothing_is_reserved_while_a_lane_waits_for_a_person(provided: Labs) -> None:
    hf = app()
    agent = hf.agent("writer", model=MODEL, max_tokens=1_000)
    async with provided_batches(provided, hf, rules=[{"match": {}, "do": LOCKED_OUT}]) as (lab, _):
        await hf.budgets.set("1.00", tenant="acme")
        await agent.enqueue("Go", tenant="acme")
        await lab.drain()
        (budget,) = await hf.budgets.list()
        assert (budget.reserved, budget.spent) == (Decimal(0), Decimal(0))


async def test_who_waits_for_what_others_reserved_looks_ever_more_rarely(provided: Labs) -> None:
    hf = app()
    agent = hf.agent("writer", model=MODEL, max_tokens=1_000)
    async with provided_batches(provided, hf, batch_seconds=20 * 3600) as (lab, _):
        await hf.budgets.set("0.012", tenant="acme")  # fits one call at a time
        await agent.enqueue("Go", mode="batch", tenant="acme")
        await lab.drain()
        await lab.clock.advance("1h")
        run = await agent.enqueue("Go", tenant="acme")
        await lab.drain()
        row = await hf.jobs.get(run.id)
        assert row.state == "scheduled"
        assert row.due_at is not None
        assert row.due_at == moment(lab.clock.wall_us() + 30_000_000)


async def test_a_grant_beyond_a_budget_is_one_for_a_run_and_all_below_it(provided: Labs) -> None:
    hf = Holdfast(NOWHERE)
    below = looker(hf)
    above = hf.agent("above", model=MODEL, agents=[below], limits=Limits(turns=1_000))

    class Both(Script):
        def turn(self, body: Wire) -> ScriptedTurn:
            if any(tool["name"] == "looker" for tool in body.get("tools", [])):
                started = calls(*[call("looker", task=f"task {number}") for number in range(4)])
                return Script(started, say("done")).turn(body)
            return Script(*[call("look")] * 50, say("never")).turn(body)

    lab = await provided.use(hf, Both())
    lab.price("0.01")
    await hf.budgets.set("0.005", tenant="acme", policy="ask")
    run = await above.enqueue("Go", tenant="acme")
    await lab.drain()
    (inquiry,) = await run.inquiries()
    await hf.approve(inquiry.id)
    await lab.drain()
    (budget,) = await hf.budgets.list()
    granted = Decimal(inquiry.data["portion"]) / 10**9
    assert budget.spent <= granted + 4 * Decimal("0.01")  # one call of each that is under way
    assert budget.spent <= Decimal("0.03")


async def test_a_closed_lane_takes_nothing_of_a_turns_patience(provided: Labs) -> None:
    hf = app()
    agent = hf.agent("writer", model=MODEL)
    rules = [{"match": {"nth": 1}, "do": LOCKED_OUT}, {"match": {"nth": 2}, "do": {"overloaded": True}}]
    async with provided_batches(provided, hf, rules=rules) as (lab, _):
        run = await agent.enqueue("Say x")
        await lab.drain()
        await lab.clock.advance("2h")
        await lab.drain()
        for lane in await hf.lanes.list():
            await hf.lanes.open(lane.name)
        await settle(lab, run)
        assert run.state == "completed"


async def test_a_call_whose_run_is_cancelled_meanwhile_is_counted_as_unknown(make_app: MakeApp) -> None:
    hf = make_app()
    core_of(hf).book.substitute = model = Gated(say("never heard"))
    agent = hf.agent("writer", model="scripted:")
    await hf.ensure_worker()
    run = await agent.enqueue("Go")
    await model.reached(1)
    await run.cancel()

    async def is_over() -> bool:
        return (await run.refresh()).state == "cancelled"

    await eventually(is_over)
    (turn,) = await run.turns()
    assert (turn.state, turn.unknown) == ("failed", 1)


async def test_a_tool_of_the_providers_own_that_nobody_answered_is_not_sent_again(labs: Labs) -> None:
    hf = Holdfast(NOWHERE)
    unanswered = block("server_tool_use", id="srvtoolu_1", name="web_search", input={"query": "x"})
    script = Noting(lambda messages: ends("pause_turn", say("hm"), unanswered) if len(messages) == 1 else say("ok"))
    agent = hf.agent("guide", model="scripted:", limits=Limits(turns=1))
    lab = await labs.use(hf, script)
    for words in ("Go", "And now?"):
        await settle(lab, await agent.enqueue(words, session="s"))
    sent = [block["type"] for message in script.bodies[-1]["messages"] for block in message["content"]]
    assert sent == ["text", "text", "text"]
