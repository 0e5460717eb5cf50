"""Rows for people who watch the store. Each record's fields stand in the order of its statement's columns."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.kernel.ids import JobId


class Change(NamedTuple):
    """A job in a state, and since when."""

    seq: int
    id: JobId
    kind: str
    queue: str
    state: str
    at: int
    error: str | None


class Backlog(NamedTuple):
    """What waits to be claimed on one route."""

    id: int
    queue: str
    capabilities: str
    pending: int
    oldest_at: int | None


class Symptoms(NamedTuple):
    """How much should have been dealt with by now."""

    lapsed: int
    overdue: int
    late_lanes: int
    late_schedules: int
    now: int


class Misplaced(NamedTuple):
    """A job that does not stand in exactly one of ready, later, lease and ended, or not where it says, or a row there
    without a job."""

    seq: int
    id: JobId | None  # None: there is no such job
    places: int
    astray: int = 0  # rows of ready and later that name another place than the job


class Latencies(NamedTuple):
    """How long the last jobs of a queue waited and ran, in microseconds; None when none did."""

    wait_p50: int | None
    wait_p95: int | None
    wait_p99: int | None
    duration_p50: int | None
    duration_p95: int | None
    duration_p99: int | None


class RetriedKind(NamedTuple):
    """How often jobs of one kind were tried again, how many of them, and the newest such job with its last error."""

    kind: str
    retries: int
    jobs: int
    last_at: int
    last_id: str
    error: str | None
