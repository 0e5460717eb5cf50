"""Rows of flow control as the kernel reads and writes them: lanes, queues, schedules, and what `why` looks at."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.kernel.ids import JobId
from holdfast.kernel.rows import ReadyPlace


class Candidate(NamedTuple):
    """A pending job of a lane, as a claim considers it."""

    seq: int
    priority: int
    slot: int
    lane: str
    cost: int

    @property
    def place(self) -> ReadyPlace:
        return ReadyPlace(self.priority, self.slot, self.seq)


class LaneName(NamedTuple):
    name: str


class OldLane(NamedTuple):
    name: str
    used: bool  # some job names it, or its rate has not caught up


class FirstBlocked(NamedTuple):
    name: str
    priority: int
    slot: int
    seq: int


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
    noted: int = 0  # 1: somebody has left a note, and it is to be followed first

    @property
    def first(self) -> ReadyPlace | None:
        """The place of the first blocked job."""
        if self.first_priority is None or self.first_slot is None or self.first_seq is None:
            return None
        return ReadyPlace(self.first_priority, self.first_slot, self.first_seq)

    def behind(self, first: FirstBlocked | None) -> LaneState:
        """The same lane with that one as its first blocked job."""
        places = (None, None, None) if first is None else (first.priority, first.slot, first.seq)
        return self._replace(first_priority=places[0], first_slot=places[1], first_seq=places[2])


class LaneNote(NamedTuple):
    """What somebody who could not lock a lane has left for the next who can. Of several the newest says the limits."""

    id: int
    lane: str
    declares: int  # 0: it says no limits, only that the lane is to be looked at
    concurrency: int | None
    interval_us: int | None
    burst: int


class DeclaredLane(NamedTuple):
    name: str
    concurrency: int | None
    interval_us: int | None
    burst: int


class LaneCrowd(NamedTuple):
    """Who is in a lane, whether or not it has a row."""

    running: int
    first_priority: int | None
    first_slot: int | None
    first_seq: int | None
    now: int


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


class FinishedJob(NamedTuple):
    seq: int
    at: int
    prunable: int


class CountedBack(NamedTuple):
    at: int | None
    jobs: int


class PrunedJob(NamedTuple):
    seq: int
    id: JobId


class OldKey(NamedTuple):
    job: JobId
    at: int
    spent: int


class OldWorker(NamedTuple):
    seq: int
    gone: int


class ChannelName(NamedTuple):
    name: str


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
    retry_at: int | None  # when to try again, if it could not be fired
    error: str | None  # why not
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
    layer: str | None
    process: int | None  # the worker whose presence says whether its holder lives

    @property
    def place(self) -> ReadyPlace:
        return ReadyPlace(self.priority, self.slot, self.seq)


class HeldDuty(NamedTuple):
    name: str
    holder: int
    alive: bool  # the store has not given its holder up
    present: bool  # the holder's death would be seen at once


class ReadyRoute(NamedTuple):
    """A route on which there is something to claim."""

    id: int
    paused: bool
