"""A crowd of workers in virtual time: few look, and whatever hints are lost, work starts within a poll."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Coroutine
from dataclasses import fields, replace
from functools import partial
from random import Random
from typing import Any

import pytest

from holdfast.kernel import migrate
from holdfast.kernel.claim import MOST_ROUTES, SharedLook, claim, looked_note, read_note, tell_look
from holdfast.kernel.database import CROWD, Transaction
from holdfast.kernel.duties import SCHEDULES
from holdfast.kernel.enqueue import enqueue
from holdfast.kernel.ids import new_id
from holdfast.kernel.queues import pause_queue
from holdfast.kernel.routes import route_for
from holdfast.kernel.workers import look
from holdfast.settings import Settings
from tests.simulation.cluster import Process
from tests.simulation.swarm import NEVER, Faults, Options, draw
from tests.simulation.workload import SPECIAL
from tests.simulation.world import World
from tests.support.jobs import plain_job
from tests.support.snapshots import Row
from tests.support.virtual_time import VirtualLoop

pytestmark = pytest.mark.sample(1)

WORKERS = 40
POLL = Settings().poll_interval.total_seconds()
LATENCY = 0.002
ON_THE_WAY = 0.15  # a look, a note and a claim, each of which takes its time
GRACE = Settings().presence_grace.total_seconds()
MISSED = 1.5 * GRACE + 2 * ON_THE_WAY  # from the first look that misses somebody to what follows from the verdict


def peaceful(seed: int, workers: int, crowd: float) -> Options:
    faults = {field.name: NEVER if field.name.endswith("_s") else 0.0 for field in fields(Faults)}
    return replace(
        draw(seed),
        machines=workers,
        settings=Settings(),
        faults=Faults(**{**faults, "latency": LATENCY}),
        fixed_ids=False,
        ephemeral=False,
        own_lifeline=False,
        presence="steady",
        crowd=crowd,
    )


class Scene(World):
    """A world without faults but those of the test, and without any hint of new work."""

    def __init__(self, seed: int = 1, *, workers: int = WORKERS, crowd: float = CROWD) -> None:
        super().__init__(VirtualLoop(Random(f"crowd {seed}")), peaceful(seed, workers, crowd))
        self.chance = Random(f"scene {seed}")
        self.looks: list[float] = []
        self.tellers: list[str] = []
        self.told: list[str] = []
        self.claimed: dict[str, float] = {}
        self.deaf: Collection[str] = ()
        self.after_telling: Callable[[Process], None] = lambda process: None
        self._execute, self.store.execute = self.store.execute, self._note  # type: ignore[method-assign]
        self._hint, self.store._spread = self.store._spread, self._lose_hints  # type: ignore[method-assign]
        self.store.overheard = None

    def _note(self, caller: Any, operation: Any, args: Any, kwargs: Any, *, again: bool) -> Any:
        answer = self._execute(caller, operation, args, kwargs, again=again)
        if operation is look:
            self.looks.append(self.store.seconds)
        elif operation is claim:
            self.claimed.update({lease.id: self.store.seconds for lease in answer})
        elif operation is tell_look:
            self.tellers.append(caller.name)
            self.loop.call_soon(self.after_telling, caller, context=self.store.context)
        return answer

    def _lose_hints(self, notes: Any, changes: Any) -> None:
        """Only what is told of looks gets through, and not to everybody."""
        ears, self.store._ears = self.store._ears, [e for e in self.store._ears if e.caller.name not in self.deaf]
        looked = [note for note in notes if note.startswith("looked ")]
        self.told += looked
        self._hint(looked, changes)
        self.store._ears = ears

    def play(self, scene: Coroutine[Any, Any, None]) -> None:
        async def play() -> None:
            await migrate.migrate(self.client.database, "")
            self.store.watch()
            for machine in self.machines:
                machine.keep_up = False
                machine.start()
            await asyncio.sleep(20)  # by then all have settled
            self.looks.clear()
            await scene

        task = self.loop.create_task(play())
        self.verdict.add_done_callback(lambda verdict: self.loop.stop())
        try:
            self.loop.run_until_complete(task)
            assert not self.loop.failures
        finally:
            self.loop.close()
            self.store.file.close()

    async def enqueue(self, kind: str = "quick", /, delay: float = 0.0, **arguments: Any) -> str:
        async def send() -> str:
            handle = await self.workload.jobs[kind].options(delay=f"{delay:.3f}s").enqueue(**arguments or {"n": 1})
            return str(handle.id)

        return await self.client.node.spawn(send)

    async def lateness(self, kind: str = "quick", /, delay: float = 0.0, **arguments: Any) -> float:
        """How long a job of which nobody was told waits until it is claimed."""
        id = await self.enqueue(kind, delay, **arguments)
        due = self.store.seconds + delay
        await until(lambda: id in self.claimed)
        return self.claimed[id] - due

    def is_held_by_another(self, holder: int) -> bool:
        return bool(self.store.audit.duties[SCHEDULES]["holder"] != holder)

    def is_rescued(self, id: str) -> bool:
        return bool(self.row_of(id)["rescues"])

    def row_of(self, id: str) -> Row:
        return self.store.audit.jobs[self.store.audit.seq_of[id]]

    def kill(self, worker: int) -> float:
        """Kill the process of this worker, and say when."""
        (process,) = [p for p in self.processes if not p.dead and p.worker is not None and p.worker.seq == worker]
        process.crash()
        self.store.signs.drop(process)
        return self.store.seconds

    async def latest(self, times: int = 15, kind: str = "quick", /, **arguments: Any) -> float:
        """The worst of some, at random moments."""
        worst = 0.0
        for _ in range(times):
            await asyncio.sleep(3 * self.chance.random())
            worst = max(worst, await self.lateness(kind, **arguments))
        return worst

    def enqueue_for_nobody(self, routes: int, queue: str = "default") -> None:
        """One job on each of so many routes that no worker serves."""
        for number in range(routes):
            route = route_for(queue, f"nobody's {number}")
            job = plain_job(new_id(self.client.runtime.ports), "nobody's", route)
            self.store.execute(self.client, enqueue, ([job], [route]), {}, again=False)

    async def hint_for_ever(self, seconds: float) -> None:
        """Each worker hears of something so often, and none with the next."""
        while True:
            for process in self.processes:
                if not process.dead and process.worker is not None:
                    process.worker._hints.take("something")
                await asyncio.sleep(seconds / len(self.machines))

    def leave_special_to_one(self) -> str:
        """Only one process can do special jobs from now on; its name."""
        able, *others = [machine for machine in self.machines if SPECIAL in machine.role.capabilities][::-1]
        for machine in others:
            machine.role = replace(machine.role, capabilities=(), queues=("default",))
        return f"{able.name}.1"

    @property
    def processes(self) -> list[Process]:
        return [machine.process for machine in self.machines if machine.process is not None]


async def until(happened: Callable[[], bool]) -> None:
    while not happened():  # noqa: ASYNC110  virtual time costs nothing
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("workers", [8, 40, 80])
def test_of_a_crowd_about_two_look_in_each_poll_however_many_there_are(workers: int) -> None:
    scene = Scene(workers=workers)
    scene.play(asyncio.sleep(60))
    # One a second is the holder of the schedules' duty, and each looks once a minute for new routes.
    assert 60 <= len(scene.looks) - workers <= 60 * 4
    assert len(set(scene.tellers)) >= min(8, workers / 2), "it is not always the same who look"


def test_where_no_look_is_told_each_looks_for_itself() -> None:
    scene = Scene(workers=8, crowd=math.inf)
    scene.play(asyncio.sleep(60))
    assert len(scene.looks) >= 8 * 58
    assert scene.tellers == []


@pytest.mark.parametrize("seed", range(1, 4))
def test_without_any_hint_work_starts_within_a_poll(seed: int) -> None:
    scene = Scene(seed)

    async def play() -> None:
        assert await scene.latest() <= POLL + ON_THE_WAY

    scene.play(play())
    assert len(scene.tellers) > 10


@pytest.mark.parametrize("seed", range(1, 4))
def test_also_when_whoever_told_of_a_look_dies_each_time(seed: int) -> None:
    scene = Scene(seed, workers=60)
    scene.after_telling = lambda process: None if process is scene.machines[0].process else process.crash()

    async def play() -> None:
        assert await scene.latest(8) <= POLL + ON_THE_WAY

    scene.play(play())
    assert sum(process.dead for process in scene.processes) > 8


@pytest.mark.parametrize("seed", range(1, 4))
def test_also_when_whoever_told_of_a_look_stops_each_time(seed: int) -> None:
    scene = Scene(seed)
    scene.after_telling = lambda process: process.freeze(scene.chance.uniform(0.1, 5))

    async def play() -> None:
        assert await scene.latest() <= POLL + 2 * ON_THE_WAY

    scene.play(play())


@pytest.mark.parametrize("hears", [True, False])
@pytest.mark.parametrize("seed", range(1, 3))
def test_also_when_a_single_worker_can_do_it(seed: int, hears: bool) -> None:
    """One that hears of the others' looks, or one that does not."""
    scene = Scene(seed)
    able = scene.leave_special_to_one()
    scene.deaf = () if hears else (able,)

    async def play() -> None:
        assert await scene.latest(8, "special", seconds=0.01) <= POLL + ON_THE_WAY

    scene.play(play())


