"""Pools of real processes: they grow and shrink, and whatever is killed, no job is lost and no process is left."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from holdfast.pools import PoolStats
from holdfast.pools.launchers import WorkerProcess
from tests.chaos.crew import Member, freeze, state_of
from tests.chaos.jobs import block_until, freeze_in_write, hold, quick
from tests.chaos.scene import Scene
from tests.support.apps import eventually

pytestmark = pytest.mark.chaos

GRACE = 3.0
SETTINGS = {
    "heartbeat": "500ms",
    "poll_interval": "200ms",
    "lease_ttl": "6s",
    "worker_ttl": "6s",
    "drain_grace": f"{GRACE}s",
}


class Millers:
    """The pool of a scene, from outside: what the store says of it, and which processes there are."""

    def __init__(self, scene: Scene, most: int) -> None:
        self._scene = scene
        self._name = scene.crew.mark
        self._most = most
        self.largest = 0

    def keeper(self, *options: str) -> Member:
        changes = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
        limits = ("--max", str(self._most), "--slots", "1", "--name", self._name)
        return self._scene.crew.start(
            "holdfast", "pool", "tests.chaos.jobs:hf", "--url", self._scene.url, *limits, *changes, *options
        )

    def processes(self) -> set[int]:
        """The worker processes of the pool, as the system knows them."""
        found = set()
        for folder in Path("/proc").iterdir():
            with suppress(OSError):
                words = (folder / "cmdline").read_bytes().split(b"\0") if folder.name.isdigit() else []
                if b"worker" in words and b"--pool" in words and self._name.encode() in words:
                    found.add(int(folder.name))
        return {pid for pid in found if state_of(pid) not in ("Z", "")}

    async def stats(self, **expected: object) -> PoolStats:
        """Once the pool stands like this. It is never larger than it may be, in the store or in the system."""

        async def so() -> PoolStats | None:
            seen = self.processes()
            for pid in seen:
                self._scene.crew.watch(pid)
            pools = {pool.name: pool for pool in await self._scene.hf.pools.list(all=True)}
            if self._name not in pools:
                return None
            stats = pools[self._name]
            self.largest = max(self.largest, stats.total, len(seen))
            assert self.largest <= self._most
            return stats if all(getattr(stats, name) == value for name, value in expected.items()) else None

        return await eventually(so, progress=self.processes)

    async def gone(self) -> None:
        """Once no process is left."""

        async def none() -> bool:
            return not self.processes()

        await eventually(none)


@asynccontextmanager
async def pool(scene: Scene, *options: str, most: int = 3) -> AsyncIterator[tuple[Millers, Member]]:
    millers = Millers(scene, most)
    keeper = millers.keeper(*options)
    yield millers, keeper
    keeper.send(signal.SIGTERM)
    assert await keeper.leaves() == 0
    assert not millers.processes()


@pytest.mark.parametrize("most", [3, pytest.param(8, marks=pytest.mark.long)])
@pytest.mark.timeout(600)
async def test_a_burst_makes_a_pool_grow_and_it_shrinks_again(scene: Scene, most: int) -> None:
    gate = scene.gate()
    async with pool(scene, "--min", "1", "--scale-down-idle", "1s", most=most) as (millers, _):
        await millers.stats(idle=1)
        jobs = await hold.enqueue_many([(str(scene.witness), str(gate))] * (3 * most))
        await millers.stats(processing=most)
        gate.open()
        for job in jobs:
            await job.result()
        await millers.stats(total=1, idle=1)
        await millers.stats(total=1)
        assert len(await eventually(lambda: _as_many(millers, 1))) == 1
        assert millers.largest == most
    assert not [line for line in scene.witness.lines if line.startswith("cancelled")]  # no busy worker was stopped
    for job in jobs:
        (attempt,) = await scene.hf.jobs.attempts(job.id)
        assert attempt.outcome == "succeeded"


async def _as_many(millers: Millers, count: int) -> set[int] | None:
    seen = millers.processes()
    return seen if len(seen) == count else None


async def test_a_worker_that_is_killed_is_replaced_and_its_job_done(scene: Scene) -> None:
    gate = scene.gate()
    async with pool(scene, "--min", "1") as (millers, keeper):
        job = await hold.enqueue(str(scene.witness), str(gate))
        (victim,) = (await millers.stats(processing=1)).workers.values()
        await scene.witness.saw(f"running {job.id} {victim.pid}")
        scene.crew.kill(victim.pid)

        async def another() -> bool:
            return any(each.pid not in (0, victim.pid) for each in (await millers.stats()).workers.values())

        await eventually(another)
        gate.open()
        assert await job.result() != f"held by {victim.pid}"
        assert "killed by SIGKILL" in keeper.output


@pytest.mark.parametrize("blocked", [False, pytest.param(True, marks=pytest.mark.long)], ids=["idle", "blocked"])
async def test_no_process_outlives_a_keeper_that_is_killed(scene: Scene, blocked: bool) -> None:
    """Not even one whose event loop is blocked, and which hears nothing."""
    gate, millers = scene.gate(), Millers(scene, 2)
    keeper = millers.keeper("--min", "2")
    await millers.stats(idle=2)
    job = None
    if blocked:
        job = await block_until.enqueue(str(scene.witness), str(gate))
        await millers.stats(processing=1)
    keeper.kill()
    killed = time.monotonic()
    await millers.gone()
    allowed = GRACE + 5.0
    assert time.monotonic() - killed < allowed or os.getloadavg()[0] > 4  # a crowded machine proves nothing
    if job is not None:
        gate.open()
        successor = millers.keeper("--min", "1")
        await job.result()
        successor.send(signal.SIGTERM)
        assert await successor.leaves() == 0


@pytest.mark.long
async def test_no_process_outlives_a_keeper_that_is_killed_while_its_program_is_imported(scene: Scene) -> None:
    begun, millers = scene.folder / "begun", Millers(scene, 2)
    (scene.folder / "endless.py").write_text(
        "import sys, threading\nfrom holdfast import Holdfast\nhf = Holdfast(embedded=False)\n\n\n"
        "@hf.job\ndef render() -> None: ...\n\n\n"
        f"if '--leash' in sys.argv:\n    open({str(begun)!r}, 'w').close()\n    threading.Event().wait()\n"
    )
    keeper = scene.crew.start(
        "holdfast", "pool", "endless:hf", "--url", scene.url, "--name", scene.crew.mark, "--min", "2", "--max", "2",
        environment={"PYTHONPATH": f"{scene.folder}:{os.environ.get('PYTHONPATH', '')}"},
    )  # fmt: skip

    async def importing() -> bool:
        for pid in millers.processes():
            scene.crew.watch(pid)
        return begun.exists() and len(millers.processes()) == 2

    await eventually(importing)
    keeper.kill()
    await millers.gone()


@pytest.mark.long
async def test_a_new_keeper_continues_when_keeper_and_workers_were_killed(scene: Scene) -> None:
    gate, millers = scene.gate(), Millers(scene, 2)
    keeper = millers.keeper("--min", "1")
    jobs = await hold.enqueue_many([(str(scene.witness), str(gate))] * 6)
    await millers.stats(processing=2)
    keeper.send(signal.SIGSTOP)  # so that it replaces nobody
    for pid in millers.processes():
        scene.crew.kill(pid)
    keeper.kill()
    async with pool(scene, "--min", "1", most=2) as (after, _):
        gate.open()
        for job in jobs:
            await job.result()
        assert after.largest <= 2


@pytest.mark.long
async def test_a_pool_goes_to_zero_and_comes_back(scene: Scene) -> None:
    gate = scene.gate()
    gate.open()
    async with pool(scene, "--min", "0", "--scale-down-idle", "500ms") as (millers, _):
        for _ in range(2):
            job = await hold.enqueue(str(scene.witness), str(gate))
            await job.result()
            await millers.stats(total=0)
            await millers.gone()
        assert millers.largest == 1


@pytest.mark.long
async def test_what_is_due_later_is_done_by_a_pool_without_workers(scene: Scene) -> None:
    gate = scene.gate()
    gate.open()
    async with pool(scene, "--min", "0", "--scale-down-idle", "500ms") as (millers, _):
        await millers.stats(keepers=1)
        job = await hold.options(delay="500ms").enqueue(str(scene.witness), str(gate))
        await job.result()


@pytest.mark.long
async def test_a_frozen_worker_is_replaced_and_does_not_come_back(scene: Scene) -> None:
    gate = scene.gate()
    async with pool(scene, "--min", "1") as (millers, keeper):
        job = await hold.enqueue(str(scene.witness), str(gate))
        (victim,) = (await millers.stats(processing=1)).workers.values()
        await scene.watch.freeze(victim.pid)

        async def replaced() -> bool:
            workers = (await millers.stats()).workers.values()
            return any(each.pid not in (0, victim.pid) for each in workers)

        await eventually(replaced)
        gate.open()
        assert await job.result() != f"held by {victim.pid}"
        await eventually(lambda: _is_gone(victim.pid))
        assert "is killed" in keeper.output


@pytest.mark.long
async def test_a_worker_that_is_frozen_inside_a_write_does_not_hold_the_store_for_ever(scene: Scene) -> None:
    """On SQLite nobody else can write until it is killed, so nobody can give it up."""
    async with pool(scene, "--min", "1") as (millers, keeper):
        await millers.stats(idle=1)
        frozen = await freeze_in_write.enqueue(scene.url, str(scene.gate("mark")))

        async def stopped() -> list[int]:
            return [pid for pid in millers.processes() if state_of(pid) == "T"]

        (victim,) = await eventually(stopped)
        await eventually(lambda: _is_gone(victim))
        assert await (await quick.enqueue(7)).result() == 7
        assert await frozen.result() != f"run by {victim}"
        assert "it is killed" in keeper.output


async def _is_gone(pid: int) -> bool:
    return state_of(pid) in ("Z", "")


@pytest.mark.long
async def test_a_program_that_cannot_start_is_told_once_and_tried_later_each_time(scene: Scene) -> None:
    """It can be imported by the keeper, and by no worker."""
    program = scene.folder / "halfway.py"
    program.write_text(
        "import sys\nfrom holdfast import Holdfast\n"
        "if '--leash' in sys.argv:\n    raise RuntimeError('no licence for blender')\n"
        "hf = Holdfast(embedded=False)\n\n\n@hf.job\ndef render() -> None: ...\n"
    )
    millers = Millers(scene, 4)
    environment = {"PYTHONPATH": f"{scene.folder}:{os.environ.get('PYTHONPATH', '')}"}
    keeper = scene.crew.start(
        "holdfast", "pool", "halfway:hf", "--url", scene.url, "--name", scene.crew.mark, "--min", "3",
        environment=environment,
    )  # fmt: skip
    await keeper.says("no licence for blender")

    async def in_trouble() -> PoolStats | None:
        stats = await millers.stats()
        return stats if stats.failures >= 2 else None

    stats = await eventually(in_trouble)
    assert "halfway cannot be imported: RuntimeError: no licence for blender" in stats.problem
    ends = [line for line in keeper.output.splitlines() if "ended: exit code 2" in line]
    assert 3 <= len(ends) <= 3 + stats.failures  # three at first, then one at a time
    keeper.send(signal.SIGTERM)
    assert await keeper.leaves() == 0


@pytest.mark.long
async def test_a_program_that_is_not_there_is_refused_at_once(scene: Scene) -> None:
    keeper = scene.crew.start("holdfast", "pool", "nowhere:hf", "--url", scene.url)
    assert await keeper.leaves() == 2
    assert "cannot find module 'nowhere'" in keeper.output
    limits = scene.crew.start("holdfast", "pool", "tests.chaos.jobs:hf", "--url", scene.url, "--min", "5", "--max", "2")
    assert await limits.leaves() == 2
    assert "max must be at least min: 2 is less than 5" in limits.output


COUNTS = """
import pathlib, signal, sys
heard = []
def hear(number, frame):
    heard.append(number)
    if len(heard) == 2:
        sys.exit(3)
