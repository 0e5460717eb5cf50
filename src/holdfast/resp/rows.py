"""Rows of the gateway's tables, as its statements return them."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.kernel.ids import JobId
from holdfast.kernel.rows import Held
from holdfast.resp.statuses import status_of


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
    def held(self) -> Held:
        return Held(*self[:4])


class TakenAway(NamedTuple):
    """A lease that was lost because the time of its job was over."""

    seq: int
    worker: int
    epoch: int
    token: int
    id: JobId

    @property
    def held(self) -> Held:
        return Held(*self[:4])


class StandingLease(NamedTuple):
    """A lease that holds, and what was reported about its job."""

    seq: int
    worker: int
    epoch: int
    token: int
    incarnation: str
    progress: str | None

    @property
    def held(self) -> Held:
        return Held(*self[:4])
