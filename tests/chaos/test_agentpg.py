"""AgentPG's statements on processes, links and servers, shown on real ones: killed, stopped, cut off, restarted."""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.agents.api.agent import Agent
from holdfast.agents.api.run import Run
from holdfast.events import TextDelta, TurnRestarted
from holdfast.kernel.drivers.sqlite_processes import runtime_folder
from holdfast.kernel.rows import DutyRow
from holdfast.models.script import say
from holdfast.settings import Settings
from tests.chaos import agents
from tests.chaos.agents import STORY, payer, teller
from tests.chaos.crew import Crew
from tests.chaos.scene import Scene, Witness
from tests.chaos.test_agents import Stage, everything_is_whole, some, stage, took_effect
from tests.chaos.watch import Watch
from tests.conftest import Place
from tests.support.agents import scripted
from tests.support.apps import eventually, happens, settings_with, working
from tests.support.postgres import Server
from tests.support.proxy import Proxy

__all__ = ["stage"]

pytestmark = pytest.mark.chaos

SOON = "50s"  # far below ten minutes, far above what it takes
NEVER: dict[str, Any] = {"poll_interval": "10m", "sweep_interval": "10m"}
SHORT: dict[str, Any] = {
    "lease_ttl": "3s",
    "heartbeat": "1s",
    "worker_ttl": "3s",
    "fence_margin": "500ms",
    "duty_ttl": "1s",
    "cleanup_interval": "1s",
}
END_LISTENERS = (
    "select pg_terminate_backend(pid) from pg_stat_activity "
    "where datname = current_database() and application_name like '% listen'"
)
_numbers = itertools.count()


async def test_ap_02_a_worker_in_another_process_hears_of_a_run_long_before_it_polls(stage: Stage) -> None:
    """AP-02: polls and sweeps are ten minutes away."""
    await stage.registered(**NEVER)
    for run in [await teller.enqueue("Tell") for _ in range(3)]:
        assert await run.text(timeout=SOON) == STORY
        job = await stage.scene.hf.jobs.get(run.id)
        assert job.finished_at is not None
        assert job.finished_at - job.created_at < timedelta(minutes=5), "half of a poll interval"
        assert stage.sent(run.id) == 1


async def test_ap_03_a_run_is_found_by_polling_while_nobody_can_listen(place: Place) -> None:
    """AP-03: the server ends the connection that listens, every new LISTEN is cut; a file's socket is gone."""
    client = Holdfast(place.direct, embedded=False)
    agent = client.agent("a", model=scripted(client, say("found")))
    if place.direct.startswith("sqlite"):
        async with listening(place.direct):
            for socket in runtime_folder(Path(place.direct.removeprefix("sqlite:///"))).iterdir():
                socket.unlink()
            await found_by_polling(agent)
    else:
        async with Proxy(place.direct) as proxy, listening(proxy.url):
            proxy.forbidden = b"LISTEN"
            with psycopg.connect(place.direct, autocommit=True) as server:
                assert server.execute(END_LISTENERS.encode()).fetchall() == [(True,)]
            await happens(proxy.forbade)  # it has tried again, in vain
            await found_by_polling(agent)
    await client.close()


@asynccontextmanager
async def listening(url: str) -> AsyncIterator[None]:
    """A worker that polls twice a second and has been told of a run by a hint."""
    hf = Holdfast(url, settings=settings_with(poll_interval="500ms", sweep_interval="10m"), embedded=False)
    agent = hf.agent("a", model=scripted(hf, say("found")))
    async with working(hf):
        assert await (await agent.enqueue("Hello")).text(timeout=SOON) == "found"
        yield
    await hf.close()


async def found_by_polling(agent: Agent[str]) -> None:
    for _ in range(3):
        assert await (await agent.enqueue("Hello")).text(timeout=SOON) == "found"


@pytest.mark.sample(1)
@pytest.mark.parametrize("grace", ["60s", "100ms"])
async def test_ap_34_a_tool_in_flight_at_sigterm_is_finished_or_handed_over(stage: Stage, grace: str) -> None:
    """AP-34: finished where there is time for it, else run again elsewhere under its key; the run is never failed."""
    gate = stage.scene.gate()
    leaving = await stage.registered(drain_grace=grace)
    seq = (await stage.scene.row_of(leaving)).seq
    run = await agents.clerk.enqueue("Look", variables={**stage.variables, "gate": str(gate)})
    await eventually(lambda: took_effect(stage, 1))
    leaving.send(signal.SIGTERM)
    await leaving.says("drains")
    other = await stage.registered()
    if grace == "100ms":
        await eventually(lambda: took_effect(stage, 2))
    gate.open()
    assert await leaving.leaves() == 0
    assert await run.text(timeout=SOON) == "the clerk is done"
    (looked,) = await run.calls()
    others = (await stage.scene.row_of(other)).seq
    finished = grace == "60s"
    assert await stage.scene.watch.outcomes(looked.id) == (["succeeded"] if finished else ["released", "succeeded"])
    workers = [attempt.worker for attempt in await stage.scene.watch.attempts(looked.id)]
    assert workers == ([seq] if finished else [seq, others])
    assert Counter(line.split()[1] for line in stage.scene.witness.lines) == {looked.id: 1 if finished else 2}
    assert (await run.refresh()).state == "completed"
    assert stage.sent(run.id) == 2
    await everything_is_whole(stage)


