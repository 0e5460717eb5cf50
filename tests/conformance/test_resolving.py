"""Jobs that wait are settled without a worker: suspended before anybody claims them, resolved one way or another."""

from __future__ import annotations

from holdfast.kernel.cancel import cancel
from holdfast.kernel.enqueue import enqueue
from holdfast.kernel.ids import JobId
from holdfast.kernel.lanes import claim_in_lanes
from holdfast.kernel.routes import route_for
from holdfast.kernel.rows import Lease, Resolution, Suspension
from holdfast.kernel.states import State
from holdfast.kernel.waiting import overdue, park, resolve, signal, suspend, wake
from holdfast.outcomes import TryAgain
from tests.support.stores import TTL_US, Store

PLACES = """
select j.seq, (select count(*) from holdfast.ready r where r.seq = j.seq)
    + (select count(*) from holdfast.later t where t.seq = j.seq)
    + (select count(*) from holdfast.lease l where l.seq = j.seq)
    + (select count(*) from holdfast.ended e where e.seq = j.seq)
from holdfast.job j order by j.seq
"""


async def parked(store: Store, channel: str | None = "door", *, timeout_us: int | None = None) -> Lease:
    lease = await store.claimed()
    assert await store.do(park, lease, channel=channel, timeout_us=timeout_us) == State.WAITING
    return lease


async def settled(store: Store, *resolutions: Resolution) -> dict[int, str]:
    """What the call says of each, and each stands in one place, whatever was done to it."""
    moved = await store.do(resolve, list(resolutions))
    for job in moved:
        row = await store.find(job.id)
        assert (row.seq, row.state, row.kind, row.parent) == (job.seq, job.state, job.kind, job.parent)
    assert all(places == 1 for _, places in await store.query(PLACES))
    return {job.seq: job.state for job in moved}


async def test_many_are_resolved_each_in_its_own_way(store: Store) -> None:
    done, failed, onward, elsewhere, mistaken = [await parked(store) for _ in range(5)]
    answer = await settled(
        store,
        Resolution(elsewhere.seq, "door", State.WAITING, onto="window"),
        Resolution(done.seq, "door", State.SUCCEEDED, result='"in"'),
        Resolution(mistaken.seq, "window", State.SUCCEEDED, result='"in"'),
        Resolution(failed.seq, "door", State.FAILED, error='{"type":"shut"}'),
        Resolution(onward.seq, "door", State.PENDING, payload='{"edited":true}'),
        Resolution(9_999, "door", State.PENDING),
    )
    assert answer == {
        done.seq: State.SUCCEEDED,
        failed.seq: State.FAILED,
        onward.seq: State.PENDING,
        elsewhere.seq: State.WAITING,
    }
    ended = await store.find(done.id)
    assert (ended.result, ended.token, ended.finished_at) == ('"in"', done.token + 1, store.clock.us)
    assert (await store.find(failed.id)).error == '{"type":"shut"}'
    assert (await store.find(onward.id)).payload == '{"edited":true}'
    assert (await store.find(elsewhere.id)).channel == "window"
    assert (await store.find(mistaken.id)).channel == "door"
    assert (await store.find(mistaken.id)).state == State.WAITING


async def test_a_second_resolution_finds_nothing_to_resolve(store: Store) -> None:
    lease = await parked(store)
    done = Resolution(lease.seq, "door", State.SUCCEEDED, result="1")
    assert await settled(store, done) == {lease.seq: State.SUCCEEDED}
    assert await settled(store, done._replace(result="2")) == {}
    assert (await store.find(lease.id)).result == "1"


async def test_one_that_waits_elsewhere_is_woken_from_there_and_its_old_time_is_forgotten(store: Store) -> None:
    lease = await parked(store, timeout_us=1_000_000)
    await settled(store, Resolution(lease.seq, "door", State.WAITING, onto="window"))
    await store.advance("2s")
    assert await store.do(wake, limit=10) == 0
    assert await store.do(signal, store.job().id, "door", "1") == []
    assert [job.seq for job in await store.do(signal, store.job().id, "window", "1")] == [lease.seq]
    assert await store.state(lease.id) == State.PENDING


