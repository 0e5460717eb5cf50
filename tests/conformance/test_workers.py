"""Workers as the store knows them: registered, alive, draining, stopped or given up for lost."""

from __future__ import annotations

import asyncio
import json

import pytest

from holdfast.errors import DuplicateWorker
from holdfast.kernel.broker_rows import WorkerRow
from holdfast.kernel.database import Transaction
from holdfast.kernel.ids import new_id
from holdfast.kernel.leases import OwnRow, beat
from holdfast.kernel.owners import register_owner
from holdfast.kernel.routes import route_for
from holdfast.kernel.statements import WorkersSql
from holdfast.kernel.workers import (
    Registration,
    advertise_presence,
    drain,
    list_routes,
    list_workers,
    live_namesake,
    lose_workers,
    present_workers,
    register,
    unregister,
)
from holdfast.outcomes import Done
from tests.support.stores import TTL_US, Store, owner_named


def someone(store: Store, id: str = "pod-1") -> Registration:
    return Registration(
        incarnation=new_id(store.ports),
        id=id,
        name="mailer",
        hostname="host-7",
        pid=4711,
        version="1.2.3",
        capabilities=("job:mail", "tag:gpu=no"),
        queues=("mail", "bulk"),
        slots=20,
    )


async def sign_on(store: Store, who: Registration, *, gone: tuple[int, ...] = ()) -> int:
    return await store.do(register, who, [], ttl_us=TTL_US, gone=gone)


async def everyone(store: Store) -> dict[int, WorkerRow]:
    return {row.seq: row for row in await store.do(list_workers, all=True, limit=100)}


async def heartbeat(store: Store, worker: int, active: int = 0) -> bool:
    heard = await store.do(beat, worker, active, [], ttl_us=TTL_US, ceiling_us=TTL_US)
    return heard.registered


async def test_a_worker_is_known_by_what_it_said(store: Store) -> None:
    who = someone(store)
    seq = await sign_on(store, who)
    row = (await everyone(store))[seq]
    assert (row.id, row.name, row.hostname, row.pid, row.version) == who[1:6]
    assert json.loads(row.capabilities) == ["job:mail", "tag:gpu=no"]
    assert json.loads(row.queues) == ["mail", "bulk"]
    assert (row.status, row.slots, row.active, row.presence, row.leases) == ("active", 20, 0, 0, 0)
    assert row.started_at == row.heartbeat_at == row.now == store.clock.us
    assert (row.ttl_us, row.stopped_at, row.reason) == (TTL_US, None, None)


async def test_a_worker_brings_the_routes_of_its_handlers(store: Store) -> None:
    routes = [route_for("mail", "send"), route_for("mail", "send", ["tag:gpu=yes"])]
    await store.do(register, someone(store), routes, ttl_us=TTL_US, gone=[])
    await store.do(register, someone(store, "pod-2"), routes, ttl_us=TTL_US, gone=[])
    assert await store.do(list_routes, since=0) == sorted(routes)
    assert await store.do(list_routes, since=store.clock.us + 1) == []


async def test_the_number_of_an_incarnation_is_never_used_again(store: Store) -> None:
    first = await sign_on(store, someone(store))
    await store.query(f"delete from holdfast.worker where seq = {first} returning seq")
    assert await sign_on(store, someone(store)) > first


async def test_registering_again_after_a_lost_answer_is_the_same_incarnation(store: Store) -> None:
    who = someone(store)
    assert await sign_on(store, who) == await sign_on(store, who)
    assert len(await everyone(store)) == 1


async def test_a_live_duplicate_is_refused(store: Store) -> None:
    await sign_on(store, someone(store))
    await store.advance("59s")
    with pytest.raises(DuplicateWorker, match=r"'pod-1' is already in use on host-7 \(pid 4711\)"):
        await sign_on(store, someone(store))
    assert len(await everyone(store)) == 1


async def test_of_two_that_register_at_once_one_is_refused(store: Store) -> None:
    answers = await asyncio.gather(*(sign_on(store, someone(store)) for _ in range(4)), return_exceptions=True)
    assert [type(answer) for answer in answers].count(int) == 1
    assert [type(answer) for answer in answers].count(DuplicateWorker) == 3


async def test_a_draining_namesake_is_still_alive(store: Store) -> None:
    await store.do(drain, await sign_on(store, someone(store)))
    with pytest.raises(DuplicateWorker):
        await sign_on(store, someone(store))


