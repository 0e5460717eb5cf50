"""The tally: what has ended is counted once, whoever counts or removes it, and stays counted."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.kernel import failure_groups
from holdfast.kernel.failure_groups import OTHERS, list_failures
from holdfast.kernel.retention import KeepRule, Pruner
from holdfast.kernel.tally import (
    DAY,
    HOUR,
    MINUTE,
    SeriesQuery,
    count_jobs_again,
    forget_old,
    percentile,
    read_series,
    read_times,
    tally_jobs,
)
from holdfast.kernel.tally_rows import FailureGroup, SeriesPoint
from holdfast.outcomes import Done, Fail
from tests.support.stores import Store

EVER = (0, 2**62)


async def finished(store: Store, n: int = 1, queue: str = "default", tenant: str = "", outcome: Any = None) -> None:
    for _ in range(n):
        await store.enqueue(queue=queue, tenant=tenant)
    for lease in await store.claim(await store.worker(), n, queue=queue):
        await store.end(lease, outcome or Done())


async def counted(store: Store, grain: str = "hour", *by: str, tenant: str | None = None) -> list[SeriesPoint]:
    asked = SeriesQuery("jobs", grain, *EVER, step=1, by=by, tenant=tenant)
    return await store.do(read_series, asked, limit=1_000)


async def number(store: Store, grain: str = "hour", **more: Any) -> int:
    return sum(row.number for row in await counted(store, grain, **more))


async def tally_all(store: Store, look: int = 5_000) -> int:
    calls = 1
    while await store.do(tally_jobs, look=look):
        calls += 1
    return calls


async def failed(store: Store, message: str, tenant: str = "") -> None:
    await finished(store, tenant=tenant, outcome=Fail(message))


async def groups(store: Store, tenant: str | None = None) -> list[FailureGroup]:
    return await store.do(list_failures, subject=None, kind=None, tenant=tenant, since=0, limit=100)


async def test_a_minute_is_counted_two_minutes_after_its_end_and_once(store: Store) -> None:
    await finished(store, 3)
    await store.advance("2m")
    assert await tally_all(store) == 1
    assert await number(store) == 0
    await store.advance("1m")
    for _ in range(2):
        await tally_all(store)
        assert [await number(store, grain) for grain in ("minute", "hour", "day")] == [3, 3, 3]
    await finished(store, 2)
    await store.advance("3m")
    await tally_all(store)
    assert [row.number for row in await counted(store, "minute")] == [2, 3]
    assert await number(store, "hour") == 5


async def test_an_idle_store_is_not_written_to(store: Store) -> None:
    await finished(store)
    await store.advance("3m")
    await tally_all(store)
    marks = await store.query("select subject, source, at from holdfast.tally_mark")
    await store.advance("1h")
    assert not await store.do(tally_jobs)
    assert await store.query("select subject, source, at from holdfast.tally_mark") == marks


async def test_a_walk_in_small_steps_counts_everything_once(store: Store) -> None:
    for n in (3, 1, 3):
        for queue in ("a", "b"):
            await finished(store, n, queue)
        await store.advance("1s")
    await store.advance("3m")
    assert await tally_all(store, look=2) > 4
    assert {row.source: row.number for row in await counted(store, "day", "source")} == {"a": 7, "b": 7}


@pytest.mark.parametrize("before", [False, True], ids=["before it is counted", "after it was counted"])
async def test_what_is_removed_stays_counted_once(store: Store, before: bool) -> None:
    await finished(store, 4, tenant="acme")
    await failed(store, "broken")
    if before:
        await store.advance("3m")
        await tally_all(store)
    pruner = Pruner(store.database, KeepRule(0, 0))
    assert sum([gone async for gone in pruner.thoroughly()]) == 5
    await store.advance("3m")
    await tally_all(store)
    assert [await number(store, grain) for grain in ("minute", "hour", "day")] == [5, 5, 5]
    assert await number(store, "day", tenant="acme") == 4
    assert [group.number for group in await groups(store)] == [1]


async def test_minutes_name_no_tenant_and_longer_times_do(store: Store) -> None:
    await finished(store, 2, tenant="acme")
    await finished(store, 1)
    await store.advance("3m")
    await tally_all(store)
    rows = await store.query("select distinct tenant from holdfast.tally where grain in ('minute', 'hour', 'day')")
    assert rows == [("",)]
    by_tenant = await counted(store, "hour", "tenant")
    assert {row.tenant: row.number for row in by_tenant} == {"acme": 2, "": 1}
    assert await number(store, "hour", tenant="other") == 0


async def test_how_long_jobs_waited_and_took_is_known_within_a_factor_of_two(store: Store) -> None:
    for _ in range(3):
        await store.enqueue()
    await store.advance("10s")
    leases = await store.claim(await store.worker(), 3)
    await store.advance("100ms")
    for lease in leases:
        await store.end(lease, Done())
    await store.advance("3m")
    await tally_all(store)
    found: dict[str, dict[int, int]] = {}
    for row in await store.do(read_times, SeriesQuery("jobs", "hour", *EVER, step=1)):
        found.setdefault(row.measure, {})[row.bucket] = row.number
    waits, takes = (percentile(found[measure], 0.5) or 0 for measure in ("wait", "duration"))
    assert 5_000_000 <= waits <= 20_000_000
    assert 50_000 <= takes <= 200_000


async def test_minutes_go_after_two_days_hours_after_ninety_and_days_stay(store: Store) -> None:
    await finished(store)
    await store.advance("3m")
    await tally_all(store)
    for age, left in (("1d", [1, 1, 1]), ("1d", [0, 1, 1]), ("89d", [0, 0, 1]), ("900d", [0, 0, 1])):
        await store.advance(age)
        while await store.do(forget_old):
            pass
        assert [await number(store, grain) for grain in ("minute", "hour", "day")] == left
    assert await store.query("select distinct grain from holdfast.tally_time order by 1") == [
        ("day",),
        ("tenant_day",),
    ]


async def test_what_is_older_than_it_would_be_kept_is_not_written(store: Store) -> None:
    await finished(store)
    await store.advance("100d")
    await tally_all(store)
    assert [await number(store, grain) for grain in ("minute", "hour", "day")] == [0, 0, 1]


async def test_failures_that_differ_in_numbers_and_ids_are_one(store: Store) -> None:
    await failed(store, "KeyError: no user 17 in 01a1e8fe-3166-7508-97e1-c495538f0291")
    await store.advance("1m")
    await failed(store, "KeyError: no user 18 in 01a1e8fe-3195-753f-89b3-0583ca97741e", "acme")
    await failed(store, "out of paper")
    await store.advance("3m")
    await tally_all(store)
    found = {(row.error, row.message): row for row in await groups(store)}
    keys = found["KeyError", "no user <n> in <id>"]
    assert (keys.number, keys.last_at - keys.first_at >= MINUTE) == (2, True)
    assert found["processing_error", "out of paper"].number == 1
    assert [(row.number, row.message) for row in await groups(store, "acme")] == [(1, "no user <n> in <id>")]
    assert await groups(store, "other") == []


async def test_a_tenant_has_a_bounded_number_of_groups(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_groups, "MOST", 2)
    for word in ("one", "two", "three", "four", "one"):
        await failed(store, f"wrong word {word}")
        await store.advance("3m")
        await tally_all(store)
    assert {row.message: row.number for row in await groups(store)} == {
        "wrong word one": 2,
        "wrong word two": 1,
        OTHERS: 2,
    }


async def to_the_hour(store: Store) -> None:
    await store.advance(f"{HOUR - store.clock.us % HOUR}us")


async def finished_late(store: Store, n: int, queue: str = "default", tenant: str = "") -> None:
    """As if the transactions that end these jobs had been open for ten minutes."""
    await store.set_back("10m")
    await finished(store, n, queue, tenant)
    await store.advance("10m")


async def again_all(store: Store, look: int = 5_000) -> int:
    calls = 1
    while await store.do(count_jobs_again, look=look):
        calls += 1
    return calls


async def totals(store: Store) -> list[int]:
    return [await number(store, grain) for grain in ("hour", "day")]


async def test_what_ended_late_is_found_when_its_hour_is_counted_again(store: Store) -> None:
    await to_the_hour(store)
    await finished(store, 3)
    await store.advance("20m")
    await tally_all(store)
    await finished_late(store, 2, tenant="acme")
    await tally_all(store)
    await store.advance("49m")
    assert await again_all(store) == 1
    assert await totals(store) == [3, 3]
    await store.advance("1m")
    for _ in range(2):
        await again_all(store)
        await tally_all(store)
        assert await totals(store) == [5, 5]
        assert await number(store, "hour", tenant="acme") == await number(store, "day", tenant="acme") == 2
    assert await store.query("select subject from holdfast.tally where subject like 'again%'") == []


@pytest.mark.parametrize("counted_before", [False, True], ids=["uncounted", "counted"])
async def test_what_is_removed_before_its_hour_is_counted_again_is_counted_once(
    store: Store, counted_before: bool
) -> None:
    await to_the_hour(store)
    await finished(store, 3)
    await store.advance("20m")
    if counted_before:
        await tally_all(store)
    await finished_late(store, 2)
    assert sum([gone async for gone in Pruner(store.database, KeepRule(0, 0)).thoroughly()]) == 5
    await finished(store, 1)
    await store.advance("51m")
    await tally_all(store)
    await again_all(store)
    assert await totals(store) == [6, 6]


async def test_an_hour_that_is_counted_again_never_becomes_lower(store: Store) -> None:
    await to_the_hour(store)
    await finished(store, 4)
    await store.advance("20m")
    await tally_all(store)
    await store.query("update holdfast.tally set number = number + 1")  # as if the row of one more were gone
    await store.advance("51m")
    await again_all(store)
    assert await totals(store) == [5, 5]


async def test_hours_are_counted_again_in_small_steps_and_each_queue_once(store: Store) -> None:
    await to_the_hour(store)
    for queue in ("a", "b"):
        await finished(store, 3, queue)
        await store.advance("10m")
    await tally_all(store)
    for queue, n in (("a", 2), ("b", 1)):
        await finished_late(store, n, queue)
    await store.advance("2h")
    await finished(store, 1, "a")
    assert await again_all(store, look=2) > 4
    assert {row.source: row.number for row in await counted(store, "day", "source")} == {"a": 5, "b": 4}
    marks = await store.query("select subject, source, at from holdfast.tally_mark order by 1, 2")
    assert not await store.do(count_jobs_again)
    assert await store.query("select subject, source, at from holdfast.tally_mark order by 1, 2") == marks


async def test_an_hour_is_not_counted_again_before_it_is_counted(store: Store) -> None:
    await to_the_hour(store)
    await finished(store, 3)
    await store.advance("2h")
    assert not await store.do(count_jobs_again)
    await tally_all(store)
    await again_all(store)
    assert await totals(store) == [3, 3]


def test_times_are_whole_parts_of_each_other() -> None:
    assert DAY % HOUR == HOUR % MINUTE == 0
