"""Places: opened before a process starts, taken once, and given up for good."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.errors import PlaceLost, StoreUnavailable
from holdfast.kernel import pools
from holdfast.kernel.database import Database
from holdfast.kernel.pools import PoolScope, PoolSnapshot, PoolTerms, ResizePlan, ResizeResult
from holdfast.pools import PoolStats, WorkerPool
from holdfast.workers.role import Role
from holdfast.workers.worker import Worker
from tests.conftest import Place
from tests.support.apps import eventually, settings_with
from tests.support.proxy import Proxy

QUICK = {"heartbeat": "100ms", "poll_interval": "50ms", "sweep_interval": "100ms"}
BOTH = PoolScope(None, ())


class Mill:
    """An app with a pool that this test decides about itself."""

    def __init__(self, url: str) -> None:
        self.hf = Holdfast(url, settings=settings_with(**QUICK), embedded=False)
        self.open, self.running = asyncio.Event(), asyncio.Event()

        @self.hf.job(name="wait")
        async def wait() -> str:
            self.running.set()
            await self.open.wait()
            return "done"

        self.wait = wait

    async def begin(self) -> None:
        self.database: Database = await core_of(self.hf).opened()
        await self.database.transact(pools.put_pool, "mill", WorkerPool(slots=1).as_json())

    async def resize(self, *, start: int = 0, retire: tuple[int, ...] = (), boot_s: float = 60.0) -> ResizeResult:
        terms = PoolTerms("mill", 1, round(boot_s * 1e6), 0, 0)
        ids = [f"place-{number}" for number in range(start)]

        def judge(_: PoolSnapshot) -> ResizePlan:
            return ResizePlan(start, retire)

        resized = await self.database.transact(pools.resize, terms, serves=BOTH, judge=judge, ids=ids)
        assert resized is not None
        return resized

    def worker(self, id: str = "place-0") -> Worker:
        return core_of(self.hf).make_worker(Role(id=id, pool="mill"))

    async def stats(self) -> PoolStats:
        return await self.hf.pool("mill").stats()


@pytest.fixture
async def mill(place: Place) -> AsyncIterator[Mill]:
    mill = Mill(place.url)
    await mill.begin()
    yield mill
    await mill.hf.close()


async def test_a_place_is_counted_before_its_process_and_never_as_alive(mill: Mill) -> None:
    await mill.resize(start=2)
    stats = await mill.stats()
    assert (stats.total, stats.starting) == (2, 2)
    assert await mill.hf.workers.list() == []


async def test_a_place_is_taken_once(mill: Mill) -> None:
    await mill.resize(start=1)
    worker = mill.worker()
    await worker.start()
    assert {id: each.status for id, each in (await mill.stats()).workers.items()} == {"place-0": "idle"}
    with pytest.raises(PlaceLost, match="place-0 has no place in pool 'mill' any more"):
        await mill.worker().start()
    await worker.stop()
    assert (await mill.stats()).total == 0


async def test_a_process_that_comes_too_late_is_refused(mill: Mill) -> None:
    await mill.resize(start=1, boot_s=0)
    with pytest.raises(PlaceLost):
        await mill.worker().start()


async def test_a_busy_worker_is_not_retired_and_an_idle_one_is(mill: Mill) -> None:
    await mill.resize(start=1)
    worker = mill.worker()
    running = asyncio.create_task(worker.run())
    job = await mill.wait.enqueue()
    await mill.running.wait()
    assert (await mill.resize(retire=(worker.seq,))).retired == []
    mill.open.set()
    await job.result()

    async def retired() -> bool:
        return (await mill.resize(retire=(worker.seq,))).retired == ["place-0"]

    await eventually(retired)  # once it has said that it is idle
    await running  # it leaves by itself
    assert (await mill.stats()).total == 0


async def test_what_a_retired_worker_had_claimed_it_finishes(mill: Mill) -> None:
    """However short the grace: nothing presses it. A signal does."""
    mill.hf.settings = settings_with(**QUICK, drain_grace="0s")
    await mill.resize(start=1)
    worker = mill.worker()
    running = asyncio.create_task(worker.run())
    job = await mill.wait.enqueue()
    await mill.running.wait()
    await mill.hf.workers.drain("place-0")

    async def drains() -> bool:
        return (await mill.stats()).draining == 1 and worker._stopping is not None

    await eventually(drains)
    more = await mill.wait.enqueue()
    mill.open.set()
    assert await job.result() == "done"
    await running
    assert (await mill.hf.jobs.get(more.id)).state == "pending"  # it claimed nothing more


async def test_a_worker_that_was_given_up_does_not_come_back(mill: Mill) -> None:
    await mill.resize(start=1)
    worker = mill.worker()
    running = asyncio.create_task(worker.run())

    async def idle() -> bool:
        return (await mill.stats()).idle == 1 and worker.seq > 0

    await eventually(idle)
    assert await mill.database.transact(pools.give_place_up, "mill", "place-0", reason="a mistake") == worker.seq
    await running
    assert (await mill.stats()).total == 0


async def test_after_three_ttls_without_a_store_a_worker_stops_and_is_replaced(postgres_url: str) -> None:
    async with Proxy(postgres_url) as proxy:
        short = {"worker_ttl": "1s", "lease_ttl": "2s", "store_patience": "100ms", "reconnect_cap": "200ms"}
        hf = Holdfast(proxy.url, settings=settings_with(**QUICK, **short), embedded=False)

        @hf.job
        async def nothing() -> None: ...

        pool = hf.pool("mill", min=1, max=2)
        async with pool:

            async def idle() -> str | None:
                with suppress(StoreUnavailable):  # its patience is short
                    stats = await pool.stats()
                    return next((id for id, each in stats.workers.items() if each.status == "idle"), None)
                return None

            first = await eventually(idle)

            async def beats() -> bool:
                with suppress(StoreUnavailable):
                    row = await hf.workers.get(first)
                    return row.heartbeat_at > row.started_at
                return False

            await eventually(beats)  # it is up
            await proxy.close()
            keeper = pool._keeper
            assert keeper is not None

            async def left() -> bool:
                return not keeper.crew.members

            await eventually(left)
            await proxy.start()

            async def replaced() -> bool:
                return await idle() not in (None, first)

            await eventually(replaced)
        await hf.close()
