"""Budgets: reserved where a call is decided, settled after it, and never overspent by who comes at the same time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from holdfast import Holdfast, Snooze
from holdfast.agents.api.agent import Agent
from holdfast.app import core_of
from holdfast.errors import BadSetting, NotFound, UsageError
from holdfast.models.prices import Price
from holdfast.models.script import Script, call, say
from holdfast.testing import Labs
from tests.support.agents import MODEL, settle
from tests.support.apps import MakeApp
from tests.support.compaction import SMALL, talk, talker

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


def looker(hf: Holdfast, *, max_tokens: int = 1_000) -> Agent[str]:
    @hf.tool(effect="read")
    def look() -> str:
        """Look."""
        return "seen"

    return hf.agent("looker", model=MODEL, tools=[look], max_tokens=max_tokens)


async def test_a_run_ends_when_the_next_call_does_not_fit(provided: Labs) -> None:
    hf = Holdfast("sqlite:////nowhere/at-all.db")
    agent = looker(hf)
    lab = await provided.use(hf, Script(*[call("look")] * 40, say("never")))
    budget = await hf.budgets.set("0.015", tenant="acme")
    run = await agent.enqueue("Go", tenant="acme")
    await lab.drain()
    result = await run.result()
    assert result.outcome == "limited"
    assert "the budget of tenant acme is 0.0150 USD" in (result.limit or "")
    (after,) = await hf.budgets.list(tenant="acme")
    assert (after.id, after.spent, after.reserved) == (budget.id, result.usage.cost, Decimal(0))
    assert Decimal(0) < after.spent <= Decimal("0.015")
    other = await agent.enqueue("Go", tenant="other")
    assert (await other.result()).outcome == "answered"  # the money is another's


async def test_a_day_begins_anew(provided: Labs) -> None:
    hf = Holdfast("sqlite:////nowhere/at-all.db")
    agent = looker(hf)
    lab = await provided.use(hf, Script(say("hello")), now=NOON)
    await hf.budgets.set("0.011", per="1d", policy="wait")
    for _ in range(2):
        spent = 0
        while True:
            run = await agent.enqueue("Go")
            await lab.drain()
            if run.state != "completed":
                break
            spent += 1
        assert spent >= 1
        assert "budget of everyone" in str(await hf.why(run.id))
        await lab.clock.advance("24h")
        await settle(lab, run)
        assert (await run.result()).text == "hello"
        assert "budget" in {span.name for span in await run.waterfall() if span.kind == "wait"}


@pytest.mark.parametrize("allowed", [True, False])
async def test_a_person_may_let_a_run_go_beyond_its_budget(provided: Labs, allowed: bool) -> None:
    hf = Holdfast("sqlite:////nowhere/at-all.db")
    agent = looker(hf)
    lab = await provided.use(hf, Script(say("hello")))
    session = await hf.session("s")
    await hf.budgets.set("0.000001", session=session, policy="ask")
    run = await agent.enqueue("Go", session=session)
    await lab.drain()
    assert run.state == "awaiting_input"
    (inquiry,) = await run.inquiries()
    assert (inquiry.kind, inquiry.data["limit"]) == ("limit", "budget")
    await hf.budgets.set("10")
    await (hf.approve if allowed else hf.deny)(inquiry.id)
    await lab.drain()
    result = await run.result()
    assert result.outcome == ("answered" if allowed else "limited")
    assert {each.spent for each in await hf.budgets.list()} == {result.usage.cost}  # beyond it is counted too


@pytest.mark.long
async def test_fifty_runs_at_once_do_not_overspend(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """At no moment is more spent and reserved than the budget has, and what is recorded is what was spent."""
    from holdfast.models.scripted import ScriptedModel

    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-simulated")
    hf = make_app(max_concurrent_streaming_runs=50)
    core_of(hf).book.substitute = ScriptedModel(Script(*[call("look")] * 8, say("done")))
    agent = looker(hf, max_tokens=500)
    budget = await hf.budgets.set("0.12", tenant="acme", policy="end")
    most = core_of(hf).book.most_nano(MODEL, 400, 500)
    runs = [await agent.enqueue(f"Go {number}", tenant="acme") for number in range(50)]
    await hf.ensure_worker()
    watching = asyncio.ensure_future(_watch(hf, budget.id))
    results = [await run.result() for run in runs]
    assert not watching.done(), watching.exception()  # it looked until now, and never saw more than there is
    watching.cancel()
    outcomes = {result.outcome for result in results}
    assert "limited" in outcomes
    assert outcomes <= {"answered", "limited"}
    (after,) = await hf.budgets.list()
    assert after.reserved == 0
    assert after.spent == sum(result.usage.cost for result in results)
    assert after.spent <= after.cost
    assert (
        after.cost - after.spent < 50 * Decimal(most) / 10**9
    )  # and what is left would not have been another call each


async def _watch(hf: Holdfast, id: str) -> None:
    while True:
        (now,) = [each for each in await hf.budgets.list() if each.id == id]
        assert now.spent + now.reserved <= now.cost
        await asyncio.sleep(0.01)


async def test_what_a_dead_worker_reserved_is_reserved_once(provided: Labs) -> None:
    hf = Holdfast("sqlite:////nowhere/at-all.db")
    agent = looker(hf)
    lab = await provided.use(hf, Script(say("hello")))
    await hf.budgets.set("1", tenant="acme")
    run = await agent.enqueue("Go", tenant="acme")
    lab.crash(after="begin")
    await settle(lab, run)
    (after,) = await hf.budgets.list()
    assert (after.reserved, after.spent) == (Decimal(0), (await run.result()).usage.cost)
    lost = await agent.enqueue("Go", tenant="acme")
    lab.crash(after="begin")
    await lab.drain()
    await lost.cancel()
    await settle(lab, lost)
    assert (await hf.budgets.list())[0].reserved == 0


async def test_bad_budgets_are_refused(provided: Labs) -> None:
    hf = Holdfast("sqlite:////nowhere/at-all.db")
    await provided.use(hf, Script(say("hello")))
    with pytest.raises(BadSetting, match="as text"):
        await hf.budgets.set(0.5)  # type: ignore[arg-type]
    with pytest.raises(BadSetting, match="next period"):
        await hf.budgets.set("1", policy="wait")
    theirs = await hf.tenant("a").session("b")
    assert (await hf.budgets.set("1", tenant="a", session="b")).subject == theirs.id
    await hf.budgets.delete((await hf.budgets.list())[0].id)
    with pytest.raises(NotFound):
        await hf.budgets.set("1", session="nowhere")
    with pytest.raises(NotFound):
        await hf.budgets.delete("nothing")
    await hf.budgets.delete((await hf.budgets.set("1")).id)
    assert await hf.budgets.list() == []


async def test_usage_is_told_apart(provided: Labs) -> None:
    hf = Holdfast("sqlite:////nowhere/at-all.db")
    waited: list[int] = []

    @hf.tool
    def wait() -> str:
        """Wait."""
        waited.append(1)
        if len(waited) == 1:
            raise Snooze("24h")
        return "waited"

    agent = hf.agent("waiter", model=MODEL, tools=[wait])
    lab = await provided.use(hf, Script(call("wait"), say("done")), now=NOON)
    run = await agent.enqueue("Go", tenant="acme")
    await lab.drain()
    await lab.clock.advance("24h")
    await settle(lab, run)
    await (await agent.enqueue("Go", tenant="other")).result()
    (total,) = await hf.budgets.used()
    assert (total.turns, total.tenant, total.day) == (4, "", None)
    by_tenant = {each.tenant: each.cost for each in await hf.budgets.used("tenant", "model")}
    assert by_tenant["acme"] == (await run.result()).usage.cost
    assert sum(by_tenant.values()) == total.cost
    days = await hf.budgets.used("day", tenant="acme")
    assert [str(each.day) for each in days] == ["2026-11-16", "2026-11-15"]
    assert [each.agent for each in await hf.budgets.used("agent")] == ["waiter"]
    assert await hf.budgets.used(since=datetime(2030, 1, 1, tzinfo=UTC)) == []
    with pytest.raises(UsageError, match="grouped by"):
        await hf.budgets.used("moon")  # type: ignore[arg-type]


async def test_a_summary_is_paid_from_the_budget_too(hf: Holdfast) -> None:
    agent, _ = talker(hf)
    hf.budgets.prices = [
        Price(model="scripted:sum", kind=kind, tier="standard", since=date(2026, 1, 1), usd=Decimal(10))
        for kind in ("input", "output")
    ]
    await hf.budgets.set("5", tenant="")
    session = await hf.session("s")
    await talk(session, agent, 4)
    (before,) = await hf.budgets.list()
    done = await session.compact(replace(SMALL, strategy="summarize"))
    (after,) = await hf.budgets.list()
    assert done.cost_nano > 0
    assert after.spent - before.spent == Decimal(done.cost_nano) / 10**9
    assert (await hf.budgets.used("agent"))[0].agent == "(compaction)"
