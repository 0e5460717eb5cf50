"""Lanes: how many at once and how often, at every commit; and nobody waits longer than the limit asks for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import psycopg
import pytest

from holdfast.kernel import watch
from holdfast.kernel.cancel import cancel
from holdfast.kernel.complete import complete_and_settle, release
from holdfast.kernel.database import Transaction
from holdfast.kernel.duties import CLEANUP, ROUTE_AGE_US, CleanupMarks, acquire, clean_up
from holdfast.kernel.enqueue import AcceptedJob, enqueue, enqueue_unique, retry
from holdfast.kernel.flow_rows import Candidate, LaneState
from holdfast.kernel.ids import JobId
from holdfast.kernel.lanes import BACKSTOP_US, admit, claim_in_lanes, open_lanes, prune_lanes
from holdfast.kernel.retention import BEGIN, prune
from holdfast.kernel.routes import route_for, serves
from holdfast.kernel.rows import Lease
from holdfast.kernel.states import State
from holdfast.kernel.waiting import overdue, park, wake
from holdfast.kernel.why import why
from holdfast.kernel.workers import look
from holdfast.outcomes import Done, TryAgain
from tests.support.lanes import block
from tests.support.stores import TTL_US, Store

SECOND = 1_000_000
ROUTE = route_for("default", "work", laned=True)


async def enqueue_in(store: Store, lane: str = "key", **changes: Any) -> JobId:
    limits = {"concurrency": None, "interval_us": None, "burst": 1}
    job = store.job(lane=lane, **{**limits, "route": ROUTE.id, **changes})
    await store.do(enqueue, [job], [ROUTE])
    return job.id


async def replace_in(store: Store, key: str, lane: str = "key", **changes: Any) -> AcceptedJob:
    """The first call of a key, or one that takes the place of what waits under it."""
    limits = {"concurrency": 1, "interval_us": None, "burst": 1}
    unique = {"unique_key": key, "unique_scope": "pending", "replaces": True}
    job = store.job(lane=lane, **{**limits, **unique, "route": ROUTE.id, **changes})
    return await store.do(enqueue_unique, job, [ROUTE])


@asynccontextmanager
async def held_up(store: Store, id: JobId) -> AsyncIterator[bool]:
    """Somebody else's transaction holds this blocked job; False where a database has no row locks."""
    if store.database.dialect == "sqlite":
        yield False
        return
    async with await psycopg.AsyncConnection.connect(store.url) as other:
        await other.execute("select 1 from holdfast.job join holdfast.later using (seq) where id = %s for update", [id])
        yield True


async def forget(store: Store, lane: str) -> None:
    """Remove what is claimable in a lane, as if it had never been there."""
    for table in ("ready", "job"):
        await store.query(f"delete from holdfast.{table} where lane = '{lane}' returning 1")


async def clean(store: Store, worker: int) -> None:
    term = await store.do(acquire, CLEANUP, worker, ttl_us=TTL_US, gone=[])
    assert term is not None
    marks, more = CleanupMarks().again(), True
    while more:
        marks, more = await store.do(clean_up, term, worker, key_age_us=1, worker_age_us=10 * ROUTE_AGE_US, marks=marks)


async def take(store: Store, n: int = 10, worker: int | None = None) -> list[Lease]:
    return await store.do(claim_in_lanes, worker or await store.worker(), [ROUTE.id], n, TTL_US)


async def finish(store: Store, *leases: Lease) -> None:
    await store.do(complete_and_settle, [store.ending(lease, Done()) for lease in leases], [])


async def gates(store: Store, *ids: JobId) -> list[str | None]:
    return [(await store.find(id)).gate for id in ids]


async def test_no_more_run_at_once_than_the_lane_allows(store: Store) -> None:
    ids = [await enqueue_in(store, concurrency=2) for _ in range(5)]
    first = await take(store)
    assert [lease.id for lease in first] == ids[:2]
    assert await gates(store, *ids) == [None, None, "key", "key", "key"]
    assert await take(store) == []


async def test_whoever_ends_lets_the_next_through(store: Store) -> None:
    ids = [await enqueue_in(store, concurrency=2) for _ in range(5)]
    running = await take(store)
    for expected in ids[2:]:
        await finish(store, running.pop(0))
        running += await take(store)
        assert running[-1].id == expected
    await finish(store, *running)
    assert {(await store.find(id)).state for id in ids} == {State.SUCCEEDED}


