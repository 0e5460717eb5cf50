"""Workers and their duties as programs see them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from holdfast.kernel.broker_rows import NOWHERE, WorkerRow
from holdfast.kernel.rows import DutyRow
from holdfast.kernel.states import WorkerState
from holdfast.kernel.workers import loop_hold_of, slots_of
from holdfast.values import Stored, moment, value_of


@dataclass(frozen=True, slots=True, kw_only=True)
class LineSlots:
    """How many jobs of one group of slots a worker takes at once, and how many it had at its last heartbeat."""

    slots: int
    active: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopHeld:
    """What held the event loop of a worker, for how long, and until when; None: it holds it still."""

    by: str
    lasted: timedelta
    until: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRecord:
    """A worker as it stands in the store.

    `seq` is the number by which jobs and duties name it. `queues` is None for a worker that serves every queue.
    `presence` says whether the store saw its sign of life just now, and so notices its death at once; `leases` how many
    jobs it holds, `lines` its slots by their group, `loop_held` what holds its event loop or held it in the last 15
    minutes. `now` is the store's clock when the worker was read. `silent`: its presence is gone, or it has sent no
    heartbeat for longer than its `ttl`, so it is probably dead, and no worker has declared it lost yet. `remote`: it is
    no process of ours and reaches the store through the Redis protocol, by the key that `principal` names.
    """

    seq: int
    id: str
    name: str
    hostname: str
    pid: int
    version: str
    status: WorkerState
    capabilities: Stored
    queues: Stored
    slots: int
    active: int
    presence: bool
    started_at: datetime
    heartbeat_at: datetime
    ttl: timedelta
    stopped_at: datetime | None
    reason: str | None
    now: datetime
    leases: int
    code: int | None
    lines: dict[str, LineSlots]
    loop_held: LoopHeld | None
    silent: bool
    principal: str | None
    remote: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DutyRecord:
    """A duty and the number of the worker that holds it."""

    name: str
    term: int
    holder: int
    held_until: datetime


def worker_of(row: WorkerRow) -> WorkerRecord:
    lines = {name: LineSlots(slots=slots, active=active) for name, (slots, active) in slots_of(row).items()}
    ttl, held = timedelta(microseconds=row.ttl_us), _loop_held(row)
    return value_of(WorkerRecord, row, ttl=ttl, lines=lines, loop_held=held, remote=row.host == NOWHERE)


def _loop_held(row: WorkerRow) -> LoopHeld | None:
    hold = loop_hold_of(row)
    if hold is None:
        return None
    until = None if hold.ago is None else moment(row.heartbeat_at) - timedelta(seconds=hold.ago)
    return LoopHeld(by=hold.name, lasted=timedelta(seconds=hold.seconds), until=until)


def duty_of(row: DutyRow) -> DutyRecord:
    return value_of(DutyRecord, row)
