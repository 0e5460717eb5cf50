"""kill -9 at every stage of a job: nothing accepted is lost, nothing stored is done twice, and it goes on quickly."""

from __future__ import annotations

import asyncio
import statistics
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from functools import partial

import asyncpg
import pytest

from holdfast.clock import Ports
from holdfast.kernel.enqueue import enqueue, enqueue_children
from holdfast.kernel.rows import Lease
from holdfast.kernel.workers import advertise_presence, look
from holdfast.workers.sweeper import Sweeper
from tests.chaos.crew import Member
from tests.chaos.jobs import STEPS, family, hold
from tests.chaos.mixer import ROUTES, Mixer
from tests.chaos.scene import Scene, Witness
from tests.chaos.watch import Watch
from tests.support.apps import eventually, settings_with
from tests.support.invariants import check_whole

pytestmark = pytest.mark.timed

KILLS = 3
HELD = 3
TTL = 3.0
SHORT = {"lease_ttl": f"{TTL}s", "heartbeat": "1s", "worker_ttl": f"{TTL}s"}
FAILPOINTS = [
    *(("claim", "after", 1), ("claim", "after", 3), ("store_step", "before", 2), ("store_step", "after", 3)),
    *(("enqueue_children", "after", 1), ("park", "before", 1), ("park", "after", 1)),
    *(("complete_and_settle", "before", 1), ("complete_and_settle", "after", 1)),
    *(("complete", "before", 1), ("complete", "after", 1)),
]


@pytest.mark.sample(1)
@pytest.mark.timeout(1_200)  # a slow machine starts eleven processes slowly; what gets nowhere is noticed long before
@pytest.mark.parametrize("failpoints", [FAILPOINTS[::3], FAILPOINTS], ids=["some", "all"])
async def test_a_kill_at_any_failpoint_loses_and_repeats_nothing(
    scene: Scene, failpoints: Sequence[tuple[str, str, int]]
) -> None:
    scene.hf.settings = settings_with(url=scene.url, max_rescues=50)
    doomed = {failpoint: scene.crew.script("doomed", scene.url, *failpoint) for failpoint in failpoints}
    jobs = await family.enqueue_many([(str(scene.witness),)] * 10)

    reached: list[object] = []

    async def all_died() -> bool:
        """Meanwhile there is work enough for everybody to reach the point where it dies."""
        states, workers = await scene.watch.states(), await scene.watch.workers(all=True)
        if states["pending"] < 20:
            jobs.append(await family.enqueue(str(scene.witness)))
        running = [member for member in doomed.values() if member.running]
        reached[:] = [len(workers), len(running), states["succeeded"], states["waiting"]]
        return not running

    await eventually(all_died, lambda: list(reached))
    assert {failpoint: await member.leaves() for failpoint, member in doomed.items()} == dict.fromkeys(failpoints, -9)
    scene.worker(rescue_backoff="50ms")
    await scene.watch.until_ended(3 * len(jobs))

    assert await scene.watch.states() == {"succeeded": 3 * len(jobs)}
    assert [(await job.refresh()).result for job in jobs] == [["succeeded", "succeeded"]] * len(jobs)
    check_whole(await scene.watch.snapshot())
    endings = Counter(attempt.outcome for attempt in await scene.watch.attempts())
    assert endings["succeeded"] == 3 * len(jobs)
    assert endings["lost"] >= len(failpoints) / 2  # those before a commit left something behind
    assert_no_stored_step_was_repeated(scene.witness)


def assert_no_stored_step_was_repeated(witness: Witness, stopped: Collection[int] = ()) -> None:
    """Effects may be repeated until their result is stored; then never.

    `stopped`: processes that stood still for a while. One that wakes up in the middle of a step ends it, once, and its
    result is refused.
    """
    stored: set[tuple[str, str]] = set()
    late: set[str] = set()
    seen: defaultdict[str, set[str]] = defaultdict(set)
    for line in witness.lines:
        what, job, step, pid = line.split()
        if what == "stored":
            stored.add((job, step))
            seen[job].add(step)
        elif (job, step) in stored and int(pid) in stopped and line not in late:
            late.add(line)
        else:
            assert (job, step) not in stored, f"{line} came after its result was stored"
    assert all(steps == set(STEPS) for steps in seen.values())


async def test_work_of_a_killed_worker_runs_again_within_two_seconds(scene: Scene) -> None:
    """By presence, under the default lease of a minute. Each rescuer is the next victim."""
    await presence_can_be_judged(scene.watch)
    victim = scene.worker()
    took: list[float] = []
    for number in range(KILLS):
        gate = scene.gate(number)
        jobs = [(await hold.enqueue(str(scene.witness), str(gate))).id for _ in range(HELD)]
        await scene.watch.until_running(HELD)
        rescuer = await scene.registered()
        took.append(await until_rescued(scene, jobs, rescuer, victim.kill))
        gate.open()
        await scene.watch.until_ended(HELD * (number + 1))
        victim = rescuer
    print(f"running again after {took} s")
    assert statistics.median(took) <= 2.0
    assert await scene.watch.states() == {"succeeded": KILLS * HELD}
    endings = Counter(attempt.outcome for attempt in await scene.watch.attempts())
    assert endings == {"lost": KILLS * HELD, "succeeded": KILLS * HELD}