async def test_lanes_do_not_hold_each_other_up(store: Store) -> None:
    ids = [await enqueue_in(store, lane, concurrency=1) for lane in ("a", "a", "b", "b", "c")]
    assert {lease.id for lease in await take(store)} == {ids[0], ids[2], ids[4]}


@pytest.mark.parametrize("how", ["retry", "release", "park", "expire"])
async def test_every_way_out_of_running_frees_the_place(store: Store, how: str) -> None:
    worker = await store.worker()
    ids = [await enqueue_in(store, concurrency=1) for _ in range(2)]
    (lease,) = await take(store, worker=worker)
    assert await take(store, worker=worker) == []
    match how:
        case "retry":
            await store.do(complete_and_settle, [store.ending(lease, TryAgain(after="1h"))], [])
        case "release":
            await store.do(complete_and_settle, [release(lease)], [])
        case "park":
            await store.do(park, lease, channel="door", timeout_us=None)
        case _:
            await store.expire(gone=[worker])
    # A job that is handed back, or was lost for the first time, is pending again, and before the other.
    expected = ids[0] if how in ("release", "expire") else ids[1]
    taken = [lease.id for lease in await take(store)]
    assert taken == [expected]


async def test_a_job_that_was_cancelled_while_blocked_keeps_no_place(store: Store) -> None:
    ids = [await enqueue_in(store, concurrency=1) for _ in range(3)]
    (lease,) = await take(store)
    await take(store)
    await store.do(cancel, ids[1], reason="no need")
    await finish(store, lease)
    assert [lease.id for lease in await take(store)] == [ids[2]]


async def test_a_blocked_job_that_is_replaced_with_a_delay_runs_when_it_is_due(store: Store) -> None:
    await enqueue_in(store, concurrency=1)
    (lease,) = await take(store)
    blocked = (await replace_in(store, "k")).id
    assert await take(store) == []
    assert await gates(store, blocked) == ["key"]
    await replace_in(store, "k", delay_us=SECOND)
    assert (await store.state(blocked), await gates(store, blocked)) == (State.SCHEDULED, [None])
    await finish(store, lease)
    await store.advance("1s")
    await store.do(wake, limit=10)
    assert [lease.id for lease in await take(store)] == [blocked]


async def test_the_others_have_their_turn_when_the_first_of_them_is_put_off(store: Store) -> None:
    await enqueue_in(store, concurrency=1)
    (lease,) = await take(store)
    await replace_in(store, "k")
    second = await enqueue_in(store, concurrency=1)
    await take(store)
    await replace_in(store, "k", delay_us=SECOND)
    await finish(store, lease)
    assert [lease.id for lease in await take(store)] == [second]


async def test_one_that_was_let_through_and_put_off_passes_its_place_on(store: Store) -> None:
    await enqueue_in(store, concurrency=1)
    (lease,) = await take(store)
    first = (await replace_in(store, "k")).id
    second = await enqueue_in(store, concurrency=1)
    await take(store)
    await finish(store, lease)
    assert await gates(store, first, second) == [None, "key"]
    await replace_in(store, "k", delay_us=3600 * SECOND)
    assert [lease.id for lease in await take(store)] == [second]


async def test_a_call_that_replaces_leaves_the_limits_to_the_next_that_makes_a_job(store: Store) -> None:
    """To write them it would have to lock the lane before the job, and claims lock the job first."""
    await replace_in(store, "k", concurrency=1)
    await store.advance("2h")
    begun = await store.query("select concurrency, updated_at from holdfast.lane")
    assert (await replace_in(store, "k", concurrency=2)).replaced
    assert await store.query("select concurrency, updated_at from holdfast.lane") == begun
    assert (await replace_in(store, "other", concurrency=2)).fresh
    assert await store.query("select concurrency, updated_at from holdfast.lane") == [(2, store.clock.us)]


@pytest.mark.parametrize("scope", ["live", "window"])
async def test_a_call_whose_key_is_taken_leaves_the_limits_whatever_the_scope(store: Store, scope: str) -> None:
    unique: dict[str, Any] = {"unique_scope": scope, "window_us": 3600 * SECOND if scope == "window" else None}
    await replace_in(store, "k", concurrency=1, **unique)
    assert not (await replace_in(store, "k", concurrency=2, **unique)).fresh
    assert await store.query("select concurrency from holdfast.lane") == [(1,)]
    assert (await replace_in(store, "other", concurrency=2, **unique)).fresh
    assert await store.query("select concurrency from holdfast.lane") == [(2,)]


