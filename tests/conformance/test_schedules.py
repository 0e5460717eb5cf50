"""Schedules: every tick once, whoever fires it and whatever was missed."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

import pytest

from holdfast.durations import next_tick
from holdfast.errors import BadSetting, NotFound
from holdfast.kernel import codec
from holdfast.kernel.duties import SCHEDULES, DutyLost, acquire
from holdfast.kernel.flow_rows import ScheduleRow
from holdfast.kernel.ids import new_id
from holdfast.kernel.routes import route_for
from holdfast.kernel.rows import Term
from holdfast.kernel.schedules import (
    NewSchedule,
    delete_schedule,
    due_schedules,
    find_schedule,
    fire,
    last_tick,
    list_schedules,
    pause_schedule,
    put_schedule,
    resume_schedule,
    run_now,
    tick_of,
)
from tests.support.stores import Store

MINUTE = 60_000_000


async def declare(store: Store, catch_up: str = "one", cron: str = "every 1m") -> None:
    schedule = NewSchedule("report", cron, "UTC", catch_up, store.job(), route_for("default", "work"))
    await store.do(put_schedule, schedule, next_tick)


async def fire_due(store: Store) -> int:
    return sum([len(await store.do(fire, row, next_tick)) for row in await store.do(due_schedules, limit=10)])


async def row(store: Store) -> ScheduleRow:
    return await store.do(find_schedule, "report")


async def test_a_tick_enqueues_its_job(store: Store) -> None:
    await declare(store)
    assert await fire_due(store) == 0
    await store.advance("1m")
    assert await fire_due(store) == 1
    assert await fire_due(store) == 0
    (lease,) = await store.claim(await store.worker())
    assert lease.id == (await row(store)).last_job


async def test_two_who_saw_the_same_tick_fire_it_once(store: Store) -> None:
    await declare(store)
    await store.advance("1m")
    (seen,) = await store.do(due_schedules, limit=10)
    assert len(await store.do(fire, seen, next_tick)) == 1
    assert await store.do(fire, seen, next_tick) == []
    assert len(await store.claim(await store.worker(), 10)) == 1


async def test_a_holder_whose_term_is_over_fires_nothing(store: Store) -> None:
    await declare(store)
    await store.advance("1m")
    (seen,) = await store.do(due_schedules, limit=10)
    worker = await store.worker()
    term = await store.do(acquire, SCHEDULES, worker, ttl_us=MINUTE, gone=[])
    assert term is not None
    with pytest.raises(DutyLost):
        await store.do(fire, seen, next_tick, under=(Term(SCHEDULES, term.term + 1), worker))
    assert len(await store.do(fire, seen, next_tick, under=(term, worker))) == 1


@pytest.mark.parametrize(("catch_up", "jobs"), [("one", 1), ("all", 5), ("none", 1)])
async def test_what_was_missed_is_caught_up_as_declared(store: Store, catch_up: str, jobs: int) -> None:
    await declare(store, catch_up)
    await store.advance("5m30s")
    assert await fire_due(store) == jobs
    assert (await row(store)).next_at > store.clock.us


async def test_none_means_none_that_is_late(store: Store) -> None:
    await declare(store, "none", "every 1h")
    await store.advance("1h30m")
    assert await fire_due(store) == 0
    assert (await row(store)).next_at > store.clock.us


@pytest.mark.parametrize("catch_up", ["one", "none"])
async def test_of_any_number_that_were_missed_the_last_is_fired(store: Store, catch_up: str) -> None:
    """It is found by a few looks at the rhythm, however long the outage was."""
    await declare(store, catch_up, "* * * * *")
    await store.advance(f"{3 * 365}d")
    (due,) = await store.do(due_schedules, limit=10)
    looks: list[int] = []

    def look(cron: str, zone: str, after: int) -> int:
        looks.append(after)
        return next_tick(cron, zone, after)

    assert len(await store.do(fire, due, look)) == 1
    assert len(looks) < 200, "it does not walk through a million minutes"
    (lease,) = await store.claim(await store.worker())
    tick = tick_of(codec.decode(lease.metadata))
    assert tick is not None
    assert 0 <= due.now - round(tick.timestamp()) * 1_000_000 < MINUTE


@pytest.mark.parametrize("cron", ["*/30 1-3 * * *", "30 2 * * 0", "0 */7 29-31 * *", "every 5h"])
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York"])
@pytest.mark.parametrize("month", [3, 10])
def test_the_last_tick_is_the_one_that_a_walk_finds(cron: str, zone: str, month: int) -> None:
    """Also around the hours that a clock change skips or repeats."""
    begin = round(datetime(2026, month, 5, tzinfo=UTC).timestamp()) * 1_000_000
    walked = [next_tick(cron, zone, begin)]
    while walked[-1] < begin + 30 * 24 * 60 * MINUTE:
        walked.append(next_tick(cron, zone, walked[-1]))
    for tick, following in pairwise(walked):
        assert last_tick(cron, zone, walked[0], tick, next_tick) == tick
        assert last_tick(cron, zone, walked[0], following - 1, next_tick) == tick


async def test_declaring_it_again_moves_no_tick(store: Store) -> None:
    await declare(store)
    before = (await row(store)).next_at
    await store.advance("90s")
    await declare(store)
    assert (await row(store)).next_at == before, "the tick that is due is still to be fired"
    await declare(store, cron="every 1h")
    assert (await row(store)).next_at > store.clock.us


async def test_a_paused_schedule_fires_nothing_and_catches_nothing_up(store: Store) -> None:
    await declare(store, "all")
    await store.do(pause_schedule, "report")
    await store.advance("10m")
    assert await fire_due(store) == 0
    await store.do(resume_schedule, "report", next_tick)
    assert await fire_due(store) == 0
    await store.advance("1m")
    assert await fire_due(store) == 1


async def test_it_can_be_run_by_hand_and_removed(store: Store) -> None:
    await declare(store)
    id = new_id(store.ports)
    assert await store.do(run_now, "report", id) == id
    assert [lease.id for lease in await store.claim(await store.worker(), 5)] == [id]
    assert await store.do(delete_schedule, "report")
    assert await store.do(list_schedules) == []
    with pytest.raises(NotFound, match="there is no schedule 'report'"):
        await store.do(run_now, "report", id)


@pytest.mark.parametrize(
    ("cron", "zone", "after", "tick"),
    [
        ("0 3 * * *", "UTC", "2026-06-01T00:00:00+00:00", "2026-06-01T03:00:00+00:00"),
        ("0 3 * * *", "Europe/Athens", "2026-06-01T00:00:00+00:00", "2026-06-02T00:00:00+00:00"),
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00+00:00", "2026-03-29T01:00:00+00:00"),  # 2:30 is skipped
        ("@daily", "UTC", "2026-06-01T00:00:00+00:00", "2026-06-02T00:00:00+00:00"),
        ("every 5m", "UTC", "2026-06-01T00:03:00+00:00", "2026-06-01T00:05:00+00:00"),
    ],
)
def test_when_a_tick_comes(cron: str, zone: str, after: str, tick: str) -> None:
    at, expected = (round(datetime.fromisoformat(text).timestamp() * 1e6) for text in (after, tick))
    assert next_tick(cron, zone, at) == expected


@pytest.mark.parametrize(
    ("cron", "zone", "message"),
    [
        ("0 25 * * *", "UTC", "'0 25 \\* \\* \\*' is not a cron expression"),
        ("* * *", "UTC", "is not a cron expression"),
        ("every 10ms", "UTC", "at most once a second"),
        ("every now", "UTC", "is not a duration"),
        ("@daily", "Europe/Atlantis", "'Europe/Atlantis' is not a time zone"),
        ("0 0 31 2 *", "UTC", "never fires|not a cron expression"),
    ],
)
def test_what_is_no_schedule(cron: str, zone: str, message: str) -> None:
    with pytest.raises(BadSetting, match=message):
        next_tick(cron, zone, 0)


async def test_a_retry_that_is_over_does_not_bring_a_later_tick_forward(store: Store) -> None:
    await declare(store)
    await store.query(f"update holdfast.schedule set retry_at = {store.clock.us - 1}, error = 'x' returning name")
    assert await fire_due(store) == 0
    await store.advance("1m")
    assert await fire_due(store) == 1
    assert (await row(store)).retry_at is None