@pytest.mark.long
async def test_work_of_a_silent_worker_runs_again_within_the_ttl_and_a_second(scene: Scene) -> None:
    """A frozen process still has its presence, so only the lease tells."""
    took: list[float] = []
    for number in range(2):
        gate = scene.gate(number)
        victim = scene.worker(**SHORT)
        jobs = [(await hold.enqueue(str(scene.witness), str(gate))).id for _ in range(HELD)]
        await scene.watch.until_running(HELD)
        rescuer = await scene.registered(**SHORT)
        await scene.watch.freeze(victim.pid)
        took.append(await until_rescued(scene, jobs, rescuer))
        gate.open()
        await scene.watch.until_ended(HELD * (number + 1))
        victim.kill()
        rescuer.kill()
    print(f"running again {took} s after the freeze")
    assert min(took) <= TTL + 1


@pytest.mark.long
@pytest.mark.parametrize("dialect", ["postgres"])
async def test_postgres_behind_a_pooler_work_of_a_killed_worker_runs_again_within_the_ttl_and_a_second(
    scene: Scene,
) -> None:
    """Without presence and without wake-ups."""
    gate = scene.gate()
    victim = scene.worker(pooler=True, **SHORT)
    jobs = [(await hold.enqueue(str(scene.witness), str(gate))).id for _ in range(HELD)]
    await scene.watch.until_running(HELD)
    rescuer = await scene.registered(pooler=True, **SHORT)
    took = await until_rescued(scene, jobs, rescuer, victim.kill)
    gate.open()
    await scene.watch.until_ended(HELD)
    print(f"running again {took} s after the kill")
    assert took <= TTL + 1


@pytest.mark.long
@pytest.mark.parametrize("dialect", ["postgres"])
async def test_postgres_a_child_whose_parent_is_locked_at_the_first_sweep_is_rescued_by_the_next(
    url: str, watch: Watch
) -> None:
    """Someone is ending a sibling just then: the rescue passes the child by, and must come back before the TTL."""
    settings = settings_with(presence_grace="100ms")
    dead, alive = Mixer(watch.database, "dead"), Mixer(watch.database, "alive")
    parent, child = await a_running_child(watch, dead, alive)
    sweeper = Sweeper(watch.database, Ports(), settings)

    async def sweep() -> int:
        await sweeper.sweep(await watch.do(look, alive.worker, []))
        return (await watch.job(child.id)).rescues

    async def given_up() -> bool:
        assert await sweep() == 0
        return dead.worker not in [worker.seq for worker in await watch.workers()]

    rival = await asyncpg.connect(url)
    async with rival.transaction():
        await rival.fetch("select seq from holdfast.job where seq = $1 for update", parent.seq)
        await eventually(given_up)
    assert await sweep() == 1
    await rival.close()


async def a_running_child(watch: Watch, dead: Mixer, alive: Mixer) -> tuple[Lease, Lease]:
    """A job that runs on one worker, and its child on another that says to be present and is not."""
    await presence_can_be_judged(watch)
    plain = {"delay_us": None, "deadline_us": None}
    await alive.register()
    await watch.do(enqueue, [alive.job("parent", **plain)], ROUTES)
    (parent,) = await alive.claim_all()
    await watch.do(enqueue_children, parent, [alive.job("child", **plain)], ROUTES)
    await dead.register()
    await watch.do(advertise_presence, dead.worker, presence=True)
    (child,) = await dead.claim_all()
    return parent, child


async def until_rescued(
    scene: Scene, jobs: Sequence[str], rescuer: Member, hurt: Callable[[], None] | None = None
) -> float:
    """Seconds until the last of the jobs was claimed by the rescuer, less what this machine withheld."""
    worker = await scene.row_of(rescuer)

    async def look() -> list[int] | None:
        rows = [await scene.watch.job(job) for job in jobs]
        times = [row.claimed_at for row in rows if row.worker == worker.seq and row.claimed_at is not None]
        return times if len(times) == len(jobs) else None

    async with lateness() as withheld:
        begun = scene.watch.now()
        if hurt is not None:
            hurt()
        times = await eventually(look)
    assert times is not None
    return (max(times) - begun) / 1e6 - withheld[0]


async def presence_can_be_judged(watch: Watch) -> None:
    """Nobody judges presence right after the server's start."""
    if watch.database.dialect == "postgres":
        up = "select 1 where clock_timestamp() - pg_postmaster_start_time() > interval '5 s'"
        await eventually(partial(watch.query, up))


@asynccontextmanager
async def lateness() -> AsyncIterator[list[float]]:
    """How many seconds late this process was woken at worst: what other processes of this machine took away."""
    worst = [0.0]

    async def measure() -> None:
        loop = asyncio.get_running_loop()
        while True:
            asked = loop.time()
            await asyncio.sleep(0.05)
            worst[0] = max(worst[0], loop.time() - asked - 0.05)

    measuring = asyncio.create_task(measure())
    try:
        yield worst
    finally:
        measuring.cancel()
        await asyncio.gather(measuring, return_exceptions=True)
