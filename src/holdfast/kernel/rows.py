"""Rows as the kernel reads and writes them. Each record's fields stand in the order of its statement's columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.kernel.ids import JobId
from holdfast.kernel.states import State


class Token(NamedTuple):
    """The number of a lease: rises with every claim, and its epoch with every change of the database's identity."""

    epoch: int
    counter: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.counter}"


class Route(NamedTuple):
    id: int
    queue: str
    capabilities: str


class RouteId(NamedTuple):
    route: int


class NewJob(NamedTuple):
    id: JobId
    kind: str
    queue: str
    route: int
    tenant: str
    priority: int
    delay_us: int | None
    due_at: int | None
    timeout_us: int | None
    deadline_us: int | None
    deadline_at: int | None
    max_attempts: int
    max_rescues: int
    parent: int | None
    retry_of: JobId | None
    payload: str
    metadata: str
    lane: str | None = None
    cost: int = 1
    concurrency: int | None = None  # of its lane, as are the next two
    interval_us: int | None = None
    burst: int = 1
    turn: int = 0  # from 1, among the jobs of its tenant in this call, if its queue is fair
    unique_key: str | None = None
    unique_scope: str | None = None
    window_us: int | None = None
    replaces: bool = False  # the job that has its unique key, if nobody has claimed that one yet
    layer: str | None = None  # whose it is, if not a program's own; see `kernel.ownership`


class JobItem(NamedTuple):
    """What one job of many has for itself; `alike` is the number, from 1, of the job it is otherwise like."""

    id: JobId
    payload: str
    turn: int
    alike: int


class Batch(NamedTuple):
    """Jobs of one call, alike but for their ids and payloads; `job` is the first of them."""

    job: NewJob
    ids: Sequence[JobId]
    payloads: Sequence[str]

    def part(self, begin: int, size: int) -> Batch:
        return Batch(self.job, self.ids[begin : begin + size], self.payloads[begin : begin + size])


class EnqueueResult(NamedTuple):
    inserted: int
    routes: str | None  # where something may be claimable now
    hinted: int | None  # told by the statement itself


class KeyOwner(NamedTuple):
    digest: str
    job: JobId


class UniqueJob(NamedTuple):
    seq: int
    id: JobId
    state: str
    token: int


class ReplacedJob(NamedTuple):
    seq: int
    route: int
    state: str
    lane: str | None


class ReadyPlace(NamedTuple):
    """Where a job stands among those of its route or lane; `@place` in SQL."""

    priority: int
    slot: int
    seq: int


class LeaseRef(NamedTuple):
    """A lease as its worker names it in every write."""

    seq: int
    worker: int
    epoch: int
    token: int


class Lease(NamedTuple):
    """A claimed job, with everything its attempt needs."""

    seq: int
    id: JobId
    kind: str
    queue: str
    tenant: str
    priority: int
    slot: int
    worker: int
    epoch: int
    token: int
    attempts: int
    max_attempts: int
    rescues: int
    timeout_us: int | None
    deadline_at: int | None
    claimed_at: int
    lease_until: int
    created_at: int
    parent: int | None
    lane: str | None
    payload: str
    metadata: str
    layer: str | None = None

    @property
    def held(self) -> LeaseRef:
        return LeaseRef(self.seq, self.worker, self.epoch, self.token)

    @property
    def fence(self) -> Token:
        return Token(self.epoch, self.token)

    @property
    def place(self) -> ReadyPlace:
        return ReadyPlace(self.priority, self.slot, self.seq)


class UnnamedLease(NamedTuple):
    """A lease that the store has under a worker's number, and the worker does not know."""

    seq: int
    worker: int
    epoch: int
    token: int
    parent: int | None

    @property
    def held(self) -> LeaseRef:
        return LeaseRef(self.seq, self.worker, self.epoch, self.token)


class Ending(NamedTuple):
    """How one attempt ends, as `complete` writes it."""

    seq: int
    worker: int
    epoch: int
    token: int
    outcome: str
    state: State
    delay_us: int
    counted: int
    result: str | None
    error: str | None


class EndedLease(NamedTuple):
    seq: int
    epoch: int
    token: int
    state: str
    route: int
    parent: int | None
    lane: str | None
    kind: str


class EndedAttempt(NamedTuple):
    job: int
    epoch: int
    token: int
    outcome: str


class RenewedLease(NamedTuple):
    seq: int
    epoch: int
    token: int
    lease_until: int
    cancel_requested_at: int | None


class HeldToken(NamedTuple):
    seq: int
    worker: int
    epoch: int
    token: int
    lease_until: int
    now: int


class Expiry(NamedTuple):
    """When the first lease ends; None: nothing runs."""

    at: int | None


class ChildRef(NamedTuple):
    seq: int
    parent: int | None


class LockedJob(NamedTuple):
    """A job that stays where it is until the commit."""

    seq: int
    id: JobId
    state: str
    parent: int | None
    cancel_requested_at: int | None


class OpenChildren(NamedTuple):
    open_children: int


class Seq(NamedTuple):
    seq: int


class AdjacentIds(NamedTuple):
    """The ids next to one, in the order of ids."""

    id: str
    before: str | None
    after: str | None


class MovedJob(NamedTuple):
    """A job that a sweep, a signal or a cancel moved."""

    seq: int
    id: JobId
    state: str
    route: int
    parent: int | None
    lane: str | None
    kind: str


