"""SIGTERM drains, a second one stops at once, and a parent keeps its processes; nothing is left behind for the TTL."""

from __future__ import annotations

import signal
from collections import Counter
from functools import partial
from typing import Any

import pytest

from holdfast.client.jobs import JobFunction
from holdfast.values.workers import WorkerRecord
from tests.chaos.crew import Member, catches, state_of
from tests.chaos.jobs import deaf, deaf_step, hold, hold_in_thread, nap, quick
from tests.chaos.scene import Scene
from tests.http.browsing import browser
from tests.support.apps import eventually
from tests.support.commands import holdfast

pytestmark = pytest.mark.chaos

WEDGED: list[JobFunction[[str], Any]] = [deaf, deaf_step, hold_in_thread]


async def test_sigterm_lets_short_jobs_finish_and_hands_long_ones_back(scene: Scene) -> None:
    gate = scene.gate()
    worker = scene.worker("--concurrency", "2", drain_grace="3s", prefetch="2")
    short = await hold.enqueue(str(scene.witness), str(gate))
    long = await hold.enqueue(str(scene.witness))
    await scene.witness.saw(*(f"running {job.id} {worker.pid}" for job in (short, long)))
    behind = await hold.enqueue(str(scene.witness))
    term_at = scene.watch.now()
    worker.send(signal.SIGTERM)
    await eventually(partial(has_status, scene, worker, "draining"))
    gate.open()
    assert await worker.leaves() == 0

    assert await scene.watch.outcomes(short.id) == ["succeeded"]
    assert await scene.watch.outcomes(long.id) == ["released"]
    assert f"cancelled {long.id} {worker.pid} told=True" in scene.witness.lines
    (released,) = await scene.watch.attempts(long.id)
    assert released.ended_at - term_at >= 2_900_000  # after the grace, not before
    assert [(await scene.watch.job(job.id)).state for job in (long, behind)] == ["pending", "pending"]
    assert (await scene.watch.job(long.id)).attempts == 0
    await left_nothing_behind(scene, worker)


async def test_what_was_claimed_ahead_is_released_at_once(scene: Scene) -> None:
    """Many short attempts make a worker claim ahead; then come long ones."""
    worker = scene.worker("--concurrency", "1", drain_grace="2s")
    for job in await nap.enqueue_many([(0,)] * 40):
        await job.result(timeout="60s")
    jobs = [job.id for job in await hold.enqueue_many([(str(scene.witness),)] * 3)]
    await scene.watch.until_running(3)
    worker.send(signal.SIGTERM)
    await eventually(partial(has_released, scene, 2))
    assert worker.running
    assert await worker.leaves() == 0
    assert Counter([(await scene.watch.job(job)).state for job in jobs]) == {"pending": 3}
    assert [await scene.watch.outcomes(job) for job in jobs] == [["released"]] * 3
    await left_nothing_behind(scene, worker)


@pytest.mark.long
async def test_a_duty_is_free_as_soon_as_its_holder_leaves(scene: Scene) -> None:
    leaver = scene.worker()
    await leaver.says("holds duty cleanup, term 1")
    leaver.send(signal.SIGTERM)
    assert await leaver.leaves() == 0
    assert await scene.watch.duties() == []
    successor = scene.worker()
    await successor.says("holds duty cleanup, term 2")


@pytest.mark.parametrize(
    ("number", "how"), [(signal.SIGTERM, "send SIGTERM again"), (signal.SIGINT, "press Ctrl-C again")]
)
async def test_a_second_signal_does_at_once_what_the_first_said(scene: Scene, number: signal.Signals, how: str) -> None:
    worker = scene.worker(drain_grace="60s")
    job = await hold.enqueue(str(scene.witness))
    await scene.witness.saw(f"running {job.id} {worker.pid}")
    worker.send(number)
    await eventually(partial(has_status, scene, worker, "draining"))
    named = f"1 job (hold {job.id})"
    await worker.says(f"stopping: waiting up to 60 s for {named}; {how} to stop at once and hand it back")
    await worker.says(f"stopping: still waiting for {named}, up to 55 s more")
    asked_at = scene.watch.now()
    worker.send(number)
    assert await worker.leaves() == 0
    assert (scene.watch.now() - asked_at) / 1e6 < 30
    assert f"stopping at once: {named} is handed back" in worker.output
    assert await scene.watch.outcomes(job.id) == ["released"]
    await left_nothing_behind(scene, worker)