def test_also_beside_work_on_more_routes_than_can_be_told() -> None:
    scene = Scene(workers=12)
    scene.leave_special_to_one()

    async def play() -> None:
        scene.enqueue_for_nobody(MOST_ROUTES + 5)
        assert await scene.latest(8, "special", seconds=0.01) <= POLL + ON_THE_WAY

    scene.play(play())


def test_what_is_due_starts_in_time_although_most_do_not_look() -> None:
    scene = Scene()

    async def play() -> None:
        for _ in range(10):
            assert await scene.lateness(delay=scene.chance.uniform(2, 6)) <= ON_THE_WAY

    scene.play(play())


def test_the_duty_of_a_dead_worker_is_taken_over_soon() -> None:
    scene = Scene()

    async def play() -> None:
        for _ in range(3):
            holder = scene.store.audit.duties[SCHEDULES]["holder"]
            died = scene.kill(holder)
            await until(partial(scene.is_held_by_another, holder))
            assert scene.store.seconds - died <= POLL + MISSED
            await asyncio.sleep(scene.chance.uniform(0, 3))

    scene.play(play())


@pytest.mark.parametrize(("workers", "routes"), [(WORKERS, 0), (12, MOST_ROUTES + 5)])
def test_the_jobs_of_a_dead_worker_are_rescued_soon(workers: int, routes: int) -> None:
    """Also beside work on more routes than can be told."""
    scene = Scene(workers=workers)

    async def play() -> None:
        scene.enqueue_for_nobody(routes)
        for _ in range(5):
            id = await scene.enqueue("special", seconds=50.0)
            await until(partial(scene.claimed.__contains__, id))
            await asyncio.sleep(POLL + scene.chance.random())  # by then all have heard that jobs run
            died = scene.kill(scene.row_of(id)["worker"])
            await until(partial(scene.is_rescued, id))
            assert scene.store.seconds - died <= GRACE / 2 + MISSED

    scene.play(play())


