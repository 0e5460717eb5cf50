"""Holders that are no workers of their own process: owners, which are names, and brokers, which live with a hub."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import DuplicateWorker
from holdfast.kernel.broker_rows import OwnerBeat
from holdfast.kernel.brokers import take, transfer_leases
from holdfast.kernel.database import Transaction
from holdfast.kernel.ids import new_id
from holdfast.kernel.leases import beat_many, show_life
from holdfast.kernel.owners import register_owner
from holdfast.kernel.statements import PoolsSql
from holdfast.kernel.workers import (
    Registration,
    advertise_presence,
    drain,
    list_workers,
    live_namesake,
    look,
    lose,
    lose_workers,
    pool_workers,
    register,
)
from holdfast.kernel.workers import stale_workers as stale
from holdfast.outcomes import Done
from tests.support.stores import TTL_US, Store

SECOND_US = 1_000_000


def owner(store: Store, id: str = "owner", **changes: Any) -> Registration:
    who = Registration(new_id(store.ports), id, id, "elsewhere", 0, "0", (), None, 1)
    return who._replace(**changes)


async def test_an_owner_is_one_row_in_whatever_process_it_shows_itself(store: Store) -> None:
    first = await store.do(register_owner, owner(store), ttl_us=TTL_US)
    again = await store.do(register_owner, owner(store), ttl_us=2 * TTL_US)
    assert (first.seq, None) == again
    (row,) = await store.do(list_workers, all=True, limit=10)
    assert (row.host, row.presence, row.ttl_us) == (0, 0, 2 * TTL_US)


async def test_a_name_belongs_to_its_principal(store: Store) -> None:
    await store.do(register_owner, owner(store, principal="ann"), ttl_us=TTL_US)
    with pytest.raises(DuplicateWorker):
        await store.do(register_owner, owner(store, principal="bob"), ttl_us=TTL_US)
    worker = owner(store, "worker")
    await store.do(register, worker, [], ttl_us=TTL_US, gone=[])
    with pytest.raises(DuplicateWorker):
        await store.do(register_owner, owner(store, "worker"), ttl_us=TTL_US)


async def test_an_owner_that_begins_again_is_fenced_from_its_life_before(store: Store) -> None:
    first = await store.do(register_owner, owner(store), ttl_us=TTL_US)
    lease = await store.claimed(first.seq)
    second = await store.do(register_owner, owner(store), ttl_us=TTL_US, replace=True)
    assert (second.before, second.seq > first.seq) == (first.seq, True)
    await store.do(transfer_leases, first.seq, second.seq)
    assert await store.do(beat_many, [OwnerBeat(first.seq, 1)]) == []
    assert await store.end(lease, Done("old")) == []
    assert await store.end(lease._replace(worker=second.seq), Done("new")) != []


async def test_an_owner_is_not_given_up_while_it_has_a_lease(store: Store) -> None:
    mine = await store.do(register_owner, owner(store), ttl_us=SECOND_US)
    await store.claimed(mine.seq)
    await store.advance("59s")
    assert not (await store.do(look, 0, [])).silent
    assert await store.do(lose_workers, gone=(), reason="silent") == 0
    await store.advance("1s")
    await store.expire()
    assert (await store.do(look, 0, [])).silent
    assert await store.do(lose_workers, gone=(), reason="silent") == 1


async def test_owners_and_brokers_do_not_count_as_workers_that_look(store: Store) -> None:
    host = await store.worker()
    await store.worker("broker", host=host)
    await store.do(register_owner, owner(store), ttl_us=TTL_US)
    assert (await store.do(look, host, [])).alive == 1


async def test_many_beat_in_one_statement_and_those_given_up_do_not_answer(store: Store) -> None:
    host = await store.worker()
    one, two, lost = [await store.worker() for _ in range(3)]
    await store.do(drain, two)
    await store.do(lose, lost, reason="gone")
    await store.advance("20s")
    beats = [OwnerBeat(two, 3), OwnerBeat(one, 0, 5 * SECOND_US, '{"load":1}'), OwnerBeat(lost, 0)]
    answers = await store.do(beat_many, beats, host=host)
    assert sorted(answers) == [(one, "active", store.clock.us), (two, "draining", store.clock.us)]
    rows = {row.seq: row for row in await store.do(list_workers, all=True, limit=10)}
    shown = [(rows[seq].active, rows[seq].idle_since, rows[seq].host) for seq in (one, two, lost)]
    assert shown == [(0, store.clock.us - 5 * SECOND_US, host), (3, None, host), (0, None, None)]
    assert (rows[one].metadata or "").replace(" ", "") == '{"load":1}'


async def test_brokers_go_with_the_process_in_which_they_live(store: Store) -> None:
    host = await store.worker()
    broker = await store.worker("broker", host=host)
    lease = await store.claimed(broker)
    seen = store.clock.us
    await store.advance("1ms")  # a hub beats for itself, and a moment later for its brokers
    await store.do(beat_many, [OwnerBeat(broker, 1)], host=host)
    stranger = await store.worker("stranger", host=await store.worker())
    assert await store.do(lose_workers, gone=[host], reason="gone", last_beats=[seen]) == 2
    statuses = {row.seq: row.status for row in await store.do(list_workers, all=True, limit=10)}
    assert (statuses[host], statuses[broker], statuses[stranger]) == ("lost", "lost", "active")
    (rescued,) = await store.expire(gone=[host])
    assert (rescued.id, rescued.state) == (lease.id, "pending")


async def test_brokers_stay_while_their_process_shows_itself(store: Store) -> None:
    host = await store.worker()
    broker = await store.worker("broker", host=host)
    seen = store.clock.us
    await store.advance("1s")
    await store.do(show_life, host, 0)
    assert await store.do(lose_workers, gone=[host], reason="gone", last_beats=[seen]) == 0
    assert (await live(store, broker)).status == "active"


async def test_the_id_of_a_broker_is_free_when_its_process_is_gone(store: Store) -> None:
    host = await store.worker()
    await store.do(advertise_presence, host, presence=True)
    await store.worker("broker", id="one", host=host)
    new = owner(store, "one")
    assert await store.do(live_namesake, "one", new.incarnation) == host
    with pytest.raises(DuplicateWorker):
        await store.do(register, new, [], ttl_us=TTL_US, gone=[])
    assert await store.do(register, new, [], ttl_us=TTL_US, gone=[host])


async def test_silent_workers_of_a_pool_are_listed_and_given_up_by_hand(store: Store) -> None:
    silent = await store.worker("a", pool="p")
    await store.worker("b", pool="other")
    await store.advance("30s")
    fresh = await store.worker("c", pool="p")
    rows = await store.do(stale, threshold_us=30 * SECOND_US, pool="p")
    assert [row.seq for row in rows] == [silent]
    assert await store.do(lose, silent, reason="reaped")
    assert not await store.do(lose, silent, reason="reaped")
    assert [row.seq for row in await store.do(stale, threshold_us=0, pool="p")] == [fresh]


async def live(store: Store, seq: int) -> Any:
    return next(row for row in await store.do(list_workers, all=True, limit=20) if row.seq == seq)


async def opened(store: Store) -> int:
    """The number of a place in a pool, whose process has ten seconds to come up."""

    async def open_place(tx: Transaction) -> int:
        place = {"places": ["next"], "pool": "p", "slots": 1, "boot_us": 10 * SECOND_US}
        (row,) = await tx.many(PoolsSql.open_places, **place)
        return row.seq

    return await store.do(open_place)


async def test_a_worker_that_is_starting_counts_in_its_pool_and_nowhere_else(store: Store) -> None:
    seq = await opened(store)
    id = await store.enqueue()
    assert (await store.do(look, 0, [])).alive == 0
    assert await store.do(list_workers, all=False, limit=10) == []
    assert [(row.seq, row.status) for row in await store.do(pool_workers, "p")] == [(seq, "starting")]
    assert await store.do(take, seq, id, TTL_US) is None
    assert await store.do(beat_many, [OwnerBeat(seq, 0)]) == []


async def test_a_worker_that_does_not_come_up_in_time_is_lost(store: Store) -> None:
    await opened(store)
    await store.advance("10s")
    assert (await store.do(look, 0, [])).silent
    assert await store.do(lose_workers, gone=(), reason="silent") == 1
    (row,) = await store.do(list_workers, all=True, limit=10)
    assert (row.status, row.reason) == ("lost", "it did not start in time")
