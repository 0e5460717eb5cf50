"""A schedule that cannot be fired is tried again later, says why, and holds up no other."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from holdfast.durations import next_tick
from holdfast.kernel.duties import SCHEDULES
from holdfast.kernel.routes import route_for
from holdfast.kernel.rows import Observation
from holdfast.kernel.schedules import NewSchedule, find_schedule, list_schedules, put_schedule
from holdfast.kernel.workers import look
from holdfast.workers.duties import Duties
from tests.support.stores import Store

MINUTE = 60_000_000


async def declare(store: Store, *names: str) -> None:
    for name in names:
        new = NewSchedule(name, "every 1m", "UTC", "one", store.job(), route_for("default", "work"))
        await store.do(put_schedule, new, next_tick)


async def spoil(store: Store, name: str, column: str, value: str) -> None:
    await store.query(f"update holdfast.schedule set {column} = '{value}' where name = '{name}' returning name")


async def holder(store: Store) -> tuple[Duties, int]:
    duties, worker = Duties(store.database, store.ports, store.settings), await store.worker()
    await duties.tend(worker)
    assert SCHEDULES in {term.name for term in duties.held}
    return duties, worker


async def tick(store: Store, duties: Duties, worker: int, after: str) -> Observation:
    """Let time pass, fire what a look shows to be due, and look again."""
    await store.advance(after)
    await duties.tend(worker)
    sight = await store.do(look, worker, [])
    if sight.next_tick is not None and sight.next_tick <= sight.now:
        await duties.fire_schedules()
    return await store.do(look, worker, [])


async def fired(store: Store) -> dict[str, int]:
    return {row.name: int(row.last_job is not None) for row in await store.do(list_schedules)}


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("cron", "0 25 * * *", "is not a cron expression"),
        ("timezone", "Europe/Atlantis", "is not a time zone"),
        ("job", "[1]", "cannot be read"),
        ("job", "{}", "cannot be read"),
        ("job", '{"job": {"kind": "work"}, "route": {}}', "cannot be read"),
    ],
)
async def test_one_that_is_bad_does_not_stop_the_others(store: Store, column: str, value: str, said: str) -> None:
    await declare(store, "a", "bad", "z")
    await spoil(store, "bad", column, value)
    duties, worker = await holder(store)
    await tick(store, duties, worker, "1m")
    assert await fired(store) == {"a": 1, "bad": 0, "z": 1}
    row = await store.do(find_schedule, "bad")
    assert said in (row.error or "")
    assert row.retry_at == store.clock.us + MINUTE


async def test_it_is_tried_later_and_later_and_never_in_a_busy_loop(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    await declare(store, "bad")
    await spoil(store, "bad", "cron", "never")
    duties, worker = await holder(store)
    caplog.set_level(logging.WARNING)
    pauses = []
    sight = await tick(store, duties, worker, "1m")
    for _ in range(12):
        assert sight.next_tick is not None
        assert sight.next_tick > sight.now, "a look that shows it as due at once would be a busy loop"
        pauses.append((sight.next_tick - sight.now) // MINUTE)
        sight = await tick(store, duties, worker, f"{pauses[-1]}m")
    assert pauses[0] == 1
    assert pauses == sorted(pauses)
    assert pauses[-1] == 60
    assert len([r for r in caplog.records if "schedule bad" in r.getMessage()]) == 1, "it is logged when it changes"
    await spoil(store, "bad", "cron", "another")
    await tick(store, duties, worker, "1h")
    assert len([r for r in caplog.records if "schedule bad" in r.getMessage()]) == 2


async def test_a_good_one_is_fired_in_time_beside_a_bad_one(store: Store) -> None:
    await declare(store, "bad", "good")
    await spoil(store, "bad", "timezone", "nowhere")
    duties, worker = await holder(store)
    await tick(store, duties, worker, "1m")
    first = await store.do(find_schedule, "good")
    sight = await tick(store, duties, worker, "30s")
    assert sight.next_tick == first.next_at
    await tick(store, duties, worker, "30s")
    assert (await store.do(find_schedule, "good")).last_at == first.next_at


async def test_the_error_goes_with_the_next_tick_that_works(store: Store) -> None:
    await declare(store, "bad")
    await spoil(store, "bad", "timezone", "nowhere")
    duties, worker = await holder(store)
    await tick(store, duties, worker, "1m")
    await spoil(store, "bad", "timezone", "UTC")
    await tick(store, duties, worker, "1m")
    row = await store.do(find_schedule, "bad")
    assert (row.error, row.retry_at, row.last_job is not None) == (None, None, True)


async def test_the_error_goes_when_it_is_declared_again(store: Store) -> None:
    await declare(store, "bad")
    await spoil(store, "bad", "job", "[1]")
    duties, worker = await holder(store)
    await tick(store, duties, worker, "1m")
    await declare(store, "bad")
    row = await store.do(find_schedule, "bad")
    assert (row.error, row.retry_at) == (None, None)
    await tick(store, duties, worker, "0s")
    assert await fired(store) == {"bad": 1}


async def test_fields_of_a_newer_release_are_left_out(store: Store) -> None:
    await declare(store, "newer")
    stored: dict[str, Any] = json.loads((await store.do(find_schedule, "newer")).job)
    stored["job"]["colour"] = stored["route"]["shape"] = stored["mood"] = "blue"
    await spoil(store, "newer", "job", json.dumps(stored))
    duties, worker = await holder(store)
    await tick(store, duties, worker, "1m")
    assert len(await store.claim(worker)) == 1


async def test_one_that_an_older_release_has_moved_on_is_neither_fired_ahead_of_its_tick_nor_seen_as_due(
    store: Store,
) -> None:
    """Such a release fires it, moves its tick, and leaves the time of the retry as it was."""
    await declare(store, "moved")
    await spoil(store, "moved", "timezone", "nowhere")
    duties, worker = await holder(store)
    await tick(store, duties, worker, "1m")
    row = await store.do(find_schedule, "moved")
    following = row.next_at + 10 * MINUTE
    await spoil(store, "moved", "timezone", "UTC")
    await store.query(f"update holdfast.schedule set next_at = {following} returning name")
    sight = await tick(store, duties, worker, "2m")
    assert row.retry_at is not None
    assert row.retry_at < sight.now
    assert sight.next_tick == following, "a look that shows it as due at once would be a busy loop"
    await duties.fire_schedules()
    assert await fired(store) == {"moved": 0}
    await tick(store, duties, worker, "8m")
    row = await store.do(find_schedule, "moved")
    assert (row.last_at, row.retry_at, row.error) == (following, None, None)
