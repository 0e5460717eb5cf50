"""Renew: a lease is extended by its worker alone, and never revived."""

from __future__ import annotations

import pytest

from holdfast.errors import LeaseLost
from holdfast.kernel.cancel import cancel
from holdfast.kernel.ids import new_id
from holdfast.kernel.leases import beat, hold, renew, return_unnamed, show_life, try_hold
from holdfast.kernel.rows import Lease, LeaseRef, RenewedLease
from holdfast.kernel.workers import lose_workers
from holdfast.outcomes import Done
from tests.support.stores import TTL_US, Store

SECOND_US = 1_000_000
HOUR_US = 3_600_000_000


async def renewal(
    store: Store, *held: LeaseRef, ttl_us: int = TTL_US, ceiling_us: int = HOUR_US
) -> tuple[list[RenewedLease], list[LeaseRef]]:
    return await store.do(renew, list(held), ttl_us=ttl_us, ceiling_us=ceiling_us)


async def lease_until(store: Store, lease: Lease) -> int | None:
    return (await store.find(lease.id)).lease_until


async def test_a_renewal_counts_from_now(store: Store) -> None:
    lease = await store.claimed()
    await store.advance("20s")
    (row,), lost = await renewal(store, lease.held)
    assert row == (lease.seq, *lease.fence, store.clock.us + TTL_US, None)
    assert lost == []
    assert await lease_until(store, lease) == store.clock.us + TTL_US


async def test_a_renewal_changes_nothing_but_the_end_of_the_lease(store: Store) -> None:
    lease = await store.claimed()
    before = await store.find(lease.id)
    await store.advance("20s")
    await renewal(store, lease.held)
    assert await store.find(lease.id) == before._replace(lease_until=store.clock.us + TTL_US)


async def test_a_renewal_never_shortens(store: Store) -> None:
    lease = await store.claimed()
    (row,), _ = await renewal(store, lease.held, ttl_us=SECOND_US)
    assert row.lease_until == lease.lease_until == await lease_until(store, lease)


async def test_a_lease_that_has_run_out_is_lost(store: Store) -> None:
    lease = await store.claimed()
    await store.advance("60s")
    before = await store.find(lease.id)
    assert await renewal(store, lease.held) == ([], [lease.held])
    assert await store.find(lease.id) == before


async def test_a_lease_is_good_until_its_very_end(store: Store) -> None:
    lease = await store.claimed()
    await store.advance("59999999us")
    (row,), lost = await renewal(store, lease.held)
    assert (row.lease_until, lost) == (store.clock.us + TTL_US, [])


async def test_no_attempt_holds_its_lease_beyond_the_ceiling(store: Store) -> None:
    lease = await store.claimed()
    await store.advance("30s")
    (row,), _ = await renewal(store, lease.held, ceiling_us=70 * SECOND_US)
    assert row.lease_until == lease.claimed_at + 70 * SECOND_US
    await store.advance("39s")
    (row,), lost = await renewal(store, lease.held, ceiling_us=70 * SECOND_US)
    assert (row.lease_until, lost) == (lease.claimed_at + 70 * SECOND_US, [])
    await store.advance("1s")
    assert await renewal(store, lease.held, ceiling_us=70 * SECOND_US) == ([], [lease.held])


async def test_an_ended_lease_is_lost(store: Store) -> None:
    lease = await store.claimed()
    await store.end(lease, Done())
    assert await renewal(store, lease.held) == ([], [lease.held])


async def test_an_unknown_token_is_lost(store: Store) -> None:
    lease = await store.claimed()
    forged = [
        lease.held._replace(token=9),
        lease.held._replace(epoch=9),
        lease.held._replace(seq=999_999),
    ]
    renewed, lost = await renewal(store, *forged)
    assert (renewed, sorted(lost)) == ([], sorted(forged))
    assert await lease_until(store, lease) == lease.lease_until


async def test_only_what_is_named_is_renewed(store: Store) -> None:
    worker = await store.worker()
    known, unknown = await store.claimed(worker), await store.claimed(worker)
    await store.advance("30s")
    await renewal(store, known.held)
    assert await lease_until(store, known) == store.clock.us + TTL_US
    assert await lease_until(store, unknown) == unknown.lease_until


async def test_lost_and_kept_leases_are_told_apart_in_one_call(store: Store) -> None:
    worker = await store.worker()
    leases = [await store.claimed(worker) for _ in range(4)]
    await store.end(leases[2], Done())
    renewed, lost = await renewal(store, *(lease.held for lease in reversed(leases)))
    assert sorted(row.seq for row in renewed) == sorted(lease.seq for lease in leases if lease is not leases[2])
    assert lost == [leases[2].held]


async def test_nothing_to_renew_is_no_error(store: Store) -> None:
    assert await renewal(store) == ([], [])


async def test_a_renewal_tells_of_a_cancel_request(store: Store) -> None:
    lease = await store.claimed()
    await store.do(cancel, lease.id, reason="stop")
    asked = store.clock.us
    await store.advance("10s")
    (row,), _ = await renewal(store, lease.held)
    assert row.cancel_requested_at == asked


