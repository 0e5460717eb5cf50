"""Waiting without a worker: parking, signals, steps, progress, and what wakes a job."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.errors import LeaseLost
from holdfast.kernel.cancel import cancel
from holdfast.kernel.ids import new_id
from holdfast.kernel.rows import Lease
from holdfast.kernel.states import State
from holdfast.kernel.waiting import (
    list_steps,
    overdue,
    park,
    raise_count,
    report_progress,
    signal,
    store_step,
    take_signal,
    wake,
)
from holdfast.outcomes import Done
from tests.support.stores import Store

MINUTE_US = 60_000_000


async def park_on(store: Store, lease: Lease, channel: str | None = "door", timeout_us: int | None = None) -> str:
    return await store.do(park, lease, channel=channel, timeout_us=timeout_us)


async def send(store: Store, payload: str = '"open"', channel: str = "door") -> list[int]:
    return [job.seq for job in await store.do(signal, new_id(store.ports), channel, payload)]


async def take(store: Store, lease: Lease, step: str = "first", channel: str = "door") -> str | None:
    return (await store.do(take_signal, lease, channel, step)).payload


async def again(store: Store, lease: Lease) -> Lease:
    (claimed,) = await store.claim(lease.worker)
    assert claimed.id == lease.id
    return claimed


async def test_a_parked_job_holds_no_lease_and_no_worker(store: Store) -> None:
    lease = await store.claimed()
    assert await park_on(store, lease) == State.WAITING
    row = await store.find(lease.id)
    assert (row.state, row.channel, row.due_at) == (State.WAITING, "door", None)
    assert (row.worker, row.lease_until, row.attempts, row.rescues) == (None, None, 0, 0)


async def test_parking_is_recorded_as_an_attempt_that_cost_nothing(store: Store) -> None:
    lease = await store.claimed()
    await store.advance("3s")
    await park_on(store, lease)
    (attempt,) = await store.attempts(lease)
    assert (attempt.outcome, attempt.worker, attempt.token) == ("parked", lease.worker, lease.token)
    assert (attempt.started_at, attempt.ended_at) == (lease.claimed_at, store.clock.us)
    assert (await store.find(lease.id)).attempts == 0


async def test_a_signal_wakes_who_is_parked_on_its_channel(store: Store) -> None:
    lease = await store.claimed()
    await park_on(store, lease, timeout_us=MINUTE_US)
    assert await send(store, channel="window") == []
    assert await send(store) == [lease.seq]
    row = await store.find(lease.id)
    assert (row.state, row.channel, row.due_at) == (State.PENDING, None, None)
    assert await take(store, await again(store, lease)) == '"open"'


async def test_a_signal_that_came_first_is_not_missed(store: Store) -> None:
    lease = await store.claimed()
    assert await send(store) == []
    assert await park_on(store, lease, timeout_us=MINUTE_US) == State.PENDING
    row = await store.find(lease.id)
    assert (row.state, row.channel, row.due_at) == (State.PENDING, None, None)
    assert await take(store, await again(store, lease)) == '"open"'


async def test_parking_and_signalling_at_the_same_time_do_not_miss_each_other(store: Store) -> None:
    worker = await store.worker()
    leases = [await store.claimed(worker) for _ in range(10)]
    await asyncio.gather(
        *(
            call
            for lease in leases
            for call in (park_on(store, lease, f"door {lease.seq}"), send(store, channel=f"door {lease.seq}"))
        )
    )
    assert {await store.state(lease.id) for lease in leases} == {State.PENDING}


async def test_a_signal_stays_until_someone_takes_it(store: Store) -> None:
    await send(store)
    await store.advance("30d")
    assert await take(store, await store.claimed()) == '"open"'


async def test_signals_are_taken_in_order_each_once(store: Store) -> None:
    lease = await store.claimed()
    for n in range(3):
        await send(store, payload=str(n))
    assert [await take(store, lease, step=f"s{n}") for n in range(4)] == ["0", "1", "2", None]


async def test_a_taken_signal_is_a_step(store: Store) -> None:
    worker = await store.worker()
    lease = await store.claimed(worker)
    await send(store, payload='{"a":1}')
    await send(store, payload='"second"')
    assert await take(store, lease) == '{"a":1}'
    assert await take(store, lease) == '{"a":1}'
    assert await store.do(list_steps, lease.seq) == [("first", '{"a":1}')]
    await store.expire(gone=[worker])
    assert await take(store, await again(store, lease)) == '{"a":1}'
    assert await store.query("select count(*) from holdfast.signal") == [(1,)]


async def test_taking_from_an_empty_channel_says_when(store: Store) -> None:
    lease = await store.claimed()
    assert await store.do(take_signal, lease, "door", "first") == (None, store.clock.us)
    assert await store.do(list_steps, lease.seq) == []


async def test_a_signal_repeated_after_a_lost_answer_is_one_signal(store: Store) -> None:
    id = new_id(store.ports)
    for _ in range(2):
        await store.do(signal, id, "door", "1")
    assert await store.query("select count(*) from holdfast.signal") == [(1,)]


async def test_of_two_waiters_one_takes_the_signal_and_the_other_parks_again(store: Store) -> None:
    worker = await store.worker()
    first, second = await store.claimed(worker), await store.claimed(worker)
    for lease in (first, second):
        await park_on(store, lease)
    assert sorted(await send(store)) == [first.seq, second.seq]
    leases = await store.claim(worker, 2)
    assert [await take(store, lease) for lease in leases] == ['"open"', None]
    assert await park_on(store, leases[1]) == State.WAITING
    assert await send(store) == [leases[1].seq]


async def test_a_wait_may_time_out(store: Store) -> None:
    lease = await store.claimed()
    await park_on(store, lease, timeout_us=MINUTE_US)
    assert (await store.find(lease.id)).due_at == store.clock.us + MINUTE_US
    await store.advance("59s")
    assert await store.do(wake, limit=10) == 0
    await store.advance("1s")
    assert await store.do(wake, limit=10) == 1
    row = await store.find(lease.id)
    assert (row.state, row.channel, row.due_at) == (State.PENDING, None, None)
    assert await take(store, await again(store, lease)) is None


async def test_parking_with_nothing_to_wait_for_is_pending_at_once(store: Store) -> None:
    lease = await store.claimed()
    assert await park_on(store, lease, channel=None, timeout_us=MINUTE_US) == State.PENDING
    row = await store.find(lease.id)
    assert (row.state, row.due_at, row.worker) == (State.PENDING, None, None)


async def test_a_job_waits_for_its_children(store: Store) -> None:
    worker = await store.worker()
    parent = await store.claimed(worker)
    await store.launch(parent, 2)
    assert await park_on(store, parent, channel=None) == State.WAITING
    for child in await store.claim(worker, 2, kind="child"):
        assert await store.state(parent.id) is State.WAITING
        await store.end(child, Done())
    assert await store.state(parent.id) is State.PENDING


async def test_parking_is_refused_once_cancel_was_requested(store: Store) -> None:
    lease = await store.claimed()
    await store.do(cancel, lease.id, reason="stop")
    before = await store.find(lease.id)
    with pytest.raises(LeaseLost):
        await park_on(store, lease)
    assert await store.find(lease.id) == before
    assert await store.attempts(lease) == []


async def test_due_jobs_are_woken_in_order_and_bounded(store: Store) -> None:
    late = await store.enqueue(delay_us=3)
    early = await store.enqueue(delay_us=1)
    middle = await store.enqueue(delay_us=2)
    never = await store.enqueue(delay_us=MINUTE_US)
    await store.advance("10s")
    assert await store.do(wake, limit=2) == 2
    assert [await store.state(id) for id in (early, middle, late, never)] == ["pending"] * 2 + ["scheduled"] * 2
    assert await store.do(wake, limit=2) == 1
    assert (await store.find(late)).due_at is None


async def test_overdue_jobs_fail_bounded_and_under_a_new_token(store: Store) -> None:
    worker = await store.worker()
    parked = await store.claimed(worker, deadline_us=1)
    await park_on(store, parked)
    pending = await store.enqueue(deadline_us=1)
    scheduled = await store.enqueue(deadline_us=1, delay_us=MINUTE_US)
    in_time = await store.enqueue(deadline_us=MINUTE_US)
    await store.advance("1us")
    assert len(await store.do(overdue, limit=2)) == 2
    assert [job.state for job in await store.do(overdue, limit=2)] == [State.FAILED]
    for id in (parked.id, pending, scheduled):
        row = await store.find(id)
        assert (row.state, row.finished_at, row.due_at, row.channel) == (State.FAILED, store.clock.us, None, None)
        assert '"deadline_exceeded"' in (row.error or "")
    assert (await store.find(parked.id)).token == parked.token + 1
    assert await store.state(in_time) is State.PENDING


async def test_a_step_is_stored_once(store: Store) -> None:
    worker = await store.worker()
    lease = await store.claimed(worker)
    assert await store.do(store_step, lease, "fetch", "[1]") == "[1]"
    assert await store.do(store_step, lease, "fetch", "[2]") == "[1]"
    await store.advance("1s")
    assert await store.do(store_step, lease, "a later one", "null") == "null"
    assert await store.do(list_steps, lease.seq) == [("fetch", "[1]"), ("a later one", "null")]
    await store.expire(gone=[worker])
    assert await store.do(store_step, await again(store, lease), "fetch", "[3]") == "[1]"


async def test_a_zombie_may_not_even_read_back_its_step(store: Store) -> None:
    worker = await store.worker()
    zombie = await store.claimed(worker)
    await store.do(store_step, zombie, "fetch", "[1]")
    await store.expire(gone=[worker])
    await again(store, zombie)
    for name in ("fetch", "new"):
        with pytest.raises(LeaseLost):
            await store.do(store_step, zombie, name, "[2]")
    assert await store.do(list_steps, zombie.seq) == [("fetch", "[1]")]


async def test_a_number_is_raised_by_all_who_raise_it_and_goes_with_its_job(store: Store) -> None:
    lease = await store.claimed()
    raised = await asyncio.gather(*(store.do(raise_count, lease.id, "family", 2) for _ in range(5)))
    assert sorted(each or 0 for each in raised) == [2, 4, 6, 8, 10]
    assert await store.do(raise_count, lease.id, "another", 1) == 1
    assert await store.do(list_steps, lease.seq) == [("another", "1"), ("family", "10")]
    assert await store.do(raise_count, new_id(store.ports), "family", 1) is None, "there is no such job"


async def test_progress_is_the_last_that_was_reported(store: Store) -> None:
    lease = await store.claimed()
    for progress in ('{"done":1}', '{"done":2}'):
        await store.do(report_progress, lease, progress)
    assert (await store.find(lease.id)).progress == '{"done":2}'
    await store.end(lease, Done())
    with pytest.raises(LeaseLost):
        await store.do(report_progress, lease, '{"done":3}')
    assert (await store.find(lease.id)).progress == '{"done":2}'
