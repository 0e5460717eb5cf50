"""Claim: who gets which job, in which order, under which token."""

from __future__ import annotations

from holdfast.kernel.claim import claim, heads
from holdfast.kernel.enqueue import enqueue
from holdfast.kernel.routes import route_for
from holdfast.kernel.states import State
from tests.support.stores import TTL_US, Store


async def test_jobs_leave_in_priority_then_arrival_order(store: Store) -> None:
    late = await store.enqueue(priority=200)
    first = await store.enqueue()
    second = await store.enqueue()
    urgent = await store.enqueue(priority=1)
    worker = await store.worker()
    leases = await store.claim(worker, 10)
    assert [lease.id for lease in leases] == [urgent, first, second, late]


async def test_a_claim_takes_at_most_what_was_asked(store: Store) -> None:
    for _ in range(5):
        await store.enqueue()
    worker = await store.worker()
    assert len(await store.claim(worker, 3)) == 3
    assert len(await store.claim(worker, 3)) == 2
    assert await store.claim(worker, 3) == []


async def test_a_claim_leases_the_job_to_its_worker(store: Store) -> None:
    lease = await store.claimed()
    row = await store.find(lease.id)
    assert row.state == State.RUNNING
    assert (row.worker, row.token) == (lease.worker, 1)
    assert row.lease_until == store.clock.us + TTL_US


async def test_order_holds_across_routes(store: Store) -> None:
    ids = [await store.enqueue(kind=f"k{n % 3}") for n in range(9)]
    worker = await store.worker()
    routes = [route_for("default", f"k{n}").id for n in range(3)]
    leases = await store.do(claim, worker, routes, 5, TTL_US)
    assert [lease.id for lease in leases] == ids[:5]


async def test_jobs_on_other_routes_are_not_claimed(store: Store) -> None:
    await store.enqueue(kind="other")
    worker = await store.worker()
    assert await store.claim(worker, 10) == []


async def test_heads_names_the_routes_with_work(store: Store) -> None:
    await store.enqueue(kind="a")
    routes = [route_for("default", kind).id for kind in ("a", "b")]
    assert await store.do(heads, routes) == [route_for("default", "a").id]


async def test_a_repeated_enqueue_inserts_nothing_twice(store: Store) -> None:
    job = store.job()
    route = route_for("default", "work")
    assert await store.do(enqueue, [job], [route]) == 1
    assert await store.do(enqueue, [job], [route]) == 0
    worker = await store.worker()
    assert len(await store.claim(worker, 10)) == 1
