"""The limit of cost of a run holds for all that it starts, also where its agents ask their models at the same time."""

from __future__ import annotations

from decimal import Decimal

import pytest

from holdfast import Holdfast
from holdfast.agents.api.agent import Agent
from holdfast.agents.definition import Limits, Mode
from holdfast.agents.money import budgets
from holdfast.agents.money.budgets import name_of_tree
from holdfast.agents.money.records import BudgetsSql, BudgetUse
from holdfast.agents.rows import LoadedRun
from holdfast.app import core_of
from holdfast.kernel.database import Transaction
from holdfast.models.protocol import Wire
from holdfast.models.script import Script, ScriptedTurn, call, calls, say
from holdfast.testing import Labs
from tests.support.agents import MODEL, settle

NOWHERE = "sqlite:////nowhere/at-all.db"


class Crowd(Script):
    """The agent at the top calls so many others at once, each of which looks often."""

    def __init__(self, children: int, looks: int = 20) -> None:
        super().__init__()
        self._children = children
        self._looks = looks

    def turn(self, body: Wire) -> ScriptedTurn:
        if any(tool["name"] == "looker" for tool in body.get("tools", [])):
            started = calls(*[call("looker", task=f"task {number}") for number in range(self._children)])
            return Script(started, say("done")).turn(body)
        return Script(*[call("look")] * self._looks, say("looked")).turn(body)


def crowd(hf: Holdfast, limits: Limits | None) -> Agent[str]:
    @hf.tool(effect="read")
    def look() -> str:
        """Look."""
        return "seen"

    below = hf.agent("looker", model=MODEL, tools=[look])
    return hf.agent("above", model=MODEL, agents=[below], limits=limits)


async def use_of(hf: Holdfast, root: str) -> BudgetUse:
    async def find(tx: Transaction) -> BudgetUse:
        found = await tx.one(BudgetsSql.hold_tree, tree=name_of_tree(root))
        assert found is not None
        return found

    return await core_of(hf).runtime().transact(find)


@pytest.mark.parametrize("mode", ["streaming", "batch"])
async def test_agents_that_are_called_at_the_same_time_keep_the_limit_of_who_called_them(
    provided: Labs, mode: Mode
) -> None:
    hf = Holdfast(NOWHERE)
    above = crowd(hf, Limits(cost="0.02"))
    lab = await provided.use(hf, Crowd(5))
    lab.price("0.0065")
    run = await above.enqueue("Go", mode=mode)
    await settle(lab, run)
    result = await run.result()
    assert result.outcome == "limited"
    assert Decimal(0) < result.usage.cost <= Decimal("0.02")
    assert result.usage.runs == 6
    assert (await use_of(hf, run.id)).reserved_nano == 0


class Managed(Crowd):
    """The agent at the top calls one that calls the others."""

    def turn(self, body: Wire) -> ScriptedTurn:
        if any(tool["name"] == "above" for tool in body.get("tools", [])):
            return Script(call("above", task="manage"), say("all done")).turn(body)
        return super().turn(body)


@pytest.mark.parametrize("most", [None, "1.00"])
async def test_what_an_agent_below_starts_keeps_the_limit_of_that_agent(provided: Labs, most: str | None) -> None:
    hf = Holdfast(NOWHERE)
    manager = crowd(hf, Limits(cost="0.02"))
    top = hf.agent("top", model=MODEL, agents=[manager], limits=Limits(cost=most))
    lab = await provided.use(hf, Managed(3))
    lab.price("0.0065")
    run = await top.enqueue("Go")
    await settle(lab, run)
    result = await run.result()
    assert (result.outcome, result.text) == ("answered", "all done")
    assert result.usage.cost <= Decimal("0.02") + 2 * Decimal("0.0065"), "two turns are those of the agent at the top"
    tree = await hf.runs.tree(run.id)
    managed = next(each.id for each in tree if each.agent_name == "above")
    for id in (run.id, managed):
        assert (await use_of(hf, id)).reserved_nano == 0


def test_runs_that_an_older_release_started_keep_the_limit_at_the_top() -> None:
    """Their options say nothing of the agents between."""
    assert budgets.above({"tree": {"cost": "0.5", "new": 1}}, "top") == [("top", {"cost": "0.5", "new": 1})]
    assert budgets.above({"tree": None, "within": [["middle", {"turns": 5}]]}, "top") == [("middle", {"turns": 5})]
    assert budgets.above({}, "top") == []


async def test_who_does_not_fit_beside_others_waits_until_they_have_their_answers(provided: Labs) -> None:
    hf = Holdfast(NOWHERE)
    above = crowd(hf, Limits(cost="0.10"))
    lab = await provided.use(hf, Crowd(4, looks=0))
    run = await above.enqueue("Go")  # of each call 4,096 tokens are reserved, and few are spent: one fits at a time
    await settle(lab, run)
    assert (await run.result()).outcome == "answered"
    assert (await run.usage()).runs == 5


async def test_what_a_dead_worker_reserved_of_a_limit_is_reserved_once(provided: Labs) -> None:
    hf = Holdfast(NOWHERE)
    above = crowd(hf, Limits(cost="0.05"))
    lab = await provided.use(hf, Crowd(2, looks=1))
    lab.price("0.01")
    run = await above.enqueue("Go")
    lab.crash(after="begin")
    await settle(lab, run)
    assert (await run.result()).usage.cost == Decimal("0.05")
    lost = await above.enqueue("Go")
    lab.crash(after="begin")
    await lab.drain()
    await lost.cancel()
    await settle(lab, lost)
    assert (await use_of(hf, lost.id)).reserved_nano == 0


async def test_a_person_who_grants_more_grants_the_call_that_did_not_fit(provided: Labs) -> None:
    hf = Holdfast(NOWHERE)
    above = crowd(hf, Limits(cost="0.005", on_limit="ask"))
    lab = await provided.use(hf, Crowd(1, looks=0))
    lab.price("0.01")
    run = await above.enqueue("Go")
    await lab.drain()
    (inquiry,) = await run.inquiries()
    assert (inquiry.data["limit"], "may cost 0.0100" in inquiry.data["reason"]) == ("cost", True)
    await hf.approve(inquiry.id)
    await lab.drain()
    assert (await run.refresh()).turns == 1  # its children are below the limit they were started with


async def test_without_a_limit_of_cost_nothing_is_reserved(provided: Labs, monkeypatch: pytest.MonkeyPatch) -> None:
    hf = Holdfast(NOWHERE)
    above = crowd(hf, Limits(turns=10))
    lab = await provided.use(hf, Crowd(2, looks=0))
    held: list[LoadedRun] = []

    async def noted(_tx: Transaction, run: LoadedRun) -> None:
        held.append(run)

    monkeypatch.setattr(budgets, "hold", noted)
    run = await above.enqueue("Go")
    await settle(lab, run)
    assert (run.state, held) == ("completed", [])
