"""What happens to a registered worker in one transaction: the kernel's operations on the owner of its id.

A worker is an owner (`kernel.owners`) of this facade's principal. An id that claims without having registered has such
a row too, which no list shows. What FlatAgents stores beside the kernel's columns is in the row's metadata.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from holdfast.errors import DuplicateWorker
from holdfast.facades.flatagents.records import UnknownWorker, WorkerFilter, WorkerRecord
from holdfast.kernel import brokers, codec, leases, workers
from holdfast.kernel.broker_rows import NOWHERE, OwnerBeat, WorkerRow
from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.owners import register_owner
from holdfast.kernel.states import ALIVE, WorkerState
from holdfast.kernel.workers import Registration

PRINCIPAL = "flatagents"
LASTING_US = 10 * 365 * 86_400_000_000  # only a reaper gives a worker up, or takes its items back
_PAGE = 1_000
_STATUSES: dict[str, str] = {
    WorkerState.ACTIVE: "active",
    WorkerState.DRAINING: "terminating",
    WorkerState.STOPPED: "terminated",
    WorkerState.LOST: "lost",
}


@dataclass(frozen=True, slots=True)
class WorkerNotes:
    """What a worker's metadata holds: what it said of itself, and what its heartbeats added."""

    registered: bool
    host: str | None = None
    pid: int | None = None
    started_at: str | None = None
    status: str | None = None  # one that is not among the document's
    more: tuple[tuple[str, Any], ...] = ()

    def text(self) -> str:
        names = ("registered", "host", "pid", "started_at", "status")
        stored = {name: getattr(self, name) for name in names} | {"more": dict(self.more)}
        return codec.encode(stored, what="the metadata of a worker", cap=1 << 20)


def told(row: WorkerRow) -> WorkerNotes:
    stored = json.loads(row.metadata or "{}")
    more = tuple(stored.pop("more", {}).items())
    return WorkerNotes(**{"registered": False, **stored}, more=more)


def shown_time(microseconds: int) -> str:
    return datetime.fromtimestamp(microseconds / 1e6, UTC).isoformat()


async def register(tx: Transaction, who: Registration, *, stale_us: int) -> WorkerRecord:
    """Write a new incarnation of a worker; `DuplicateWorker` while the one before is live and fresh.

    What a stale one held goes back to its pools, as if it had been reaped.
    """
    before = await latest(tx, who.id)
    if before is not None and before.status in ALIVE and before.principal == PRINCIPAL and told(before).registered:
        if before.now - before.heartbeat_at <= stale_us:
            raise DuplicateWorker(who.id, before.hostname, before.pid)
        await workers.lose(tx, before.seq, reason="replaced by a new worker of the same id")
        await take_back(tx, before.seq)
    new = await register_owner(tx, who, ttl_us=LASTING_US, replace=True)
    if new.before is not None:
        while await brokers.transfer_leases(tx, new.before, new.seq):
            pass
    row = await latest(tx, who.id)
    assert row is not None
    return await _record(tx, row)


async def owner_for(tx: Transaction, who: Registration) -> int:
    """The number under which an id claims; `UnknownWorker` when it was given up."""
    row = await latest(tx, who.id)
    if row is not None and row.status == WorkerState.LOST:
        raise _unknown(who.id, row)
    return (await register_owner(tx, who, ttl_us=LASTING_US)).seq


async def heartbeat(tx: Transaction, worker_id: str, metadata: dict[str, Any]) -> None:
    """`host` and `pid` in the metadata are where the worker is now; everything else is kept beside."""
    row = await _live(tx, worker_id)
    known = told(row)
    more = {**dict(known.more), **metadata}
    host, pid = more.pop("host", known.host), more.pop("pid", known.pid)
    changed = WorkerNotes(True, host, pid, known.started_at, known.status, tuple(more.items()))
    await leases.beat_many(tx, [OwnerBeat(row.seq, row.active, metadata=None if changed == known else changed.text())])


async def update_status(tx: Transaction, worker_id: str, status: str) -> None:
    """Follow a worker through its life. What one that has ended still held goes back to its pools.

    That counts as a try, except after `terminating`: such a worker was told to stop, and hands its items back.
    """
    row = await latest(tx, worker_id)
    if row is None or not _is_ours(row):
        raise _unknown(worker_id, row)
    if status == _STATUSES[row.status] and told(row).status is None:
        return
    if row.status not in ALIVE:
        raise _unknown(worker_id, row)
    match status:
        case "terminating":
            await workers.drain(tx, row.seq)
        case "terminated":
            await workers.unregister(tx, row.seq, reason="it terminated")
            await take_back(tx, row.seq, charge=row.status != WorkerState.DRAINING)
        case "lost":
            await workers.lose(tx, row.seq, reason="it was reported as lost")
        case _:
            known = told(row)
            own = None if status == "active" else status
            changed = WorkerNotes(True, known.host, known.pid, known.started_at, own, known.more)
            await leases.beat_many(tx, [OwnerBeat(row.seq, row.active, metadata=changed.text())])


