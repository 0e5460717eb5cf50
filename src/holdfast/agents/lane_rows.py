"""Rows about providers that fail: lanes that are closed, and calls that failed."""

from __future__ import annotations

from typing import NamedTuple


class ClosedLane(NamedTuple):
    """A lane to a provider that is closed: until a time, or, `person`, until somebody opens it."""

    name: str
    closed_until: int | None
    person: int
    reason: str
    updated_at: int  # when it was closed
    now: int
    waiting: int  # how many wait behind it; 10,001 stands for more than 10,000


class LastFailure(NamedTuple):
    error: str | None
    now: int
