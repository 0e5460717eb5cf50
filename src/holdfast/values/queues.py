"""Queues and lanes of jobs as programs see them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from holdfast.kernel.flow_rows import LaneRow, QueueRow
from holdfast.kernel.queues import QueueStats
from holdfast.values.rows import value_of


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
