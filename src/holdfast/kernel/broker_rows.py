"""Rows of those who hold leases: workers, brokers and owners. A record's fields are in its statement's order."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.kernel.ids import JobId
from holdfast.kernel.rows import Lease, LeaseRef
from holdfast.kernel.states import ALIVE, WorkerState

NOWHERE = 0  # the host of an owner that lives in no process we know, and shows no presence


class WorkerRow(NamedTuple):
    seq: int
    id: str
    name: str
    hostname: str
    pid: int
    version: str
    status: str
    capabilities: str
    queues: str
    slots: int
    active: int
    presence: int
    started_at: int
    heartbeat_at: int
    ttl_us: int
    stopped_at: int | None
    reason: str | None
    now: int
    leases: int
    code: int | None = None  # the schema version of its code; None: older than 6
    lines: str | None = None  # its slots and who held its loop, as JSON: see `workers.slots_of`
    boot_by: int | None = None  # until when its process has to come up
    idle_since: int | None = None  # None: it runs something, or does not say
    pool: str | None = None
    principal: str | None = None  # who registered it
    metadata: str | None = None  # as JSON
    host: int | None = None  # in whose process it lives: None: its own; NOWHERE: in none that we know
    absent: int = 0  # 1: the sign of life that it says it shows is not there

    @property
    def silent(self) -> bool:
        """Whether it is probably dead: its presence is gone, or its time to say something is over by the clock of the
        store. Nobody may have declared it lost yet.

        An owner that lives in no process is silent by nature: it stays while it has a lease.
        """
        if self.status == WorkerState.STARTING:
            return self.boot_by is not None and self.boot_by <= self.now
        if self.status not in ALIVE or (self.host == NOWHERE and self.leases):
            return False
        return bool(self.absent) or self.heartbeat_at + self.ttl_us <= self.now


class StaleWorker(NamedTuple):
    """A worker that has been silent for long."""

    seq: int
    id: str
    status: str
    pool: str | None
    heartbeat_at: int


class LiveOwner(NamedTuple):
    seq: int
    principal: str | None
    host: int | None
    hostname: str
    pid: int


class OwnerBeat(NamedTuple):
    """What one of many says in a heartbeat."""

    seq: int
    active: int
    idle_us: int | None = None  # for how long it has been idle; None: it is not
    metadata: str | None = None  # None: as it was


class BeatAnswer(NamedTuple):
    """One of many whose heartbeat the store took."""

    seq: int
    status: str
    now: int


class Renewal(NamedTuple):
    """A lease to extend, and for how long."""

    seq: int
    worker: int
    epoch: int
    token: int
    ttl_us: int

    @property
    def held(self) -> LeaseRef:
        return LeaseRef(*self[:4])


class Asker(NamedTuple):
    """An owner that asks for one job."""

    worker: int
    incarnation: str


class Want(NamedTuple):
    """How many jobs a party wants: those who wait for the same routes. There is one for each of its routes."""

    party: int
    route: int
    n: int
    tenant: str | None = None  # whose jobs; None: anybody's


class Offer(NamedTuple):
    """A job that is locked for one of those who wait."""

    seq: int
    route: int
    priority: int
    slot: int
    lane: str | None
    cost: int | None
    tenant: str | None = None  # for whose jobs it was looked; None: anybody's


class LeaseRequest(NamedTuple):
    seq: int
    worker: int
    ttl_us: int


class LeaseKey(NamedTuple):
    """What tells a lease from any other that a job has had: a claim that is undone leaves its token to the next one."""

    seq: int
    epoch: int
    token: int
    claimed_at: int

    @classmethod
    def of(cls, lease: Lease) -> LeaseKey:
        return cls(lease.seq, lease.epoch, lease.token, lease.claimed_at)


class WantedJob(NamedTuple):
    """A job that somebody wants by its id, and where it stands."""

    seq: int
    parent: int | None
    route: int
    queue: str
    capabilities: str
    lane: str | None
    cost: int
    priority: int
    slot: int
    paused: bool
    ready: bool  # it can be claimed
    lapsed: bool  # its lease has run out
    due: bool  # it waits in `later`, for a moment that has come


class OwnedLease(NamedTuple):
    """A lease that was found by its job and its owner."""

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
    layer: str | None
    cancel_requested_at: int | None

    @property
    def lease(self) -> Lease:
        return Lease(*self[:-1])


class TransferredLease(NamedTuple):
    """A lease that has another holder now."""

    seq: int
    worker: int
    epoch: int
    token: int
    lease_until: int


class RouteDemand(NamedTuple):
    """What waits on a route, or runs."""

    route: int
    pending: int
    running: int


class LaneDemand(NamedTuple):
    """How many claimable jobs a lane has, and how many of them it lets start now."""

    lane: str
    pending: int
    room: int


class Alias(NamedTuple):
    """A public name, and the job that it stands for since the last change."""

    scope: str
    name: str
    number: int  # from 1: how many jobs the name has had
    job: JobId
    digest: str
    attempts: int  # of the jobs before this one
    created_at: int
