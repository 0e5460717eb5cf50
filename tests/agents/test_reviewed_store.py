"""What a review found in what is stored and read: what a deleted session leaves, who listens on, what a look costs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.agents import streams
from holdfast.agents.handles import Run
from holdfast.agents.records import NewBlock, NewMessage
from holdfast.agents.statements import Looking, Messages, Runs
from holdfast.errors import NotFound, ResultTimeout
from holdfast.kernel import epoch
from holdfast.kernel.database import Transaction
from holdfast.kernel.sql import catalogue
from holdfast.models.script import call, say
from tests.conftest import Place
from tests.support.agents import scripted
from tests.support.apps import PATIENCE, MakeApp, eventually, working
from tests.support.past_kernel import query

LARGE = "A" * 100_000
MANY = """
insert into holdfast.run (id, job, session, branch, ordinal, tenant, agent, agent_name, version, mode, state, root,
    depth, input, variables, metadata, options, created_at, finalized_at, outcome)
select 'r' || g, 1000000 + g, 's' || (g % 5000), '', 1, 't' || (g % 1000), 'ag', 'a', 1, 'streaming', 'completed',
    'r' || g, 0, '{}', '{}', '{}', '{}', g, g, 'answered' from generate_series(1, 50000) g
"""


async def _jobs_ended(place: Place) -> bool:
    return query(place, "select count(*) from holdfast.job where finished_at is null") == [(0,)]


async def test_a_deleted_session_leaves_nothing(hf: Holdfast, place: Place) -> None:
    @hf.tool
    def look() -> str:
        """Look."""
        return "seen"

    inner = hf.agent("inner", model=scripted(hf, say("inside")))
    model = scripted(hf, call("look"), call("inner", task="x"), say("done"))
    agent = hf.agent("a", model=model, tools=[look], agents=[inner])
    await agent.run(LARGE, session="s", key="k")
    await eventually(lambda: _jobs_ended(place))
    await (await hf.session("s")).delete()
    for table in ("blob", "block", "message", "run", "run_event", "tool_call", "turn", "idempotency", "job", "attempt"):
        assert query(place, f"select count(*) from holdfast.{table}") == [(0,)], table


async def test_a_deleted_session_leaves_what_others_hold(hf: Holdfast, place: Place) -> None:
    agent = hf.agent("a", model=scripted(hf, say("done")))
    await agent.run(LARGE, session="s", key="k")
    await agent.run(LARGE, session="other", key="other's")
    assert query(place, "select count(*) from holdfast.blob") == [(1,)]
    await (await hf.session("s")).delete()
    assert [m.text for m in await (await hf.session("other")).messages()] == [LARGE, "done"]
    assert query(place, "select key from holdfast.idempotency") == [("other's",)]
    await (await hf.session("other")).delete()
    assert query(place, "select count(*) from holdfast.blob") == [(0,)]


async def test_a_block_is_not_lost_to_a_session_that_is_deleted_meanwhile(hf: Holdfast, place: Place) -> None:
    """Who names a blob while another would delete it has it afterwards. A file has one writer: nobody meets there."""
    agent = hf.agent("a", model=scripted(hf, say("done")))
    await agent.run(LARGE, session="s")
    ((hash, body),) = query(place, "select hash, cast(body as text) from holdfast.blob")
    named, delete = asyncio.Event(), asyncio.Event()
    on_a_file = place.url.startswith("sqlite")

    async def name(tx: Transaction) -> None:
        await tx.run(Messages.add_blob, hash=hash, body=body)
        if not on_a_file:  # where an operation that waits would stop the writer
            named.set()
            await delete.wait()
        block = NewBlock("of another", 0, "text", None, hash)
        message = NewMessage("of another", "another", "", "user", "", 0, "prompt")
        await tx.run(Messages.add_messages, messages=[message], blocks=[block])

    naming = asyncio.ensure_future(hf.runtime().transact(name))
    await (naming if on_a_file else named.wait())
    deleting = asyncio.ensure_future((await hf.session("s")).delete())
    await asyncio.wait({deleting}, timeout=None if on_a_file else 0.5)
    delete.set()
    await asyncio.gather(naming, deleting)
    assert query(place, "select count(*) from holdfast.block b join holdfast.blob l on l.hash = b.blob") == [(1,)]


async def test_a_key_of_a_deleted_run_is_free_again(hf: Holdfast) -> None:
    agent = hf.agent("a", model=scripted(hf, say("done")))
    first = await agent.run("Go", session="s", key="k")
    await (await hf.session("s")).delete()
    second = await agent.run("Go", session="s", key="k")
    assert (second.text, second.run_id != first.run_id) == ("done", True)


async def test_a_reader_of_all_events_that_leaves_is_not_called_any_more(hf: Holdfast) -> None:
    agent = hf.agent("a", model=scripted(hf, say("done")))
    await agent.run("Go")
    database: Any = hf.runtime().database
    before = len(database._heard)
    for _ in range(5):
        events = hf.events(after="")
        await anext(events)
        await events.aclose()  # type: ignore[attr-defined]  # an async generator's
    assert len(database._heard) == before
    await hf.streams().close()
    assert len(database._heard) == before - 1


async def _watched(app: Holdfast, runs: list[Run[Any]], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which statements waiting for runs needs, while they take a while and then end."""
    asked: list[str] = []
    for name in ("run_states", "ended_runs", "find_runs"):
        original = getattr(streams, name)

        def noting(tx: Any, ids: Any, name: str = name, original: Any = original) -> Any:
            asked.append(f"{name} {len(ids)}")
            return original(tx, ids)

        noting.reading = noting.single = True  # type: ignore[attr-defined]
        monkeypatch.setattr(streams, name, noting)
    waiting = asyncio.ensure_future(_all(app, runs))
    await asyncio.sleep(0.3)
    async with working(app), asyncio.timeout(PATIENCE):
        await waiting
    return asked


