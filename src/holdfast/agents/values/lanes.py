"""Lanes to providers that are closed, as programs see them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from holdfast.agents.lane_rows import ClosedLane
from holdfast.values.rows import value_of
from holdfast.values.times import moment


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLaneRecord:
    """A lane to a provider that is closed: until a time, or, if `person`, until somebody opens it.

    `closed_at` is when it was closed. `waiting` counts the runs behind it; 10,001 stands for more than 10,000.
    """

    name: str
    closed_until: datetime | None
    person: bool
    reason: str
    closed_at: datetime
    waiting: int


def closed_lane_of(row: ClosedLane) -> ClosedLaneRecord:
    return value_of(ClosedLaneRecord, row, closed_at=moment(row.updated_at))
