"""Times: microseconds in the store, datetimes in UTC outside, ISO 8601 text in JSON."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import overload

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = datetime.max.replace(tzinfo=UTC)


@overload
def moment(us: int) -> datetime: ...


@overload
def moment(us: None) -> None: ...


def moment(us: int | None) -> datetime | None:
    """A stored time as a datetime. One beyond the year 9999 is shown as its last moment."""
    if us is None:
        return None
    try:
        return _EPOCH + timedelta(microseconds=us)
    except OverflowError:
        return _LAST


def microseconds(at: datetime) -> int:
    """A datetime as the store has it."""
    return (at - _EPOCH) // timedelta(microseconds=1)


def iso(at: datetime) -> str:
    """A time as JSON has it: in UTC, to the millisecond, with a Z."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