class CallersOwn:
    """A transaction as operations see it when a caller lends it."""

    lent = True

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)


async def test_a_callers_transaction_that_replaces_does_not_hold_its_lane(store: Store) -> None:
    """It may stay open for long; a job that was let through and is put off in it gives its place away later."""
    await enqueue_in(store, concurrency=1)
    (lease,) = await take(store)
    first = (await replace_in(store, "k")).id
    second = await enqueue_in(store, concurrency=1)
    await take(store)
    await finish(store, lease)
    replaced, let_go = asyncio.Event(), asyncio.Event()

    async def caller(tx: Transaction) -> AcceptedJob:
        unique: dict[str, Any] = {"unique_key": "k", "unique_scope": "pending", "replaces": True}
        job = store.job(lane="key", concurrency=1, route=ROUTE.id, delay_us=3600 * SECOND, **unique)
        accepted = await enqueue_unique(cast(Transaction, CallersOwn(tx)), job, [ROUTE])
        replaced.set()
        if store.database.dialect == "postgres":  # elsewhere the whole file is the caller's until the commit
            await let_go.wait()
        return accepted

    calling = asyncio.create_task(store.do(caller))
    await replaced.wait()
    await enqueue_in(store, concurrency=1, priority=1)
    (urgent,) = await take(store)  # nobody waits for the caller
    await finish(store, urgent)
    let_go.set()
    assert await calling == AcceptedJob(first, fresh=False, replaced=True)
    await store.advance("1m")
    await store.do(open_lanes, limit=10)
    assert [lease.id for lease in await take(store)] == [second]


@pytest.mark.parametrize(("priority", "first"), [(1, "replaced"), (200, "other")])
async def test_a_blocked_job_takes_the_place_of_its_new_priority(store: Store, priority: int, first: str) -> None:
    await enqueue_in(store, concurrency=1)
    (lease,) = await take(store)
    replaced = (await replace_in(store, "k")).id
    other = await enqueue_in(store, concurrency=1)
    await take(store)
    await replace_in(store, "k", priority=priority)
    order = []
    for _ in range(2):
        await finish(store, lease)
        (lease,) = await take(store)
        order.append(lease.id)
    assert order == ([replaced, other] if first == "replaced" else [other, replaced])


@pytest.mark.parametrize("how", ["cancel", "overdue"])
async def test_one_that_ends_while_blocked_says_so_no_more_and_lets_the_next_through(store: Store, how: str) -> None:
    await enqueue_in(store, concurrency=1)
    (lease,) = await take(store)
    deadline: dict[str, Any] = {"deadline_us": SECOND} if how == "overdue" else {}
    first = await enqueue_in(store, concurrency=1, **deadline)
    second = await enqueue_in(store, concurrency=1)
    await take(store)
    if how == "cancel":
        await store.do(cancel, first, reason="no need")
    else:
        await store.advance("1s")
        await store.do(overdue, limit=10)
    assert await gates(store, first, second) == [None, "key"]
    await finish(store, lease)
    assert [lease.id for lease in await take(store)] == [second]


async def test_a_job_that_is_held_up_while_its_lane_opens_is_let_through_soon(store: Store) -> None:
    worker = await store.worker()
    await enqueue_in(store, concurrency=1)
    (lease,) = await take(store, worker=worker)
    blocked = await enqueue_in(store, concurrency=1)
    await take(store, worker=worker)
    async with held_up(store, blocked) as skipped:
        await finish(store, lease)
        sight = await store.do(look, worker, [ROUTE.id])
        if skipped:
            assert sight.next_opening is not None, "the wake-up is lost"
            assert 0 < sight.next_opening - sight.now <= SECOND, "soon, and not all the time"
    await store.advance("1s")
    await store.do(open_lanes, limit=10)
    (lease,) = await take(store)
    assert lease.id == blocked
    await finish(store, lease)
    await store.advance("1m")
    await store.do(open_lanes, limit=10)
    assert (await store.do(look, worker, [ROUTE.id])).next_opening is None, "nobody is blocked any more"


