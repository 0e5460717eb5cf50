"""Lanes and routes whose rows somebody's open transaction holds: nobody waits for them, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import psycopg

from holdfast.kernel.complete import complete_and_settle
from holdfast.kernel.database import Transaction
from holdfast.kernel.duties import ROUTE_AGE_US
from holdfast.kernel.enqueue import enqueue
from holdfast.kernel.ids import JobId
from holdfast.kernel.lanes import LOOK_AHEAD, SOON_US, claim_in_lanes, open_lanes, prune_lanes
from holdfast.kernel.queues import list_lanes
from holdfast.kernel.routes import route_for
from holdfast.kernel.rows import Lease
from holdfast.kernel.states import State
from holdfast.kernel.workers import adopt_routes, list_routes, look, prune_routes
from holdfast.outcomes import Done
from tests.support.stores import TTL_US, Store

PATIENCE = 60.0  # a call that waits for the holder would wait for ever: the holder waits for the call
ROUTE = route_for("default", "work", laned=True)


@asynccontextmanager
async def held(store: Store, rows: str) -> AsyncIterator[None]:
    """Somebody's open transaction holds these rows; on SQLite, where rows cannot be held, nobody does."""
    if store.database.dialect == "sqlite":
        yield
        return
    async with asyncio.timeout(PATIENCE), await psycopg.AsyncConnection.connect(store.url) as holder:
        await holder.execute(f"select 1 from holdfast.{rows} for update".encode())
        yield


class CallersOwn:
    """A transaction as operations see it when a caller lends it."""

    lent = True

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)


@asynccontextmanager
async def enqueued_in_an_open_transaction(store: Store, lane: str, **changes: Any) -> AsyncIterator[JobId]:
    """A caller's transaction has enqueued into this lane, and commits at the end; on SQLite before."""
    done, let_go = asyncio.Event(), asyncio.Event()
    limits = {"concurrency": 1, "interval_us": None, "burst": 1}
    job = store.job(lane=lane, **{**limits, "route": ROUTE.id, **changes})

    async def caller(tx: Transaction) -> None:
        await enqueue(cast(Transaction, CallersOwn(tx)), [job], [ROUTE])
        done.set()
        if store.database.dialect == "postgres":  # elsewhere the whole file is the caller's until the commit
            await let_go.wait()

    calling = asyncio.create_task(store.do(caller))
    async with asyncio.timeout(PATIENCE):
        await done.wait()
        yield job.id
        let_go.set()
        await calling


async def enqueue_in(store: Store, lane: str = "key", **changes: Any) -> JobId:
    limits = {"concurrency": 1, "interval_us": None, "burst": 1}
    job = store.job(lane=lane, **{**limits, "route": ROUTE.id, **changes})
    await store.do(enqueue, [job], [ROUTE])
    return job.id


async def take(store: Store, worker: int, n: int = 10) -> list[Lease]:
    return await store.do(claim_in_lanes, worker, [ROUTE.id], n, TTL_US)


async def finish(store: Store, *leases: Lease) -> None:
    await store.do(complete_and_settle, [store.ending(lease, Done()) for lease in leases], [])


async def limits(store: Store, lane: str = "key") -> int | None:
    return {row.name: row.concurrency for row in await store.do(list_lanes)}[lane]


async def test_a_claim_passes_over_a_lane_that_somebody_holds(store: Store) -> None:
    worker = await store.worker()
    first, other = await enqueue_in(store), await enqueue_in(store, "other")
    async with held(store, "lane where name = 'key'"):
        taken = [lease.id for lease in await take(store, worker)]
    assert taken == [other] if store.database.dialect == "postgres" else [first, other]
    taken += [lease.id for lease in await take(store, worker)]
    assert sorted(taken) == sorted([first, other])


async def test_however_much_waits_in_a_held_lane_the_others_are_reached(store: Store) -> None:
    worker = await store.worker()
    batch = [store.job(lane="key", route=ROUTE.id, concurrency=LOOK_AHEAD, burst=1) for _ in range(LOOK_AHEAD + 5)]
    await store.do(enqueue, batch, [ROUTE])
    other = await enqueue_in(store, "other")
    async with held(store, "lane where name = 'key'"):
        taken = [lease.id for _ in range(3) for lease in await take(store, worker)]
        if store.database.dialect == "postgres":
            assert taken == [other]
    await store.advance("1s")
    await store.do(open_lanes, limit=10)
    for _ in range(3):
        taken += [lease.id for lease in await take(store, worker, LOOK_AHEAD)]
    assert len(taken) == LOOK_AHEAD + 1, "as many as the lane allows, and the other"


async def test_an_ending_does_not_wait_for_its_lane_and_the_next_look_frees_it(store: Store) -> None:
    worker = await store.worker()
    first, second = await enqueue_in(store), await enqueue_in(store)
    (lease,) = await take(store, worker)
    async with held(store, "lane"):
        await finish(store, lease)
        assert await store.state(first) == State.SUCCEEDED
        if store.database.dialect == "postgres":
            opening = (await store.do(look, worker, [ROUTE.id])).next_opening
            assert opening is not None
            assert opening <= store.clock.us
            await store.do(open_lanes, limit=10)
            opening = (await store.do(look, worker, [ROUTE.id])).next_opening
            assert opening == store.clock.us + SOON_US, "it is held still, and nobody asks all the time"
    await store.advance("1s")
    await store.do(open_lanes, limit=10)
    assert [lease.id for lease in await take(store, worker)] == [second]
    await finish(store, *(await take(store, worker)))