@pytest.mark.parametrize("seed", range(1, 3))
def test_also_where_all_are_hinted_all_the_time(seed: int) -> None:
    """None of them ever looks by itself, and yet somebody looks after the dead."""
    scene = Scene(seed, workers=12)

    async def play() -> None:
        id = await scene.enqueue("special", seconds=50.0)
        await until(partial(scene.claimed.__contains__, id))
        hints = asyncio.create_task(scene.hint_for_ever(0.1))
        await asyncio.sleep(3)
        died = scene.kill(scene.row_of(id)["worker"])
        await until(lambda: scene.is_rescued(id) or scene.store.seconds > died + 10)
        assert scene.store.seconds - died <= GRACE / 2 + MISSED
        hints.cancel()

    scene.play(play())


def test_who_alone_runs_a_job_tells_that_jobs_run() -> None:
    scene = Scene(3, workers=8)

    async def play() -> None:
        id = await scene.enqueue("special", seconds=55.0)
        await until(partial(scene.claimed.__contains__, id))
        await asyncio.sleep(2 * POLL)
        worker = scene.row_of(id)["worker"]
        (runs,) = [p.name for p in scene.processes if p.worker is not None and p.worker.seq == worker]
        scene.tellers.clear()
        scene.told.clear()
        await until(lambda: scene.tellers.count(runs) >= 3)
        looks = [seen for note in scene.told for seen in read_note(note.partition(" ")[2]).looks]
        assert len(looks) >= 3
        assert all(seen.leased for seen in looks)

    scene.play(play())