class LostJob(NamedTuple):
    """A job whose lease was lost, and where it is now."""

    seq: int
    id: JobId
    state: str
    route: int
    parent: int | None
    lane: str | None
    kind: str
    error: str | None  # of a job that this loss failed

    @property
    def moved(self) -> MovedJob:
        return MovedJob(*self[:-1])


class WokenJob(NamedTuple):
    seq: int
    route: int


class Suspension(NamedTuple):
    id: JobId
    channel: str


class Resolution(NamedTuple):
    """What becomes of a job that waits on `channel`; WAITING is a wait for added `children`, or on `onto`."""

    seq: int
    channel: str | None
    state: str
    children: int = 0
    onto: str | None = None
    payload: str | None = None  # in place of the one it has
    result: str | None = None
    error: str | None = None


class SettledJob(NamedTuple):
    seq: int
    route: int
    state: str


class Fence(NamedTuple):
    seq: int
    cancel_requested_at: int | None
    now: int


class Signal(NamedTuple):
    id: str
    payload: str


class Step(NamedTuple):
    name: str
    result: str


class LastStep(NamedTuple):
    """The newest of several steps, and how many they are."""

    name: str
    result: str
    number: int


class Number(NamedTuple):
    number: int


class ChildRow(NamedTuple):
    id: JobId
    kind: str
    state: str
    result: str | None
    error: str | None


class CancelRequested(NamedTuple):
    seq: int
    worker: int


class Cancellation(NamedTuple):
    job: int
    reason: str


class JobRow(NamedTuple):
    """A job as it stands, whole."""

    seq: int
    id: JobId
    kind: str
    queue: str
    tenant: str
    state: str
    priority: int
    gate: str | None
    epoch: int
    token: int
    worker: int | None
    lease_until: int | None
    claimed_at: int | None
    attempts: int
    max_attempts: int
    rescues: int
    max_rescues: int
    timeout_us: int | None
    due_at: int | None
    deadline_at: int | None
    created_at: int
    finished_at: int | None
    cancel_requested_at: int | None
    parent: int | None
    open_children: int
    channel: str | None
    retry_of: JobId | None
    payload: str
    metadata: str
    progress: str | None
    result: str | None
    error: str | None
    layer: str | None = None  # of the runtime that it belongs to; None: a program's own job


class AttemptRow(NamedTuple):
    job: int
    epoch: int
    token: int
    worker: int
    outcome: str
    started_at: int
    ended_at: int
    error: str | None


class EndedJob(NamedTuple):
    id: JobId
    state: str
    result: str | None
    error: str | None


class Cluster(NamedTuple):
    epoch: int
    identity: str


class LiveWorker(NamedTuple):
    seq: int
    hostname: str
    pid: int
    presence: int
    fresh: bool
    process: int  # the worker whose presence stands for it


class Incarnation(NamedTuple):
    """The number of a worker, and what state it is in."""

    seq: int
    status: str


class Heartbeat(NamedTuple):
    """What the store answers to a heartbeat."""

    seq: int
    status: str
    now: int
    oldest_code: int
    leases: int  # that the store has under its number


class LastBeat(NamedTuple):
    """When a worker showed life last."""

    seq: int
    heartbeat_at: int


class LostWorker(NamedTuple):
    seq: int
    id: str


class AheadOfClock(NamedTuple):
    """How many of each bear a time that lies ahead of the store's clock."""

    workers: int
    lanes: int
    leases: int


class DutyRow(NamedTuple):
    name: str
    term: int
    holder: int
    held_until: int


class Term(NamedTuple):
    """A duty while one worker holds it; every maintenance write names the term."""

    name: str
    term: int


class Observation(NamedTuple):
    """What one look at the store showed."""

    now: int
    next_due: int | None
    next_deadline: int | None
    cancellations: bool
    silent: bool
    alive: int
    routes_changed: int | None
    next_opening: int | None
    next_tick: int | None
    pending: bool
    leased_elsewhere: bool
    leased: bool  # anything runs
    next_turn: int | None  # when somebody should look for leases that ran out; None: nobody ever did
    duties_held: int  # by workers that count as alive


# Rows of lists and searches.


class Match(NamedTuple):
    """What a search found. `name` is how people call it."""

    id: str
    name: str


class CreatedJob(NamedTuple):
    seq: int
    at: int


class EndedAtSeq(NamedTuple):
    """When a job ended, and its number."""

    at: int
    seq: int


class FailedJob(NamedTuple):
    """`error` is JSON with a type and a message."""

    id: str
    tenant: str
    error: str | None
    at: int


# Rows of pools. Each record's fields stand in the order of its statement's columns.


class PoolRow(NamedTuple):
    name: str
    settings: str
    keepers: int  # live processes that decide about it


class PastWorker(NamedTuple):
    """One of the last workers of a pool."""

    seq: int
    status: str
    pid: int  # 0: no process has taken the place
    started_at: int
    stopped_at: int | None
    boot_by: int | None  # the same for all that one decision started
    reason: str | None
    now: int


class LoadRow(NamedTuple):
    jobs: int


class PlaceRow(NamedTuple):
    seq: int
    id: str


class PlaceStanding(NamedTuple):
    seq: int
    id: str
    status: str


# Rows for people who watch the store. Each record's fields stand in the order of its statement's columns.


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