async def test_a_silent_namesake_is_replaced(store: Store) -> None:
    old = await sign_on(store, someone(store))
    await store.advance("60s")
    new = await sign_on(store, someone(store))
    rows = await everyone(store)
    assert (rows[old].status, rows[old].stopped_at) == ("lost", store.clock.us)
    assert "same id" in (rows[old].reason or "")
    assert (new > old, rows[new].status) == (True, "active")
    assert not await heartbeat(store, old)


async def test_a_namesake_whose_presence_is_gone_is_replaced_at_once(store: Store) -> None:
    old = await sign_on(store, someone(store))
    await sign_on(store, someone(store), gone=(old,))
    assert (await everyone(store))[old].status == "lost"


async def test_replacing_a_namesake_judges_nobody_else(store: Store) -> None:
    old = await sign_on(store, someone(store))
    silent = await sign_on(store, someone(store, "pod-2"))
    await store.advance("60s")
    await sign_on(store, someone(store))
    rows = await everyone(store)
    assert (rows[old].status, rows[silent].status) == ("lost", "active")


async def test_a_namesake_that_has_beaten_since_it_was_found_silent_keeps_its_id(store: Store) -> None:
    seq = await sign_on(store, someone(store))
    await store.advance("61s")
    assert await heartbeat(store, seq)

    async def replace(tx: Transaction) -> None:
        await tx.run(WorkersSql.replace_worker, seq=seq, gone=0)

    await store.do(replace)
    assert (await everyone(store))[seq].status == "active"


async def test_a_stopped_namesake_is_no_hindrance(store: Store) -> None:
    old = await sign_on(store, someone(store))
    await store.do(unregister, old, reason="drained")
    assert await sign_on(store, someone(store)) > old
    assert (await everyone(store))[old].status == "stopped"


async def test_a_heartbeat_shows_life_and_load(store: Store) -> None:
    seq = await sign_on(store, someone(store))
    await store.advance("50s")
    assert await heartbeat(store, seq, active=7)
    await store.advance("50s")
    assert await store.do(lose_workers, gone=[], reason="silent") == 0
    row = (await everyone(store))[seq]
    assert (row.heartbeat_at, row.active) == (store.clock.us - 50_000_000, 7)


async def test_a_store_that_does_not_know_the_last_heartbeat_gives_its_worker_up(store: Store) -> None:
    """It was restored to an older state, and the number of this worker may belong to another by now."""
    seq = await sign_on(store, someone(store))
    assert await heartbeat(store, seq)
    lost_beat = OwnRow(last_beat=store.clock.us + 5_000_000)
    await store.advance("30s")
    heard = await store.do(beat, seq, 0, [], ttl_us=TTL_US, ceiling_us=TTL_US, me=lost_beat)
    assert (heard.registered, (await everyone(store))[seq].heartbeat_at) == (False, store.clock.us - 30_000_000)
    heard = await store.do(
        beat, seq, 0, [], ttl_us=TTL_US, ceiling_us=TTL_US, me=OwnRow(last_beat=store.clock.us - 30_000_000)
    )
    assert heard.registered


async def test_a_heartbeat_is_of_one_incarnation(store: Store) -> None:
    who = someone(store)
    seq = await sign_on(store, who)
    await store.advance("30s")
    assert not (
        await store.do(beat, seq, 0, [], ttl_us=TTL_US, ceiling_us=TTL_US, me=OwnRow(new_id(store.ports)))
    ).registered
    assert (await everyone(store))[seq].heartbeat_at == store.clock.us - 30_000_000
    assert (await store.do(beat, seq, 0, [], ttl_us=TTL_US, ceiling_us=TTL_US, me=OwnRow(who.incarnation))).registered


async def test_draining_is_one_way(store: Store) -> None:
    seq = await sign_on(store, someone(store))
    await store.do(drain, seq)
    assert await heartbeat(store, seq)
    assert (await everyone(store))[seq].status == "draining"
    await store.do(unregister, seq, reason="drained")
    await store.do(drain, seq)
    assert (await everyone(store))[seq].status == "stopped"


