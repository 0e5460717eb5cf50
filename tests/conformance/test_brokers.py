"""Leases for code that is no worker: taken by id, shared out, found by owner, moved and taken back."""

from __future__ import annotations

import asyncio
from operator import attrgetter
from typing import Any

import pytest

from holdfast.kernel.broker_rows import Asker, Renewal
from holdfast.kernel.brokers import (
    Claimer,
    alias_of,
    claim_each,
    claim_for,
    find_alias,
    find_lease,
    follow,
    list_aliases,
    name_job,
    release_by_worker,
    take,
    transfer_leases,
)
from holdfast.kernel.cancel import cancel
from holdfast.kernel.database import Transaction, single
from holdfast.kernel.demand import Demand, claimable
from holdfast.kernel.enqueue import enqueue
from holdfast.kernel.ids import JobId, new_id
from holdfast.kernel.leases import renew, renew_each, renew_one
from holdfast.kernel.owners import register_owner
from holdfast.kernel.queues import pause_queue, resume_queue, set_queue
from holdfast.kernel.routes import route_for
from holdfast.kernel.rows import Lease, RenewedLease, Token
from holdfast.kernel.statements import JobsSql
from holdfast.kernel.workers import (
    Registration,
    drain,
    lose,
    register,
)
from holdfast.outcomes import Done, TryAgain
from tests.support.stores import TTL_US, Store, owner_named

SECOND_US = 1_000_000
HOUR_US = 3_600_000_000


async def taken(store: Store, worker: int, id: JobId, ttl_us: int = TTL_US) -> Lease | None:
    return await store.do(take, worker, id, ttl_us)


def claimer(worker: int, *kinds: str, n: int = 1, ttl_us: int = TTL_US) -> Claimer:
    return Claimer(worker, frozenset(route_for("default", kind).id for kind in kinds or ("work",)), n, ttl_us)


async def in_lane(store: Store, n: int, *, concurrency: int = 1) -> list[JobId]:
    route = route_for("default", "work", laned=True)
    jobs = [
        store.job()._replace(route=route.id, lane="job:work", concurrency=concurrency, id=new_id(store.ports))
        for _ in range(n)
    ]
    await store.do(enqueue, jobs, [route])
    return [job.id for job in jobs]


# Taking a job by its id


async def test_a_job_is_taken_by_its_id_and_no_other(store: Store) -> None:
    _, second = await store.enqueue(), await store.enqueue()
    worker = await store.worker()
    lease = await taken(store, worker, second)
    assert lease is not None
    assert (lease.id, lease.worker, lease.fence) == (second, worker, Token(1, 1))
    assert lease.lease_until == store.clock.us + TTL_US
    assert await store.state(second) == "running"
    (other,) = await store.claim(worker, 5)
    assert other.id != second


@pytest.mark.parametrize("limit_us", [2 * SECOND_US, 3 * TTL_US])
async def test_no_lease_of_a_holder_that_is_not_ours_passes_the_time_limit_of_its_job(
    store: Store, limit_us: int
) -> None:
    """Whether it is far below the time of a lease or far above, taken by its id or shared out."""
    by_id = await taken(store, await store.worker(), await store.enqueue(timeout_us=limit_us))
    await store.enqueue(timeout_us=limit_us)
    shared = await store.do(claim_for, [claimer(await store.worker())])
    assert by_id is not None
    leases = [by_id, *shared]
    assert [lease.lease_until - lease.claimed_at for lease in leases] == [min(TTL_US, limit_us)] * 2
    renewals = [Renewal(*lease.held, 10 * TTL_US) for lease in leases]
    renewed, lost = await store.do(renew_each, renewals, ceiling_us=HOUR_US)
    assert ({row.lease_until - leases[0].claimed_at for row in renewed}, lost) == ({limit_us}, [])


async def test_a_job_that_somebody_holds_is_not_taken_not_even_by_its_holder(store: Store) -> None:
    lease = await store.claimed()
    assert await taken(store, lease.worker, lease.id) is None
    assert await taken(store, await store.worker(), lease.id) is None
    assert (await store.find(lease.id)).token == 1


async def test_a_job_whose_lease_ran_out_is_taken_at_once_however_often_it_was_lost(store: Store) -> None:
    lease = await store.claimed()
    for number in range(2, 5):
        await store.advance("60s")
        again = await taken(store, await store.worker(), lease.id)
        assert again is not None
        assert (again.token, again.rescues) == (number, number - 1)
        lease = again
    assert [attempt.outcome for attempt in await store.attempts(lease)] == ["lost"] * 3
    await store.advance("60s")
    assert await store.end(lease, Done("late")) != []  # its lease ran out, and nobody has taken the job yet