async def test_a_job_that_is_held_up_does_not_hold_up_its_lane(store: Store) -> None:
    await enqueue_in(store, concurrency=1)
    (lease,) = await take(store)
    first, second = [await enqueue_in(store, concurrency=1) for _ in range(2)]
    await take(store)
    async with held_up(store, first) as skipped:
        await finish(store, lease)
        (lease,) = await take(store)
    assert lease.id == (second if skipped else first)
    await finish(store, lease)
    await store.advance("1s")
    await store.do(open_lanes, limit=10)
    assert [lease.id for lease in await take(store)] == [first if skipped else second]


async def test_what_is_blocked_in_a_lane_that_nobody_is_to_look_at_is_let_through(store: Store) -> None:
    """Older programs left lanes so."""
    worker = await store.worker()
    blocked = await enqueue_in(store, concurrency=1)
    await block(store, "key")
    assert await take(store, worker=worker) == []
    await clean(store, worker)
    await store.do(open_lanes, limit=10)
    assert [lease.id for lease in await take(store, worker=worker)] == [blocked]


async def test_stranded_lanes_are_found_while_they_stand(store: Store) -> None:
    worker = await store.worker()
    for lane in ("a", "b"):
        await enqueue_in(store, lane, concurrency=1)
    assert await store.do(watch.stranded_lanes) == []
    for lane in ("a", "b"):
        await block(store, lane)
    assert await store.do(watch.stranded_lanes) == ["a", "b"]
    await clean(store, worker)
    assert await store.do(watch.stranded_lanes) == []
    await store.do(open_lanes, limit=10)
    assert len(await take(store, worker=worker)) == 2


async def test_a_full_lane_is_not_stranded(store: Store) -> None:
    for _ in range(2):
        await enqueue_in(store, concurrency=1)
    await take(store)
    assert await store.do(watch.stranded_lanes) == []


async def test_lanes_without_a_row_are_found_until_the_next_claim(store: Store) -> None:
    for lane in ("a", "b"):
        await enqueue_in(store, lane, concurrency=1)
    await store.query("delete from holdfast.lane where name = 'b' returning 1")
    assert await store.do(watch.missing_lanes) == ["b"]
    await take(store)
    assert await store.do(watch.missing_lanes) == []


async def test_a_lane_keeps_its_limits_while_a_job_of_it_is_kept(store: Store) -> None:
    worker = await store.worker()
    ids = [await enqueue_in(store, concurrency=2) for _ in range(5)]
    for _ in range(3):
        await finish(store, *await take(store, worker=worker))
    await store.advance("2d")
    await clean(store, worker)
    for id in ids:
        await store.do(retry, id, store.job().id)
    assert len(await take(store, worker=worker)) == 2
    assert await store.query("select concurrency from holdfast.lane") == [(2,)]


async def test_a_lane_goes_with_its_last_job(store: Store) -> None:
    worker = await store.worker()
    await enqueue_in(store, concurrency=2)
    await finish(store, *await take(store, worker=worker))
    await store.advance("2d")
    await clean(store, worker)
    assert await store.query("select name from holdfast.lane") == [("key",)]
    await store.do(prune, "default", after=BEGIN, before=store.clock.us, look=10)
    await store.advance("2d")
    await clean(store, worker)
    assert await store.query("select name from holdfast.lane") == []


async def test_lanes_are_looked_at_some_at_a_time_and_each_in_its_turn(store: Store) -> None:
    worker = await store.worker()
    for lane in ("a", "b", "c"):
        await enqueue_in(store, lane, concurrency=1)
    await enqueue_in(store, "d", concurrency=1)
    await forget(store, "d")
    await store.advance("2d")
    for _ in range(2):
        await store.do(prune_lanes, age_us=ROUTE_AGE_US, limit=2)
    assert await store.query("select name from holdfast.lane order by name") == [("a",), ("b",), ("c",)]
    assert len(await take(store, worker=worker)) == 3


async def test_a_lane_that_is_forgotten_while_somebody_enqueues_into_it_is_written_anew(
    store: Store,
) -> None:
    """On PostgreSQL nobody waits for who prunes: the claim finds the limits in a note."""
    await enqueue_in(store, concurrency=2)
    await forget(store, "key")
    await store.advance("2d")
    if store.database.dialect == "sqlite":
        await store.do(prune_lanes, age_us=ROUTE_AGE_US, limit=10)
        await enqueue_in(store, concurrency=2)
    else:
        async with await psycopg.AsyncConnection.connect(store.url) as pruner:
            await pruner.execute("delete from holdfast.lane")
            await enqueue_in(store, concurrency=2)
    assert len(await take(store)) == 1
    assert await store.query("select name, concurrency from holdfast.lane") == [("key", 2)]