@pytest.mark.long
@pytest.mark.parametrize("wedged", WEDGED, ids=lambda job: str(job.definition.kind))
async def test_a_handler_that_does_not_listen_does_not_keep_a_drained_worker(
    scene: Scene, wedged: JobFunction[[str], Any]
) -> None:
    worker = scene.worker(drain_grace="500ms")
    jobs = [(await wedged.enqueue(str(scene.witness))).id for _ in range(10)]
    await scene.witness.saw(*(f"running {job} {worker.pid}" for job in jobs))
    worker.send(signal.SIGTERM)
    assert await worker.leaves() == 0
    assert await scene.watch.states() == {"pending": len(jobs)}
    await left_nothing_behind(scene, worker)


@pytest.mark.long
async def test_sigterm_during_the_start_leaves_no_worker_behind(scene: Scene) -> None:
    """As soon as the row is there; the worker has not begun to work yet, or only just."""
    for _ in range(3):
        worker = scene.worker()
        await scene.row_of(worker)
        worker.send(signal.SIGTERM)
        assert await worker.leaves() == 0
        await left_nothing_behind(scene, worker)


async def test_a_parent_restarts_a_killed_child_and_passes_signals_on(scene: Scene) -> None:
    parent = scene.worker("--processes", "3")
    first = await children(scene, 3)
    victim = min(first)
    scene.crew.kill(victim)
    await eventually(partial(is_replaced, scene, victim, 3))
    job = await hold.enqueue(str(scene.witness), str(scene.gate()))
    await scene.watch.until_running(1)
    scene.gate().open()
    await job.result(timeout="60s")
    parent.send(signal.SIGTERM)
    assert await parent.leaves() == 0
    rows = await scene.watch.workers(all=True)
    assert {row.pid for row in rows if row.status == "stopped"} == {row.pid for row in rows} - {victim}


async def test_children_drain_when_their_parent_is_killed(scene: Scene) -> None:
    parent = scene.worker("--processes", "2")
    pids = await children(scene, 2)
    gate = scene.gate()
    job = await hold.enqueue(str(scene.witness), str(gate))
    await scene.watch.until_running(1)
    parent.kill()
    await eventually(partial(all_drain, scene))
    gate.open()
    await eventually(partial(are_gone, pids))
    assert await scene.watch.outcomes(job.id) == ["succeeded"]
    assert await scene.watch.workers() == []


@pytest.mark.long
async def test_a_signal_in_the_first_moments_ends_a_parent(scene: Scene) -> None:
    """Whether it comes before, while or after the children are started, nothing is left running."""
    for _ in range(3):
        parent = scene.worker("--processes", "2")
        await eventually(partial(handles_sigterm, parent))
        parent.send(signal.SIGTERM)
        assert await parent.leaves() == 0
        await eventually(partial(nobody_works, scene))


@pytest.mark.long
async def test_once_runs_one_job_and_leaves(scene: Scene) -> None:
    jobs = await quick.enqueue_many([(1,), (2,), (3,)])
    worker = scene.worker("--once")
    assert await worker.leaves() == 0
    assert Counter([(await job.refresh()).state for job in jobs]) == {"succeeded": 1, "pending": 2}
    await left_nothing_behind(scene, worker)


@pytest.mark.sample(1)
@pytest.mark.parametrize("option", ["--once", "--until-empty"])
async def test_an_ephemeral_worker_leaves_when_there_is_nothing_to_do(scene: Scene, option: str) -> None:
    await nap.options(delay="1h").enqueue(0)
    worker = scene.worker(option)
    assert await worker.leaves() == 0
    await left_nothing_behind(scene, worker)


async def test_until_empty_does_all_there_is_and_leaves(scene: Scene) -> None:
    await nap.enqueue_many([(0.01,)] * 200)
    parent = scene.worker("--until-empty", "--processes", "2")
    assert await parent.leaves() == 0
    assert await scene.watch.states() == {"succeeded": 200}
    assert await scene.watch.workers() == []


async def left_nothing_behind(scene: Scene, member: Member) -> None:
    """No lease, no duty, no live worker: nobody has to wait for a TTL."""
    rows = [row for row in await scene.watch.workers(all=True) if row.pid == member.pid]
    assert {row.status for row in rows} <= {"stopped"}
    assert await scene.watch.query("select 1 from holdfast.lease") == []
    assert await scene.watch.duties() == []
    assert "Traceback" not in member.output, member.output