async def test_what_the_holder_before_writes_is_refused(store: Store) -> None:
    first = await store.claimed()
    await store.advance("60s")
    second = await taken(store, await store.worker(), first.id)
    assert second is not None
    assert second.fence > first.fence
    assert await store.end(first, Done("late")) == []
    assert await store.do(renew, [first.held], ttl_us=TTL_US, ceiling_us=HOUR_US) == ([], [first.held])


@pytest.mark.parametrize("end", ["done", "cancelled", "unknown"])
async def test_a_job_that_has_ended_or_never_was_is_not_taken(store: Store, end: str) -> None:
    lease = await store.claimed()
    if end == "done":
        await store.end(lease, Done(1))
    if end == "cancelled":
        await store.do(cancel, lease.id, reason="enough")
        await store.advance("60s")
    id = new_id(store.ports) if end == "unknown" else lease.id
    assert await taken(store, await store.worker(), id) is None
    if end == "cancelled":  # the cancel of a job whose holder is gone is carried out
        assert await store.state(id) == "cancelled"


async def test_nothing_is_taken_of_a_paused_queue(store: Store) -> None:
    id, worker = await store.enqueue(), await store.worker()
    await store.do(pause_queue, "default", reason="lunch")
    assert await taken(store, worker, id) is None
    await store.do(resume_queue, "default")
    assert await taken(store, worker, id) is not None


async def test_a_job_that_waits_for_its_retry_is_taken_when_it_is_due_and_not_before(store: Store) -> None:
    lease = await store.claimed()
    await store.end(lease, TryAgain(after="10s"))
    worker = await store.worker()
    assert await taken(store, worker, lease.id) is None
    await store.advance("10s")
    again = await taken(store, worker, lease.id)
    assert again is not None
    assert again.attempts == 1


async def test_a_holder_that_drains_or_was_given_up_takes_nothing(store: Store) -> None:
    id, worker, lost = await store.enqueue(), await store.worker(), await store.worker()
    await store.do(drain, worker)
    await store.do(lose, lost, reason="gone")
    for holder in (worker, lost):
        assert await taken(store, holder, id) is None
        assert await store.do(claim_for, [claimer(holder)]) == []
    assert await store.state(id) == "pending"


async def test_a_route_that_the_taker_does_not_serve_is_left_alone(store: Store) -> None:
    id, worker = await store.enqueue(), await store.worker()
    assert await store.do(take, worker, id, TTL_US, serves=lambda route: route.queue == "other") is None
    assert await store.do(take, worker, id, TTL_US, serves=lambda route: route.queue == "default") is not None


async def test_a_lane_that_is_full_holds_back_what_is_taken_by_id(store: Store) -> None:
    first, second = await in_lane(store, 2)
    worker = await store.worker()
    lease = await taken(store, worker, first)
    assert lease is not None
    assert await taken(store, worker, second) is None
    assert (await store.find(second)).gate == "job:work"


async def test_of_many_who_take_one_job_at_once_one_gets_it(store: Store) -> None:
    expired = await store.claimed()
    await store.advance("60s")
    workers = [await store.worker() for _ in range(8)]
    answers = await asyncio.gather(*(taken(store, worker, expired.id) for worker in workers))
    (won,) = [answer for answer in answers if answer is not None]
    assert (won.token, (await store.find(expired.id)).worker) == (2, won.worker)


# Many who wait


async def test_many_who_wait_are_served_in_their_order(store: Store) -> None:
    ids = [await store.enqueue() for _ in range(3)]
    workers = [await store.worker() for _ in range(4)]
    leases = await store.do(claim_for, [claimer(worker) for worker in workers])
    assert [(lease.id, lease.worker) for lease in leases] == list(zip(ids, workers, strict=False))


async def test_each_gets_what_it_serves_and_no_more_than_it_wants(store: Store) -> None:
    for kind in ("mail", "work", "work", "work", "pdf"):
        await store.enqueue(kind)
    one, two, three = [await store.worker() for _ in range(3)]
    leases = await store.do(
        claim_for,
        [claimer(one, "mail", "work", n=2, ttl_us=SECOND_US), claimer(two, "work"), claimer(three, "none")],
    )
    got = sorted((lease.worker, lease.kind, lease.lease_until - store.clock.us) for lease in leases)
    assert got == [(one, "mail", SECOND_US), (one, "work", SECOND_US), (two, "work", TTL_US)]
    assert [lease.kind for lease in await store.claim(two, 5)] == ["work"]