async def test_a_heartbeat_renews_and_shows_life(store: Store) -> None:
    worker = await store.worker()
    lease = await store.claimed(worker)
    await store.advance("30s")
    heard = await store.do(beat, worker, 1, [lease.held], ttl_us=TTL_US, ceiling_us=HOUR_US)
    assert (heard.registered, [row.seq for row in heard.renewed], heard.lost) == (True, [lease.seq], [])
    assert await store.query("select heartbeat_at, active from holdfast.worker") == [(store.clock.us, 1)]


async def test_a_worker_given_up_for_lost_is_told_but_keeps_the_leases_it_still_has(store: Store) -> None:
    worker = await store.worker()
    lease = await store.claimed(worker)
    await store.do(lose_workers, gone=[worker], reason="presence is gone")
    heard = await store.do(beat, worker, 1, [lease.held], ttl_us=TTL_US, ceiling_us=HOUR_US)
    assert not heard.registered
    assert [row.seq for row in heard.renewed] == [lease.seq]


async def test_a_lease_that_is_held_says_whether_a_cancel_was_requested(store: Store) -> None:
    lease = await store.claimed()
    assert await store.do(hold, lease) == (lease.seq, None, store.clock.us)
    await store.do(cancel, lease.id, reason="no longer wanted")
    assert (await store.do(hold, lease)).cancel_requested_at == store.clock.us


async def test_a_lease_that_was_given_up_cannot_be_held(store: Store) -> None:
    lease = await store.claimed()
    await store.end(lease, Done())
    with pytest.raises(LeaseLost):
        await store.do(hold, lease)
    assert await store.do(try_hold, lease) is None


async def test_a_token_of_a_claim_before_holds_nothing(store: Store) -> None:
    lease = await store.claimed()
    await store.advance("61s")
    await store.expire()
    (now,) = await store.claim(await store.worker())
    with pytest.raises(LeaseLost):
        await store.do(hold, lease)
    assert (await store.do(hold, now)).seq == lease.seq


async def test_a_heartbeat_says_how_many_leases_the_store_has(store: Store) -> None:
    worker, other = await store.worker(), await store.worker("other")
    leases = [await store.claimed(worker) for _ in range(2)]
    await store.claimed(other)
    assert (await store.do(show_life, worker, 2)).leases == 2
    heard = await store.do(beat, worker, 2, [leases[0].held], ttl_us=TTL_US, ceiling_us=HOUR_US)
    assert (heard.leases, len(heard.renewed)) == (2, 1)
    await store.end(leases[0], Done())
    assert (await store.do(show_life, worker, 1)).leases == 1


async def test_what_a_worker_does_not_name_is_handed_back_uncounted(store: Store) -> None:
    incarnation = new_id(store.ports)
    worker = await store.worker(incarnation=incarnation)
    others = await store.claimed(await store.worker("other"))
    named, first, second = [await store.claimed(worker) for _ in range(3)]
    assert await store.do(return_unnamed, worker, incarnation, [named.held], limit=1) == 1
    assert await store.do(return_unnamed, worker, incarnation, [named.held], limit=9) == 1
    assert await store.do(return_unnamed, worker, incarnation, [named.held], limit=9) == 0
    for lease in (first, second):
        job = await store.find(lease.id)
        assert (job.state, job.attempts, job.rescues) == ("pending", 0, 0)
        assert [attempt.outcome for attempt in await store.attempts(lease)] == ["released"]
    assert [await store.state(lease.id) for lease in (named, others)] == ["running", "running"]


async def test_an_old_name_of_a_job_is_not_the_name_of_its_lease(store: Store) -> None:
    """The worker knows the attempt that it lost, and not that it was given the job again."""
    incarnation = new_id(store.ports)
    worker = await store.worker(incarnation=incarnation)
    before = await store.claimed(worker)
    await store.advance("61s")
    await store.expire()
    await store.claim(worker)
    assert await store.do(return_unnamed, worker, incarnation, [before.held], limit=9) == 1


async def test_a_number_that_is_another_workers_hands_nothing_back(store: Store) -> None:
    worker = await store.worker()
    lease = await store.claimed(worker)
    assert await store.do(return_unnamed, worker, new_id(store.ports), [], limit=9) == 0
    assert await store.state(lease.id) == "running"


async def test_a_job_that_was_cancelled_meanwhile_is_cancelled_when_it_is_handed_back(store: Store) -> None:
    incarnation = new_id(store.ports)
    worker = await store.worker(incarnation=incarnation)
    parent = await store.claimed()
    (child,) = await store.launch(parent)
    (lease,) = await store.claim(worker, kind="child")
    await store.do(cancel, child, reason="not needed")
    assert await store.do(return_unnamed, worker, incarnation, [], limit=9) == 1
    assert await store.state(lease.id) == "cancelled"
