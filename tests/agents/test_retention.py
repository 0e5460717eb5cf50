"""Retention: what ended runs leave behind goes after a while; open runs, sources of forks and sums of money stay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.agents.api.agent import Agent
from holdfast.agents.retention import cleanup
from holdfast.agents.retention.ages import forget_ages
from holdfast.agents.statements import MessagesSql
from holdfast.app import core_of
from holdfast.errors import CursorPruned, NotFound
from holdfast.events import EventsPruned, InputDelta, RunEnded, TextDelta
from holdfast.kernel.database import Transaction
from holdfast.kernel.retention import KeepRule, Pruner
from holdfast.models.script import Script, call, say
from holdfast.testing import Lab, Labs
from tests.support.agents import MODEL, scripted, settle
from tests.support.apps import MakeApp, eventually
from tests.support.contents import contents_at

NOWHERE = "sqlite:////nowhere/at-all.db"
NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def looker(hf: Holdfast, **options: Any) -> Agent[str]:
    @hf.tool(effect="read", **options)
    def look() -> str:
        """Look."""
        return "seen"

    return hf.agent("looker", model=MODEL, tools=[look])


async def lab_of(provided: Labs, hf: Holdfast) -> Lab:
    lab = await provided.use(hf, Script(call("look"), say("It is there. " * 50)), now=NOON)
    lab.price("0.01")
    return lab


async def pruned(hf: Holdfast) -> int:
    """Prune as the worker that has the duty does; returns how many transactions it took."""
    rounds = 1
    while await core_of(hf).runtime().transact(cleanup.prune, hf.settings) is True:
        rounds += 1
    return rounds


async def later(hf: Holdfast, lab: Lab, time: str) -> None:
    await lab.clock.advance(time)
    await pruned(hf)


def rows_in(lab: Lab, table: str) -> int:
    return len(contents_at(lab.url)[table])


async def test_deltas_go_first_and_events_later_and_whoever_reads_them_is_told(provided: Labs) -> None:
    hf = Holdfast(NOWHERE)
    agent = looker(hf)
    lab = await lab_of(provided, hf)
    run = await agent.enqueue("Go", tenant="acme", session="s")
    await settle(lab, run)
    before, used = await run.events(), (await run.result(), await hf.budgets.used("agent", "day", since=LONG_AGO))
    await pruned(hf)
    assert await run.events() == before
    await later(hf, lab, "25h")
    after = await run.events()
    assert [event for event in before if not isinstance(event, TextDelta | InputDelta)] == [
        event for event in after if not isinstance(event, EventsPruned)
    ]
    gone = [
        number for event in after if isinstance(event, EventsPruned) for number in range(event.first, event.last + 1)
    ]
    assert gone == [event.seq for event in before if isinstance(event, TextDelta | InputDelta)]
    streamed = [event async for event in run.stream()]
    assert [event.seq for event in streamed] == [event.seq for event in after]
    assert isinstance(streamed[-1], RunEnded)
    last = (await run.refresh()).events
    await later(hf, lab, "30d")
    assert [(event.first, event.last) async for event in run.stream() if isinstance(event, EventsPruned)] == [(1, last)]
    assert [event.seq async for event in run.stream(after=3)] == [last]
    assert [event async for event in run.stream(after=last)] == []
    assert rows_in(lab, "run_event") == 0
    assert used == (await run.result(), await hf.budgets.used("agent", "day", since=LONG_AGO))
    assert len(await hf.tenant("acme").session("s").messages()) == 4


async def test_what_a_fork_was_made_from_stays(provided: Labs) -> None:
    hf = Holdfast(NOWHERE)
    agent = looker(hf)
    lab = await lab_of(provided, hf)
    source, other = await agent.enqueue("Go"), await agent.enqueue("Go")
    await settle(lab, source, other)
    fork = await source.fork(2)
    await settle(lab, fork)
    before, turns = await source.events(), await source.turns()
    await later(hf, lab, "100d")
    assert (await source.events(), await source.turns()) == (before, turns)
    assert [type(event) for event in await other.events()] == [EventsPruned]


async def test_what_stayed_for_a_fork_goes_after_the_last_fork(provided: Labs) -> None:
    hf = Holdfast(NOWHERE)
    agent = looker(hf)
    lab = await lab_of(provided, hf)
    source = await agent.enqueue("Go")
    await settle(lab, source)
    forks = [await source.fork(2), await source.fork(1)]
    await settle(lab, *forks)
    kept = await source.events()
    await later(hf, lab, "100d")
    for fork in forks:
        assert await source.events() == kept
        assert fork.session_id is not None
        await hf.sessions[fork.session_id].delete()
        await later(hf, lab, "1d")
    assert [type(event) for event in await source.events()] == [EventsPruned]
    assert not any(turn.request_id for turn in await source.turns())


async def test_inquiries_and_what_providers_said_beside_answers_go_and_open_inquiries_stay(provided: Labs) -> None:
    hf = Holdfast(NOWHERE)
    agent = looker(hf, approve=True)
    lab = await lab_of(provided, hf)
    decided, waiting = await agent.enqueue("Go"), await agent.enqueue("Go")
    await lab.drain()
    await hf.approve(decided.id)
    await settle(lab, decided)
    kept = [(turn.number, turn.model, turn.usage) for turn in await decided.turns()]
    await later(hf, lab, "89d")
    assert len(await hf.inquiries.list(state=None)) == 2
    assert all(turn.request_id for turn in await decided.turns())
    await later(hf, lab, "2d")
    (left,) = await hf.inquiries.list(state=None)
    assert (left.run_id, left.state) == (waiting.id, "open")
    assert [(turn.number, turn.model, turn.usage) for turn in await decided.turns()] == kept
    assert not any(turn.request_id for turn in await decided.turns())
    (open_turn,) = await waiting.turns()
    assert open_turn.request_id
    assert [type(event) for event in await waiting.events()].count(EventsPruned) == 0
    await hf.approve(waiting.id)
    await settle(lab, waiting)
    assert waiting.state == "completed"


async def test_a_tenant_may_keep_its_own_for_longer_or_shorter(provided: Labs) -> None:
    hf = Holdfast(NOWHERE)
    agent = looker(hf)
    lab = await lab_of(provided, hf)
    runs = {tenant: await agent.enqueue("Go", tenant=tenant) for tenant in ("long", "short", "other")}
    await settle(lab, *runs.values())
    ages = await hf.tenant("long").retention(events="1000d", deltas="0s")
    assert (ages.events, ages.inquiries) == (timedelta(days=1000), timedelta(days=90))
    await hf.tenant("short").retention(events="1h")

    async def left() -> dict[str, bool]:
        return {tenant: not isinstance((await run.events())[0], EventsPruned) for tenant, run in runs.items()}

    await later(hf, lab, "2h")
    assert await left() == {"long": True, "short": False, "other": True}
    await later(hf, lab, "31d")
    assert await left() == {"long": True, "short": False, "other": False}
    assert not any(isinstance(event, EventsPruned) for event in await runs["long"].events())
    assert (await hf.tenant("long").retention(reset=True)).events == timedelta(days=30)
    await pruned(hf)
    assert await left() == {"long": False, "short": False, "other": False}


async def test_a_tenant_that_gives_its_ages_up_while_others_are_pruned_is_not_passed_for_good(
    provided: Labs, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = Holdfast(NOWHERE)
    agent = looker(hf)
    lab = await lab_of(provided, hf)
    await hf.tenant("long").retention(events="1000d")
    early = [await agent.enqueue("Go", tenant=tenant) for tenant in ("long", "other")]
    await settle(lab, *early)
    await later(hf, lab, "31d")
    late = await agent.enqueue("Go", tenant="other")
    await settle(lab, late)
    await lab.clock.advance("31d")
    prune_events = cleanup.prune_events

    async def overtaken(tx: Transaction, roots: Sequence[str], limit: int) -> int:
        """Since its mark was read, the tenant has given its ages up."""
        await forget_ages(tx, "long")
        return await prune_events(tx, roots, limit)

    monkeypatch.setitem(cleanup._BY_RUN, "events", overtaken)
    await pruned(hf)
    await pruned(hf)  # the next time
    for run in (*early, late):
        assert [type(event) for event in await run.events()] == [EventsPruned]


async def test_many_runs_and_long_ones_are_pruned_in_small_transactions(
    provided: Labs, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = Holdfast(NOWHERE)
    agent = looker(hf)
    lab = await lab_of(provided, hf)
    runs = [await agent.enqueue("Go", session="s") for _ in range(5)]
    await settle(lab, *runs)
    monkeypatch.setattr(cleanup, "RUNS", 2)
    monkeypatch.setattr(cleanup, "ROWS", 3)
    events = rows_in(lab, "run_event")
    await lab.clock.advance("31d")
    assert await core_of(hf).runtime().transact(cleanup.prune, hf.settings) is True
    assert events - rows_in(lab, "run_event") <= 2 * 3
    assert await pruned(hf) >= events // 6
    assert rows_in(lab, "run_event") == 0
    assert await pruned(hf) == 1


async def test_a_worker_prunes_by_itself(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleanup, "RUNS", 1)
    monkeypatch.setattr(cleanup, "ROWS", 2)
    hf = make_app(event_retention="1us", delta_retention="1us", cleanup_interval="100ms", duty_ttl="400ms")
    agent = hf.agent("guide", model=scripted(hf, say("It is there.")))
    for _ in range(3):
        assert (await agent.run("Go")).text == "It is there."

    async def is_gone() -> bool:
        return contents_at(hf.settings.url)["run_event"] == []

    await eventually(is_gone)
    assert len(await hf.runs.list()) == 3


async def test_sessions_go_on_request_and_what_they_cost_stays_counted(
    provided: Labs, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = Holdfast(NOWHERE)
    agent = looker(hf)
    lab = await lab_of(provided, hf)
    await hf.budgets.set("1", tenant="acme")
    old = [await agent.enqueue("Go", tenant="acme", session=f"s{number}") for number in range(3)]
    other = await agent.enqueue("Go", tenant="other", session="s0")
    await settle(lab, *old, other)
    fork = await hf.tenant("acme").session("s1").fork()
    await lab.clock.advance("50d")
    for used in (fork, "s2"):  # old sessions that are used still
        await settle(lab, await agent.enqueue("Go", tenant="acme", session=used))
    sums = [await hf.budgets.used("tenant", "agent", "model", "mode", "day", since=LONG_AGO), await hf.budgets.list()]
    await pruned(hf)
    assert rows_in(lab, "session") == 5
    monkeypatch.setattr(cleanup, "LOOK", 2)
    monkeypatch.setattr(cleanup, "MOST", 1)
    monkeypatch.setattr(cleanup, "ROWS", 4)
    told: list[int] = []
    assert await hf.tenant("acme").sessions.prune(older_than="30d", progress=told.append) == 1
    assert told[-1] == 1
    with pytest.raises(NotFound):
        await hf.tenant("acme").sessions.get("s0")
    with pytest.raises(NotFound):
        await hf.runs.get(old[0].id)
    left = {row.key for row in await hf.tenant("acme").sessions.list()}
    assert left == {"s1", "s2", None}, "s1 is the source of a fork"
    assert await hf.sessions.prune(older_than="30d") == 1
    assert sums == [
        await hf.budgets.used("tenant", "agent", "model", "mode", "day", since=LONG_AGO),
        await hf.budgets.list(),
    ]
    await fork.delete()
    assert await hf.sessions.prune(older_than="30d") == 1  # the source goes after its fork
    assert [row.key for row in await hf.sessions.list()] == ["s2"]


async def test_a_setting_lets_sessions_go_by_themselves(provided: Labs) -> None:
    hf = Holdfast(NOWHERE, settings=Holdfast(NOWHERE).settings.override({"session_retention": "60d"}))
    agent = looker(hf)
    lab = await lab_of(provided, hf)
    await hf.tenant("acme").retention(sessions="0s")
    for tenant in ("acme", "other"):
        await settle(lab, await agent.enqueue("Go", tenant=tenant, session="s"))
    await later(hf, lab, "59d")
    assert rows_in(lab, "session") == 2
    await later(hf, lab, "2d")
    assert [row.tenant for row in await hf.sessions.list()] == ["acme"]


async def test_a_listener_behind_what_was_pruned_is_told_where_to_go_on(provided: Labs) -> None:
    hf = Holdfast(NOWHERE)
    agent = looker(hf)
    lab = await lab_of(provided, hf)
    await settle(lab, await agent.enqueue("Go"))
    (first,) = [event async for event in _some(hf, "", 1)]
    await later(hf, lab, "31d")
    with pytest.raises(CursorPruned, match="retention removed events") as caught:
        await anext(hf.events(after=first.cursor))
    run = await agent.enqueue("Go")
    await settle(lab, run)
    (event,) = [event async for event in _some(hf, caught.value.upto, 1)]
    assert (event.run, event.topic) == (run.id, "run_created")
    assert [event.run async for event in _some(hf, "", 1)] == [run.id]


async def _some(hf: Holdfast, after: str, count: int) -> Any:
    async for event in hf.events(after=after):
        yield event
        count -= 1
        if not count:
            return


async def test_a_pruned_run_is_replayed_and_recorded_as_before(provided: Labs, tmp_path: Path) -> None:
    hf = Holdfast(NOWHERE)
    agent = looker(hf)
    lab = await provided.use(hf, Script(call("look"), say("It is there.")), now=NOON)
    run = await agent.enqueue("Go", session="s")
    await settle(lab, run)
    before = await hf.runs.replay(run)
    assert before.same
    await later(hf, lab, "100d")
    after = await hf.runs.replay(run)
    assert (after.differences, after.turns, after.same_requests) == ((), before.turns, before.same_requests)
    await run.cassette(tmp_path / "pruned.json")
    assert '"output_tokens"' in (tmp_path / "pruned.json").read_text()


async def test_bodies_that_nothing_names_go(provided: Labs) -> None:
    hf = Holdfast(NOWHERE)
    agent = looker(hf)
    lab = await lab_of(provided, hf)
    await settle(lab, await agent.enqueue("Go " + "x" * 200_000))

    async def add(tx: Transaction) -> None:
        await tx.run(MessagesSql.add_blob, hash="0" * 64, body='{"type":"text","text":"nobody\'s"}')

    named = rows_in(lab, "blob")
    await core_of(hf).runtime().transact(add)
    await pruned(hf)
    assert rows_in(lab, "blob") == named


async def test_a_run_is_there_when_its_job_is_not_any_more(provided: Labs) -> None:
    hf = Holdfast(NOWHERE)
    agent = looker(hf)
    lab = await lab_of(provided, hf)
    run = await agent.enqueue("Go", session="s", key="k")
    await settle(lab, run)
    was, result, why = await run.refresh(), await run.result(), await run.why()
    assert (
        sum([gone async for gone in Pruner(core_of(hf).runtime().database, KeepRule(0, 0, firm=True)).thoroughly()])
        == 2
    )
    assert await run.refresh() == replace(was, started_at=(await run.refresh()).started_at)
    assert (await run.result(), await run.why()) == (result, why)
    assert (await agent.enqueue("Go", session="s", key="k")).id == run.id
    again = await agent.enqueue("And?", session="s")
    await settle(lab, again)
    assert again.state == "completed"
