"""A pool of workers in the test's own process: it grows, shrinks, replaces, and never leaves its limits."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import Holdfast, Queue
from holdfast.app import core_of
from holdfast.errors import NotFound, UsageError
from holdfast.kernel import pools
from holdfast.kernel.pools import PoolScope, PoolSnapshot, PoolTerms, ResizePlan
from holdfast.kernel.workers import list_routes
from holdfast.pools import Exit, Place, PoolStats, StartedWorker, WorkerPool
from holdfast.pools.keeper import Keeper, KeptPool
from tests.conftest import Place as Where
from tests.support.apps import eventually, settings_with
from tests.support.commands import holdfast

QUICK = {"heartbeat": "100ms", "poll_interval": "50ms", "sweep_interval": "100ms", "drain_grace": "20s"}


class Gate:
    """An app whose jobs wait until they are let go."""

    def __init__(self, url: str, **changes: object) -> None:
        self.hf = Holdfast(url, settings=settings_with(**QUICK | changes), embedded=False)
        self.open = asyncio.Event()
        self.ran: list[int] = []

        @self.hf.job(name="wait", queue="render")
        async def wait(number: int) -> None:
            await self.open.wait()
            self.ran.append(number)

        self.wait = wait

    async def stats(self, **expected: object) -> PoolStats:
        """Once the pool stands like this."""

        async def so() -> PoolStats | None:
            stats = await self.hf.pool("mill").stats()
            return stats if all(getattr(stats, name) == value for name, value in expected.items()) else None

        return await eventually(so)


async def test_a_pool_grows_with_its_work_and_shrinks_without_it(place: Where) -> None:
    gate = Gate(place.url)
    async with gate.hf.pool("mill", min=1, max=3, slots=2, scale_down_idle="200ms"):
        await gate.stats(total=1, idle=1)
        await gate.wait.enqueue_many([{"number": n} for n in range(20)])
        grown = await gate.stats(processing=3, running=6, pending=14)
        assert (grown.desired, grown.total, grown.keepers) == (3, 3, 1)
        gate.open.set()
        small = await gate.stats(total=1, idle=1, pending=0, running=0)
        assert sorted(gate.ran) == list(range(20))
        (left,) = small.workers.values()
        assert left.idle_since is not None
    assert (await gate.hf.pool("mill").stats()).total == 0
    await gate.hf.close()


async def test_a_pool_without_a_minimum_starts_one_worker_for_one_job(place: Where) -> None:
    gate = Gate(place.url)
    async with gate.hf.pool("mill", min=0, max=4, slots=2, scale_down_idle="100ms"):
        assert (await gate.stats(keepers=1)).total == 0
        gate.open.set()
        for number in range(2):
            job = await gate.wait.enqueue(number)
            await job.result()
            assert (await gate.stats(total=0)).desired == 0
    assert gate.ran == [0, 1]
    await gate.hf.close()


async def test_what_nobody_may_claim_starts_nobody(place: Where) -> None:
    gate = Gate(place.url)

    @gate.hf.job(name="elsewhere", queue="render", requires=["tag:gpu=yes"])
    async def elsewhere() -> None: ...

    await gate.hf.queues.pause("render")
    async with gate.hf.pool("mill", min=0, max=4):
        await gate.wait.enqueue_many([{"number": n} for n in range(50)])
        await elsewhere.enqueue_many([{} for _ in range(50)])
        assert (await gate.stats(pending=0)).desired == 0
        await gate.hf.queues.resume("render")
        await gate.stats(running=50, pending=0)  # of 100; the others have no worker
        gate.open.set()
        await gate.stats(running=0)
    await gate.hf.close()


async def test_what_a_rate_holds_back_starts_nobody(place: Where) -> None:
    gate, most = Gate(place.url), 0
    gate.hf.queue("slow", Queue(rate="1/h"))

    @gate.hf.job(name="ask", queue="slow")
    async def ask(number: int) -> None:
        gate.ran.append(number)

    async def let_through() -> bool:
        nonlocal most
        stats = await gate.hf.pool("mill").stats()
        most = max(most, stats.total)
        return stats.total == 0 and gate.ran != []

    await ask.enqueue_many([{"number": n} for n in range(300)])
    async with gate.hf.pool("mill", min=0, max=8, slots=1, scale_up_threshold=1, scale_down_idle="100ms"):
        await eventually(let_through)
        await ask.enqueue_many([{"number": n} for n in range(200)])
        assert (await gate.stats(keepers=1)).desired == 0
    assert (most, len(gate.ran)) == (1, 1)
    await gate.hf.close()


async def test_a_pool_serves_its_queues_alone(place: Where) -> None:
    gate = Gate(place.url)

    @gate.hf.job(name="other", queue="other")
    async def other() -> None: ...

    async with gate.hf.pool("mill", min=0, max=4, queues=["render"]):
        await other.enqueue_many([{} for _ in range(50)])
        assert (await gate.stats(pending=0)).total == 0
        await gate.wait.enqueue(1)
        assert (await gate.stats(running=1)).total == 1
        gate.open.set()
    await gate.hf.close()


async def test_two_keepers_start_no_more_than_one_would(place: Where) -> None:
    gate, other = Gate(place.url), Gate(place.url)
    await gate.wait.enqueue_many([{"number": n} for n in range(40)])
    policy = WorkerPool(min=1, max=4, slots=3)
    most = 0

    async def full() -> bool:
        nonlocal most
        stats = await gate.hf.pool("mill").stats()
        most = max(most, stats.total)
        return stats.processing == 4

    async with gate.hf.pool("mill", policy), other.hf.pool("mill", policy):
        await eventually(full)
        assert most == 4
        assert (await gate.stats(total=4)).keepers == 2
        gate.open.set()
        other.open.set()
        await gate.stats(pending=0, running=0)
    assert sorted(gate.ran + other.ran) == list(range(40))
    await gate.hf.close()
    await other.hf.close()


async def test_keepers_judge_by_the_policy_that_was_declared_last(place: Where) -> None:
    """Else one would start what the other retires, for ever."""
    gate, other = Gate(place.url), Gate(place.url)
    first = gate.hf.pool("mill", min=3, max=3, scale_down_idle="100ms")
    async with first:
        await gate.stats(idle=3)
        async with other.hf.pool("mill", min=1, max=3, scale_down_idle="100ms") as second:
            await gate.stats(total=1, idle=1)
            for each in (first, second):
                assert each._keeper is not None
                await each._keeper.look()
                await each._keeper.look()
            stats = await gate.stats(keepers=2)
            assert (stats.total, stats.starting, stats.desired) == (1, 0, 1)
    await gate.hf.close()
    await other.hf.close()


async def test_a_keeper_looks_only_for_work_of_its_own(place: Where) -> None:
    gate, launcher = Gate(place.url), Broken()

    @gate.hf.job(name="other", queue="other")
    async def other() -> None: ...

    await gate.wait.enqueue(1)
    await other.enqueue()
    core = core_of(gate.hf)
    database = await core.opened()
    routes = {route.queue: route.id for route in await database.transact(list_routes, since=0)}
    policy = WorkerPool(min=0, max=1, slots=1, queues=("render",))
    kept = KeptPool("mill", policy, lambda policy: PoolScope(policy.queues, ("job:wait", "job:other")))
    keeper = Keeper(kept, database, core.settings, core.ports, launcher)

    def wakes(note: str) -> bool:
        keeper._wanted.clear()
        keeper.heard(note)
        return keeper._wanted.is_set()

    assert wakes(f"route {routes['other']}")  # nothing is known before the first look
    await gate.hf.queues.pause("render")
    await keeper.look()
    assert wakes(f"route {routes['render']}")
    assert wakes(f"route {routes['other']},{routes['render']}")
    assert wakes("route 1")  # a new one may be its own
    assert wakes("look")
    assert not wakes(f"route {routes['other']}")
    assert not wakes(f"looked 5:1,{routes['other']}")
    assert not wakes("run 018f")
    assert not wakes("cancel 3")
    await gate.hf.close()


async def test_deciders_take_turns(place: Where) -> None:
    """Both have looked before either decides: what counts is seen under the turn."""
    gate = Gate(place.url)
    database = await core_of(gate.hf).opened()
    terms = PoolTerms("mill", 1, 60_000_000, 0, 0)

    def wants_two(sight: PoolSnapshot) -> ResizePlan:
        return ResizePlan(2 - len(sight.workers), ())

    async def decide(first: str) -> list[str]:
        ids = [f"{first}1", f"{first}2"]
        done = await database.transact(pools.resize, terms, serves=PoolScope(None, ()), judge=wants_two, ids=ids)
        return [] if done is None else list(done.started)

    await database.transact(pools.put_pool, "mill", WorkerPool().as_json())
    started = await asyncio.gather(*(decide(name) for name in "abcdefgh"))
    assert sum(map(len, started)) == 2
    await gate.hf.close()


async def test_a_pool_needs_a_database_that_is_shared() -> None:
    with pytest.raises(UsageError, match="workers of a pool share a database"):
        await Holdfast("sqlite:///:memory:").pool("mill").start()


class Broken:
    """A launcher that cannot start anything."""

    def __init__(self) -> None:
        self.calls = 0

    async def launch(self, place: Place) -> StartedWorker:
        self.calls += 1
        raise FileNotFoundError("no such program: blender")


async def test_a_crash_loop_backs_off_and_says_why(place: Where) -> None:
    gate, broken = Gate(place.url), Broken()
    async with gate.hf.pool("mill", min=3, max=8, launcher=broken):
        stats = await gate.stats(failures=3, total=0)
        assert stats.problem == "it could not be launched: FileNotFoundError: no such program: blender"
        assert stats.retry_in is not None
        assert stats.desired == 3
        assert broken.calls == 5  # three at first, then one at a time
        heading, line = holdfast("pools", "ls", "--url", place.url).lines
        assert heading.split()[:4] == ["POOL", "WORKERS", "DESIRED", "LIMITS"]
        assert line.split()[0] == "mill"
        assert "starts failed, next in" in line
        assert "no such program: blender" in line
    assert holdfast("pools", "ls", "--url", place.url, "--json").json == []  # nobody keeps it, and it has no worker
    (past,) = holdfast("pools", "ls", "--all", "--url", place.url, "--json").json
    assert (past["name"], past["total"], past["keepers"]) == ("mill", 0, 0)
    await gate.hf.close()


class Hanging:
    """A launcher that never returns."""

    def __init__(self) -> None:
        self.given_up = asyncio.Event()

    async def launch(self, place: Place) -> StartedWorker:
        try:
            await asyncio.Event().wait()
        finally:
            self.given_up.set()
        raise AssertionError


async def test_a_launcher_that_hangs_loses_its_place(place: Where) -> None:
    gate, hanging = Gate(place.url), Hanging()
    async with gate.hf.pool("mill", min=1, max=2, boot="300ms", launcher=hanging):
        await gate.stats(starting=1)
        await hanging.given_up.wait()
        stats = await gate.stats(failures=1)
        assert stats.problem in ("its launcher did not return within 0.3 s", "it did not start in time")
    await gate.hf.close()


class Silent:
    """What was started does nothing, until it is killed."""

    def __init__(self) -> None:
        self.killed = asyncio.Event()

    async def launch(self, place: Place) -> StartedWorker:
        return self

    def stop(self) -> None:
        pass

    def kill(self) -> None:
        self.killed.set()

    async def ended(self) -> Exit:
        await self.killed.wait()
        return Exit("killed")


async def test_a_worker_that_does_not_come_up_in_time_is_killed(place: Where) -> None:
    gate, silent = Gate(place.url), Silent()
    async with gate.hf.pool("mill", min=1, max=2, boot="200ms", launcher=silent):
        await silent.killed.wait()
        assert (await gate.stats(failures=1)).problem == "it did not start in time"
    await gate.hf.close()


async def test_stats_of_a_pool_that_never_was(place: Where) -> None:
    gate = Gate(place.url)
    with pytest.raises(NotFound, match="pool 'mill' was never started"):
        await gate.hf.pool("mill").stats()
    with pytest.raises(UsageError, match="a pool's name"):
        gate.hf.pool("")
    with pytest.raises(UsageError, match="either a WorkerPool or its options"):
        gate.hf.pool("mill", WorkerPool(), max=3)
    with pytest.raises(TypeError, match="unexpected keyword argument 'maximum'"):
        gate.hf.pool("mill", maximum=3)  # type: ignore[call-arg]
    await gate.hf.close()
