"""The store's clock leaps: what it does to leases, lanes and workers, and who sees it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.clock import Ports
from holdfast.kernel.broker_rows import Renewal, WorkerRow
from holdfast.kernel.brokers import Claimer, claim_for, transfer_leases
from holdfast.kernel.brokers import take as take_by_id
from holdfast.kernel.enqueue import enqueue
from holdfast.kernel.ids import JobId
from holdfast.kernel.lanes import claim_in_lanes, open_lanes
from holdfast.kernel.leases import beat, renew, renew_one
from holdfast.kernel.owners import register_owner
from holdfast.kernel.pools import PoolScope, PoolTerms, ResizePlan, put_pool, resize
from holdfast.kernel.routes import route_for
from holdfast.kernel.rows import AheadOfClock, Lease
from holdfast.kernel.states import State
from holdfast.kernel.watch import ahead_of_clock, bring_back
from holdfast.kernel.workers import advertise_presence, list_workers, look, lose_workers, pool_workers
from holdfast.pools import WorkerPool
from holdfast.workers.leaps import StoreClock
from holdfast.workers.sweeper import WATCHERS, Sweeper
from tests.support.apps import eventually
from tests.support.stores import TTL_US, ManualClock, Store, owner_named

SECOND = 1_000_000
CEILING_US = 24 * 3_600 * SECOND
LANE = route_for("default", "work", laned=True)
ROUTE = route_for("default", "work")
TTLS = {"lease_ttl_us": TTL_US, "duty_ttl_us": TTL_US // 2, "limit": 100}


async def enqueue_in_lane(store: Store, **limits: Any) -> JobId:
    job = store.job(lane="key", route=LANE.id, **{"concurrency": None, "interval_us": SECOND, "burst": 1, **limits})
    await store.do(enqueue, [job], [LANE])
    return job.id


async def take(store: Store, worker: int, n: int = 10) -> list[Lease]:
    return await store.do(claim_in_lanes, worker, [LANE.id], n, TTL_US)


# Leases


async def test_a_renewal_forgives_what_the_clock_leapt_and_no_more(store: Store) -> None:
    lease = await store.claimed()
    await store.advance("1h")
    for leap_us in (0, 3_600 * SECOND - TTL_US):
        _, lost = await store.do(renew, [lease.held], ttl_us=TTL_US, ceiling_us=CEILING_US, leap_us=leap_us)
        assert lost == [lease.held]
    leap_us = 3_600 * SECOND - TTL_US + 1
    (renewed,), lost = await store.do(renew, [lease.held], ttl_us=TTL_US, ceiling_us=CEILING_US, leap_us=leap_us)
    assert (renewed.lease_until, lost) == (store.clock.us + TTL_US, [])


async def test_a_leap_revives_no_lease_that_somebody_else_has(store: Store) -> None:
    lease = await store.claimed()
    await store.advance("1h")
    await store.expire()
    (other,) = await store.claim(await store.worker())
    _, lost = await store.do(renew, [lease.held], ttl_us=TTL_US, ceiling_us=CEILING_US, leap_us=2 * 3_600 * SECOND)
    assert lost == [lease.held]
    assert (await store.find(lease.id)).worker == other.worker


async def test_a_beat_asks_for_the_leap_with_the_time_the_store_told(store: Store) -> None:
    worker = await store.worker()
    lease = await store.claimed(worker)
    told: list[int] = []

    def leapt(now: int) -> int:
        told.append(now)
        return 3_600 * SECOND

    await store.advance("1h")
    answer = await store.do(beat, worker, 1, [lease.held], ttl_us=TTL_US, ceiling_us=CEILING_US, leapt=leapt)
    assert told == [store.clock.us] == [answer.now]
    assert ([row.seq for row in answer.renewed], answer.lost) == ([lease.seq], [])


async def test_a_renewal_brings_back_a_lease_from_before_the_clock_went_back(store: Store) -> None:
    lease = await store.claimed()
    await store.set_back("1h")
    leap_us = -3_600 * SECOND
    (renewed,), _ = await store.do(renew, [lease.held], ttl_us=TTL_US, ceiling_us=CEILING_US, leap_us=leap_us)
    assert renewed.lease_until == store.clock.us + TTL_US


async def test_who_trusts_the_clock_up_to_a_moment_takes_nothing_that_ended_later(store: Store) -> None:
    lease = await store.claimed()
    seen = store.clock.us
    await store.advance("1h")
    assert await store.do(lose_workers, gone=(), reason="silent", until=seen) == 0
    assert (await store.find(lease.id)).state == State.RUNNING
    sweeper = Sweeper(store.database, store.ports, store.settings)
    assert not await sweeper.expire(set(), seen)
    assert await sweeper.expire(set(), store.clock.us)


# Back


async def test_after_the_clock_went_back_a_dead_worker_is_found_in_time(store: Store) -> None:
    worker = await store.worker()
    lease = await store.claimed(worker)
    await store.set_back("1h")
    assert await store.do(ahead_of_clock, lease_ttl_us=TTL_US) == AheadOfClock(workers=1, lanes=0, leases=1)
    assert not await store.do(bring_back, **TTLS)
    assert await store.do(ahead_of_clock, lease_ttl_us=TTL_US) == AheadOfClock(0, 0, 0)
    assert (await store.find(lease.id)).lease_until == store.clock.us + TTL_US
    await store.advance("59s")
    assert await store.do(lose_workers, gone=(), reason="silent") == 0
    assert await store.expire() == []
    await store.advance("1s")
    assert await store.do(lose_workers, gone=(), reason="silent") == 1
    assert [moved.id for moved in await store.expire()] == [lease.id]


async def test_leases_are_brought_back_some_at_a_time(store: Store) -> None:
    worker = await store.worker()
    leases = [await store.claimed(worker) for _ in range(5)]
    await store.set_back("1h")
    assert [await store.do(bring_back, **{**TTLS, "limit": 2}) for _ in range(3)] == [True, True, False]
    assert {(await store.find(lease.id)).lease_until for lease in leases} == {store.clock.us + TTL_US}


async def test_a_lane_gives_at_its_rate_after_the_clock_went_back(store: Store) -> None:
    """The claim sees to it by itself, for what nothing blocks."""
    worker = await store.worker()
    ids = [await enqueue_in_lane(store) for _ in range(1)]
    assert [lease.id for lease in await take(store, worker)] == ids
    await store.set_back("1h")
    ids = [await enqueue_in_lane(store) for _ in range(2)]
    assert await take(store, worker) == [], "the next is due a second after the last"
    await store.advance("1s")
    await store.do(open_lanes, limit=10)
    assert [lease.id for lease in await take(store, worker)] == ids[:1]


async def test_a_lane_whose_jobs_are_blocked_opens_after_the_clock_went_back(store: Store) -> None:
    worker = await store.worker()
    ids = [await enqueue_in_lane(store) for _ in range(3)]
    assert [lease.id for lease in await take(store, worker)] == ids[:1]
    await store.set_back("1h")
    assert (await store.do(ahead_of_clock, lease_ttl_us=TTL_US)).lanes == 1
    for _ in range(2):  # it does nothing the second time
        await store.do(bring_back, **TTLS)
        ((free_at, opens_at, charged_at),) = await store.query(
            "select free_at, opens_at, charged_at from holdfast.lane"
        )
        assert (free_at, opens_at, charged_at) == (store.clock.us + SECOND, store.clock.us, store.clock.us)
    for expected in ids[1:]:
        await store.advance("1s")
        await store.do(open_lanes, limit=10)
        assert [lease.id for lease in await take(store, worker)] == [expected]


async def test_a_lane_that_was_not_charged_ahead_of_the_clock_stays_as_it_is(store: Store) -> None:
    worker = await store.worker()
    for _ in range(3):
        await enqueue_in_lane(store)
    await take(store, worker)
    before = await store.query("select free_at, opens_at, charged_at from holdfast.lane")
    await store.do(bring_back, **TTLS)
    assert await store.query("select free_at, opens_at, charged_at from holdfast.lane") == before


# Who sees it


class Observer:
    """A sweeper with a monotonic clock of its own."""

    def __init__(self, store: Store, worker: int) -> None:
        self.clock = ManualClock(0)
        self.worker = worker
        self._store = store
        self._sweeper = Sweeper(store.database, Ports(self.clock, store.ports.random), store.settings)

    async def poll(self, *, watching: bool = False) -> None:
        asked_at = self.clock.monotonic()
        sight = await self._store.do(look, self.worker, [ROUTE.id])
        await self._sweeper.judge_clock(sight, asked_at)
        await self._sweeper.sweep(sight, watching=watching)

    async def pass_time(self, seconds: int) -> None:
        """On both clocks, looking every second."""
        for _ in range(seconds):
            self.clock.us += SECOND
            await self._store.advance("1s")
            await self.poll()


async def test_after_a_leap_forward_nothing_ends_by_time_for_one_ttl(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    worker = await store.worker()
    lease = await store.claimed(worker)
    observer = Observer(store, await store.worker())
    await observer.poll()
    await store.advance("1h")
    with caplog.at_level(logging.WARNING):
        await observer.poll()
    assert "leapt forward by 3600.0 s" in caplog.text
    await observer.pass_time(58)
    assert (await store.find(lease.id)).state == State.RUNNING
    assert worker in {row.seq for row in await store.do(list_workers, all=False, limit=10)}
    await observer.pass_time(3)
    assert (await store.find(lease.id)).rescues == 1, "nobody renewed it meanwhile"


async def test_during_that_time_a_worker_whose_presence_is_gone_is_given_up(store: Store) -> None:
    worker = await store.worker()
    lease = await store.claimed(worker)
    assert await store.database.presence.hold(worker) == store.hears
    await store.do(advertise_presence, worker, presence=store.hears)
    other = await store.claimed(await store.worker())
    observer = Observer(store, await store.worker())
    await observer.poll(watching=True)
    await store.advance("1h")
    await observer.poll(watching=True)
    await store.database.presence.withdraw(worker)

    async def given_up() -> bool:
        observer.clock.us += SECOND // 50
        await observer.poll(watching=True)
        return not store.hears or (await store.find(lease.id)).rescues == 1

    await eventually(given_up)
    assert (await store.find(other.id)).rescues == 0


async def test_without_a_leap_a_lease_that_ran_out_is_found_at_the_next_look(store: Store) -> None:
    lease = await store.claimed()
    observer = Observer(store, await store.worker())
    await observer.pass_time(59)
    assert (await store.find(lease.id)).rescues == 0
    await observer.pass_time(1)
    assert (await store.find(lease.id)).rescues == 1


async def test_a_worker_that_comes_after_the_clock_went_back_brings_it_back_too(store: Store) -> None:
    lease = await store.claimed()
    await store.set_back("1h")
    await Observer(store, await store.worker()).poll()
    assert (await store.find(lease.id)).lease_until == store.clock.us + TTL_US


async def test_a_lone_worker_among_many_that_only_seem_alive_finds_every_lease_that_ran_out(store: Store) -> None:
    """Whom the look counts as alive may be dead, and those who would watch may be among them."""
    others = [await store.worker() for _ in range(8 * WATCHERS)]
    lease = await store.claimed(others[0])
    observer = Observer(store, await store.worker())
    await observer.pass_time(30)
    for other in others:
        await store.do(beat, other, 0, [], ttl_us=TTL_US, ceiling_us=CEILING_US)
    await observer.pass_time(29)
    assert (await store.find(lease.id)).rescues == 0
    await observer.pass_time(1)
    assert (await store.find(lease.id)).rescues == 1


async def test_a_lease_that_its_own_lone_worker_does_not_know_is_found(store: Store) -> None:
    """The answer to its claim was lost; nobody else is there to look."""
    worker = await store.worker()
    observer = Observer(store, worker)
    lease = await store.claimed(worker)
    for _ in range(4):
        await store.do(beat, worker, 0, [], ttl_us=TTL_US, ceiling_us=CEILING_US)
        await observer.pass_time(15)
    assert (await store.find(lease.id)).rescues == 1


# Leases that are longer than the settings say


LONG_US = 10 * TTL_US


async def long_leases(store: Store) -> list[Lease]:
    """Leases of ten TTLs, by every way in which one is given."""
    worker = await store.worker()
    owner = (await store.do(register_owner, owner_named("owner"), ttl_us=TTL_US)).seq
    renewed = [await store.claimed(worker), await store.do(take_by_id, owner, await store.enqueue(), TTL_US)]
    for lease in renewed:
        assert lease is not None
        assert await store.do(renew_one, Renewal(*lease.held, LONG_US), ceiling_us=CEILING_US) is not None
        assert await store.do(renew_one, Renewal(*lease.held, TTL_US), ceiling_us=CEILING_US) is not None, "no shorter"
    taken = await store.do(take_by_id, owner, await store.enqueue(), LONG_US)
    await store.enqueue()
    shared = await store.do(claim_for, [Claimer(worker, frozenset([ROUTE.id]), 1, LONG_US)])
    return [lease for lease in (*renewed, taken, *shared) if lease is not None]


async def test_a_worker_that_starts_shortens_no_lease_that_was_given_for_longer(store: Store) -> None:
    leases = await long_leases(store)
    await store.do(transfer_leases, leases[0].worker, await store.worker())
    for _ in range(2):
        assert await store.do(ahead_of_clock, lease_ttl_us=TTL_US) == AheadOfClock(0, 0, 0)
        await Observer(store, await store.worker()).poll()
        await store.do(bring_back, **TTLS)
    assert [(await store.find(lease.id)).lease_until for lease in leases] == [store.clock.us + LONG_US] * 4


async def test_a_long_lease_is_brought_back_to_its_own_length(store: Store) -> None:
    leases = await long_leases(store)
    await store.set_back("1h")
    assert (await store.do(ahead_of_clock, lease_ttl_us=TTL_US)).leases == 4
    await store.do(bring_back, **TTLS)
    assert [(await store.find(lease.id)).lease_until for lease in leases] == [store.clock.us + LONG_US] * 4


async def test_a_lease_that_the_ceiling_cut_is_brought_back_to_what_it_was_given(store: Store) -> None:
    lease = await store.claimed()
    await store.do(renew_one, Renewal(*lease.held, CEILING_US), ceiling_us=LONG_US)
    await store.set_back("1h")
    await store.do(bring_back, **TTLS)
    assert (await store.find(lease.id)).lease_until == store.clock.us + LONG_US


# Comparing clocks


class Asked:
    """A store clock and our own, moved apart."""

    def __init__(self) -> None:
        self.ours = ManualClock(0)
        self.store_us = 1_000 * SECOND
        self.clock = StoreClock(self.ours, 5.0)

    def ask(self, *, way: float = 0.0, back: float = 0.0) -> float:
        asked_at = self.ours.monotonic()
        self.pass_time(way)
        now_us = self.store_us
        self.pass_time(back)
        return self.clock.note(now_us, asked_at)

    def pass_time(self, seconds: float) -> None:
        self.ours.us += round(seconds * SECOND)
        self.store_us += round(seconds * SECOND)


def test_the_first_answer_has_nothing_to_be_compared_with() -> None:
    assert Asked().ask() == 0


@pytest.mark.parametrize(("way", "back"), [(100.0, 0.0), (0.0, 100.0), (50.0, 50.0)])
def test_a_slow_answer_is_no_leap(way: float, back: float) -> None:
    asked = Asked()
    for slow in (False, True, False, True, True):
        asked.pass_time(1)
        assert asked.ask(way=way, back=back) == 0 if slow else asked.ask() == 0


@pytest.mark.parametrize("seconds", [3_600, -3_600])
def test_a_leap_is_seen_through_a_slow_answer_and_never_overrated(seconds: int) -> None:
    asked = Asked()
    asked.ask(way=10, back=20)
    asked.store_us += seconds * SECOND
    leap = asked.ask(way=20, back=10)
    assert 3_600 - 60 <= abs(leap) <= 3_600
    assert (leap > 0) == (seconds > 0)
    assert asked.ask() == 0


def test_clocks_that_drift_apart_do_not_leap() -> None:
    asked = Asked()
    for _ in range(100):
        asked.pass_time(1)
        asked.store_us += SECOND
        assert asked.ask() == 0


def test_a_leap_is_forgiven_only_to_who_beat_less_than_a_lease_ago() -> None:
    asked = Asked()
    asked.ask()
    asked.pass_time(59)
    asked.store_us += 3_600 * SECOND
    assert asked.clock.leap_us(asked.store_us, asked.ours.monotonic(), TTL_US) == 3_600 * SECOND
    asked.pass_time(1)
    assert asked.clock.leap_us(asked.store_us, asked.ours.monotonic(), TTL_US) == 0


# Pools


async def places_of(store: Store, start: int) -> Sequence[WorkerRow]:
    """Open so many places of a pool, whose processes have a minute to come up; returns all that there are."""
    await store.do(put_pool, "mill", WorkerPool(slots=1).as_json())
    ids = [f"place-{store.clock.us}-{number}" for number in range(start)]
    terms = PoolTerms("mill", 1, TTL_US, 0, 0)
    await store.do(resize, terms, serves=PoolScope(None, ()), judge=lambda _: ResizePlan(start, ()), ids=ids)
    return await store.do(pool_workers, "mill")


async def test_a_process_that_was_to_come_up_is_late_no_later_when_the_clock_goes_back(store: Store) -> None:
    (place,) = await places_of(store, 1)
    assert not any(await store.do(ahead_of_clock, lease_ttl_us=TTL_US))
    await store.set_back("1h")
    assert (await store.do(ahead_of_clock, lease_ttl_us=TTL_US)).workers == 1
    await store.do(bring_back, **TTLS)
    assert not any(await store.do(ahead_of_clock, lease_ttl_us=TTL_US))
    (back,) = await places_of(store, 0)
    assert (place.seq, back.boot_by) == (back.seq, store.clock.us + TTL_US)
    await store.advance(f"{TTL_US - 1}us")
    assert await store.do(lose_workers, gone=(), reason="silent") == 0
    await store.advance("1us")
    assert await store.do(lose_workers, gone=(), reason="silent") == 1
    assert await places_of(store, 0) == []


async def test_a_process_that_comes_up_is_not_given_up_for_a_leap_forward(store: Store) -> None:
    """Who decides trusts the clock only as far as the time that has passed for it."""
    (place,) = await places_of(store, 1)
    trusted = store.clock.us + TTL_US // 2
    await store.advance("1h")
    assert await store.do(lose_workers, gone=(), reason="silent", until=trusted) == 0
    assert [row.seq for row in await places_of(store, 0)] == [place.seq]