def looks_beside_many_routes(crowd: float, *, running: bool) -> int:
    """In half a minute, by twelve workers."""
    scene = Scene(workers=12, crowd=crowd)

    async def play() -> None:
        scene.enqueue_for_nobody(MOST_ROUTES + 5)
        if running:
            await scene.enqueue("special", seconds=55.0)
        await asyncio.sleep(5)
        scene.looks.clear()
        await asyncio.sleep(30)

    scene.play(play())
    return len(scene.looks)


@pytest.mark.long
@pytest.mark.parametrize("running", [False, True])
def test_with_more_routes_than_can_be_told_nobody_looks_more_often_than_by_itself(running: bool) -> None:
    by_itself = looks_beside_many_routes(math.inf, running=running)
    # Each draws when it looks, a little before its pause is over.
    assert looks_beside_many_routes(CROWD, running=running) <= 1.1 * by_itself


def test_routes_of_a_paused_queue_are_not_too_many_to_tell() -> None:
    scene = Scene(workers=12)

    async def play() -> None:
        scene.enqueue_for_nobody(MOST_ROUTES + 5, "side")
        scene.store.execute(scene.client, pause_queue, ("side",), {"reason": ""}, again=False)
        await asyncio.sleep(5)
        scene.looks.clear()
        scene.told.clear()
        await asyncio.sleep(30)
        assert not any(read_note(note.partition(" ")[2]).many for note in scene.told)
        assert len(scene.looks) <= 12 + 30 * 4

    scene.play(play())


def test_who_is_missed_is_forgotten_once_it_is_given_up_also_when_the_crowd_becomes_few() -> None:
    """Whoever went on missing it would look twice a second for ever."""
    scene = Scene(2, workers=CROWD + 1)

    async def play() -> None:
        holder = scene.store.audit.duties[SCHEDULES]["holder"]
        scene.kill(holder)
        await until(partial(scene.is_held_by_another, holder))
        await asyncio.sleep(5)
        scene.looks.clear()
        await asyncio.sleep(20)
        assert len(scene.looks) <= (20 + 1) * CROWD

    scene.play(play())


# A planted bug: it breaks the promise, and a scene like those above notices.


async def _tell_of_no_routes(tx: Transaction, seen: SharedLook) -> None:
    await tx.hint(looked_note(seen, []))


@pytest.mark.long
def test_a_look_that_is_told_without_what_it_found_is_noticed() -> None:
    scene = Scene()
    scene.leave_special_to_one()
    scene.store.replaced[tell_look] = _tell_of_no_routes

    async def play() -> None:
        assert await scene.latest(8, "special", seconds=0.01) > POLL + ON_THE_WAY

    scene.play(play())