async def has_status(scene: Scene, member: Member, status: str) -> bool:
    return any(row.pid == member.pid and row.status == status for row in await scene.watch.workers())


async def has_released(scene: Scene, count: int) -> bool:
    return sum(attempt.outcome == "released" for attempt in await scene.watch.attempts()) >= count


async def children(scene: Scene, count: int) -> set[int]:
    """The processes of so many workers, once they have registered; they end with the test."""

    async def look() -> set[int] | None:
        pids = {row.pid for row in await scene.watch.workers()}
        return pids if len(pids) == count else None

    pids = await eventually(look)
    assert pids is not None
    for pid in pids:
        scene.crew.watch(pid)
    return pids


async def is_replaced(scene: Scene, victim: int, count: int) -> bool:
    pids = {row.pid for row in await scene.watch.workers()} - {victim}
    for pid in pids:
        scene.crew.watch(pid)
    return len(pids) == count


async def all_drain(scene: Scene) -> bool:
    return all(row.status == "draining" for row in await scene.watch.workers())


async def nobody_works(scene: Scene) -> bool:
    return await scene.watch.workers() == []


async def are_gone(pids: set[int]) -> bool:
    return all(state_of(pid) in ("", "Z") for pid in pids)


async def handles_sigterm(member: Member) -> bool:
    """Whether the process has come so far as to ask for the signal."""
    assert member.running
    return catches(member.pid, signal.SIGTERM)


async def test_nothing_shows_a_worker_as_alive_that_was_killed_while_idle(scene: Scene) -> None:
    """Nobody is there to declare it lost, and it holds nothing that others would miss; its presence tells."""
    victim = await scene.registered()

    async def shown() -> WorkerRecord | None:
        """It, once others see its presence; right after the start of a server they do not judge."""
        (row,) = await scene.hf.workers.list()
        return row if row.presence and await presence_is_judged(scene) else None

    before = await eventually(shown)
    assert (before.status, before.silent) == ("active", False)
    assert " active " in holdfast("workers", "ls", "--url", scene.url, "--wide").out
    waiting = await quick.enqueue(7)
    assert await waiting.result(timeout="60s") == 7
    victim.kill()
    late = await quick.enqueue(8)

    (row,) = await eventually(partial(silent_workers, scene))
    assert (row.id, row.status, row.presence) == (before.id, "active", False)
    (listed,) = holdfast("workers", "ls", "--url", scene.url, "--wide").lines[1:]
    assert " silent " in listed
    assert " active " not in listed
    one = holdfast("workers", "show", row.id, "--url", scene.url, "--json").json
    assert (one["silent"], one["presence"]) == (True, False)
    assert "1 worker is dead or silent" in holdfast("doctor", "--url", scene.url).out
    assert "silent" in holdfast("top", "--once", "--url", scene.url).out
    assert str(await scene.hf.why(late.id)).startswith("there is no live worker")
    ann = browser(scene.hf)
    (answered,) = (await ann.get("/api/v1/workers")).json["items"]
    assert (answered["silent"], answered["presence"]) == (True, False)
    for path in ("/workers", f"/workers/{row.id}"):
        page = (await ann.get(path)).body.decode()
        assert "silent" in page
        assert ">active<" not in page
    assert "no worker is alive" in (await ann.get("/")).body.decode()


async def test_a_job_of_a_killed_worker_is_not_said_to_run_on_it(scene: Scene) -> None:
    victim = await scene.registered()
    job = await hold.enqueue(str(scene.witness), str(scene.gate()))
    await scene.watch.until_running(1)

    async def is_gone() -> bool:
        return " is gone: the next worker that looks takes it over" in str(await scene.hf.why(job.id))

    assert not await is_gone()
    victim.kill()
    await eventually(is_gone)


async def silent_workers(scene: Scene) -> list[WorkerRecord]:
    return [row for row in await scene.hf.workers.list() if row.silent]


async def presence_is_judged(scene: Scene) -> bool:
    """Nobody judges presence right after the server's start."""
    if scene.watch.database.dialect != "postgres":
        return True
    up = "select 1 where clock_timestamp() - pg_postmaster_start_time() > interval '5 s'"
    return bool(await scene.watch.query(up))