async def test_who_asks_for_a_tenant_gets_no_job_of_another(store: Store) -> None:
    jobs = [store.job()._replace(id=new_id(store.ports), tenant=tenant) for tenant in ("b", "b", "a", "c", "a")]
    await store.do(enqueue, jobs, [route_for("default", "work")])
    one, two, three = [await store.worker() for _ in range(3)]
    asked = [claimer(one, n=3)._replace(tenant="a"), claimer(two)._replace(tenant="b"), claimer(three)]
    leases = await store.do(claim_for, asked[:2])
    assert [(lease.worker, lease.tenant) for lease in leases] == [(two, "b"), (one, "a"), (one, "a")]
    assert [lease.tenant for lease in await store.do(claim_for, [asked[0], asked[2]])] == ["b"]


# One job for each, by one statement


async def asker(store: Store, **changes: Any) -> Asker:
    worker = await store.worker(**changes)
    ((incarnation,),) = await store.query(f"select incarnation from holdfast.worker where seq = {worker}")
    return Asker(worker, incarnation)


async def each(store: Store, *askers: Asker, tenant: str = "", kinds: tuple[str, ...] = ("work",)) -> list[Lease]:
    routes = sorted(route_for("default", kind).id for kind in kinds)
    leases = await store.do(single(claim_each), askers, routes, tenant, ttl_us=TTL_US)
    return sorted(leases, key=attrgetter("place"))


async def test_each_that_asks_gets_one_job_in_the_order_of_both(store: Store) -> None:
    late, urgent = await store.enqueue(), await store.enqueue("mail", priority=1)
    first, second, third = [await asker(store) for _ in range(3)]
    leases = await each(store, second, first, third, kinds=("work", "mail"))
    assert [(lease.id, lease.worker) for lease in leases] == [(urgent, second.worker), (late, first.worker)]
    assert [(lease.fence, lease.lease_until - lease.claimed_at) for lease in leases] == [(Token(1, 1), TTL_US)] * 2
    assert [await store.state(id) for id in (late, urgent)] == ["running"] * 2
    assert await store.claim(third.worker, 5) == []


async def test_who_has_no_place_or_is_not_alive_gets_none_of_them(store: Store) -> None:
    jobs = [await store.enqueue() for _ in range(6)]
    full, drained, lost, silent, free = [await asker(store, slots=1) for _ in range(5)]
    assert [lease.worker for lease in await each(store, full)] == [full.worker]
    await store.do(drain, drained.worker)
    await store.do(lose, lost.worker, reason="gone")
    another = Asker(free.worker, "an earlier one of this number")
    assert await each(store, full, drained, lost, another) == []
    assert [lease.worker for lease in await each(store, full, drained, lost, free)] == [free.worker]
    await store.advance("1h")
    assert await each(store, silent) == []
    assert [await store.state(id) for id in jobs[2:]] == ["pending"] * 4


async def test_no_lease_lasts_longer_than_its_silent_holder_or_its_job(store: Store) -> None:
    brief = Registration(new_id(store.ports), "brief", "brief", "test", 1, "0", (), None, 10)
    number = await store.do(register, brief, [], ttl_us=2 * SECOND_US, gone=[])
    await store.enqueue()
    await store.enqueue(timeout_us=SECOND_US)
    (first,) = await each(store, Asker(number, brief.incarnation))
    (second,) = await each(store, Asker(number, brief.incarnation))
    assert [lease.lease_until - lease.claimed_at for lease in (first, second)] == [2 * SECOND_US, SECOND_US]


async def test_each_of_a_tenant_gets_a_job_of_it_and_none_of_a_paused_queue(store: Store) -> None:
    jobs = [store.job()._replace(id=new_id(store.ports), tenant=tenant) for tenant in ("b", "b", "a", "c")]
    await store.do(enqueue, jobs, [route_for("default", "work")])
    one, two, three = [await asker(store) for _ in range(3)]
    assert [(lease.tenant, lease.worker) for lease in await each(store, one, two, tenant="a")] == [("a", one.worker)]
    await store.do(pause_queue, "default", reason="for the test")
    assert await each(store, one, two, three, tenant="b") == []
    await store.do(resume_queue, "default")
    assert [lease.worker for lease in await each(store, one, two, three, tenant="b")] == [one.worker, two.worker]