async def test_a_worker_says_goodbye(store: Store) -> None:
    seq = await sign_on(store, someone(store))
    await heartbeat(store, seq, active=3)
    await store.do(unregister, seq, reason="SIGTERM")
    row = (await everyone(store))[seq]
    assert (row.status, row.stopped_at, row.active, row.reason) == ("stopped", store.clock.us, 0, "SIGTERM")
    await store.advance("5s")
    await store.do(unregister, seq, reason="again")
    assert (await everyone(store))[seq].reason == "SIGTERM"
    assert not await heartbeat(store, seq)


async def test_the_silent_and_the_gone_are_given_up(store: Store) -> None:
    silent = await sign_on(store, someone(store, "silent"))
    await store.advance("30s")
    gone, fine = await sign_on(store, someone(store, "gone")), await sign_on(store, someone(store, "fine"))
    await store.advance("30s")
    assert await store.do(lose_workers, gone=[gone], reason="no sign of life") == 2
    rows = await everyone(store)
    assert {seq: rows[seq].status for seq in (silent, gone, fine)} == {silent: "lost", gone: "lost", fine: "active"}
    assert (rows[gone].reason, rows[gone].stopped_at) == ("no sign of life", store.clock.us)
    assert await store.do(lose_workers, gone=[gone], reason="again") == 0


async def test_whoever_has_beaten_since_it_was_missed_is_not_given_up(store: Store) -> None:
    """Also when that beat came in the very moment of another's last one."""
    alive = await sign_on(store, someone(store, "alive"))
    seen = store.clock.us
    await store.advance("1s")
    dead = await sign_on(store, someone(store, "dead"))
    await heartbeat(store, alive)
    beats = [seen, store.clock.us]
    assert await store.do(lose_workers, gone=[alive, dead], reason="no sign of life", last_beats=beats) == 1
    rows = await everyone(store)
    assert (rows[alive].status, rows[dead].status) == ("active", "lost")


async def test_giving_a_worker_up_says_nothing_about_its_leases(store: Store) -> None:
    worker = await store.worker()
    lease = await store.claimed(worker)
    before = await store.find(lease.id)
    await store.do(lose_workers, gone=[worker], reason="gone")
    assert await store.find(lease.id) == before
    assert (await everyone(store))[worker].leases == 1


async def test_the_list_is_newest_first_bounded_and_of_the_living_unless_all_are_asked_for(store: Store) -> None:
    seqs = [await sign_on(store, someone(store, f"pod-{n}")) for n in range(4)]
    await store.do(unregister, seqs[3], reason="done")
    assert [row.seq for row in await store.do(list_workers, all=False, limit=2)] == [seqs[2], seqs[1]]
    assert [row.seq for row in await store.do(list_workers, all=True, limit=2)] == [seqs[3], seqs[2]]


async def test_only_those_that_advertise_it_have_a_presence_to_lose(store: Store) -> None:
    with_sign, without = await sign_on(store, someone(store)), await sign_on(store, someone(store, "pod-2"))
    await store.do(advertise_presence, with_sign, presence=True)
    assert [row.seq for row in await store.do(present_workers)] == [with_sign]
    other = new_id(store.ports)
    assert await store.do(live_namesake, "pod-1", other) == with_sign
    assert await store.do(live_namesake, "pod-2", other) is None
    await store.do(advertise_presence, with_sign, presence=False)
    assert await store.do(present_workers) == []
    assert without in await everyone(store)


async def test_a_killed_worker_is_seen_to_be_silent_before_anybody_declares_it_lost(store: Store) -> None:
    seq = await sign_on(store, someone(store))
    assert not (await everyone(store))[seq].silent
    await store.advance(f"{TTL_US - 1}us")
    assert not (await everyone(store))[seq].silent
    await store.advance("1us")
    row = (await everyone(store))[seq]
    assert (row.status, row.silent) == ("active", True)
    assert await heartbeat(store, seq)
    assert not (await everyone(store))[seq].silent
    await store.do(unregister, seq, reason="stopped")
    await store.advance(f"{TTL_US}us")
    assert not (await everyone(store))[seq].silent  # it has said good-bye


async def test_an_owner_without_a_process_is_silent_only_when_it_holds_nothing(store: Store) -> None:
    owner = (await store.do(register_owner, owner_named("far"), ttl_us=TTL_US)).seq
    lease = await store.claimed(owner)
    await store.advance(f"{2 * TTL_US}us")
    assert not (await everyone(store))[owner].silent
    await store.end(lease, Done())
    assert (await everyone(store))[owner].silent
