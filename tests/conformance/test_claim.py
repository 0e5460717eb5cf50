"""Claim: who gets which job, in which order, under which token."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from operator import attrgetter
from typing import Any

from holdfast.kernel import epoch
from holdfast.kernel.claim import claim, heads
from holdfast.kernel.complete import release
from holdfast.kernel.enqueue import enqueue
from holdfast.kernel.routes import route_for
from holdfast.kernel.rows import Lease, Token
from holdfast.kernel.states import State
from holdfast.kernel.waiting import park
from holdfast.outcomes import Done, Snooze, TryAgain
from tests.support.stores import TTL_US, Store


def routes(n: int) -> list[int]:
    return [route_for("default", f"k{k}").id for k in range(n)]


async def test_jobs_leave_in_priority_then_arrival_order(store: Store) -> None:
    late = await store.enqueue(priority=200)
    first = await store.enqueue()
    second = await store.enqueue()
    urgent = await store.enqueue(priority=1)
    leases = await store.claim(await store.worker(), 10)
    assert [lease.id for lease in leases] == [urgent, first, second, late]


async def test_a_claim_takes_at_most_what_was_asked(store: Store) -> None:
    for _ in range(5):
        await store.enqueue()
    worker = await store.worker()
    assert len(await store.claim(worker, 3)) == 3
    assert len(await store.claim(worker, 3)) == 2
    assert await store.claim(worker, 3) == []


async def test_a_claim_for_more_than_there_is_takes_all(store: Store) -> None:
    await store.do(enqueue, [store.job(f"k{k % 3}") for k in range(60)], [])
    leases = await store.do(claim, await store.worker(), routes(3), 1_000_000, TTL_US)
    assert len({lease.seq for lease in leases}) == 60
    assert await store.query("select count(*) from holdfast.ready") == [(0,)]


async def test_a_claim_leases_the_job_to_its_worker(store: Store) -> None:
    await store.enqueue()
    await store.advance("5s")
    (lease,) = await store.claim(await store.worker())
    row = await store.find(lease.id)
    assert row.state == State.RUNNING
    assert (row.worker, row.epoch, row.token) == (lease.worker, *lease.fence)
    assert (row.claimed_at, row.lease_until) == (store.clock.us, store.clock.us + TTL_US)
    assert (lease.claimed_at, lease.lease_until) == (row.claimed_at, row.lease_until)


async def test_a_lease_carries_what_its_attempt_needs(store: Store) -> None:
    said: dict[str, Any] = {"timeout_us": 5, "deadline_at": 2 * store.clock.us, "tenant": "acme", "max_attempts": 4}
    lease = await store.claimed(payload='{"to":"you"}', metadata='{"a":1}', **said)
    assert {name: getattr(lease, name) for name in said} == said
    assert (lease.kind, lease.queue, lease.payload) == ("work", "default", '{"to":"you"}')
    assert (lease.attempts, lease.rescues, lease.parent, lease.created_at) == (0, 0, None, store.clock.us)


async def test_order_holds_across_routes(store: Store) -> None:
    ids = [await store.enqueue(kind=f"k{n % 3}") for n in range(9)]
    leases = await store.do(claim, await store.worker(), routes(3), 5, TTL_US)
    assert [lease.id for lease in leases] == ids[:5]


async def test_order_holds_however_the_jobs_are_spread_over_routes(store: Store) -> None:
    """Most of what is first stands on few routes, and urgent jobs came last."""
    spread = random.Random(5)
    crowded = [min(int(spread.expovariate(0.5)), 29) for _ in range(300)]
    jobs = [store.job(f"k{k}", priority=spread.choice([1, 100, 100, 100])) for k in crowded]
    await store.do(enqueue, jobs, [])
    worker = await store.worker()
    ids = [job.id for job in sorted(jobs, key=attrgetter("priority"))]
    for n in (20, 45, 1, 90, 200):
        leases = await store.do(claim, worker, routes(30), n, TTL_US)
        assert [lease.id for lease in leases] == ids[:n]
        del ids[:n]
    assert ids == []


async def test_a_crowded_route_does_not_starve_the_others(store: Store) -> None:
    even = [store.job(f"k{k}") for _ in range(10) for k in range(25)]
    await store.do(enqueue, [*even, *(store.job("k0") for _ in range(250))], [])
    worker = await store.worker()
    taken = [lease for _ in range(10) for lease in await store.do(claim, worker, routes(25), 25, TTL_US)]
    assert Counter(lease.kind for lease in taken) == {f"k{k}": 10 for k in range(25)}


async def test_claims_at_the_same_time_share_without_overlap(store: Store) -> None:
    await store.do(enqueue, [store.job(f"k{k % 25}") for k in range(200)], [])
    workers = [await store.worker() for _ in range(4)]
    taken: list[Lease] = []
    while await store.do(heads, routes(25)):
        answers = await asyncio.gather(*(store.do(claim, w, routes(25), 10, TTL_US) for w in workers))
        taken += [lease for answer in answers for lease in answer]
    assert len(taken) == len({lease.seq for lease in taken}) == 200
    assert {lease.worker for lease in taken} == set(workers)


async def test_jobs_on_other_routes_are_not_claimed(store: Store) -> None:
    await store.enqueue(kind="other")
    await store.enqueue(queue="other")
    assert await store.claim(await store.worker(), 10) == []


async def test_a_worker_without_routes_claims_nothing(store: Store) -> None:
    await store.enqueue()
    assert await store.do(claim, await store.worker(), [], 10, TTL_US) == []


async def test_only_pending_jobs_are_claimed(store: Store) -> None:
    worker = await store.worker()
    scheduled = await store.claimed(worker)
    waiting = await store.claimed(worker)
    done = await store.claimed(worker)
    running = await store.claimed(worker)
    await store.end(scheduled, Snooze("1h"))
    await store.do(park, waiting, channel="c", timeout_us=None)
    await store.end(done, Done())
    await store.enqueue(delay_us=1)
    assert await store.claim(worker, 10) == []
    assert await store.state(running.id) is State.RUNNING


async def test_a_gated_job_is_not_claimed(store: Store) -> None:
    id = await store.enqueue()
    columns = "route, slot, seq, token, priority, attempts, rescues, cost, lane"
    row = "route, slot, seq, token, priority, attempts, rescues, 1, 'full'"
    await store.query(
        f"insert into holdfast.later ({columns}, state) select {row}, 'blocked' from holdfast.ready returning seq"
    )
    await store.query("delete from holdfast.ready returning seq")
    worker = await store.worker()
    assert await store.claim(worker, 10) == []
    assert await store.do(heads, [route_for("default", "work").id]) == []
    await store.query(f"insert into holdfast.ready ({columns}) select {columns} from holdfast.later returning seq")
    await store.query("delete from holdfast.later returning seq")
    assert [lease.id for lease in await store.claim(worker, 10)] == [id]


async def test_every_claim_has_a_higher_token(store: Store) -> None:
    worker = await store.worker()
    lease = await store.claimed(worker, max_attempts=10)
    tokens = [lease.fence]
    for _ in range(3):
        await store.complete(lease, release(lease))
        (lease,) = await store.claim(worker)
        tokens.append(lease.fence)
    assert tokens == [Token(1, n) for n in (1, 2, 3, 4)]


async def test_a_new_epoch_outranks_every_token_before_it(store: Store) -> None:
    worker = await store.worker()
    lease = await store.claimed(worker)
    await store.complete(lease, release(lease))
    await store.do(epoch.bump)
    (later,) = await store.claim(worker)
    assert later.fence == Token(2, 2) > lease.fence
    assert str(later.fence) == "2.2"


async def test_a_retried_job_keeps_its_place(store: Store) -> None:
    worker = await store.worker()
    first = await store.claimed(worker)
    await store.enqueue()
    await store.end(first, TryAgain(after="0s"))
    (again,) = await store.claim(worker)
    assert again.id == first.id
    assert (again.attempts, again.seq) == (1, first.seq)


async def test_heads_names_the_routes_with_work(store: Store) -> None:
    await store.enqueue(kind="k0")
    await store.enqueue(kind="k2", delay_us=5)
    await store.enqueue(kind="k3")
    await store.enqueue(kind="k3")
    assert sorted(await store.do(heads, routes(5))) == sorted([routes(5)[0], routes(5)[3]])
    assert await store.do(heads, []) == []
