"""AgentPG's statements on claiming runs, AP-01 to AP-10: who may take what, when, and how many at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import apsw
import psycopg
import pytest

from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.errors import NoWorker
from holdfast.models.script import call, calls, say
from holdfast.workers.role import Role
from tests.agents.test_callers_transactions import transaction
from tests.conftest import Place
from tests.support.agents import Gated, scripted
from tests.support.apps import MakeApp, eventually, in_state, working
from tests.transactions.libraries import Apsw, Library, Psycopg

NEVER: dict[str, Any] = {"poll_interval": "10m", "sweep_interval": "10m"}
SOON = "50s"  # far below ten minutes, far above what it takes


class Quietly(Apsw):
    def write(self, tx: Any) -> None: ...


class QuietlyPostgres(Psycopg):
    def write(self, tx: Any) -> None: ...


async def test_ap_01_a_run_is_seen_once_the_callers_transaction_commits(make_app: MakeApp, place: Place) -> None:
    """AP-01: and never after a rollback."""
    hf = make_app(embedded=False)
    agent = hf.agent("a", model=scripted(hf, say("done")))
    library: Library = Quietly(place.url) if place.url.startswith("sqlite") else QuietlyPostgres(place.url)
    await core_of(hf).runtime().open()
    async with transaction(place, commit=False) as tx:
        await agent.enqueue("Not yet", tx=tx)
        assert await hf.runs.list() == []
    async with working(hf):
        gone = await library.call(lambda tx, _: agent.enqueue_sync("No", tx=tx), commit=False)
        kept = await library.call(lambda tx, _: agent.enqueue_sync("Yes", tx=tx))
        assert await kept.text() == "done"
    assert [row.id for row in await hf.runs.list()] == [kept.id]
    assert gone.id != kept.id
    assert len(await hf.sessions.list()) == 1


async def test_ap_02_a_hint_starts_a_run_without_a_poll(make_app: MakeApp) -> None:
    """AP-02: polls are ten minutes away; from another connection too. Between processes: tests/chaos."""
    server, client = make_app(embedded=False, **NEVER), make_app(embedded=False)
    for app in (server, client):
        app.agent("a", model=scripted(app, say("heard")))
    async with working(server):
        for _ in range(3):
            run = await client.agent("a", model="scripted:s0").enqueue("Hello")
            assert await run.text(timeout=SOON) == "heard"


async def test_ap_04_each_run_is_claimed_once_by_several_workers(make_app: MakeApp) -> None:
    """AP-04: no run is played twice, whoever asks: thirty runs are thirty claims and thirty calls of the model."""
    hf = make_app(embedded=False)
    core_of(hf).book.substitute = model = Gated(say("once"), waits=0)
    agent = hf.agent("a", model="scripted:")
    async with working(hf), working(hf), working(hf):
        runs = await agent.enqueue_many(f"message {n}" for n in range(30))
        assert {await run.text() for run in runs} == {"once"}
    assert model.calls == 30
    for run in runs:
        assert [attempt.outcome for attempt in await hf.jobs.attempts(run.id)] == ["succeeded"]
        assert [(turn.attempts, turn.unknown) for turn in await run.turns()] == [(1, 0)]


async def test_ap_04_no_worker_waits_for_rows_that_another_holds(make_app: MakeApp, place: Place) -> None:
    """AP-04: while somebody is in the middle of a claim of the first ten, the others are played."""
    hf = make_app(embedded=False)
    agent = hf.agent("a", model=scripted(hf, say("once")))
    runs = await agent.enqueue_many(f"message {n}" for n in range(20))
    with holding(place, [run.id for run in runs[:10]]) as locked:
        async with working(hf):
            assert {await run.text(timeout=SOON) for run in runs[10:]} == {"once"}
            assert not locked or {(await run.refresh()).state for run in runs[:10]} == {"pending"}
    async with working(hf):
        assert {await run.text(timeout=SOON) for run in runs[:10]} == {"once"}


@contextmanager
def holding(place: Place, runs: Sequence[str]) -> Iterator[bool]:
    """In the middle of a claim of these, as another worker is. A file has no locks of rows: there they are read."""
    ids = ", ".join(f"'{id}'" for id in runs)
    rows = f"select r.seq from holdfast.ready r join holdfast.job j on j.seq = r.seq where j.id in ({ids})"
    if place.url.startswith("sqlite"):
        with closing(apsw.Connection(place.url.removeprefix("sqlite:///"))) as reader:
            reader.execute("begin")
            assert len(list(reader.execute(rows.replace("holdfast.", "")))) == len(runs)
            yield False
        return
    with psycopg.connect(place.direct) as claimer:
        assert len(claimer.execute(f"{rows} for update of r".encode()).fetchall()) == len(runs)
        yield True
        claimer.rollback()


async def test_ap_05_a_worker_takes_only_agents_all_of_whose_tools_it_has(make_app: MakeApp) -> None:
    """AP-05, second generation: and an agent without tools is anybody's."""
    able, unable = make_app(embedded=False), make_app(embedded=False)

    @able.tool
    def dig() -> str:
        """Dig."""
        return "dug"

    for app in (able, unable):
        core_of(app).book.scripts |= core_of(able).book.scripts
    model, plain = scripted(able, call("dig"), say("ready")), scripted(able, say("plain"))
    core_of(unable).book.scripts |= core_of(able).book.scripts
    digger = await able.agents.create("digger", model=model, tools=["dig"])
    anyone = await able.agents.create("anyone", model=plain)
    async with working(unable):
        assert await (await able.agents[anyone.id].enqueue("Go")).text() == "plain"
        run = await able.agents[digger.id].enqueue("Go")
        assert await (await able.agents[anyone.id].enqueue("Again")).text() == "plain"
        assert (await run.refresh()).state == "pending"
        async with working(able) as digging:
            assert await run.text() == "ready"
    (dug,) = await run.calls()
    for id in (run.id, dug.id):
        assert {attempt.worker for attempt in await able.jobs.attempts(id)} == {digging.seq}


