"""Times as clients read them."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.kernel.flow_rows import QueueCount
from holdfast.kernel.ids import JobId
from holdfast.kernel.rows import LeaseRef
from holdfast.kernel.sql import Exec, Many, One, Statements
from holdfast.kernel.states import State
from holdfast.values import iso, moment


def shown_time(us: int | None) -> str | None:
    return None if us is None else iso(moment(us))


# Statuses: what AGX calls the states of a job. A pure function of the job's row.


STATUSES = ("pending", "running", "completed", "failed", "dead")
ENDED = frozenset({"completed", "failed", "dead"})
_NAMES = {
    State.SCHEDULED: "pending",
    State.PENDING: "pending",
    State.RUNNING: "running",
    State.WAITING: "running",
    State.SUCCEEDED: "completed",
    State.CANCELLED: "failed",
}
# What JOB.UPDATE may ask for, by the status that the job has.
MOVES = {"pending": {"running"}, "running": {"running", "completed", "failed"}}


def status_of(state: str | None, attempts: int, max_attempts: int) -> str:
    """`dead`: it failed, and has no attempts left. A job that retention removed was completed or given up: failed."""
    if state == State.FAILED:
        return "dead" if attempts >= max_attempts else "failed"
    return _NAMES.get(State(state), "pending") if state is not None else "failed"


# Rows of the gateway's tables, as its statements return them.


class Epoch(NamedTuple):
    """A registration of a worker. After a failover that lost it the store may give its number to another one."""

    worker: int
    incarnation: str


class RespKeyRow(NamedTuple):
    name: str
    digest: str
    workers: str
    queues: str | None
    commands: str | None
    tenant: str
    created_at: int
    revoked_at: int | None


class ValueRow(NamedTuple):
    key: bytes
    place: int
    kind: str
    value: bytes | None
    expires_at: int | None
    now: int


class KeyName(NamedTuple):
    space: str
    key: bytes


class KeyCount(NamedTuple):
    keys: int


class PartRow(NamedTuple):
    part: bytes
    score: float | None
    value: bytes | None


class Extent(NamedTuple):
    parts: int
    first: bytes | None
    last: bytes | None


class PlanRow(NamedTuple):
    id: str
    body: str
    digest: str
    created_at: int


class PlanUse(NamedTuple):
    actions: int
    jobs: int
    last_used_at: int | None
    active: int


class ActionRow(NamedTuple):
    id: str
    plan: str
    inputs: int
    created_at: int


class PlanJobRow(NamedTuple):
    id: str
    tenant: str
    action: str
    plan: str
    place: int
    job: JobId
    retries: int
    created_at: int


class ActionJob(NamedTuple):
    id: str
    place: int
    retries: int
    state: str | None
    attempts: int | None
    max_attempts: int | None

    @property
    def status(self) -> str:
        return status_of(self.state, self.attempts or 0, self.max_attempts or 0)


class ActionCount(NamedTuple):
    action: str
    state: str | None
    spent: int
    jobs: int


class ActionPlace(NamedTuple):
    tenant: str
    id: str
    spent: int  # whether retention has removed all of its jobs


class JobCount(NamedTuple):
    jobs: int


class RecentJob(NamedTuple):
    id: str
    plan: str
    state: str | None
    attempts: int | None
    max_attempts: int | None

    @property
    def status(self) -> str:
        return status_of(self.state, self.attempts or 0, self.max_attempts or 0)


class PlanName(NamedTuple):
    id: str


class Holder(NamedTuple):
    seq: int
    incarnation: str
    slots: int
    left_us: int  # for which it counts as alive if it stays silent

    @property
    def epoch(self) -> Epoch:
        return Epoch(self.seq, self.incarnation)


class HeldCount(NamedTuple):
    worker: int
    leases: int


class WorkerEpoch(NamedTuple):
    """The epoch of a worker that counts now."""

    seq: int
    incarnation: str
    capabilities: str
    now: int
    leases: int

    @property
    def epoch(self) -> Epoch:
        return Epoch(self.seq, self.incarnation)


class QueueBacklog(NamedTuple):
    route: int
    queue: str
    jobs: int


class QueuePlace(NamedTuple):
    """Where a job stands among those that wait on a route."""

    priority: int
    slot: int
    seq: int


class QueueLength(NamedTuple):
    jobs: int


class PublicName(NamedTuple):
    """The id by which clients know a job of an action."""

    job: JobId
    id: str


class LiveHolder(NamedTuple):
    seq: int
    incarnation: str
    metadata: str | None
    now: int
    left_us: int  # for which it counts as alive if it stays silent

    @property
    def epoch(self) -> Epoch:
        return Epoch(self.seq, self.incarnation)


class SilentHolder(NamedTuple):
    """A worker that holds something, and counts as dead."""

    seq: int
    status: str
    heartbeat_at: int


class HeldLease(NamedTuple):
    """A lease as a heartbeat sees it."""

    seq: int
    worker: int
    epoch: int
    token: int
    id: JobId
    attempts: int
    rescues: int
    claimed_at: int
    timeout_us: int | None
    now: int
    progress: str | None

    @property
    def held(self) -> LeaseRef:
        return LeaseRef(*self[:4])


class ExpiredLease(NamedTuple):
    """A lease that was lost because the time of its job was over."""

    seq: int
    worker: int
    epoch: int
    token: int
    id: JobId

    @property
    def held(self) -> LeaseRef:
        return LeaseRef(*self[:4])


class StandingLease(NamedTuple):
    """A lease that holds, and what was reported about its job."""

    seq: int
    worker: int
    epoch: int
    token: int
    incarnation: str
    progress: str | None

    @property
    def held(self) -> LeaseRef:
        return LeaseRef(*self[:4])


# The SQL files of the gateway as Python sees them.


_PACKAGE = "holdfast.resp.sql"


class KeysSql(Statements, file="keys.sql", package=_PACKAGE):
    add_key: One[RespKeyRow]
    find_keys: Many[RespKeyRow]
    list_keys: Many[RespKeyRow]
    revoke_key: One[RespKeyRow]


class KeyspaceSql(Statements, file="keyspace.sql", package=_PACKAGE):
    find_value: One[ValueRow]
    add_value: Exec
    lock_value: One[ValueRow]
    set_value: Exec
    set_expiry: Exec
    remove_value: Exec
    remove_parts: Exec
    list_keys: Many[ValueRow]
    count_keys: One[KeyCount]
    expired_keys: Many[KeyName]
    keys_in: Many[KeyName]
    find_part: One[PartRow]
    put_part: Exec
    remove_part: One[PartRow]
    list_parts: Many[PartRow]
    list_scores: Many[PartRow]
    measure_parts: One[Extent]


class PlansSql(Statements, file="plans.sql", package=_PACKAGE, types={"body": "json", "job": "uuid"}):
    add_plan: One[PlanRow]
    find_plan: One[PlanRow]
    lock_plan: One[PlanRow]
    list_plans: Many[PlanRow]
    remove_plan: Exec
    plan_use: One[PlanUse]
    add_action: One[ActionRow]
    find_action: One[ActionRow]
    list_actions: Many[ActionRow]
    add_plan_job: Exec
    find_plan_job: One[PlanJobRow]
    lock_plan_job: One[PlanJobRow]
    find_by_job: One[PlanJobRow]
    names_of_jobs: Many[PublicName]
    replace_job: Exec
    action_jobs: Many[ActionJob]
    find_by_jobs: Many[PlanJobRow]
    plan_ids: Many[PlanName]
    count_action_jobs: Many[ActionCount]
    recent_jobs: Many[PlanJobRow]
    recent_states: Many[RecentJob]
    actions_after: Many[ActionPlace]
    lock_action_jobs: Many[PlanJobRow]
    count_kept_jobs: One[JobCount]
    remove_action_jobs: Exec
    remove_action: Exec
    erase_jobs: Many[PlanName]
    erase_actions: Many[PlanName]
    erase_plans: Many[PlanName]


class HoldersSql(Statements, file="workers.sql", package=_PACKAGE):
    find_live: One[WorkerEpoch]
    lock_holders: Many[Holder]
    find_holders: Many[Holder]
    count_held: Many[HeldCount]
    live_holders: Many[LiveHolder]
    silent_holders: Many[SilentHolder]
    held_leases: Many[HeldLease]
    taken_away: Many[ExpiredLease]
    standing_leases: Many[StandingLease]
    queue_length: One[QueueLength]
    next_on_route: Many[QueuePlace]
    pending_of: Many[QueueBacklog]
    later_of: Many[QueueBacklog]
    running_of: Many[QueueCount]
