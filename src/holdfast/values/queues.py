"""Queues and lanes of jobs as programs see them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar

from holdfast.durations import microseconds, show
from holdfast.kernel.drivers.addresses import without_password
from holdfast.kernel.flow_rows import LaneRow, QueueRow, ScheduleRow
from holdfast.kernel.ids import JobId
from holdfast.kernel.queues import QueueStats
from holdfast.models.facts import place_of
from holdfast.values import value_of


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRecord:
    """A queue with the policy that the store has for it."""

    name: str
    on_orphan: str
    fair: bool
    keep: timedelta | None
    keep_jobs: int | None
    paused_at: datetime | None
    pause_reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCounts(QueueRecord):
    """A queue and how much is in it. Each count stops at 10,000; what ended is of the last minute.

    `later` counts jobs that are scheduled or waiting.
    """

    pending: int
    blocked: int
    running: int
    later: int
    succeeded: int
    failed: int
    cancelled: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneRecord:
    """A lane: the jobs that share a limit. `interval` is the time between two starts, if its rate is limited."""

    name: str
    concurrency: int | None
    interval: timedelta | None
    burst: int
    free_at: datetime
    opens_at: datetime | None
    running: int
    blocked: int


def queue_of(row: QueueRow) -> QueueRecord:
    return value_of(QueueRecord, row, keep=_span(row.keep_us))


def counts_of(stats: QueueStats) -> QueueCounts:
    own = ("pending", "blocked", "running", "later", "succeeded", "failed", "cancelled")
    counts = {name: getattr(stats, name) for name in own}
    return value_of(QueueCounts, stats.queue, keep=_span(stats.queue.keep_us), **counts)


def lane_of(row: LaneRow) -> LaneRecord:
    return value_of(LaneRecord, row, interval=_span(row.interval_us))


def _span(us: int | None) -> timedelta | None:
    return None if us is None else timedelta(microseconds=us)


# Schedules as programs see them.


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


# Settings as they are listed: durations as people write them, URLs without their credentials.


def shown_setting(name: str, value: Any) -> Any:
    if name in ("url", "direct_url"):
        return without_password(value)
    return place_of(value).url if name == "provider_url" else written(value)


def written(value: Any) -> Any:
    return show(microseconds(value)) if isinstance(value, timedelta) else value