async def test_jobs_of_lanes_are_left_to_who_asks_step_by_step(store: Store) -> None:
    await in_lane(store, 2)
    one = await asker(store)
    route = route_for("default", "work", laned=True).id
    assert await store.do(single(claim_each), [one], [route], "", ttl_us=TTL_US) == []
    wanted = Claimer(one.worker, frozenset({route}), 2, TTL_US)
    assert len(await store.do(claim_for, [wanted])) == 1


async def test_who_claims_is_heard_of(store: Store) -> None:
    await store.enqueue()
    one = await asker(store)
    await store.advance("20s")
    assert len(await each(store, one)) == 1
    ((heard,),) = await store.query(f"select heartbeat_at from holdfast.worker where seq = {one.worker}")
    assert heard == store.clock.us


async def test_two_servers_do_not_both_give_out_the_last_place(store: Store) -> None:
    """Somebody's count may be older than the lock: it sees by the row that another has claimed since then."""
    for _ in range(20):
        await store.enqueue()
    one = await asker(store, slots=2)
    for _ in range(30):
        rounds = await asyncio.gather(*(each(store, one) for _ in range(4)))
        held = [lease for leases in rounds for lease in leases]
        assert len(held) <= 2
        assert await store.do(release_by_worker, one.worker) or not held


async def test_the_most_urgent_goes_first_whatever_its_route(store: Store) -> None:
    await store.enqueue("work")
    urgent = await store.enqueue("mail", priority=1)
    (lease,) = await store.do(claim_for, [claimer(await store.worker(), "work", "mail")])
    assert lease.id == urgent


async def test_a_call_leaves_what_it_does_not_get_to_those_who_claim_beside_it(store: Store) -> None:
    kinds = [f"kind{number}" for number in range(25)]
    for number in range(200):
        await store.enqueue(kinds[number % 25])
    many, one = await store.worker(), await store.worker()
    beside: list[Lease] = []

    async def meanwhile(tx: Transaction) -> int:
        leases = await claim_for(tx, [claimer(many, *kinds) for _ in range(16)])
        if store.database.dialect == "postgres":  # SQLite has one writer
            beside.extend(await store.do(claim_for, [claimer(one, *kinds, n=10)]))
        return len(leases)

    assert await store.do(meanwhile) == 16
    assert len(beside) == (10 if store.database.dialect == "postgres" else 0)


async def test_who_waits_for_a_route_of_its_own_gets_it_beside_others(store: Store) -> None:
    for kind in ("a", "a", "a", "b"):
        await store.enqueue(kind)
    one, two = await store.worker(), await store.worker()
    leases = await store.do(claim_for, [claimer(one, "a", n=2), claimer(two, "b"), claimer(two, "a", "b")])
    assert sorted((lease.worker, lease.kind) for lease in leases) == [(one, "a"), (one, "a"), (two, "a"), (two, "b")]


async def test_lanes_hold_back_what_is_shared_out(store: Store) -> None:
    await in_lane(store, 3, concurrency=2)
    route = frozenset({route_for("default", "work", laned=True).id})
    claimers = [Claimer(await store.worker(), route, 1, TTL_US) for _ in range(3)]
    assert len(await store.do(claim_for, claimers)) == 2
    assert len(await store.do(claim_for, claimers[2:])) == 0


async def test_nothing_of_a_paused_queue_is_shared_out(store: Store) -> None:
    await store.enqueue()
    await store.do(pause_queue, "default", reason="lunch")
    assert await store.do(claim_for, [claimer(await store.worker())]) == []


# Renewing, finding, moving


async def test_each_lease_is_renewed_for_a_time_of_its_own(store: Store) -> None:
    one, two = await store.claimed(), await store.claimed()
    await store.advance("30s")
    renewals = [Renewal(*one.held, 40 * SECOND_US), Renewal(*two.held, 600 * SECOND_US)]
    renewed, lost = await store.do(renew_each, renewals, ceiling_us=HOUR_US)
    ends = {row.seq: row.lease_until - store.clock.us for row in renewed}
    assert (ends, lost) == ({one.seq: 40 * SECOND_US, two.seq: 600 * SECOND_US}, [])
    await store.advance("40s")
    renewed, lost = await store.do(renew_each, renewals, ceiling_us=100 * SECOND_US)
    assert [row.lease_until for row in renewed] == [two.claimed_at + 600 * SECOND_US + 30 * SECOND_US]
    assert lost == [one.held]