async def test_a_lane_that_somebody_enqueues_into_is_not_forgotten(store: Store) -> None:
    """On PostgreSQL its row is locked until the commit, however long that takes."""
    await enqueue_in(store, concurrency=2)
    await forget(store, "key")
    await store.advance("2d")
    if store.database.dialect == "sqlite":
        await enqueue_in(store, concurrency=2)
        await store.do(prune_lanes, age_us=ROUTE_AGE_US, limit=10)
    else:
        async with await psycopg.AsyncConnection.connect(store.url) as caller:
            await caller.execute("update holdfast.lane set updated_at = holdfast.now_us()")
            await store.do(prune_lanes, age_us=ROUTE_AGE_US, limit=10)
    assert await store.query("select name from holdfast.lane") == [("key",)]


async def test_a_lane_whose_row_is_missing_runs_one_at_a_time(store: Store) -> None:
    """Nobody knows its limits then, so they are strict, until a call says them again."""
    worker = await store.worker()
    for _ in range(5):
        await enqueue_in(store, concurrency=3)
    await store.query("delete from holdfast.lane returning 1")
    (lease,) = await take(store, worker=worker)
    assert await take(store, worker=worker) == []
    await store.advance("1s")
    await finish(store, lease)
    assert len(await take(store, worker=worker)) == 1
    await enqueue_in(store, concurrency=3)
    await store.advance("1m")
    await store.do(open_lanes, limit=10)
    assert len(await take(store, worker=worker)) == 2


@pytest.mark.parametrize("blocked", [False, True])
async def test_a_lane_whose_row_is_missing_starts_one_a_second(store: Store, blocked: bool) -> None:
    """Short jobs, one at a time, would start a hundred times a second in a lane that is there for its rate."""
    worker = await store.worker()
    ids = [await enqueue_in(store, interval_us=10 * SECOND) for _ in range(3)]
    if blocked:
        await block(store, "key")
    await store.query("delete from holdfast.lane returning 1")
    await clean(store, worker)
    await store.do(open_lanes, limit=10)
    (lease,) = await take(store, worker=worker)
    await finish(store, lease)
    assert await take(store, worker=worker) == [], "it is over, and the next has to wait all the same"
    await store.advance("1s")
    await store.do(open_lanes, limit=10)
    assert [lease.id for lease in await take(store, worker=worker)] == [ids[1]]


async def test_what_is_said_of_a_lane_without_a_row_is_what_the_claim_makes_of_it(store: Store) -> None:
    worker = await store.worker(capabilities=("job:work",))
    ids = [await enqueue_in(store, concurrency=3) for _ in range(2)]
    await store.query("delete from holdfast.lane returning 1")
    free = [id for id in ids if not await store.do(why, id)]
    assert [lease.id for lease in await take(store, worker=worker)] == free == ids[:1]


async def test_jobs_blocked_in_a_lane_whose_row_is_missing_are_let_through(store: Store) -> None:
    worker = await store.worker()
    for _ in range(3):
        await enqueue_in(store, concurrency=1)
    (lease,) = await take(store, worker=worker)
    await take(store, worker=worker)
    await store.query("delete from holdfast.lane returning 1")
    for _ in range(2):
        await finish(store, lease)
        await store.advance("1s")
        await store.do(open_lanes, limit=10)
        (lease,) = await take(store, worker=worker)
    await finish(store, lease)


async def test_nobody_overtakes_within_a_lane_but_by_priority(store: Store) -> None:
    first = await enqueue_in(store, concurrency=1)
    (lease,) = await take(store)
    blocked = await enqueue_in(store, concurrency=1)
    await take(store)
    late, urgent = await enqueue_in(store, concurrency=1), await enqueue_in(store, concurrency=1, priority=1)
    order = []
    for _ in range(3):
        await finish(store, lease)
        (lease,) = await take(store)
        order.append(lease.id)
    assert lease.id != first
    assert order == [urgent, blocked, late]


