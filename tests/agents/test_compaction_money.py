"""What summaries cost: reserved before they are bought, part of what their run used, and not bought when over."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from holdfast import Compaction, Holdfast, Limits, Session
from holdfast.agents.api.agent import Agent
from holdfast.app import core_of
from holdfast.errors import BudgetUsedUp, RunFailed
from holdfast.models import ModelFailure
from holdfast.models.script import Script, call, refuse, say
from holdfast.models.scripted import ScriptedModel
from holdfast.testing import Lab, Labs
from tests.support.agents import Gated, settle
from tests.support.apps import MakeApp, eventually, working
from tests.support.compaction import SMALL, SUMMARY, Strict

TIGHT = Compaction(window=3_000, target_tokens=100, preserve_last=0, protected_tokens=0, summarizer="scripted:sum")
LONG = "hello " + "word " * 1_600


def chatty(hf: Holdfast, summary: Any = None, **options: Any) -> tuple[Agent[str], Strict]:
    """An agent whose sessions grow fast, and the model that plays it and its summariser."""
    scripts = {"scripted:talk": Script(lambda _: say("rain " * 100)), "scripted:sum": Script(summary or say(SUMMARY))}
    model = Strict(scripts)
    core_of(hf).book.substitute = model
    return hf.agent("chatty", model="scripted:talk", **{"max_tokens": 500, "compaction": TIGHT, **options}), model


async def full(lab: Lab, agent: Agent[str], session: Any) -> None:
    """Fill a session so far that a long message does not fit any more."""
    for _ in range(4):
        await settle(lab, await session.send("q " * 300, agent))


async def filled(labs: Labs) -> tuple[Holdfast, Lab, Agent[str], Strict, Session]:
    """A session that can be compacted by hand; from now on, every call has its price."""
    hf = Holdfast("sqlite:///:memory:")
    agent, model = chatty(hf, compaction=None)
    lab = await labs.use(hf)
    session = await hf.session("s")
    await full(lab, agent, session)
    lab.price("0.01")
    return hf, lab, agent, model, session


async def reserved(hf: Holdfast) -> set[Decimal]:
    return {each.reserved for each in await hf.budgets.list()}


async def test_a_used_up_budget_buys_no_summaries(labs: Labs) -> None:
    hf = Holdfast("sqlite:///:memory:")
    agent, model = chatty(hf)
    lab = await labs.use(hf)
    sessions = [await hf.session(f"s{number}", tenant="acme") for number in range(3)]
    for session in sessions:
        await full(lab, agent, session)
    lab.price("0.01")
    await hf.budgets.set("0.005", tenant="acme")
    for session in sessions:
        run = await session.send(LONG, agent)
        await settle(lab, run)
        result = await run.result()
        assert (result.outcome, result.usage.cost) == ("limited", Decimal(0))
        assert "the budget of tenant acme is 0.0050 USD" in (result.limit or "")
    assert model.asked("scripted:sum") == []
    (budget,) = await hf.budgets.list()
    assert (budget.spent, budget.reserved) == (Decimal(0), Decimal(0))


async def test_by_hand_a_used_up_budget_is_named(labs: Labs) -> None:
    hf, _, _, model, session = await filled(labs)
    budget = await hf.budgets.set("0.005", session=session)
    with pytest.raises(BudgetUsedUp, match=f"the budget of session {session.id} is 0.0050 USD") as caught:
        await session.compact(replace(TIGHT, strategy="summarize"))
    assert caught.value.budget == budget.id
    assert (model.asked("scripted:sum"), await session.compactions()) == ([], [])
    assert await reserved(hf) == {Decimal(0)}
    await hf.budgets.set("0.02", session=session)
    await session.compact(replace(TIGHT, strategy="summarize"))
    (after,) = await hf.budgets.list()
    assert (after.spent, after.reserved) == (Decimal("0.01"), Decimal(0))


async def test_after_a_run_a_used_up_budget_leaves_the_session_as_it_is(labs: Labs) -> None:
    hf = Holdfast("sqlite:///:memory:")
    agent, model = chatty(hf, compaction=replace(TIGHT, trigger=0.18))
    lab = await labs.use(hf)
    lab.price("0.01")
    session = await hf.session("s")
    await hf.budgets.set("0.025", session=session)
    for _ in range(2):
        await settle(lab, await session.send("q " * 300, agent))
    assert [job.state for job in await hf.jobs.list(kind="system:compact")] == ["succeeded"]
    assert (model.asked("scripted:sum"), await session.compactions()) == ([], [])


async def test_what_a_run_has_summarised_is_part_of_what_it_used(labs: Labs) -> None:
    hf = Holdfast("sqlite:///:memory:")
    agent, _ = chatty(hf)
    lab = await labs.use(hf)
    session = await hf.session("s")
    await full(lab, agent, session)
    before = await session.usage()
    lab.price("0.01")
    run = await session.send(LONG, agent)
    await settle(lab, run)
    (summary,) = await session.compactions()
    result, (turn,), whole = await run.result(), await run.turns(), await session.usage()
    assert (summary.run, result.outcome) == (run.id, "answered")
    assert (result.usage.cost, (await run.usage()).cost) == (Decimal("0.02"), Decimal("0.02"))
    assert result.usage.input_tokens == turn.usage.input_tokens + summary.input_tokens
    assert (result.usage.turns, result.usage.runs) == (1, 1)
    assert whole.cost - before.cost == Decimal("0.02"), "counted once"


async def test_what_a_run_has_summarised_counts_in_its_limits(labs: Labs) -> None:
    hf = Holdfast("sqlite:///:memory:")
    agent, model = chatty(hf)
    lab = await labs.use(hf)
    session = await hf.session("s")
    await full(lab, agent, session)
    lab.price("0.01")
    run = await session.send(LONG, agent, limits=Limits(cost="0.005"))
    asked = len(model.asked("scripted:talk"))
    await settle(lab, run)
    result = await run.result()
    assert (result.outcome, result.usage.cost, result.usage.turns) == ("limited", Decimal("0.01"), 0)
    assert len(model.asked("scripted:talk")) == asked


async def test_what_the_run_at_the_top_has_summarised_counts_for_those_below_it(labs: Labs) -> None:
    hf = Holdfast("sqlite:///:memory:")
    agent, model = chatty(hf)
    below = hf.agent("below", model="scripted:below")
    top = hf.agent("top", model="scripted:top", agents=[below], max_tokens=500, compaction=TIGHT)
    model.play("scripted:below", Script(say("done")))
    model.play("scripted:top", Script(call("below", task="Do."), say("so")))
    lab = await labs.use(hf)
    session = await hf.session("s")
    await full(lab, agent, session)
    lab.price("0.01")
    run = await session.send(LONG, top, limits=Limits(cost="0.02"))
    await settle(lab, run)
    result = await run.result()
    assert (result.outcome, result.usage.cost) == ("limited", Decimal("0.02"))
    assert model.asked("scripted:below") == [], "a summary and a turn are all that it may spend"


async def test_runs_that_fail_to_summarise_pay_for_their_own_attempts(labs: Labs) -> None:
    hf = Holdfast("sqlite:///:memory:")
    agent, _ = chatty(hf, refuse("harm"))
    lab = await labs.use(hf)
    session = await hf.session("s")
    await full(lab, agent, session)
    lab.price("0.01")
    runs = []
    for _ in range(2):
        runs.append(await session.send(LONG, agent))
        await settle(lab, runs[-1])
    assert [(await run.result()).outcome for run in runs] == ["truncated", "truncated"]
    assert [(await run.usage()).cost for run in runs] == [Decimal("0.01"), Decimal("0.01")]


@pytest.mark.parametrize("policy", ["ask", "end"])
async def test_a_person_may_let_a_summary_pass_its_budget(labs: Labs, policy: Any) -> None:
    hf = Holdfast("sqlite:///:memory:")
    agent, model = chatty(hf)
    lab = await labs.use(hf)
    session = await hf.session("s")
    await full(lab, agent, session)
    lab.price("0.01")
    await hf.budgets.set("0.015", session=session, policy=policy)
    await settle(lab, await session.send("short", agent))
    run = await session.send(LONG, agent)
    await lab.drain()
    assert model.asked("scripted:sum") == []
    if policy == "ask":
        assert (await run.refresh()).state == "awaiting_input"
        (inquiry,) = await run.inquiries()
        await hf.approve(inquiry.id)
        await lab.drain()
    result = await run.result()
    assert (result.outcome, result.usage.cost) == (
        ("answered", Decimal("0.02")) if policy == "ask" else ("limited", Decimal(0))
    )
    assert await reserved(hf) == {Decimal(0)}


@pytest.mark.parametrize("when", ["after begin", "before apply"])
async def test_what_a_dead_summariser_reserved_is_reserved_once(labs: Labs, when: str) -> None:
    hf = Holdfast("sqlite:///:memory:")
    agent, _ = chatty(hf)
    lab = await labs.use(hf)
    session = await hf.session("s")
    await full(lab, agent, session)
    lab.price("0.01")
    await hf.budgets.set("0.02", session=session)
    if when == "after begin":
        lab.crash(after="begin_compaction")
    else:
        lab.crash(before="apply_compaction")
    run = await session.send(LONG, agent)
    await settle(lab, run)
    assert lab.crashes
    assert (await run.result()).outcome == "answered"
    (after,) = await hf.budgets.list()
    assert (after.spent, after.reserved) == (Decimal("0.02"), Decimal(0))


async def test_a_run_that_is_cancelled_while_it_is_summarised_leaves_nothing_reserved(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    agent, model = chatty(hf)
    session = await hf.session("s")
    async with working(hf):
        for _ in range(4):
            await (await session.send("q " * 300, agent)).result()
        await hf.budgets.set("5", session=session)
        core_of(hf).book.per_call = Decimal("0.01")
        model.models["scripted:sum"] = gated = Gated(say(SUMMARY))
        run = await session.send(LONG, agent)

        async def asked() -> bool:
            return gated.waiting == 1

        await eventually(asked)
        assert await reserved(hf) == {Decimal("0.01")}
        await run.cancel()
        with pytest.raises(RunFailed):
            await run.result()
    assert await reserved(hf) == {Decimal(0)}


async def test_what_a_process_reserved_that_died_while_it_compacted_by_hand_is_given_up(labs: Labs) -> None:
    hf, lab, agent, model, session = await filled(labs)
    await hf.budgets.set("0.015", session=session)

    class Dies(ScriptedModel):
        async def stream(self, request: Any, answered: Any) -> Any:
            async for event in super().stream(request, answered):
                yield event
                raise KeyboardInterrupt

    model.models["scripted:sum"] = Dies(Script(say("never")))
    with pytest.raises(KeyboardInterrupt):
        await session.compact(replace(TIGHT, strategy="summarize"))
    assert await reserved(hf) == {Decimal("0.01")}
    run = await session.send("short", agent)
    await lab.drain()
    assert (await run.refresh()).state == "pending", "it may cost as much yet"
    await lab.clock.advance("2h")
    await settle(lab, run)
    assert (await run.result()).outcome == "answered"
    assert await reserved(hf) == {Decimal(0)}


async def test_a_failed_summary_frees_what_was_reserved_for_it(labs: Labs) -> None:
    hf, _, _, model, session = await filled(labs)
    await hf.budgets.set("5", session=session)
    model.uncounted = True
    model.models["scripted:sum"] = ScriptedModel(Script(refuse("harm")))
    with pytest.raises(ModelFailure, match="wrote no summary"):
        await session.compact(replace(SMALL, strategy="summarize", preserve_last=0, protected_tokens=0))
    (after,) = await hf.budgets.list()
    assert (after.spent, after.reserved) == (Decimal("0.01"), Decimal(0))