async def test_one_that_is_to_wait_for_children_waits_while_any_is_open(store: Store) -> None:
    lease = await parked(store)
    waits = Resolution(lease.seq, "door", State.WAITING, children=2)
    assert await settled(store, waits) == {lease.seq: State.WAITING}
    row = await store.find(lease.id)
    assert (row.channel, row.open_children) == (None, 2)


async def test_one_that_is_to_wait_for_no_children_is_pending_at_once(store: Store) -> None:
    lease = await parked(store)
    assert await settled(store, Resolution(lease.seq, "door", State.WAITING)) == {lease.seq: State.PENDING}


async def test_what_is_resolved_without_an_error_keeps_the_last_one_it_had(store: Store) -> None:
    lease = await store.claimed()
    await store.end(lease, TryAgain("0s", error="at first"))
    (again,) = await store.claim(lease.worker)
    await store.do(park, again, channel="door", timeout_us=None)
    await settled(store, Resolution(lease.seq, "door", State.FAILED))
    assert "at first" in str((await store.find(lease.id)).error)


async def test_no_attempt_ends_where_no_worker_was(store: Store) -> None:
    lease = await parked(store)
    await settled(store, Resolution(lease.seq, "door", State.SUCCEEDED, result="1"))
    assert [attempt.outcome for attempt in await store.attempts(lease)] == ["parked"]


async def suspended(store: Store, *ids: JobId) -> list[int]:
    answer = await store.do(suspend, [Suspension(id, "review") for id in ids])
    assert all(places == 1 for _, places in await store.query(PLACES))
    return sorted(answer)


async def test_what_nobody_has_claimed_is_suspended_and_nothing_else(store: Store) -> None:
    running = await store.claimed()
    waiting = await parked(store)
    pending = await store.enqueue()
    scheduled = await store.enqueue(delay_us=1_000_000)
    rows = [await store.find(id) for id in (pending, scheduled)]
    assert await suspended(store, running.id, waiting.id, pending, scheduled) == [row.seq for row in rows]
    for before in rows:
        row = await store.find(before.id)
        assert (row.state, row.channel, row.due_at) == (State.WAITING, "review", None)
    assert (await store.find(waiting.id)).channel == "door"
    assert await suspended(store, pending, scheduled) == []


async def test_one_that_its_lane_holds_back_is_suspended_too(store: Store) -> None:
    route = route_for("default", "work", laned=True)
    first, second = [store.job(lane="one", concurrency=1)._replace(route=route.id) for _ in range(2)]
    await store.do(enqueue, [first, second], [route])
    (lease,) = await store.do(claim_in_lanes, await store.worker(), [route.id], 2, TTL_US)
    assert (lease.id, (await store.find(second.id)).gate) == (first.id, "one")
    assert await suspended(store, second.id) == [(await store.find(second.id)).seq]
    row = await store.find(second.id)
    assert (row.state, row.gate, row.channel) == (State.WAITING, None, "review")


async def test_deadline_and_cancel_end_what_is_ready_and_what_waits_in_one_call(store: Store) -> None:
    ready = await store.enqueue(deadline_us=1_000_000)
    later = await store.enqueue(deadline_us=1_000_000, delay_us=5_000_000)
    spared = await store.enqueue(deadline_us=9_000_000)
    await store.advance("2s")
    moved = await store.do(overdue, limit=10)
    assert {(job.id, job.state) for job in moved} == {(ready, State.FAILED), (later, State.FAILED)}
    assert await store.do(cancel, spared, reason="enough") == State.CANCELLED
    for id in (ready, later, spared):
        row = await store.find(id)
        assert (row.token, row.epoch, row.worker, row.finished_at) == (1, 0, None, store.clock.us)
    assert all(places == 1 for _, places in await store.query(PLACES))
