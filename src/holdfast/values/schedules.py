"""Schedules as programs see them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from holdfast.kernel.flow_rows import ScheduleRow
from holdfast.kernel.ids import JobId
from holdfast.values.rows import value_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRecord:
    """A schedule as it stands in the store.

    If it could not be fired, `error` says why, and `retry_at` when it is tried again.
    """

    SHOWN: ClassVar = ("paused",)

    name: str
    kind: str
    queue: str
    cron: str
    timezone: str
    catch_up: str
    next_at: datetime
    last_at: datetime | None
    last_job: JobId | None
    paused_at: datetime | None
    retry_at: datetime | None
    error: str | None

    @property
    def paused(self) -> bool:
        return self.paused_at is not None


def schedule_of(row: ScheduleRow) -> ScheduleRecord:
    return value_of(ScheduleRecord, row)
