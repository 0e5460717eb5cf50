"""Every write by a worker names its job, token and incarnation; any other combination is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import psycopg
import pytest

from holdfast.errors import LeaseLost
from holdfast.kernel.complete import release
from holdfast.kernel.ids import new_id
from holdfast.kernel.leases import renew
from holdfast.kernel.rows import Lease
from holdfast.kernel.states import State
from holdfast.kernel.waiting import list_children, list_steps, park, report_progress, signal, store_step, take_signal
from holdfast.outcomes import Cancel, Discard, Done, Fail, Snooze, TryAgain
from tests.support.locks import blocked_by
from tests.support.stores import TTL_US, Ends, Store

Write = Callable[[Store, Lease], Awaitable[bool]]  # True: the store let it pass


def ending_with(outcome: Ends) -> Write:
    async def write(store: Store, lease: Lease) -> bool:
        return bool(await store.end(lease, outcome))

    return write


async def hand_back(store: Store, lease: Lease) -> bool:
    return bool(await store.complete(lease, release(lease)))


async def extend(store: Store, lease: Lease) -> bool:
    renewed, _ = await store.do(renew, [lease.held], ttl_us=2 * TTL_US, ceiling_us=10 * TTL_US)
    return bool(renewed)


def refused_by_error(call: Callable[[Store, Lease], Awaitable[object]]) -> Write:
    async def write(store: Store, lease: Lease) -> bool:
        try:
            await call(store, lease)
        except LeaseLost:
            return False
        return True

    return write


WRITES: dict[str, Write] = {
    "done": ending_with(Done(1)),
    "retry": ending_with(TryAgain()),
    "fail": ending_with(Fail()),
    "discard": ending_with(Discard()),
    "cancel": ending_with(Cancel()),
    "snooze": ending_with(Snooze("1m")),
    "release": hand_back,
    "renew": extend,
    "park": refused_by_error(lambda s, lease: s.do(park, lease, channel="c", timeout_us=None)),
    "step": refused_by_error(lambda s, lease: s.do(store_step, lease, "step", "1")),
    "progress": refused_by_error(lambda s, lease: s.do(report_progress, lease, "1")),
    "take_signal": refused_by_error(lambda s, lease: s.do(take_signal, lease, "open", "taken")),
    "children": refused_by_error(lambda s, lease: s.launch(lease, 2)),
}

FORGERIES: dict[str, Callable[[Lease], Lease]] = {
    "older token": lambda lease: lease._replace(token=lease.token - 1),
    "newer token": lambda lease: lease._replace(token=lease.token + 1),
    "other epoch": lambda lease: lease._replace(epoch=lease.epoch + 1),
    "other worker": lambda lease: lease._replace(worker=lease.worker + 1),
    "other job": lambda lease: lease._replace(seq=lease.seq + 1),
}


async def reclaimed(store: Store) -> Lease:
    """A job in the hands of its second worker, after the first one lost its lease; a signal is waiting for it."""
    await store.claimed()
    await store.advance("61s")
    await store.expire()
    (lease,) = await store.claim(await store.worker())
    await store.do(signal, new_id(store.ports), "open", '"payload"')
    return lease


async def everything(store: Store, lease: Lease) -> tuple[object, ...]:
    return (
        await store.find(lease.id),
        await store.attempts(lease),
        await store.do(list_steps, lease.seq),
        await store.do(list_children, lease.seq),
        await store.query("select count(*) from holdfast.job"),
        await store.query("select count(*) from holdfast.signal"),
    )


@pytest.mark.parametrize("write", WRITES)
async def test_the_holder_of_the_lease_may_write(store: Store, write: str) -> None:
    lease = await reclaimed(store)
    before = await everything(store, lease)
    assert await WRITES[write](store, lease)
    assert await everything(store, lease) != before


@pytest.mark.parametrize("write", WRITES)
async def test_whoever_else_writes_is_refused_and_changes_nothing(store: Store, write: str) -> None:
    lease = await reclaimed(store)
    before = await everything(store, lease)
    for name, forged in FORGERIES.items():
        assert not await WRITES[write](store, forged(lease)), name
        assert await everything(store, lease) == before, name


async def test_the_refusal_names_the_job_and_the_token(store: Store) -> None:
    lease = await reclaimed(store)
    with pytest.raises(LeaseLost, match=rf"job {lease.id} is no longer leased under token 1\.1"):
        await store.do(report_progress, lease._replace(token=1), "1")


async def test_a_worker_that_was_frozen_cannot_overwrite_its_successor(store: Store) -> None:
    frozen = await store.claimed()
    await store.advance("61s")
    await store.expire()
    (successor,) = await store.claim(await store.worker())

    assert await store.end(frozen, Done("stale")) == []
    assert await store.end(successor, Done("right"))
    assert await store.end(frozen, Done("stale")) == []

    row = await store.find(frozen.id)
    assert (row.state, row.result) == (State.SUCCEEDED, '"right"')
    assert [attempt.outcome for attempt in await store.attempts(frozen)] == ["lost", "succeeded"]


async def test_a_lease_that_ran_out_still_counts_until_someone_rescues_it(store: Store) -> None:
    lease = await store.claimed()
    await store.advance("10m")
    assert await store.end(lease, Done())
    assert await store.expire() == []


async def test_progress_that_waits_for_its_row_keeps_its_lease_until_it_is_written(store: Store) -> None:
    """Nobody can take the lease away while the report waits; after that it would be another's row."""
    worker, other = await store.worker("a"), await store.worker("b")
    lease = await store.claimed(worker)
    await store.do(report_progress, lease, '"half"')
    if store.database.dialect == "sqlite":  # nothing happens in between
        await store.expire(gone=[worker])
    else:
        async with await psycopg.AsyncConnection.connect(store.url) as holder:
            await holder.execute("select job from holdfast.progress for update")
            reporting = asyncio.create_task(store.do(report_progress, lease, '"more"'))
            await blocked_by(store.url, holder)
            await store.expire(gone=[worker])
            assert await store.claim(other) == [], "its lease is locked, so the sweep leaves it alone"
        await reporting
        await store.expire(gone=[worker])
    (next_lease,) = await store.claim(other)
    with pytest.raises(LeaseLost):
        await store.do(report_progress, lease, '"zombie"')
    assert next_lease.token > lease.token