async def take_back(tx: Transaction, seq: int, *, queue: str | None = None, charge: bool = True) -> int:
    """Return what a holder has to its pools, and with `charge` count it as a try of each; returns how many."""
    count = 0
    while taken := await brokers.release_by_worker(tx, seq, queue=queue, charge=charge):
        count += len(taken)
    return count


@reading
async def get(tx: Transaction, worker_id: str) -> WorkerRecord | None:
    async for row in _rows(tx, all=True, id=worker_id):
        return await _record(tx, row)
    return None


@reading
async def list_records(tx: Transaction, wanted: WorkerFilter) -> list[WorkerRecord]:
    """The newest first; of an id that was registered several times, the last incarnation."""
    statuses = {wanted.status} if isinstance(wanted.status, str) else set(wanted.status or ())
    ended = not statuses or bool({"terminated", "lost"} & statuses)
    seen: set[str] = set()
    found = []
    async for row in _rows(tx, all=ended and wanted.stale_threshold_seconds is None):
        if row.id not in seen and _fits(row, wanted, statuses):
            found.append(await _record(tx, row))
        seen.add(row.id)
    return found


def _fits(row: WorkerRow, wanted: WorkerFilter, statuses: set[str]) -> bool:
    stale = wanted.stale_threshold_seconds
    return (
        (not statuses or status_of(row) in statuses)
        and (wanted.capability is None or wanted.capability in json.loads(row.capabilities))
        and (wanted.pool_id is None or wanted.pool_id == row.pool)
        and (stale is None or (row.status in ALIVE and row.now - row.heartbeat_at > stale * 1e6))
    )


@reading
async def latest(tx: Transaction, worker_id: str) -> WorkerRow | None:
    """The last incarnation of an id, registered or not."""
    rows = await workers.list_workers(tx, all=True, limit=1, id=worker_id)
    return rows[0] if rows else None


@reading
async def by_number(tx: Transaction, seq: int) -> WorkerRow | None:
    rows = await workers.list_workers(tx, all=True, limit=1, before=seq + 1)
    return rows[0] if rows and rows[0].seq == seq else None


async def _rows(tx: Transaction, *, all: bool, id: str | None = None) -> AsyncIterator[WorkerRow]:
    """Registered workers, page by page."""
    before = leases.FOREVER
    while page := await workers.list_workers(tx, all=all, limit=_PAGE, before=before, id=id):
        for row in page:
            if _is_ours(row):
                yield row
        before = page[-1].seq


def _is_ours(row: WorkerRow) -> bool:
    return row.principal == PRINCIPAL and row.host == NOWHERE and told(row).registered


async def _live(tx: Transaction, worker_id: str) -> WorkerRow:
    row = await latest(tx, worker_id)
    if row is None or not _is_ours(row) or row.status not in ALIVE:
        raise _unknown(worker_id, row)
    return row


def _unknown(worker_id: str, row: WorkerRow | None) -> UnknownWorker:
    if row is None or not _is_ours(row):
        return UnknownWorker(f"no worker {worker_id!r:.80} is registered: call register first.")
    return UnknownWorker(f"worker {worker_id!r:.80} is {_STATUSES[row.status]}: register it again.")


def status_of(row: WorkerRow) -> str:
    own = told(row).status
    return own if own is not None and row.status == WorkerState.ACTIVE else _STATUSES[row.status]


async def _record(tx: Transaction, row: WorkerRow) -> WorkerRecord:
    known = told(row)
    held = await brokers.leases_of(tx, row.seq, limit=1) if row.leases else []
    more = dict(known.more)
    return WorkerRecord(
        worker_id=row.id,
        host=known.host,
        pid=known.pid,
        capabilities=tuple(json.loads(row.capabilities)),
        started_at=known.started_at or shown_time(row.started_at),
        pool_id=row.pool,
        status=status_of(row),
        last_heartbeat=shown_time(row.heartbeat_at),
        current_task_id=str(held[0].id) if held else more.get("current_task_id"),
        metadata=more,
        incarnation=row.seq,
    )
