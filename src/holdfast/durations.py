"""Durations as people write them: `"10s"`, `"1h30m"`, `timedelta`; microseconds inside."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from holdfast.errors import BadSetting

Duration = timedelta | str

_UNITS_US = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "w": 604_800_000_000,
}
_TOO_LONG = 2**61  # from now on, what both databases hold
_LONGEST = 100  # characters
_PART = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)(us|ms|s|m|h|d|w)")


def microseconds(value: Duration) -> int:
    """Read a duration; raise `BadSetting` for anything that is not one, or is negative."""
    if isinstance(value, timedelta):
        total = value // timedelta(microseconds=1)
    elif isinstance(value, str):
        total = _read(value)
    else:
        raise BadSetting(f'a duration must be text such as "10s" or a timedelta; got {value!r}.')
    if total < 0:
        raise BadSetting(f"a duration cannot be negative: {value!r}.")
    if total >= _TOO_LONG:
        raise BadSetting(f"this duration is too long: {value!r}.")
    return total


def duration(value: Duration) -> timedelta:
    return timedelta(microseconds=microseconds(value))


def show(us: int) -> str:
    """The shortest spelling that `microseconds` reads back."""
    if us == 0:
        return "0s"
    parts = []
    for unit in ("d", "h", "m", "s", "ms", "us"):
        count, us = divmod(us, _UNITS_US[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def _read(text: str) -> int:
    if len(text) > _LONGEST:
        raise BadSetting(f"a duration has at most {_LONGEST} characters; got {len(text):,}.")
    compact = text.replace(" ", "")
    parts = _PART.findall(compact)
    if not parts or "".join(number + unit for number, unit in parts) != compact:
        raise BadSetting(f'{text!r} is not a duration; write it like "500ms", "10s", "1h30m" or "7d".')
    return round(sum(float(number) * _UNITS_US[unit] for number, unit in parts))


# Rates as people write them: `"100/min"`, `"10/s"`, `"5/30s"`, `"100/min burst 20"`.


_RATE = re.compile(r"(?P<count>\d{1,18})\s*/\s*(?P<per>[a-z0-9.]+)(?:\s+burst\s+(?P<burst>\d{1,18}))?")
_UNITS = {"sec": "1s", "second": "1s", "min": "1m", "minute": "1m", "hour": "1h", "day": "1d", "week": "1w"}


class Rate(NamedTuple):
    """One start every `interval_us`; after a quiet time `burst` of them at once."""

    interval_us: int
    burst: int


def rate(text: str) -> Rate:
    """Read a rate; without a burst the starts are evenly spaced."""
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise BadSetting(f'{text!r} is not a rate; write it like "10/s", "100/min" or "100/min burst 20".')
    per = match["per"]
    us = microseconds(_UNITS.get(per) or (per if per[0].isdigit() else f"1{per}"))
    count, burst = int(match["count"]), int(match["burst"] or 1)
    if not count or not us or not burst or us < count:
        raise BadSetting(f"{text!r} is out of range: at least one, at most a million a second.")
    return Rate(us // count, burst)


# When a schedule fires: cron expressions in a time zone, or a plain rhythm such as `every 5m`.


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}


def next_tick(cron: str, timezone: str, after_us: int) -> int:
    """The first tick after a moment, in microseconds. Where a clock change skips or repeats an hour: cron's rules."""
    zone = _zone(timezone)
    if cron.startswith("every "):
        step = microseconds(cron.removeprefix("every "))
        if step < 1_000_000:
            raise BadSetting(f"{cron!r} fires too often: a schedule fires at most once a second.")
        return (after_us // step + 1) * step
    begin = (_EPOCH + timedelta(microseconds=after_us)).astimezone(zone)
    try:
        # In an hour that the clock repeats, CronSim may first name a tick of the hour before.
        tick = next(tick for tick in CronSim(_NAMED.get(cron, cron), begin) if tick.astimezone(UTC) > begin)
    except (CronSimError, ValueError) as problem:  # also for a number of more digits than Python reads
        raise BadSetting(
            f'{cron!r} is not a cron expression ({problem}); write it like "0 3 * * *", "@daily" or "every 5m".'
        ) from None
    except StopIteration:
        raise BadSetting(f"{cron!r} never fires.") from None
    return round((tick - _EPOCH) / timedelta(microseconds=1))


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise BadSetting(f"{name!r} is not a time zone that this machine knows; write it like Europe/Athens.") from None
