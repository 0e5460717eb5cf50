"""AgentPG's statements on failure and recovery, AP-33 to AP-46: whatever dies, the run ends as if nothing had."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from holdfast import Holdfast, Run, RunFailed
from holdfast.agents.tools import ToolContext
from holdfast.app import core_of
from holdfast.events import TurnRestarted
from holdfast.kernel.workers import lose_workers
from holdfast.models import Request, ResponseHead
from holdfast.models.protocol import Wire
from holdfast.models.script import Script, call, calls, ends, say
from holdfast.models.spool import read_witness
from holdfast.settings import Settings
from holdfast.testing import Lab, Labs
from tests.conftest import Place
from tests.support.agents import Counting, Gated, results, scripted, settle
from tests.support.apps import MakeApp, eventually, happens, outcomes, working
from tests.support.compaction import Strict

FEW = {"sqlite": 14, "postgres": 3}  # places to be killed at; tests/agents/test_crashes.py takes them all


async def test_ap_33_a_run_ends_as_if_its_worker_had_not_been_killed(labs: Labs, dialect: str, tmp_path: Path) -> None:
    """AP-33: killed before or after any commit, with tools and an agent below."""
    witness = tmp_path / "witness"
    hf = Holdfast("sqlite:////nowhere/at-all.db", settings=Settings(script_witness=str(witness)))

    @hf.tool
    def look(word: str) -> str:
        """Look."""
        return word.upper()

    clerk = hf.agent("clerk", model=scripted(hf, call("look", word="c"), say("filed")), tools=[look])
    asked = calls(call("look", word="a"), call("clerk", task="file it"))
    boss = hf.agent("boss", model=scripted(hf, asked, say("good")), tools=[look], agents=[clerk])
    async for lab in labs.crash_everywhere(hf, at_most=FEW[dialect]):
        run = await boss.enqueue("Go", session="s")
        await settle(lab, run)
        assert (await run.result()).text == "good"
        assert [block["content"] for block in await results(hf, run.session_id)] == ["A", "filed"]
        rows = await hf.runs.list()
        ids = {row.id for row in rows}
        assert {row.state for row in rows} == {"completed"}
        turns = [turn for row in rows for turn in await hf.runs[row.id].turns()]
        done = [line for line in read_witness(witness) if line["event"] == "done" and line["call"][:36] in ids]
        assert len(turns) <= len(done) <= len(turns) + sum(turn.unknown for turn in turns)
        witness.unlink()
        for row in rows:
            assert [event.seq for event in await hf.runs[row.id].events()] == list(range(1, row.events + 1))


async def test_ap_34_a_worker_that_leaves_hands_its_run_over(make_app: MakeApp) -> None:
    """AP-34: in flight at the model, it is never failed; the next worker plays the turn again."""
    hf = make_app(embedded=False, drain_grace="50ms")
    core_of(hf).book.substitute = model = Gated(say("handed over"), waits=1)
    run = await hf.agent("a", model="scripted:").enqueue("Go")
    async with working(hf):
        await model.reached(1)
    row = await run.refresh()
    assert (row.state, row.finalized_at) == ("pending", None)
    async with working(hf):
        assert await run.text() == "handed over"
    (turn,) = await run.turns()
    assert (turn.attempts, turn.unknown) == (2, 1)
    assert (await hf.jobs.get(run.id)).rescues == 0
    assert [type(event) for event in await run.events()].count(TurnRestarted) == 1


class Ordered(Counting):
    """A model that notes which commits came before it was made ready, and before it was asked."""

    def __init__(self, script: Script, commits: Callable[[], Sequence[str]]) -> None:
        super().__init__(script)
        self._commits = commits
        self.readied: list[Sequence[str]] = []
        self.asked: list[Sequence[str]] = []

    async def warm(self) -> None:
        self.readied.append(self._commits())

    async def stream(self, request: Request, answered: Callable[[ResponseHead], None]) -> AsyncGenerator[Wire, None]:
        self.asked.append(self._commits())
        async for event in super().stream(request, answered):
            yield event


async def ordered(labs: Labs, **options: Any) -> tuple[Lab, Ordered, Run[str]]:
    hf = Holdfast("sqlite:////nowhere/at-all.db")
    lab = await labs.use(hf)
    model = Ordered(Script(say("Hello.")), lambda: [commit.name for commit in lab.plan.commits])
    core_of(hf).book.substitute = model
    return lab, model, await hf.agent("a", model="scripted:", **options).enqueue("Go")


async def test_a_model_is_made_ready_before_the_intent_of_its_call_is_stored(labs: Labs) -> None:
    """Whoever dies in between leaves a call of which nobody knows whether it was paid for."""
    lab, model, run = await ordered(labs)
    await lab.drain()
    assert (await run.refresh()).state == "completed"
    (readied,), (asked,) = model.readied, model.asked
    assert "begin" not in readied
    assert "begin" in asked


async def test_a_worker_that_dies_with_its_model_open_leaves_no_call_that_is_unknown(labs: Labs) -> None:
    lab, model, run = await ordered(labs)
    lab.crash(before="begin")
    await settle(lab, run)
    (turn,) = await run.turns()
    assert (turn.state, turn.attempts, turn.unknown) == ("completed", 1, 0)
    assert (len(model.readied), len(model.asked)) == (2, 1)


async def test_ap_35_a_tool_whose_worker_died_is_tried_again_or_reported(labs: Labs) -> None:
    """AP-35: never an empty success; one that may start once is an error to the model."""
    hf = Holdfast("sqlite:////nowhere/at-all.db")
    started: list[str] = []

    @hf.tool
    def again() -> str:
        """May be repeated."""
        started.append("again")
        return "did it"

    @hf.tool(effect="once", unknown="report")
    def once() -> str:
        """May not."""
        started.append("once")
        return "paid"

    lab = await labs.use(hf)
    for tool, name in ((again, "again"), (once, "once")):
        agent = hf.agent(name + "_agent", model=scripted(hf, call(name), say("ok")), tools=[tool])
        run = await agent.enqueue("Go")
        lab.crash(before="complete")
        await settle(lab, run)
        assert (await run.result()).text == "ok"
        (told,) = await results(hf, run.session_id)
        if name == "again":
            assert (told["content"], started) == ("did it", ["again", "again"])
        else:
            assert told["is_error"]
            assert told["content"]
            assert started == ["again", "again", "once"]


async def test_ap_36_ap_37_a_run_without_progress_is_taken_back_and_the_late_answer_dropped(
    make_app: MakeApp,
) -> None:
    """AP-36, AP-37: the rescue is counted; what the first attempt still says changes nothing."""
    hf = make_app(
        embedded=False,
        rescue_timeout="400ms",
        rescue_interval="100ms",
        duty_ttl="200ms",
        sweep_interval="100ms",
        max_rescue_attempts=100,
    )
    core_of(hf).book.substitute = model = Gated(say("in the end"), waits=1)
    run = await hf.agent("a", model="scripted:").enqueue("Go")
    async with working(hf):
        assert await run.text() == "in the end"
        before = await run.refresh(), await run.events()
        model.gate.set()

        async def quiet() -> bool:
            return model.waiting == 0

        await eventually(quiet)
        other = await hf.agent("b", model="scripted:").enqueue("Another")
        await other.result()
        assert (await run.refresh(), await run.events()) == before
    assert (await hf.jobs.get(run.id)).rescues >= 1
    messages = await hf.sessions[(await run.refresh()).session].messages()
    assert [m.kind for m in messages] == ["prompt", "answer"]
    (turn,) = await run.turns()
    assert turn.unknown == turn.attempts - 1 >= 1


async def test_ap_38_the_last_rescue_fails_the_run(make_app: MakeApp) -> None:
    """AP-38: with rescue_failed, and the next run of the session goes on."""
    hf = make_app(
        embedded=False,
        rescue_timeout="300ms",
        rescue_interval="100ms",
        duty_ttl="200ms",
        sweep_interval="100ms",
        max_rescue_attempts=2,
        rescue_backoff="50ms",
    )
    core_of(hf).book.substitute = model = Gated(say("too late"))
    run = await hf.agent("a", model="scripted:").enqueue("Go", session="s")
    async with working(hf):
        with pytest.raises(RunFailed) as caught:
            await run.result()
        asked = model.calls
        model.gate.set()
        assert await (await hf.agent("b", model="scripted:").enqueue("And now?", session="s")).text() == "too late"
    row = await run.refresh()
    assert (row.state, row.error_type, caught.value.type) == ("failed", "rescue_failed", "rescue_failed")
    assert (asked, (await hf.jobs.get(run.id)).rescues) == (3, 2), "two rescues, and the third detection is the last"
    assert await outcomes(hf, run.id) == ["lost"] * 3
    (turn,) = await run.turns()
    assert (turn.attempts, turn.unknown) == (3, 3)


async def test_ap_41_after_a_run_that_failed_in_a_call_the_session_goes_on(hf: Holdfast) -> None:
    """AP-41: the call that nobody will answer any more has an error result."""

    @hf.tool
    def look() -> str:
        """Look."""
        return "seen"

    agent = hf.agent("a", model=scripted(hf, ends("mystery", say("I"), call("look"))), tools=[look])
    with pytest.raises(RunFailed, match="mystery"):
        await agent.run("Go", session="s")
    session = await hf.sessions.get("s")
    (told,) = await results(hf, session.id)
    assert told["is_error"]
    result = await hf.agent("b", model=scripted(hf, say("still here")), tools=[look]).run("And now?", session="s")
    assert result.text == "still here"


@pytest.mark.parametrize("how", ["refused", "cancelled"])
async def test_ap_41_a_run_that_ends_in_the_middle_of_its_tools_leaves_a_session_that_the_provider_takes(
    make_app: MakeApp, how: str
) -> None:
    """AP-41: refused when its results are sent, or cancelled while a tool runs; the model is strict."""
    hf = make_app(embedded=False, heartbeat="200ms")
    begun, gate = asyncio.Event(), asyncio.Event()

    @hf.tool
    async def look(n: int) -> int:
        """Look."""
        begun.set()
        if n and how == "cancelled":
            async with asyncio.timeout(60):
                await gate.wait()
        return n

    uses = calls(call("look", n=0), call("look", n=1))
    model = Strict({"scripted:a": Script(uses), "scripted:b": Script(say("still here"))})
    core_of(hf).book.substitute = model
    run = await hf.agent("a", model="scripted:a", tools=[look]).enqueue("Go", session="s")
    async with working(hf):
        if how == "cancelled":
            await happens(begun)
            await run.cancel()
        with pytest.raises(RunFailed):
            await run.result()
        told = await results(hf, run.session_id)
        assert len(told) == 2
        assert how == "refused" or told[1]["is_error"]
        again = await hf.agent("b", model="scripted:b", tools=[look]).enqueue("And now?", session="s")
        assert await again.text() == "still here"
        gate.set()
    sent = model.asked("scripted:b")[0].messages
    assert [message["role"] for message in sent] == ["user", "assistant", "user"]
    assert [block["type"] for block in sent[2]["content"]] == ["tool_result", "tool_result", "text"]


async def test_ap_42_a_worker_given_up_for_lost_comes_back_and_serves_agents(make_app: MakeApp) -> None:
    """AP-42: its row goes, it registers again by itself, with what it can do."""
    hf = make_app(embedded=False, heartbeat="100ms")
    agent = hf.agent("a", model=scripted(hf, say("back")))
    async with working(hf) as worker:
        before = worker.seq
        await core_of(hf).runtime().database.transact(lose_workers, gone=[before], reason="a mistake")

        async def back() -> Any:
            return [row for row in await hf.workers.list() if row.seq != before and row.presence]

        (row,) = await eventually(back)
        assert "agent:a" in row.capabilities
        assert before not in [each.seq for each in await hf.workers.list()]
        assert await (await agent.enqueue("Go", require_worker=True)).text() == "back"


async def test_ap_43_ap_45_workers_go_on_when_the_database_drops_every_connection(
    make_app: MakeApp, place: Place
) -> None:
    """AP-43, AP-45: a run in flight ends, later ones are heard of; without a restart. A file has nothing to drop."""
    spared = [] if place.url.startswith("sqlite") else backends(place.direct)
    hf = make_app(embedded=False, heartbeat="200ms", duty_ttl="400ms", poll_interval="1h")
    core_of(hf).book.substitute = model = Gated(call("look"), say("survived"), waits=1)

    @hf.tool
    def look() -> str:
        """Look."""
        return "seen"

    agent = hf.agent("a", model="scripted:", tools=[look])
    async with working(hf):
        run = await agent.enqueue("Go")
        await model.reached(1)
        if not place.url.startswith("sqlite"):
            assert drop_connections(place.direct, spared) > 0
        model.gate.set()
        assert await run.text() == "survived"
        assert await (await agent.enqueue("Again")).text() == "survived"
        (row,) = await hf.workers.list()
        assert "agent:a" in row.capabilities

        async def leads() -> bool:
            return any(duty.name == "cleanup" and duty.holder == row.seq for duty in await hf.workers.duties())

        await eventually(leads)
    assert (await run.refresh()).state == "completed"


def backends(url: str) -> list[int]:
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute("select pid from pg_stat_activity where datname = current_database()")
        return [pid for (pid,) in found]


def drop_connections(url: str, spared: list[int]) -> int:
    """End every connection to the database but these; how many there were."""
    with psycopg.connect(url, autocommit=True) as connection:
        ended = connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where datname = current_database() and pid <> pg_backend_pid() and pid <> all(%s)",
            [spared],
        )
        return len(ended.fetchall())


async def test_ap_44_one_worker_keeps_house_and_gives_it_back(make_app: MakeApp) -> None:
    """AP-44: rescues included, which are a chore of whoever keeps house; a clean stop frees it at once."""
    hf = make_app(embedded=False, duty_ttl="200ms")
    hf.agent("a", model=scripted(hf, say("x")))

    async def holder() -> int | None:
        return next((duty.holder for duty in await hf.workers.duties() if duty.name == "cleanup"), None)

    async with working(hf) as second:
        async with working(hf) as first:
            assert await eventually(holder) in (first.seq, second.seq)

        async def mine() -> bool:
            return await holder() == second.seq

        await eventually(mine)
    assert await hf.workers.duties() == []


async def test_ap_46_the_store_itself_ties_the_end_to_the_state(hf: Holdfast, place: Place) -> None:
    """AP-46: an ended run has its time, another has none; no statement can make it otherwise."""
    agent = hf.agent("a", model=scripted(hf, say("x")))
    result = await agent.run("Go")
    waiting = await agent.enqueue("Later", delay="1h")
    assert (await hf.runs.get(result.run_id)).finalized_at is not None
    assert (await waiting.refresh()).finalized_at is None
    for change in ("state = 'pending'", "finalized_at = null"):
        with pytest.raises((psycopg.errors.CheckViolation, apsw.ConstraintError)):
            execute(place, f"update holdfast.run set {change} where id = '{result.run_id}'")
    with pytest.raises((psycopg.errors.CheckViolation, apsw.ConstraintError)):
        execute(place, f"update holdfast.run set state = 'failed' where id = '{waiting.id}'")


def execute(place: Place, text: str) -> None:
    """SQL past everything."""
    if place.url.startswith("sqlite"):
        connection = apsw.Connection(place.url.removeprefix("sqlite:///"))
        connection.set_busy_timeout(5_000)
        try:
            connection.execute(text.replace("holdfast.", ""))
        finally:
            connection.close()
        return
    with psycopg.connect(place.direct, autocommit=True) as connected:
        connected.execute(text.encode())


async def test_tools_are_told_which_attempt_they_are(hf: Holdfast) -> None:
    keys: list[tuple[int, str]] = []

    @hf.tool
    def flaky(ctx: ToolContext) -> str:
        """Flaky."""
        keys.append((ctx.attempt, ctx.idempotency_key))
        if ctx.attempt == 1:
            raise ValueError("once more")
        return "ok"

    await hf.agent("a", model=scripted(hf, call("flaky"), say("ok")), tools=[flaky]).run("Go")
    assert [attempt for attempt, _ in keys] == [1, 2]
    assert len({key for _, key in keys}) == 1


async def test_cancel_ends_a_call_to_the_model(make_app: MakeApp) -> None:
    hf = make_app(embedded=False, heartbeat="500ms")
    core_of(hf).book.substitute = model = Gated(say("never"))
    run = await hf.agent("a", model="scripted:").enqueue("Go")
    async with working(hf):
        await model.reached(1)
        await run.cancel("enough")

        async def gone() -> bool:
            return model.waiting == 0 and (await run.refresh()).state == "cancelled"

        await eventually(gone)
    assert (await run.turns())[0].stop_reason is None
