"""Look: the one cheap question of every poll, and when each of its answers changes."""

from __future__ import annotations

from holdfast.kernel.cancel import cancel, cancel_family
from holdfast.kernel.leases import FOREVER, lapsed, take_expiry_turn
from holdfast.kernel.routes import route_for
from holdfast.kernel.rows import Observation
from holdfast.kernel.waiting import park
from holdfast.kernel.workers import list_duties, look, lose_workers
from holdfast.outcomes import Done
from tests.support.stores import Store

WORK, OTHER = route_for("default", "work").id, route_for("default", "other").id


async def sight(store: Store, worker: int, *routes: int) -> Observation:
    return await store.do(look, worker, list(routes or (WORK,)))


async def test_an_empty_store_shows_nothing(store: Store) -> None:
    assert await sight(store, await store.worker()) == Observation(
        now=store.clock.us,
        next_due=None,
        next_deadline=None,
        cancellations=False,
        silent=False,
        alive=1,
        routes_changed=None,
        next_opening=None,
        next_tick=None,
        pending=False,
        leased_elsewhere=False,
        leased=False,
        next_turn=None,
        duties_held=0,
    )


async def test_pending_is_about_the_routes_asked_for(store: Store) -> None:
    worker = await store.worker()
    await store.enqueue("other")
    await store.enqueue("work", delay_us=5)
    assert not (await sight(store, worker, WORK)).pending
    assert (await sight(store, worker, WORK, OTHER)).pending
    assert not (await store.do(look, worker, [])).pending


async def test_a_look_shows_whether_anything_runs_and_not_until_when(store: Store) -> None:
    worker = await store.worker()
    assert not (await sight(store, worker)).leased
    lease = await store.claimed(worker)
    assert (await sight(store, worker)).leased
    await store.end(lease, Done())
    assert not (await sight(store, worker)).leased


async def test_who_asks_sees_that_a_lease_ran_out(store: Store) -> None:
    worker = await store.worker()
    assert not await store.do(lapsed, until=FOREVER)
    lease = await store.claimed(worker)
    first_ends_at = lease.lease_until
    await store.advance("59s")
    assert not await store.do(lapsed, until=store.clock.us)
    await store.claimed(worker)
    await store.advance("1s")
    assert await store.do(lapsed, until=store.clock.us)
    assert not await store.do(lapsed, until=first_ends_at - 1)
    await store.end(lease, Done())
    assert not await store.do(lapsed, until=store.clock.us)


async def test_one_of_many_takes_the_turn_to_ask(store: Store) -> None:
    worker = await store.worker()
    assert await store.do(take_expiry_turn, pause_us=500_000)
    assert (await sight(store, worker)).next_turn == store.clock.us + 500_000
    assert not await store.do(take_expiry_turn, pause_us=500_000)
    await store.advance("499ms")
    assert not await store.do(take_expiry_turn, pause_us=500_000)
    await store.advance("1ms")
    assert await store.do(take_expiry_turn, pause_us=500_000)
    await store.set_back("1h")
    assert await store.do(take_expiry_turn, pause_us=500_000), "it waits no longer than the pause"
    assert await store.do(list_duties) == []


async def test_the_next_due_time_is_the_earliest_of_scheduled_and_waiting(store: Store) -> None:
    worker = await store.worker()
    lease = await store.claimed(worker)
    await store.enqueue(delay_us=3_000)
    assert (await sight(store, worker)).next_due == store.clock.us + 3_000
    await store.do(park, lease, channel="door", timeout_us=1_000)
    assert (await sight(store, worker)).next_due == store.clock.us + 1_000


async def test_the_next_deadline_is_that_of_jobs_nobody_runs(store: Store) -> None:
    worker = await store.worker()
    await store.claimed(worker, deadline_us=10)
    assert (await sight(store, worker)).next_deadline is None
    await store.enqueue(deadline_us=2_000)
    await store.enqueue(deadline_us=1_000, delay_us=5)
    assert (await sight(store, worker)).next_deadline == store.clock.us + 1_000


async def test_families_being_cancelled_are_seen_until_they_are_done(store: Store) -> None:
    worker = await store.worker()
    parent = await store.claimed(worker)
    await store.launch(parent)
    await store.do(cancel, parent.id, reason="stop")
    assert (await sight(store, worker)).cancellations
    while await store.do(cancel_family, limit=10):
        pass
    assert not (await sight(store, worker)).cancellations


async def test_a_silent_worker_is_seen_until_it_is_given_up(store: Store) -> None:
    worker = await store.worker()
    await store.advance("59s")
    assert not (await sight(store, worker)).silent
    await store.advance("1s")
    assert (await sight(store, worker)).silent
    await store.do(lose_workers, gone=[], reason="silent")
    assert not (await sight(store, worker)).silent


async def test_new_routes_are_seen_by_their_time(store: Store) -> None:
    worker = await store.worker()
    await store.enqueue()
    first = (await sight(store, worker)).routes_changed
    await store.advance("5s")
    await store.enqueue("other")
    assert (first, (await sight(store, worker)).routes_changed) == (store.clock.us - 5_000_000, store.clock.us)


async def test_leases_of_others_are_told_from_ones_own(store: Store) -> None:
    one, two, three = [await store.worker() for _ in range(3)]
    lease = await store.claimed(two)
    assert [(await sight(store, worker)).leased_elsewhere for worker in (one, two, three)] == [True, False, True]
    await store.claimed(one)
    assert [(await sight(store, worker)).leased_elsewhere for worker in (one, two, three)] == [True, True, True]
    await store.end(lease, Done())
    assert [(await sight(store, worker)).leased_elsewhere for worker in (one, two, three)] == [False, True, True]
