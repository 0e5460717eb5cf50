"""Durations as people write them: `"10s"`, `"1h30m"`, `timedelta`; microseconds inside."""

from __future__ import annotations

import re
from datetime import timedelta

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
        raise BadSetting(f'a duration must be text such as "10s" or a timedelta, not {value!r}.')
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
        raise BadSetting(f"a duration has at most {_LONGEST} characters, not {len(text):,}.")
    compact = text.replace(" ", "")
    parts = _PART.findall(compact)
    if not parts or "".join(number + unit for number, unit in parts) != compact:
        raise BadSetting(f'{text!r} is not a duration; write it like "500ms", "10s", "1h30m" or "7d".')
    return round(sum(float(number) * _UNITS_US[unit] for number, unit in parts))