async def test_a_broker_renews_under_its_own_token_alone(store: Store) -> None:
    lease = await store.claimed()
    others = [lease.held._replace(token=9), lease.held._replace(epoch=9), lease.held._replace(worker=lease.worker + 1)]
    for held in others:
        renewed, lost = await store.do(renew_each, [Renewal(*held, 2 * TTL_US)], ceiling_us=HOUR_US)
        assert (renewed, lost) == ([], [held])
    ((until,),) = await store.query(f"select lease_until from holdfast.lease where seq = {lease.seq}")
    assert until == lease.lease_until


async def test_a_renewal_by_hand_waits_for_whoever_changes_the_lease(store: Store) -> None:
    lease = await store.claimed()
    renewal = Renewal(*lease.held, 2 * TTL_US)

    async def waited(tx: Transaction) -> asyncio.Task[RenewedLease | None]:
        await tx.many(JobsSql.lock_leases, seqs=[lease.seq])
        renewing = asyncio.create_task(store.do(renew_one, renewal, ceiling_us=HOUR_US))
        await asyncio.wait([renewing], timeout=0.1)
        return renewing

    if store.database.dialect == "postgres":
        renewed = await (await store.do(waited))
    else:  # it has one writer
        renewed = await store.do(renew_one, renewal, ceiling_us=HOUR_US)
    assert renewed is not None
    assert renewed.lease_until == store.clock.us + 2 * TTL_US
    await store.end(lease, Done(1))
    assert await store.do(renew_one, renewal, ceiling_us=HOUR_US) is None


async def test_a_lease_is_found_by_the_name_of_its_owner_alone(store: Store) -> None:
    mine, other = await store.do(register_owner, owner_named("owner"), ttl_us=TTL_US), await store.worker()
    id = await store.enqueue()
    lease = await taken(store, mine.seq, id)
    await store.claimed(other)
    found = await store.do(find_lease, id, "owner")
    assert found is not None
    assert (found.lease, found.cancel_requested_at) == (lease, None)
    assert await store.do(find_lease, id, "somebody") is None
    await store.do(cancel, id, reason="enough")
    found = await store.do(find_lease, id, "owner")
    assert found is not None
    assert found.cancel_requested_at == store.clock.us


async def test_leases_move_to_another_holder_under_their_tokens(store: Store) -> None:
    old, new = await store.worker(), await store.worker()
    lease, lapsed = await store.claimed(old), await store.claimed(old)
    await store.advance("59s")
    await store.do(renew, [lease.held], ttl_us=TTL_US, ceiling_us=HOUR_US)
    await store.advance("1s")
    moved = await store.do(transfer_leases, old, new)
    assert [(row.seq, row.worker, row.token) for row in moved] == [(lease.seq, new, lease.token)]
    assert (await store.find(lapsed.id)).worker == old
    assert await store.do(renew, [lease.held], ttl_us=TTL_US, ceiling_us=HOUR_US) == ([], [lease.held])
    assert await store.end(lease, Done("old")) == []
    assert [row.state for row in await store.end(lease._replace(worker=new), Done("new"))] == ["succeeded"]


async def test_nothing_moves_to_a_holder_that_is_not_active(store: Store) -> None:
    lease, lost = await store.claimed(), await store.worker()
    await store.do(lose, lost, reason="gone")
    assert await store.do(transfer_leases, lease.worker, lost) == []


@pytest.mark.parametrize("charge", [False, True])
async def test_what_a_holder_has_is_taken_back_from_one_queue(store: Store, charge: bool) -> None:
    worker = await store.worker()
    await store.enqueue(queue="other")
    (elsewhere,) = await store.claim(worker, queue="other")
    leases = [await store.claimed(worker), await store.claimed(worker, max_attempts=1)]
    back = await store.do(release_by_worker, worker, queue="default", charge=charge)
    assert [row.state for row in back] == ["pending", "failed" if charge else "pending"]
    assert [(await store.find(lease.id)).attempts for lease in leases] == ([1, 1] if charge else [0, 0])
    assert await store.state(elsewhere.id) == "running"
    assert await store.end(leases[0], Done("late")) == []
    assert len(await store.claim(await store.worker(), 5)) == (1 if charge else 2)