async def _all(app: Holdfast, runs: list[Run[Any]]) -> list[str]:
    return [run.id async for run in app.runs.as_completed(runs)]


async def test_waiting_reads_runs_whole_only_when_they_have_ended(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = make_app(embedded=False)
    agent = hf.agent("a", model=scripted(hf, say("done")))
    runs = [await agent.enqueue(f"{n}") for n in range(10)]
    asked = await _watched(hf, runs, monkeypatch)
    assert asked[0] in ("run_states 10", "run_states 9"), "all by one query, but for the one who began to listen"
    assert not [each for each in asked if each.startswith("find_runs")]
    whole = [int(each.split()[1]) for each in asked if each.startswith("ended_runs")]
    assert sum(whole) == 10, "each once"
    assert {run.state for run in runs} == {"completed"}


async def test_waiting_for_what_is_not_there_or_not_ours_is_refused(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    agent = hf.agent("a", model=scripted(hf, say("done")))
    theirs = await agent.enqueue("Go", tenant="acme")
    with pytest.raises(NotFound):
        await hf.tenant("other").runs[theirs.id].result()
    with pytest.raises(NotFound):
        await hf.runs["018f0000-0000-7000-8000-000000000000"].result()
    with pytest.raises(ResultTimeout):
        await hf.tenant("acme").runs[theirs.id].result(timeout="50ms")


@pytest.mark.parametrize(
    ("chosen", "index"),
    [
        ({"parent": "r77"}, "run_parent"),
        ({"tenant": "nobody"}, "run_tenant"),
        ({"state": "failed"}, "run_unanswered"),
        ({"state": "pending"}, "run_open"),
    ],
)
async def test_lists_of_runs_have_an_index(hf: Holdfast, place: Place, chosen: dict[str, str], index: str) -> None:
    agent = hf.agent("a", model=scripted(hf, say("done")))
    await agent.run("Go")
    assert len(await hf.runs.list(state="completed")) == 1
    assert await hf.runs.list(**chosen) == []  # type: ignore[arg-type]
    if place.url.startswith("sqlite"):  # which cannot know, when it plans, that a filter is not used
        assert query(place, f"select name from sqlite_master where name = '{index}'") == [(index,)]
        return
    query(place, MANY)
    query(place, "analyze holdfast.run")
    by_state = {"failed": Looking.ended_runs_in_state, "pending": Looking.open_runs_in_state}
    statement = by_state.get(chosen.get("state", ""), Runs.list_runs)
    rendered = catalogue((Looking, Runs), "postgres", "holdfast")[statement]
    given = {"tenant": None, "session": None, "agent": None, "state": None, "parent": None, **chosen}
    values = {**given, "before_at": 2**62, "before": "~", "limit": 100}
    text = rendered.texts[0]
    for number, value in reversed(list(enumerate(rendered.arguments(values), 1))):
        text = text.replace(f"${number}", _literal(value))
    plan = "\n".join(str(row[0]) for row in query(place, f"explain {text}"))
    assert index in plan
    assert "Seq Scan on run" not in plan


def _literal(value: object) -> str:
    if value is None:
        return "null"
    return str(value) if isinstance(value, int) else f"'{value}'"


async def test_runs_are_listed_by_the_state_they_are_shown_in(make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    ends = hf.agent("ends", model=scripted(hf, say("done")))
    fails = hf.agent("fails", model="scripted:nowhere")
    done, failed, gone = await ends.enqueue("1"), await fails.enqueue("2"), await ends.enqueue("3")
    await gone.cancel()
    async with working(hf):
        await done.result()
        await eventually(lambda: _is(failed, "failed"))
    left = await ends.enqueue("4")
    everyone = await hf.runs.list()
    assert sorted(row.state for row in everyone) == ["cancelled", "completed", "failed", "pending"]
    for state in ("pending", "streaming", "failed", "completed", "cancelled"):
        expected = [row.id for row in everyone if row.state == state]
        assert [row.id for row in await hf.runs.list(state=state)] == expected
        assert await hf.runs.list(state=state, tenant="other") == []
    assert (await left.refresh()).state == "pending"


async def _is(run: Run[Any], state: str) -> bool:
    return (await run.refresh()).state == state


async def test_usage_is_that_of_everything_below(hf: Holdfast) -> None:
    c = hf.agent("c", model=scripted(hf, say("C")))
    b = hf.agent("b", model=scripted(hf, call("c", task="t"), say("B")), agents=[c])
    a = hf.agent("a", model=scripted(hf, call("b", task="t"), say("A")), agents=[b])
    result = await a.run("Go")
    root = hf.runs[result.run_id]
    (middle,) = await root.children()
    (lowest,) = await hf.runs[middle.id].children()
    used = [await hf.runs[id].usage() for id in (root.id, middle.id, lowest.id)]
    assert [(each.runs, each.turns) for each in used] == [(3, 5), (2, 3), (1, 1)]
    assert used[0].output_tokens > used[1].output_tokens > used[2].output_tokens > 0
    assert result.usage == used[0]
    assert (await hf.runs[middle.id].result()).usage == used[1]
    assert result.turns == 2
    ended = [event async for event in root.stream()][-1]
    assert ended.result.usage == used[0]  # type: ignore[attr-defined]  # the last event is RunEnded


async def test_all_events_are_read_after_a_restore_in_another_cluster(make_app: MakeApp, place: Place) -> None:
    hf = make_app()
    agent = hf.agent("a", model=scripted(hf, say("done")))
    await agent.run("before")
    seen = await _topics(hf, "")
    if not place.url.startswith("sqlite"):
        query(place, "update holdfast.run_event set tx = tx + 1000000000")  # the old cluster had been busier
    await hf.runtime().transact(epoch.bump)
    second = await agent.run("after")
    everything = await _topics(hf, "")
    assert len(everything) == 2 * len(seen)
    assert {each.run for each in everything[len(seen) :]} == {second.run_id}
    assert [each.run for each in await _topics(hf, everything[len(seen) - 1].cursor)] == [second.run_id] * len(seen)


async def _topics(app: Holdfast, after: str) -> list[Any]:
    """What there is until nothing comes any more: every run's last is that it is completed."""
    found: list[Any] = []
    ended = {row.id for row in await app.runs.list()}
    async with asyncio.timeout(PATIENCE):
        events = app.events(after=after)
        async for event in events:
            found.append(event)
            if event.topic == "run_finalized":
                ended.discard(event.run)
            if not ended or (after and event.topic == "run_finalized"):
                await events.aclose()  # type: ignore[attr-defined]  # an async generator's
                break
    return found


async def test_a_deleted_session_leaves_nothing_of_what_was_asked_or_allowed(hf: Holdfast, place: Place) -> None:
    @hf.tool(approve=True)
    def pay(amount: int) -> str:
        """Pay."""
        return "paid"

    agent = hf.agent("payer", model=scripted(hf, call("pay", amount=3), say("done")), tools=[pay])
    session = await hf.session("s")
    await hf.budgets.set("5", session=session)
    run = await agent.enqueue("Pay", session=session)
    await run.steer("And be quick.")  # before anybody has the run
    await hf.ensure_worker()

    async def asks() -> bool:
        return bool(await run.inquiries())

    await eventually(asks)
    await hf.approve(run.id)
    assert (await run.result()).outcome == "answered"
    await session.delete()
    for table in ("inquiry", "steer", "batch_request", "budget", "budget_use", "reservation", "compaction", "run"):
        assert query(place, f"select count(*) from holdfast.{table}") == [(0,)], table
