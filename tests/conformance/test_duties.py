"""Duties: one holder at a time, under terms that only rise; and what the clean-up removes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.kernel import duties
from holdfast.kernel.duties import CLEANUP, CleanupMarks, DutyLost, acquire, clean_up, release, renew
from holdfast.kernel.enqueue import enqueue, enqueue_once
from holdfast.kernel.ids import new_id
from holdfast.kernel.lanes import open_lanes
from holdfast.kernel.retention import remove
from holdfast.kernel.routes import route_for
from holdfast.kernel.rows import Term
from holdfast.kernel.waiting import park, signal
from holdfast.kernel.workers import list_duties, list_routes, list_workers, lose_workers, unregister
from holdfast.outcomes import Done, Snooze
from tests.support.lanes import block
from tests.support.stores import Store

TTL_US = 30_000_000
DAY_US = 86_400_000_000
WEEK_US = 7 * DAY_US


async def take(store: Store, worker: int, *, gone: tuple[int, ...] = ()) -> Term | None:
    return await store.do(acquire, CLEANUP, worker, ttl_us=TTL_US, gone=gone)


async def taken(store: Store, worker: int) -> Term:
    term = await take(store, worker)
    assert term is not None
    return term


async def test_a_free_duty_is_taken_by_the_first_who_asks(store: Store) -> None:
    one, two = await store.worker(), await store.worker()
    assert await take(store, one) == Term(CLEANUP, 1)
    assert await take(store, two) is None
    assert await store.do(list_duties) == [(CLEANUP, 1, one, store.clock.us + TTL_US)]


async def test_of_many_who_ask_at_once_one_gets_it(store: Store) -> None:
    workers = [await store.worker() for _ in range(5)]
    answers = await asyncio.gather(*(take(store, worker) for worker in workers))
    assert sorted(answers, key=lambda term: term is None) == [Term(CLEANUP, 1), None, None, None, None]


async def test_duties_are_held_apart(store: Store) -> None:
    worker = await store.worker()
    await take(store, worker)
    assert await store.do(acquire, "schedules", worker, ttl_us=TTL_US, gone=[]) == Term("schedules", 1)


async def test_renewing_keeps_the_term(store: Store) -> None:
    one, two = await store.worker(), await store.worker()
    term = await taken(store, one)
    for _ in range(3):
        await store.advance("29s")
        assert await store.do(renew, term, one, ttl_us=TTL_US)
        assert await take(store, two) is None
    assert await store.do(list_duties) == [(CLEANUP, 1, one, store.clock.us + TTL_US)]


async def test_a_term_that_ran_out_is_taken_over_and_cannot_be_renewed(store: Store) -> None:
    one, two = await store.worker(), await store.worker()
    term = await taken(store, one)
    await store.advance("30s")
    assert not await store.do(renew, term, one, ttl_us=TTL_US)
    assert await take(store, two) == Term(CLEANUP, 2)
    assert not await store.do(renew, term, one, ttl_us=TTL_US)


async def test_a_released_duty_is_free_at_once(store: Store) -> None:
    one, two = await store.worker(), await store.worker()
    await store.do(release, await taken(store, one), one)
    assert await store.do(list_duties) == []
    assert await take(store, two) == Term(CLEANUP, 2)


async def test_the_duty_of_a_holder_that_is_gone_is_free_at_once(store: Store) -> None:
    one, two = await store.worker(), await store.worker()
    await take(store, one)
    assert await take(store, two, gone=(one,)) == Term(CLEANUP, 2)


async def test_asking_again_after_a_lost_answer_begins_the_next_term(store: Store) -> None:
    worker = await store.worker()
    assert [await take(store, worker) for _ in range(2)] == [Term(CLEANUP, 1), Term(CLEANUP, 2)]


async def test_terms_only_rise(store: Store) -> None:
    workers = [await store.worker() for _ in range(3)]
    terms = []
    for round in range(6):
        worker = workers[round % 3]
        term = await taken(store, worker)
        terms.append(term.term)
        if round % 2:
            await store.do(release, term, worker)
        else:
            await store.advance("30s")
    assert terms == [1, 2, 3, 4, 5, 6]


async def test_an_old_term_releases_nothing(store: Store) -> None:
    one, two = await store.worker(), await store.worker()
    old = await taken(store, one)
    await store.advance("30s")
    await take(store, two)
    await store.do(release, old, one)
    await store.do(release, old, two)
    assert [row.holder for row in await store.do(list_duties)] == [two]


async def tidy(store: Store, term: Term, worker: int) -> None:
    await store.do(clean_up, term, worker, key_age_us=WEEK_US, worker_age_us=DAY_US)


async def tidied(store: Store) -> None:
    worker = await store.worker()
    term = await taken(store, worker)
    await tidy(store, term, worker)
    await store.do(release, term, worker)
    await store.do(unregister, worker, reason="done")


async def test_a_holder_that_was_frozen_past_its_term_does_no_harm(store: Store) -> None:
    frozen, other = await store.worker(), await store.worker()
    await store.do(unregister, other, reason="old")
    term = await taken(store, frozen)
    await store.advance("2d")
    with pytest.raises(DutyLost, match="term 1 of duty 'cleanup' is over"):
        await tidy(store, term, frozen)
    await take(store, await store.worker())
    with pytest.raises(DutyLost):
        await tidy(store, term, frozen)
    assert len(await store.do(list_workers, all=True, limit=10)) == 3


async def test_a_term_belongs_to_its_holder(store: Store) -> None:
    one, two = await store.worker(), await store.worker()
    term = await taken(store, one)
    with pytest.raises(DutyLost):
        await store.do(duties.hold, term, two)


async def test_rows_of_workers_go_a_day_after_they_stopped(store: Store) -> None:
    alive, stopped, lost, busy = [await store.worker() for _ in range(4)]
    lease = await store.claimed(busy)
    await store.do(unregister, stopped, reason="drained")
    await store.do(lose_workers, gone=[lost, busy], reason="gone")
    await store.advance("23h")
    await tidied(store)
    assert len(await store.do(list_workers, all=True, limit=10)) == 5
    await store.advance("1h")
    await tidied(store)
    left = {row.seq for row in await store.do(list_workers, all=True, limit=10)}
    assert left >= {alive, busy}
    assert left.isdisjoint({stopped, lost})
    await store.end(lease, Done())
    await tidied(store)
    assert busy not in {row.seq for row in await store.do(list_workers, all=True, limit=10)}


async def test_a_key_goes_a_week_after_its_job_ended(store: Store) -> None:
    worker = await store.worker()
    for key in ("ended", "live"):
        await store.do(enqueue_once, store.job(key), [], key=key)
    await store.advance("6d")
    (lease,) = await store.claim(worker, kind="ended")
    await store.end(lease, Done())
    for days, left in ((6, ["ended", "live"]), (1, ["live"]), (90, ["live"])):
        await store.advance(f"{days}d")
        await tidied(store)
        assert await store.query("select key from holdfast.idempotency order by key") == [(key,) for key in left]


async def test_a_key_outlives_its_job_by_a_week_however_early_that_was_removed(store: Store) -> None:
    worker = await store.worker()
    for key in ("early", "other"):
        await store.do(enqueue_once, store.job(key), [], key=key)
    await store.advance("30d")
    (lease,) = await store.claim(worker, kind="early")
    await store.end(lease, Done())
    await store.advance("1h")
    assert await store.do(remove, [lease.seq]) == 1
    for days, left in ((6, ["early", "other"]), (1, ["other"])):
        await store.advance(f"{days}d")
        await tidied(store)
        assert await store.query("select key from holdfast.idempotency order by key") == [(key,) for key in left]


async def test_a_young_key_is_kept_though_its_job_is_gone(store: Store) -> None:
    await store.do(enqueue_once, store.job(), [], key="young")
    for table in ("ready", "job"):
        await store.query(f"delete from holdfast.{table} returning seq")
    await store.advance("6d")
    await tidied(store)
    assert await store.query("select count(*) from holdfast.idempotency") == [(1,)]
    await store.advance("1d")
    await tidied(store)
    assert await store.query("select count(*) from holdfast.idempotency") == [(0,)]


async def test_a_route_goes_after_a_day_without_live_jobs(store: Store) -> None:
    worker = await store.worker()
    kinds = ("pending", "scheduled", "running", "waiting", "ended", "unused", "fresh")
    routes = {kind: route_for("default", kind) for kind in kinds}
    await store.do(enqueue, [], list(routes.values()))
    for kind in kinds[:5]:
        await store.enqueue(kind)
    for kind in kinds[1:5]:
        (lease,) = await store.claim(worker, kind=kind)
        if kind == "scheduled":
            await store.end(lease, Snooze("30d"))
        elif kind == "waiting":
            await store.do(park, lease, channel="door", timeout_us=None)
        elif kind == "ended":
            await store.end(lease, Done())
    await store.advance("1d")
    await store.do(enqueue, [], [routes["fresh"]])
    await tidied(store)
    assert set(await store.do(list_routes, since=0)) == {routes[kind] for kind in (*kinds[:4], "fresh")}


async def test_idle_channels_go(store: Store) -> None:
    worker = await store.worker()
    waiting = await store.claimed(worker)
    await store.do(park, waiting, channel="awaited", timeout_us=None)
    woken = await store.claimed(worker)
    await store.do(signal, new_id(store.ports), "unread", "1")
    await store.do(park, woken, channel="unread", timeout_us=None)
    idle = await store.claimed(worker)
    await store.do(park, idle, channel="idle", timeout_us=1)
    await store.query("update holdfast.later set channel = null where channel = 'idle' returning seq")
    await tidied(store)
    assert await store.query("select name from holdfast.channel order by name") == [("awaited",), ("unread",)]


async def test_a_signal_that_nobody_takes_goes_with_its_channel(store: Store) -> None:
    worker = await store.worker()
    await store.do(signal, new_id(store.ports), "old", "1")
    await store.advance("1d")
    await store.do(signal, new_id(store.ports), "young", "1")
    await store.advance("6d")
    term = await taken(store, worker)
    ages: dict[str, Any] = {"key_age_us": WEEK_US, "worker_age_us": DAY_US, "signal_age_us": WEEK_US}
    await store.do(clean_up, term, worker, **ages)
    assert await store.query("select channel from holdfast.signal") == [("young",)]
    assert await store.query("select name from holdfast.channel") == [("young",)]


async def test_one_clean_up_looks_at_so_many_rows_and_the_next_goes_on(store: Store) -> None:
    worker = await store.worker()
    kept, others = [await store.worker() for _ in range(5)], [await store.worker() for _ in range(7)]
    for other in others:
        await store.do(unregister, other, reason="old")
    for n in range(5):
        await store.do(enqueue_once, store.job(), [], key=f"live {n}")
        await store.advance("1ms")
    leases = []
    for n in range(7):
        await store.do(enqueue_once, store.job("spent"), [], key=f"spent {n}")
        await store.do(enqueue_once, store.job("freed"), [], key=f"freed {n}")
        await store.do(signal, new_id(store.ports), f"channel {n}", "1")
        await store.advance("1ms")
    for kind in ("spent", "freed"):
        leases += await store.claim(worker, 7, kind=kind)
    for lease in leases:
        await store.end(lease, Done())
    await store.do(remove, [lease.seq for lease in leases if lease.kind == "freed"])
    await store.advance("8d")
    term = await taken(store, worker)
    ages: dict[str, Any] = {"key_age_us": WEEK_US, "worker_age_us": DAY_US, "signal_age_us": WEEK_US}
    tables = ("worker", "idempotency", "signal", "channel")
    marks, more, rounds = CleanupMarks(), True, 0
    while more:
        before = [await number(store, table) for table in tables]
        marks, more = await store.do(clean_up, term, worker, look=4, marks=marks, **ages)
        gone = [old - await number(store, table) for old, table in zip(before, tables, strict=True)]
        assert all(rows <= (8 if table == "idempotency" else 4) for rows, table in zip(gone, tables, strict=True))
        rounds += 1
    assert rounds > 2
    marks, more = await store.do(clean_up, term, worker, look=100, marks=CleanupMarks(), **ages)
    assert not more
    assert [await number(store, table) for table in tables] == [len(kept) + 1, 5, 0, 0]


async def test_keys_made_at_the_same_moment_as_many_that_stay_are_found(store: Store) -> None:
    worker = await store.worker()
    for kind, keys in (("live", 9), ("spent", 5)):
        for n in range(keys):
            await store.do(enqueue_once, store.job(kind), [], key=f"{kind} {n}")  # the clock of a test stands still
    for lease in await store.claim(worker, 5, kind="spent"):
        await store.end(lease, Done())
    await store.advance("8d")
    term = await taken(store, worker)
    marks, more = CleanupMarks(), True
    while more:
        marks, more = await store.do(
            clean_up, term, worker, key_age_us=WEEK_US, worker_age_us=DAY_US, marks=marks, look=4
        )
    assert await number(store, "idempotency") == 9


async def test_stranded_lanes_are_opened_once_in_a_clean_up_apart_from_what_it_removes(store: Store) -> None:
    worker, old = await store.worker(), await store.worker()
    await store.do(unregister, old, reason="old")
    await store.advance("2d")
    term = await taken(store, worker)
    ages = {"key_age_us": WEEK_US, "worker_age_us": DAY_US}
    await strand(store, "one")
    marks, more = await store.do(clean_up, term, worker, marks=CleanupMarks().again(), **ages)
    assert more
    assert await store.query("select lane from holdfast.lane_note") == [("one",)]
    assert await number(store, "worker") == 2, "what is old comes in transactions of its own"
    await strand(store, "two")
    for _ in range(3):
        marks, more = await store.do(clean_up, term, worker, marks=marks, **ages)
    assert not more
    assert await number(store, "worker") == 1
    assert await store.query("select lane from holdfast.lane_note") == [("one",)]
    await store.do(clean_up, term, worker, marks=marks.again(), **ages)
    assert await store.query("select lane from holdfast.lane_note order by lane") == [("one",), ("two",)]
    assert await store.do(open_lanes, limit=100) == 2
    assert (await store.query("select count(*) from holdfast.ready where lane is not null")) == [(2,)]


async def strand(store: Store, lane: str) -> None:
    """A job that its lane blocks, and nobody who is to look at it, as after a change by hand."""
    route = route_for("default", "work", laned=True)
    await store.do(enqueue, [store.job(lane=lane, concurrency=1, burst=1)._replace(route=route.id)], [route])
    await block(store, lane)


async def number(store: Store, table: str) -> int:
    ((rows,),) = await store.query(f"select count(*) from holdfast.{table}")
    return int(rows)


async def test_the_clean_up_touches_no_job_attempt_step_or_signal(store: Store) -> None:
    worker = await store.worker()
    lease = await store.claimed(worker)
    await store.end(lease, Done())
    await store.enqueue(delay_us=1)
    await store.do(signal, new_id(store.ports), "door", "1")
    await store.advance("365d")
    tables = ("job", "attempt", "signal", "step", "cancellation", "queue")
    before = [await store.query(f"select count(*) from holdfast.{table}") for table in tables]
    await tidied(store)
    assert [await store.query(f"select count(*) from holdfast.{table}") for table in tables] == before