signal.signal(signal.SIGTERM, hear)
signal.signal(signal.SIGINT, hear)
pathlib.Path(sys.argv[1]).touch()
while True:
    signal.pause()
"""


async def test_a_process_that_was_asked_twice_before_it_could_hear_it_hears_both(tmp_path: Path) -> None:
    """It would drain with all its patience, though it was asked to hand back at once."""
    process = await WorkerProcess.start([sys.executable, "-c", COUNTS, str(tmp_path / "ready")])
    try:
        await eventually(lambda: _is_there(tmp_path / "ready"))
        pid = process._process.pid
        await freeze(pid)
        process.stop()
        process.stop()
        os.kill(pid, signal.SIGCONT)
        await eventually(lambda: _has_heard(pid))
        assert state_of(pid) in ("Z", ""), "it heard one signal"
    finally:
        process.kill()
        assert await process.code() == 3
        await process.ended()


async def _is_there(path: Path) -> bool:
    return path.exists()  # noqa: ASYNC240


async def _has_heard(pid: int) -> bool:
    """It is gone, or sleeps again and no signal is left to it."""
    if state_of(pid) in ("Z", ""):
        return True
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()  # noqa: ASYNC240
    status = dict(line.split(":", 1) for line in lines)
    return state_of(pid) == "S" and int(status["ShdPnd"], 16) == 0
