"""Lanes: how many at once and how often, at every commit; and nobody waits longer than the limit asks for."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.kernel.cancel import cancel
from holdfast.kernel.complete import complete_and_settle, release
from holdfast.kernel.enqueue import enqueue
from holdfast.kernel.ids import JobId
from holdfast.kernel.lanes import BACKSTOP_US, admit, claim_in_lanes, open_lanes
from holdfast.kernel.records import Lease
from holdfast.kernel.records_flow import Candidate, LaneState
from holdfast.kernel.routes import route_for, serves
from holdfast.kernel.states import State
from holdfast.kernel.waiting import park
from holdfast.kernel.workers import look
from holdfast.outcomes import Done, Retry
from tests.support.stores import TTL_US, Store

SECOND = 1_000_000
ROUTE = route_for("default", "work", laned=True)


async def enqueue_in(store: Store, lane: str = "key", **changes: Any) -> JobId:
    limits = {"concurrency": None, "interval_us": None, "burst": 1}
    job = store.job(lane=lane, **{**limits, "route": ROUTE.id, **changes})
    await store.do(enqueue, [job], [ROUTE])
    return job.id


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
            await store.do(complete_and_settle, [store.ending(lease, Retry(after="1h"))], [])
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
