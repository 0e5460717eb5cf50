"""The default budget of tenants: each tenant without a budget of its own has one, and spends nobody else's."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from holdfast import Holdfast
from holdfast.agents import core
from holdfast.app import core_of
from holdfast.errors import BudgetUsedUp, NotFound, UsageError
from holdfast.models.prices import Price
from holdfast.models.script import Script, call, say
from holdfast.models.scripted import ScriptedModel
from holdfast.testing import Labs
from tests.agents.test_batches import app, pass_time, provided_batches
from tests.agents.test_budgets import looker
from tests.agents.test_retention import rows_in
from tests.support.agents import settle
from tests.support.apps import MakeApp
from tests.support.compaction import SMALL, talk, talker

NOWHERE = "sqlite:////nowhere/at-all.db"
ZERO = Decimal(0)
NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


async def spent_by(hf: Holdfast) -> dict[str, str]:
    """What is spent and reserved, by whose budget it is."""
    return {
        f"{row.scope} {row.subject}".strip(): f"{row.spent + row.reserved:.2f} of {row.cost:.2f}"
        for row in await hf.budgets.list()
    }


async def test_each_tenant_has_its_own_use_of_the_default(provided: Labs) -> None:
    hf = Holdfast(NOWHERE)
    agent = looker(hf)
    lab = await provided.use(hf, Script(say("hello")), now=NOON)
    lab.price("0.01")
    default = await hf.budgets.set("0.02", each_tenant=True, per="1d")
    assert (default.scope, default.subject, default.spent) == ("each_tenant", "", ZERO)
    await hf.budgets.set("0.01", tenant="poor", per="1d")
    await hf.budgets.set("9.00", tenant="other", per="7d")  # of another period: the default holds too

    async def ends(tenant: str) -> str:
        return (await (await agent.enqueue("Go", tenant=tenant)).result()).limit or "answered"

    assert [await ends("acme"), await ends("acme")] == ["answered", "answered"]
    assert "the default budget of tenant acme is 0.0200 USD in a day: 0.0200 spent" in await ends("acme")
    assert [await ends("other"), await ends("poor"), *[await ends("") for _ in range(3)]] == ["answered"] * 5
    assert "the budget of tenant poor is 0.0100 USD in a day" in await ends("poor")
    assert await spent_by(hf) == {
        "each_tenant": "0.00 of 0.02",
        "each_tenant acme": "0.02 of 0.02",
        "each_tenant other": "0.01 of 0.02",
        "tenant other": "0.01 of 9.00",
        "tenant poor": "0.01 of 0.01",
    }
    await hf.budgets.set("0.03", each_tenant=True, per="1d")  # for all who use it, and what is spent stays spent
    assert [await ends("acme"), "default" in await ends("acme"), await ends("other")] == ["answered", True, "answered"]
    await hf.budgets.set("0.02", tenant="other", per="1d")  # in place of the 0.01 that is left of the default
    assert [await ends("other"), await ends("other")] == ["answered", "answered"]
    assert "the budget of tenant other is 0.0200 USD" in await ends("other")
    assert "each_tenant other" not in await spent_by(hf)
    await hf.budgets.delete(default.id)
    assert await ends("acme") == "answered"
    await hf.budgets.set("0.03", each_tenant=True, per="1d")
    assert [(each.spent, each.left) for each in await hf.tenant("acme").budgets.list()] == [(ZERO, Decimal("0.03"))]


async def test_a_tenant_sees_what_it_may_spend_and_changes_nothing_of_the_default(provided: Labs) -> None:
    hf = Holdfast(NOWHERE)
    await provided.use(hf, Script(say("hello")))
    default = await hf.budgets.set("5.00", each_tenant=True)
    acme = hf.tenant("acme")
    (seen,) = await acme.budgets.list()
    assert (seen.id, seen.scope, seen.subject, seen.left) == (default.id, "each_tenant", "acme", Decimal(5))
    with pytest.raises(UsageError, match="for all tenants"):
        await acme.budgets.set("1", each_tenant=True)
    with pytest.raises(UsageError, match="for all tenants"):
        await hf.budgets.set("1", each_tenant=True, session="s")
    with pytest.raises(NotFound, match="there is no budget"):
        await acme.budgets.delete(default.id)
    own = await acme.budgets.set("1")
    assert [row.id for row in await acme.budgets.list()] == [own.id]
    assert await hf.budgets.list(tenant="") == []
    await acme.budgets.delete(own.id)
    assert await acme.budgets.list() == [seen]


async def test_a_default_waits_for_its_next_period_and_says_so(provided: Labs) -> None:
    hf = Holdfast(NOWHERE)
    agent = looker(hf)
    lab = await provided.use(hf, Script(say("hello")), now=NOON)
    lab.price("0.01")
    await hf.budgets.set("0.01", each_tenant=True, per="1d", policy="wait")
    await (await agent.enqueue("Go", tenant="acme")).result()
    run = await agent.enqueue("Go", tenant="acme")
    await lab.drain()
    assert "the default budget of tenant acme" in str(await hf.why(run.id))
    await lab.clock.advance("24h")
    await settle(lab, run)
    assert (await run.result()).text == "hello"
    assert rows_in(lab, "budget_use") == 2
    await lab.clock.advance("400d")
    await core_of(hf).runtime().transact(core.prune, hf.settings)
    assert rows_in(lab, "budget_use") == 1, "the older of the two days is forgotten"


async def test_a_person_may_let_a_run_go_beyond_a_default(provided: Labs) -> None:
    hf = Holdfast(NOWHERE)
    agent = looker(hf)
    lab = await provided.use(hf, Script(call("look"), say("hello")))
    lab.price("0.01")
    default = await hf.budgets.set("0.01", each_tenant=True, policy="ask")
    run = await agent.enqueue("Go", tenant="acme")
    await lab.drain()
    (inquiry,) = await run.inquiries()
    assert inquiry.data["budget"] == default.id
    await hf.approve(inquiry.id)
    await settle(lab, run)
    assert (await run.result()).outcome == "answered"
    assert (await spent_by(hf))["each_tenant acme"] == "0.02 of 0.01"


@pytest.mark.long
async def test_what_is_reserved_of_a_default_is_settled_there_once(provided: Labs) -> None:
    hf = app()
    agent = looker(hf)
    async with provided_batches(provided, hf, script=Script(say("hello")), batch_seconds=1800) as (lab, _):
        await hf.budgets.set("1", each_tenant=True)
        run = await agent.enqueue("Go", tenant="acme", mode="batch")
        await lab.drain()
        (seen,) = await hf.budgets.list(tenant="acme")
        assert seen.reserved > seen.spent == 0
        await hf.budgets.set("1", tenant="acme")  # for the calls that follow
        await pass_time(lab, run, step="1h")
        (own,) = await hf.budgets.list(tenant="acme")
        await hf.budgets.delete(own.id)
        (seen,) = await hf.budgets.list(tenant="acme")
        assert (own.spent, seen.spent, seen.reserved) == (ZERO, (await run.result()).usage.cost, ZERO)
        lost = await agent.enqueue("Go", tenant="acme", mode="batch")
        await lab.drain()
        await lost.cancel()
        await lab.drain()
        assert (await hf.budgets.list(tenant="acme"))[0].reserved == 0


async def test_summaries_are_paid_from_the_default_too(hf: Holdfast) -> None:
    agent, _ = talker(hf)
    hf.budgets.prices = [
        Price(model="scripted:sum", kind=kind, tier="standard", since=date(2026, 1, 1), usd=Decimal(10))
        for kind in ("input", "output")
    ]
    await hf.budgets.set("5", each_tenant=True)
    session = await hf.tenant("acme").session("s")
    await talk(session, agent, 4)
    (before,) = await hf.budgets.list(tenant="acme")
    done = await session.compact(replace(SMALL, strategy="summarize"))
    (after,) = await hf.budgets.list(tenant="acme")
    assert done.cost_nano > 0
    assert (after.spent - before.spent, after.reserved) == (Decimal(done.cost_nano) / 10**9, ZERO)
    await talk(session, agent, 4)
    default = await hf.budgets.set("0.000001", each_tenant=True)
    with pytest.raises(BudgetUsedUp, match="the default budget of tenant acme") as refused:
        await session.compact(replace(SMALL, strategy="summarize"))
    assert refused.value.budget == default.id


async def test_what_an_erased_tenant_has_spent_of_a_default_stays_spent(provided: Labs) -> None:
    hf = Holdfast(NOWHERE)
    agent = looker(hf)
    lab = await provided.use(hf, Script(say("hello")))
    lab.price("0.01")
    await hf.budgets.set("0.01", each_tenant=True)
    await (await agent.enqueue("Go", tenant="acme")).result()
    await hf.tenant("acme").erase()
    assert (await spent_by(hf))["each_tenant acme"] == "0.01 of 0.01"
    assert (await (await agent.enqueue("Go", tenant="acme")).result()).outcome == "limited"


@pytest.mark.long
async def test_runs_at_once_do_not_overspend_a_default(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """At no moment has a tenant more spent and reserved than the default has."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-simulated")
    hf = make_app(max_concurrent_streaming_runs=40)
    core_of(hf).book.substitute = ScriptedModel(Script(*[call("look")] * 8, say("done")))
    agent = looker(hf, max_tokens=500)
    await hf.budgets.set("0.06", each_tenant=True)
    runs = [await agent.enqueue(f"Go {number}", tenant=f"t{number % 2}") for number in range(40)]
    await hf.ensure_worker()
    watching = asyncio.ensure_future(_watch(hf))
    results = [await run.result() for run in runs]
    assert not watching.done(), watching.exception()
    watching.cancel()
    assert {result.outcome for result in results} >= {"limited"}
    for place in range(2):
        (after,) = await hf.budgets.list(tenant=f"t{place}")
        assert (after.spent, after.reserved) == (sum((each.usage.cost for each in results[place::2]), ZERO), ZERO)
        assert 0 < after.spent <= after.cost


async def _watch(hf: Holdfast) -> None:
    while True:
        for now in await hf.budgets.list():
            assert now.spent + now.reserved <= now.cost
        await asyncio.sleep(0.01)
