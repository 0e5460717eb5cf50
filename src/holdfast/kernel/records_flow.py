"""Rows of flow control as the kernel reads and writes them: lanes, queues, schedules, and what `why` looks at."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.kernel.ids import JobId


class Candidate(NamedTuple):
    """A pending job of a lane, as a claim considers it."""

    seq: int
    priority: int
    slot: int
    lane: str
    cost: int


class LaneName(NamedTuple):
    name: str


class LaneState(NamedTuple):
    """A lane as it stands while its row is locked."""

    name: str
    concurrency: int | None
    interval_us: int | None
    burst: int
    free_at: int
    running: int
    first_priority: int | None
    first_slot: int | None
    first_seq: int | None
    now: int

    @property
    def first(self) -> tuple[int, int, int] | None:
        """The place of the first blocked job."""
        if self.first_priority is None or self.first_slot is None or self.first_seq is None:
            return None
        return self.first_priority, self.first_slot, self.first_seq


class Charge(NamedTuple):
    """What a claim or an opening leaves in a lane's row."""

    name: str
    free_at: int
    opens_at: int | None
    charged_at: int  # the store's time by which these two were reckoned; it may have leapt since


class LaneRow(NamedTuple):
    """A lane for people: its limits, and how full it is."""

    name: str
    concurrency: int | None
    interval_us: int | None
    burst: int
    free_at: int
    opens_at: int | None
    running: int
    blocked: int


class QueueRow(NamedTuple):
    name: str
    on_orphan: str
    fair: int
    keep_us: int | None
    keep_jobs: int | None
    paused_at: int | None
    pause_reason: str | None


class PausedQueue(NamedTuple):
    name: str
    paused_at: int | None


class QueueCount(NamedTuple):
    queue: str
    jobs: int


class FinishedCount(NamedTuple):
    queue: str
    state: str
    jobs: int


class FinishedQueue(NamedTuple):
    queue: str
    keep_us: int | None
    keep_jobs: int | None


class Moment(NamedTuple):
    at: int


class ScheduleRow(NamedTuple):
    name: str
    kind: str
    queue: str
    cron: str
    timezone: str
    catch_up: str
    job: str
    next_at: int
    last_at: int | None
    last_job: JobId | None
    paused_at: int | None
    now: int


class Tick(NamedTuple):
    name: str
    next_at: int


class WhyJob(NamedTuple):
    """A job and everything that may stand in its way."""

    seq: int
    kind: str
    queue: str
    route: int
    state: str
    priority: int
    slot: int
    gate: str | None
    lane: str | None
    cost: int
    attempts: int
    max_attempts: int
    due_at: int | None
    lease_until: int | None
    claimed_at: int | None
    finished_at: int | None
    cancel_requested_at: int | None
    open_children: int
    channel: str | None
    error: str | None
    paused_at: int | None
    pause_reason: str | None
    capabilities: str | None
    holder: str | None
    host: str | None
    now: int