@pytest.mark.long
async def test_ap_36_ap_42_a_worker_stopped_beyond_its_lease_changes_nothing_and_comes_back(stage: Stage) -> None:
    """AP-36, AP-42: frozen in a tool and in an answer. Its row goes, its runs end elsewhere, its late writes are void.

    It registers again by itself, with what it can do, and serves the next run alone.
    """
    scene, gate = stage.scene, stage.scene.gate()
    zombie = await stage.registered(script_pace="300ms", **SHORT)
    first = await scene.row_of(zombie)
    looking = await agents.clerk.enqueue("Look", variables={**stage.variables, "gate": str(gate)})
    await eventually(lambda: took_effect(stage, 1))
    telling = await teller.enqueue("Tell")
    await eventually(lambda: some(telling, TextDelta))
    await scene.watch.freeze(zombie.pid)
    healthy = await stage.registered(**SHORT)
    gate.open()
    runs = (looking, telling)
    assert [await run.text(timeout=SOON) for run in runs] == ["the clerk is done", STORY]
    await scene.given_up(zombie)
    before = [await everything_about(run) for run in runs]
    zombie.thaw()
    second = await scene.row_of(zombie)
    assert second.seq > max(first.seq, (await scene.row_of(healthy)).seq)
    assert "agent:teller" in second.capabilities
    healthy.kill()
    again = await teller.enqueue("Tell me more", require_worker=True)
    assert await again.text(timeout=SOON) == STORY
    assert {attempt.worker for attempt in await scene.watch.attempts(again.id)} == {second.seq}
    assert [await everything_about(run) for run in runs] == before
    (looked,) = await looking.calls()
    assert await scene.watch.outcomes(looked.id) == ["lost", "succeeded"]
    assert await scene.watch.outcomes(telling.id) == ["lost", "succeeded"]
    assert [stage.sent(run.id) for run in (*runs, again)] == [2, 2, 1]
    assert sum(isinstance(event, TurnRestarted) for event in await telling.events()) == 1
    await everything_is_whole(stage)


async def everything_about(run: Run[str]) -> tuple[Any, ...]:
    row = await run.refresh()
    messages = await agents.hf.sessions[row.session].messages()
    return row, await run.turns(), await run.calls(), await run.events(), messages


@pytest.mark.long
async def test_ap_44_when_who_keeps_house_is_killed_another_takes_over(stage: Stage) -> None:
    """AP-44: one holder at a time, another within the time of its lease; a clean stop frees the duty at once."""
    scene = stage.scene
    members = [await stage.registered(**SHORT) for _ in range(2)]
    by_seq = {(await scene.row_of(member)).seq: member for member in members}
    held = await eventually(lambda: cleanup(scene, by_seq))
    assert held is not None
    leader, survivor = by_seq.pop(held.holder), next(iter(by_seq))
    leader.kill()
    taken = await eventually(lambda: cleanup(scene, {survivor: None}))
    assert taken is not None
    assert (taken.holder, taken.term) == (survivor, held.term + 1)
    await scene.given_up(leader)
    run = await teller.enqueue("Tell")
    assert await run.text(timeout=SOON) == STORY
    by_seq[survivor].send(signal.SIGTERM)
    assert await by_seq[survivor].leaves() == 0
    assert await scene.watch.duties() == []


async def cleanup(scene: Scene, holders: Any) -> DutyRow | None:
    """Who keeps house, if it is one of these."""
    duties = [duty for duty in await scene.watch.duties() if duty.name == "cleanup"]
    assert len(duties) <= 1
    return next((duty for duty in duties if duty.holder in holders), None)


@pytest.fixture(scope="module")
def mortal_server() -> Iterator[Server]:
    """A server of our own to crash."""
    with Server() as server:
        yield server


@pytest.fixture
async def mortal_stage(mortal_server: Server, tmp_path: Path, crew: Crew) -> AsyncIterator[Stage]:
    app = Holdfast(mortal_server.create_database(f"mortal_{next(_numbers)}"))
    await app.migrate()
    await app.close()
    agents.hf.settings = Settings(url=app.settings.url)
    async with Watch(app.settings.url) as watch:
        scene = Scene(app.settings.url, tmp_path, agents.hf, watch, crew, Witness(tmp_path / "witness.txt"))
        yield Stage(scene, tmp_path / "asked.jsonl")
    await agents.hf.close()


@pytest.mark.long
async def test_ap_43_after_a_crash_of_postgres_workers_are_what_they_were(
    mortal_server: Server, mortal_stage: Stage
) -> None:
    """AP-43: registration, capabilities, leadership and LISTEN come back. A file has no server that could crash."""
    stage, scene = mortal_stage, mortal_stage.scene
    gate = scene.gate()
    # Not `SHORT`: leases must outlive the restart, however slow the machine is.
    settings = {"heartbeat": "1s", "duty_ttl": "1s", "cleanup_interval": "1s", "poll_interval": "10m"}
    members = [await stage.registered(**settings) for _ in range(2)]
    seqs = {(await scene.row_of(member)).seq for member in members}
    run = await payer.enqueue("Pay", variables={**stage.variables, "gate": str(gate)})
    await eventually(lambda: took_effect(stage, 2))
    await asyncio.to_thread(mortal_server.restart, "immediate")
    gate.open()
    assert await run.text(timeout=SOON) == "settled"
    assert {call.state for call in await run.calls()} == {"completed"}

    async def restored() -> bool:
        rows = [row for row in await scene.watch.workers() if "agent:payer" in row.capabilities]
        duties = await scene.watch.duties()
        return len(rows) == 2 and any(duty.holder in {row.seq for row in rows} for duty in duties)

    await eventually(restored)
    assert all(member.running for member in members)
    assert {row.seq for row in await scene.watch.workers()} == seqs, "nobody had to register anew"
    for _ in range(3):
        assert await (await teller.enqueue("Tell")).text(timeout=SOON) == STORY
    await everything_is_whole(stage)