async def test_what_is_charged_ends_by_the_rules_of_a_lost_lease(store: Store) -> None:
    await store.do(set_queue, "default", on_orphan="fail", lost_counts=False)
    worker = await store.worker()
    orphan, late = await store.claimed(worker), await store.claimed(worker, queue="default")
    await store.do(cancel, late.id, reason="enough")
    back = await store.do(release_by_worker, worker, charge=True)
    assert [row.state for row in back] == ["failed", "cancelled"]
    assert "on_orphan" in ((await store.find(orphan.id)).error or "")


async def test_leases_move_no_more_than_so_many_at_once(store: Store) -> None:
    old, new = await store.worker(), await store.worker()
    leases = [await store.claimed(old) for _ in range(3)]
    assert [row.seq for row in await store.do(transfer_leases, old, new, limit=2)] == [
        lease.seq for lease in leases[:2]
    ]
    assert len(await store.do(transfer_leases, old, new, limit=2)) == 1


# The policy that a lost lease is an attempt


async def test_where_a_lost_lease_counts_attempts_and_losses_share_one_limit(store: Store) -> None:
    await store.do(set_queue, "default", on_orphan="requeue", lost_counts=True)
    id = await store.enqueue(max_attempts=3, max_rescues=1)
    for attempts in range(2):
        (lease,) = await store.claim(await store.worker())
        assert lease.attempts == attempts
        await store.advance("60s")
        (lost,) = await store.expire()
        assert lost.state == "pending"  # without a pause, also after the second
    (lease,) = await store.claim(await store.worker())
    await store.advance("60s")
    (lost,) = await store.expire()
    job = await store.find(id)
    assert (lost.state, job.state, job.attempts, job.rescues) == ("failed", "failed", 3, 1)
    assert '"rescue_failed"' in str(lost.error)


async def test_a_failure_and_a_lost_lease_together_reach_the_limit(store: Store) -> None:
    await store.do(set_queue, "default", on_orphan="requeue", lost_counts=True)
    lease = await store.claimed(max_attempts=2)
    await store.end(lease, TryAgain(after="0s"))
    assert await taken(store, await store.worker(), lease.id) is not None
    await store.advance("60s")
    assert await taken(store, await store.worker(), lease.id) is None
    assert await store.state(lease.id) == "failed"


# How much there is to do


async def test_what_is_claimable_leaves_out_what_nobody_could_claim_now(store: Store) -> None:
    for _ in range(3):
        await store.enqueue()
    await store.enqueue(queue="paused")
    await store.do(pause_queue, "paused", reason="lunch")
    await store.enqueue(delay_us=HOUR_US)
    await store.enqueue("pdf")
    await store.claim(await store.worker())
    assert await store.do(claimable, None) == Demand(3, 1)
    assert await store.do(claimable, ["default"], capabilities=["job:work"]) == Demand(2, 1)
    assert await store.do(claimable, ["paused"]) == Demand(0, 0)
    assert await store.do(claimable, None, cap=2) == Demand(2, 1)
    await store.advance("60m")
    assert (await store.do(claimable, None)).pending == 4  # it is due, and nobody has woken it


async def test_a_lane_lets_no_more_count_than_may_start(store: Store) -> None:
    await in_lane(store, 5, concurrency=2)
    assert await store.do(claimable, None) == Demand(2, 0)
    worker = await store.worker()
    route = frozenset({route_for("default", "work", laned=True).id})
    await store.do(claim_for, [Claimer(worker, route, 1, TTL_US)])
    assert await store.do(claimable, None) == Demand(1, 1)


# Names


async def test_a_name_stands_for_one_job_after_the_other(store: Store) -> None:
    one, two, other = [new_id(store.ports) for _ in range(3)]
    first = await store.do(name_job, "runs", "r1", one, digest="a")
    assert (first.job, first.number, first.attempts) == (one, 1, 0)
    assert await store.do(name_job, "runs", "r1", two, digest="b") == first
    assert (await store.do(name_job, "other", "r1", other, digest="a")).job == other
    second = await store.do(follow, first, two, digest="a", attempts=3)
    assert second is not None
    assert (second.job, second.number, second.attempts) == (two, 2, 3)
    assert await store.do(follow, first, other, digest="a", attempts=3) is None
    assert await store.do(find_alias, "runs", "r1") == second
    assert await store.do(list_aliases, "runs", "r1") == [first, second]
    assert await store.do(list_aliases, "runs", "r1", after=1, limit=1) == [second]
    assert await store.do(alias_of, one) == first
    assert await store.do(find_alias, "runs", "nobody") is None