async def test_a_place_that_is_freed_while_a_claim_counts_is_found(store: Store) -> None:
    """The claim counts, the job ends, and only then does the claim hold the next one back."""
    worker = await store.worker()
    await enqueue_in(store)
    (lease,) = await take(store, worker)
    second = await enqueue_in(store)
    counted, ended = asyncio.Event(), asyncio.Event()

    class Slow(CallersOwn):
        lent = False

        async def many(self, statement: Any, /, **parameters: object) -> Any:
            rows = await self._tx.many(statement, **parameters)
            if statement.name == "lane_states" and store.database.dialect == "postgres":
                counted.set()
                await ended.wait()
            return rows

    async def claim(tx: Transaction) -> list[Lease]:
        return await claim_in_lanes(cast(Transaction, Slow(tx)), worker, [ROUTE.id], 10, TTL_US)

    async with asyncio.timeout(PATIENCE):
        claiming = asyncio.create_task(store.do(claim))
        if store.database.dialect == "postgres":
            await counted.wait()
        await finish(store, lease)
        ended.set()
        taken = [lease.id for lease in await claiming]
    if not taken:
        await store.do(open_lanes, limit=10)
        taken = [lease.id for lease in await take(store, worker)]
    assert taken == [second]


async def test_a_callers_transaction_holds_no_lane_however_old_or_changed(store: Store) -> None:
    worker = await store.worker()
    first = await enqueue_in(store)
    await store.advance("2h")
    async with enqueued_in_an_open_transaction(store, "key", concurrency=3) as second:
        (lease,) = await take(store, worker, 1)
        assert lease.id == first
        await finish(store, lease)
        await enqueue_in(store, concurrency=3, priority=200)
    assert second in {lease.id for lease in await take(store, worker)}
    assert await limits(store) == 3


async def test_limits_that_a_callers_transaction_declares_hold_from_its_commit(store: Store) -> None:
    worker = await store.worker()
    for _ in range(3):
        await enqueue_in(store)
    assert len(await take(store, worker)) == 1
    async with enqueued_in_an_open_transaction(store, "key", concurrency=2):
        if store.database.dialect == "postgres":
            assert await limits(store) == 1
    taken = await take(store, worker)
    await store.do(open_lanes, limit=10)
    assert len(taken + await take(store, worker)) == 1
    assert await limits(store) == 2


async def test_two_transactions_may_enqueue_into_the_same_new_lane(store: Store) -> None:
    worker = await store.worker()
    async with enqueued_in_an_open_transaction(store, "new", concurrency=2) as first:
        second = await enqueue_in(store, "new", concurrency=2)
    assert {lease.id for lease in await take(store, worker)} == {first, second}
    assert await limits(store, "new") == 2


async def test_a_new_lane_has_the_limits_that_a_callers_transaction_declared(store: Store) -> None:
    worker = await store.worker()
    for _ in range(2):
        async with enqueued_in_an_open_transaction(store, "new", concurrency=2):
            pass
    await enqueue_in(store, "other")
    assert len(await take(store, worker)) == 3
    assert await limits(store, "new") == 2


async def test_a_lane_that_is_pruned_under_an_open_transaction_comes_back_with_its_limits(store: Store) -> None:
    worker = await store.worker()
    await enqueue_in(store, concurrency=2)
    for table in ("ready", "job"):
        await store.query(f"delete from holdfast.{table} where lane = 'key' returning 1")
    await store.advance("2d")
    async with enqueued_in_an_open_transaction(store, "key", concurrency=2):
        await store.do(prune_lanes, age_us=ROUTE_AGE_US, limit=10)
    await enqueue_in(store, concurrency=2)
    assert len(await take(store, worker)) == 2
    assert await limits(store) == 2


async def test_a_route_in_an_open_transaction_keeps_nobody_waiting_and_is_known_from_its_commit(store: Store) -> None:
    async with enqueued_in_an_open_transaction(store, "key"):
        other = store.job(route=ROUTE.id, lane="other", concurrency=1, burst=1)
        await store.do(enqueue, [other], [ROUTE])
    await store.query("delete from holdfast.route returning 1")
    async with enqueued_in_an_open_transaction(store, "key"):
        pass
    assert await store.do(list_routes, since=0) == [ROUTE]
    worker = await store.worker()
    assert (await store.do(look, worker, [])).routes_changed == store.clock.us
    await store.advance("1s")
    assert await store.do(adopt_routes, since=0) == [ROUTE]
    assert (await store.do(look, worker, [])).routes_changed in (store.clock.us, store.clock.us - 1_000_000)


async def test_a_route_that_is_pruned_under_an_open_transaction_comes_back(store: Store) -> None:
    await store.enqueue()
    plain = route_for("default", "work")
    for table in ("ready", "job"):
        await store.query(f"delete from holdfast.{table} returning 1")
    await store.advance("2d")

    async def caller(tx: Transaction) -> None:
        await enqueue(cast(Transaction, CallersOwn(tx)), [store.job()], [plain])

    if store.database.dialect == "sqlite":
        await store.do(prune_routes, age_us=ROUTE_AGE_US, limit=10)
        await store.do(caller)
    else:
        async with asyncio.timeout(PATIENCE), await psycopg.AsyncConnection.connect(store.url) as pruner:
            await pruner.execute("delete from holdfast.route")
            await store.do(caller)
    assert await store.do(adopt_routes, since=0) == [plain]
    assert len(await store.claim(await store.worker())) == 1
