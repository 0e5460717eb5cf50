"""Schedules in the hours that a clock change repeats: each tick lies ahead, and none is found twice."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from holdfast.durations import next_tick
from holdfast.kernel.schedules import last_tick

CRONS = ["30 1 * * *", "10,50 1 * * *", "5,25,45 1 * * *", "45 0-3 * * *", "30 23 * * *", "*/30 * * * *", "* 3 * * *"]
REPEATED = [  # a zone, and the hour in UTC that its clock shows a second time
    ("America/New_York", datetime(2026, 11, 1, 6, tzinfo=UTC)),
    ("Europe/Athens", datetime(2026, 10, 25, 1, tzinfo=UTC)),
    ("Asia/Beirut", datetime(2026, 10, 24, 21, tzinfo=UTC)),
]
MINUTE = 60_000_000


def moment(at: datetime) -> int:
    return round((at - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(microseconds=1))


def ticks_of(cron: str, zone: str, begin: int, end: int) -> list[int]:
    """All ticks in a time, one after the other."""
    ticks = [next_tick(cron, zone, begin)]
    while (following := next_tick(cron, zone, ticks[-1])) < end:
        assert following > ticks[-1], "a schedule that goes back is never done with what it has missed"
        ticks.append(following)
    return ticks


@pytest.mark.parametrize(("zone", "hour"), REPEATED)
@pytest.mark.parametrize("cron", CRONS)
def test_the_next_tick_lies_ahead_from_every_minute_of_a_repeated_hour(cron: str, zone: str, hour: datetime) -> None:
    """It is the one that follows in the row of all ticks: a schedule that wakes up late joins that row."""
    ticks = ticks_of(cron, zone, moment(hour - timedelta(days=1)), moment(hour + timedelta(days=2)))
    for minute in range(-60, 120, 7):
        now = moment(hour) + minute * MINUTE
        assert next_tick(cron, zone, now) == next(tick for tick in ticks if tick > now)


@pytest.mark.parametrize(("zone", "hour"), REPEATED)
@pytest.mark.parametrize("cron", CRONS)
def test_the_last_tick_missed_is_found_across_a_repeated_hour(cron: str, zone: str, hour: datetime) -> None:
    ticks = ticks_of(cron, zone, moment(hour - timedelta(days=1)), moment(hour + timedelta(hours=5)))
    for first, following in pairwise(ticks[:3]):
        for until in range(max(following, moment(hour)), moment(hour + timedelta(hours=3)), 13 * MINUTE):
            expected = max(tick for tick in ticks if tick <= until)
            assert last_tick(cron, zone, first, until, next_tick) == expected


def test_a_time_that_the_clock_shows_twice_is_one_tick() -> None:
    hour = moment(datetime(2026, 11, 1, 6, tzinfo=UTC))
    ticks = ticks_of("30 1 * * *", "America/New_York", hour - 20 * 60 * MINUTE, hour + 30 * 60 * MINUTE)
    days = [(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=tick)) for tick in ticks]
    shown = [day.astimezone(ZoneInfo("America/New_York")).isoformat() for day in days]
    assert shown == ["2026-11-01T01:30:00-04:00", "2026-11-02T01:30:00-05:00"]