async def test_a_newcomer_waits_behind_who_is_blocked_when_the_rate_has_room_again(store: Store) -> None:
    """Between the moment at which the lane opens and the sweep that opens it."""
    await enqueue_in(store, interval_us=SECOND)
    await take(store)
    blocked = await enqueue_in(store, interval_us=SECOND)
    assert await take(store) == []
    await store.advance("1s")
    newcomer = await enqueue_in(store, interval_us=SECOND)
    assert await take(store) == []
    await store.do(open_lanes, limit=10)
    assert [lease.id for lease in await take(store)] == [blocked]
    await store.advance("1s")
    await store.do(open_lanes, limit=10)
    assert [lease.id for lease in await take(store)] == [newcomer]


async def test_starts_are_spaced_by_the_rate(store: Store) -> None:
    ids = [await enqueue_in(store, interval_us=SECOND) for _ in range(4)]
    began = store.clock.us
    starts: dict[JobId, int] = {}
    while len(starts) < 4:
        for lease in await take(store):
            starts[lease.id] = (store.clock.us - began) // 1000
        await store.advance("100ms")
        await store.do(open_lanes, limit=10)
    assert [starts[id] for id in ids] == [0, 1000, 2000, 3000]


async def test_a_burst_goes_at_once_and_fills_up_again(store: Store) -> None:
    for _ in range(10):
        await enqueue_in(store, interval_us=SECOND, burst=3)
    assert len(await take(store)) == 3
    assert await take(store) == []
    await store.advance("2s")
    await store.do(open_lanes, limit=10)
    assert len(await take(store)) == 2


async def test_a_costly_job_uses_up_more_of_the_rate(store: Store) -> None:
    await enqueue_in(store, interval_us=SECOND, burst=5, cost=4)
    await enqueue_in(store, interval_us=SECOND, burst=5, cost=4)
    assert len(await take(store)) == 1
    await store.advance("2900ms")
    await store.do(open_lanes, limit=10)
    assert await take(store) == []
    await store.advance("100ms")
    await store.do(open_lanes, limit=10)
    assert len(await take(store)) == 1


async def test_a_cost_above_the_burst_waits_for_an_empty_bucket_and_then_goes(store: Store) -> None:
    await enqueue_in(store, interval_us=SECOND, burst=2, cost=7)
    assert len(await take(store)) == 1
    await enqueue_in(store, interval_us=SECOND, burst=2, cost=7)
    assert await take(store) == []
    await store.advance("7s")
    await store.do(open_lanes, limit=10)
    assert len(await take(store)) == 1


async def test_a_look_says_when_a_lane_opens(store: Store) -> None:
    worker = await store.worker()
    for _ in range(2):
        await enqueue_in(store, interval_us=SECOND)
    await take(store, worker=worker)
    await take(store, worker=worker)
    sight = await store.do(look, worker, [ROUTE.id])
    assert (sight.next_opening, sight.pending) == (sight.now + SECOND, False)


async def test_a_lane_with_nobody_blocked_is_not_looked_at_again(store: Store) -> None:
    worker = await store.worker()
    await enqueue_in(store, interval_us=SECOND)
    await take(store, worker=worker)
    await store.advance("1s")
    assert await store.do(open_lanes, limit=10) == 1
    assert (await store.do(look, worker, [ROUTE.id])).next_opening is None


async def test_a_raised_limit_is_noticed(store: Store) -> None:
    for _ in range(3):
        await enqueue_in(store, concurrency=1)
    assert len(await take(store)) == 1
    await take(store)
    await enqueue_in(store, concurrency=3)
    await store.advance("1m")
    await store.do(open_lanes, limit=10)
    assert len(await take(store)) == 2


async def test_a_claim_takes_no_more_than_it_was_asked_for(store: Store) -> None:
    for _ in range(5):
        await enqueue_in(store, concurrency=4)
    assert len(await take(store, 3)) == 3
    assert len(await take(store, 3)) == 1


async def test_only_workers_that_know_of_lanes_serve_their_routes() -> None:
    assert "lane" in ROUTE.capabilities
    assert ROUTE.id != route_for("default", "work").id
    assert serves(ROUTE, None, {"job:work"})


def test_admission_is_a_pure_decision() -> None:
    lane = LaneState("key", 2, None, 1, 0, 1, None, None, None, 1_000)
    admission = admit([Candidate(n, 100, 0, "key", 1) for n in (1, 2, 3)], [lane], 10)
    assert (admission.taken, admission.blocked) == ([1], [2, 3])
    assert admission.charges == [("key", 0, 1_000 + BACKSTOP_US, 1_000)]