async def test_ap_05_a_worker_serves_only_the_agents_that_it_was_told_of(make_app: MakeApp) -> None:
    """AP-05, first generation: it could serve the other agent, and never claims a run of it."""
    hf = make_app(embedded=False)
    mine = hf.agent("mine", model=scripted(hf, say("mine")))
    theirs = hf.agent("theirs", model=scripted(hf, say("theirs")))
    async with working(hf, Role(only={"agent": ("mine",)})):
        left = await theirs.enqueue("Go")
        for _ in range(3):
            assert await (await mine.enqueue("Go")).text() == "mine"
        assert (await left.refresh()).state == "pending"
        assert await hf.jobs.attempts(left.id) == []
        async with working(hf, Role(only={"agent": ("theirs",)})) as other:
            assert await left.text() == "theirs"
    assert [attempt.worker for attempt in await hf.jobs.attempts(left.id)] == [other.seq]


async def test_ap_07_streaming_runs_are_limited(make_app: MakeApp) -> None:
    """AP-07: exactly so many are in flight in one worker."""
    hf = make_app(embedded=False, max_concurrent_streaming_runs=2)
    core_of(hf).book.substitute = model = Gated(say("done"))
    agent = hf.agent("a", model="scripted:")
    runs = await agent.enqueue_many(["1", "2", "3", "4", "5"])
    async with working(hf):
        await model.reached(2)
        model.gate.set()
        for run in runs:
            await run.result()
    assert model.most == 2


async def test_ap_08_tool_calls_are_limited(make_app: MakeApp) -> None:
    """AP-08: never more at once than the worker's limit, of all its runs together; each call that ends admits one."""
    hf = make_app(embedded=False, max_concurrent_tools=2)
    running = most = started = 0
    turnstile = asyncio.Semaphore(0)

    @hf.tool
    async def slow() -> str:
        """Slow."""
        nonlocal running, most, started
        started += 1
        running += 1
        most = max(most, running)
        async with asyncio.timeout(60):
            await turnstile.acquire()
        running -= 1
        return ""

    agent = hf.agent("a", model=scripted(hf, calls(*[call("slow")] * 4), say("done")), tools=[slow])
    idle = hf.agent("idle", model=scripted(hf, say("free")))
    runs = [await agent.enqueue("Go"), await agent.enqueue("Go too")]
    async with working(hf):
        for ended in range(8):

            async def full(count: int = min(8, ended + 2)) -> bool:
                return started == count

            await eventually(full)
            assert await (await idle.enqueue("Meanwhile")).text() == "free", "the worker has looked for work"
            assert (running, started) == (min(2, 8 - ended), min(8, ended + 2))
            turnstile.release()
        for run in runs:
            await run.result()
    assert (most, started) == (2, 8)
    assert [len(await run.calls()) for run in runs] == [4, 4]


async def test_ap_09_a_claim_is_visible_at_once_and_started_at_is_the_first(make_app: MakeApp) -> None:
    """AP-09: state, owner, claim time, previous state and start come with the claim; a later claim keeps the start."""
    hf = make_app(embedded=False)
    core_of(hf).book.substitute = model = Gated(call("look"), say("done"), waits=1)

    @hf.tool
    def look() -> str:
        """Look."""
        return "seen"

    run = await hf.agent("a", model="scripted:", tools=[look]).enqueue("Go")
    before = await run.refresh()
    assert (before.state, before.previous_state, before.started_at) == ("pending", None, None)
    async with working(hf) as worker:
        await model.reached(1)
        held, job = await run.refresh(), await hf.jobs.get(run.id)
        assert (held.state, held.previous_state) == ("streaming", "pending")
        assert held.started_at is not None
        assert job.claimed_at is not None
        assert job.worker == worker.seq
        model.gate.set()
        await run.result()
    after = await run.refresh()
    assert (after.state, after.started_at) == ("completed", held.started_at)
    assert len(await hf.jobs.attempts(run.id)) == 2


async def test_ap_10_a_run_that_nobody_serves_is_refused_or_waits(make_app: MakeApp) -> None:
    """AP-10: refused where that was asked for (first generation), else visible as pending (second)."""
    hf = make_app(embedded=False)
    agent = hf.agent("a", model=scripted(hf, say("served")))
    with pytest.raises(NoWorker, match="no live worker serves agent 'a'"):
        await agent.enqueue("Go", require_worker=True)
    assert await hf.runs.list() == []
    run = await agent.enqueue("Go")
    assert [row.id for row in await hf.runs.list(state="pending")] == [run.id]
    async with working(hf):
        assert await run.text() == "served"

        async def accepted() -> Any:
            return await agent.enqueue("Again", require_worker=True)

        assert await (await accepted()).text() == "served"


async def test_runs_wait_for_a_future_time(hf: Holdfast) -> None:
    run = await hf.agent("a", model=scripted(hf, say("x"))).enqueue("Later", delay="1h")
    assert (await in_state(hf, run.id, "scheduled")).due_at is not None

    async def listed() -> bool:
        return (await run.refresh()).state == "pending"

    assert await eventually(listed)
