"""Registries of workers: `SQLiteRegistrationBackend` and its siblings, which differ in where they keep their rows.

Each call returns what it says; its form for async code ends in `_async`.
"""

from __future__ import annotations

import builtins
import json
import os
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, ParamSpec, Self, TypeVar

from holdfast import validation
from holdfast.app import Holdfast, core_of
from holdfast.errors import VERSION, BadSetting, DuplicateWorker
from holdfast.facades.flatagents.records import (
    HEARTBEAT_INTERVAL,
    STALE_AFTER,
    UnknownWorker,
    WorkerFilter,
    WorkerRecord,
    WorkerRegistration,
)
from holdfast.kernel import brokers, codec, leases, workers
from holdfast.kernel.broker_rows import NOWHERE, OwnerBeat, WorkerRow
from holdfast.kernel.database import Operation, Transaction, reading
from holdfast.kernel.drivers import dialect_of
from holdfast.kernel.drivers.sqlite_file import make_private_folder
from holdfast.kernel.ids import new_id
from holdfast.kernel.owners import register_owner
from holdfast.kernel.states import ALIVE, WorkerState
from holdfast.kernel.workers import Registration

# Where a backend keeps its rows: an app on a Holdfast URL, with a thread of its own for calls without a loop.


P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_PATH = "./data/workers.sqlite"
MEMORY = "sqlite://:memory:"


class BackendAddress(NamedTuple):
    """Where another process finds a backend: `kind` is sqlite, memory, postgres or redis."""

    kind: str
    url: str


class Store:
    """One database. Backends that share a database share its store."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._app = Holdfast(url, embedded=False)
        self.core = core_of(self._app)

    async def transact(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        runtime = self.core.runtime()
        await runtime.open()
        return await runtime.transact(operation, *args, **kwargs)

    def call(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Make one call for code that does not await it."""
        return self.core.call(coroutine)

    def close(self) -> None:
        self.core.close_sync()

    async def aclose(self) -> None:
        """Close what the running event loop has opened."""
        await self._app.close()


class StoreBackend:
    """A backend on a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._store.url!r})"

    @property
    def address(self) -> BackendAddress:
        url = self._store.url
        return BackendAddress("memory" if url == MEMORY else dialect_of(url), url)

    def close(self) -> None:
        """Close what calls without a loop have opened."""
        self._store.close()

    async def aclose(self) -> None:
        await self._store.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def sqlite_url(path: str | os.PathLike[str]) -> str:
    """The URL of a file, whose folder is made if it is not there."""
    text = os.fspath(path)
    if "://" in text:
        return text
    file = Path(text).absolute()
    make_private_folder(file.parent)
    return f"sqlite:///{file}"


# What happens to a registered worker in one transaction: the kernel's operations on the owner of its id.
#
# A worker is an owner (`kernel.owners`) of this facade's principal. An id that claims without having registered has
# such
# a row too, which no list shows. What FlatAgents stores beside the kernel's columns is in the row's metadata.


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


def worker_notes(row: WorkerRow) -> WorkerNotes:
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
    if (
        before is not None
        and before.status in ALIVE
        and before.principal == PRINCIPAL
        and worker_notes(before).registered
    ):
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
    known = worker_notes(row)
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
    if status == _STATUSES[row.status] and worker_notes(row).status is None:
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
            known = worker_notes(row)
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
    return row.principal == PRINCIPAL and row.host == NOWHERE and worker_notes(row).registered


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
    own = worker_notes(row).status
    return own if own is not None and row.status == WorkerState.ACTIVE else _STATUSES[row.status]


async def _record(tx: Transaction, row: WorkerRow) -> WorkerRecord:
    known = worker_notes(row)
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


class HoldfastRegistrationBackend(StoreBackend):
    """Workers by id, each heard of from time to time. `heartbeat_interval` is how often, in seconds."""

    def __init__(self, store: Store, *, heartbeat_interval: float = HEARTBEAT_INTERVAL) -> None:
        super().__init__(store)
        if not 0 < heartbeat_interval < 10**9:
            raise BadSetting(
                f"heartbeat_interval must be a number of seconds greater than 0; got {heartbeat_interval!r}."
            )
        self.heartbeat_interval = heartbeat_interval

    @property
    def stale_threshold_seconds(self) -> float:
        """After how long a silent worker is stale, when nobody says otherwise."""
        return STALE_AFTER * self.heartbeat_interval

    def register(self, worker: WorkerRegistration) -> WorkerRecord:
        """Make a worker known. `DuplicateWorker` while another one has the id and is heard of."""
        return self._store.call(self.register_async(worker))

    async def register_async(self, worker: WorkerRegistration) -> WorkerRecord:
        stale_us = round(self.stale_threshold_seconds * 1e6)
        return await self._store.transact(register, registration_of(self._store, worker), stale_us=stale_us)

    def heartbeat(self, worker_id: str, metadata: Mapping[str, Any] | None = None) -> None:
        """Say that a worker lives. `UnknownWorker` when it was given up: it must stop."""
        self._store.call(self.heartbeat_async(worker_id, metadata))

    async def heartbeat_async(self, worker_id: str, metadata: Mapping[str, Any] | None = None) -> None:
        await self._store.transact(heartbeat, check_id(worker_id), dict(metadata or {}))

    def update_status(self, worker_id: str, status: str) -> None:
        """Set a status, the document's or one of your own. `UnknownWorker` when the worker is gone."""
        self._store.call(self.update_status_async(worker_id, status))

    async def update_status_async(self, worker_id: str, status: str) -> None:
        codec.check_text(status, what="a worker's status")
        await self._store.transact(update_status, check_id(worker_id), status)

    def get(self, worker_id: str) -> WorkerRecord | None:
        return self._store.call(self.get_async(worker_id))

    async def get_async(self, worker_id: str) -> WorkerRecord | None:
        return await self._store.transact(get, check_id(worker_id))

    def list(
        self, filter: WorkerFilter | None = None, *, status: str | Sequence[str] | None = None, **more: Any
    ) -> builtins.list[WorkerRecord]:
        """The workers that fit, the newest first: `list(WorkerFilter(…))` or `list(status="active", pool_id=…)`."""
        return self._store.call(self.list_async(filter, status=status, **more))

    async def list_async(
        self, filter: WorkerFilter | None = None, *, status: str | Sequence[str] | None = None, **more: Any
    ) -> builtins.list[WorkerRecord]:
        wanted = filter_of(filter, status, more)
        return await self._store.transact(list_records, wanted)

    updateStatus = update_status  # noqa: N815  as the document has it


def filter_of(filter: WorkerFilter | None, status: str | Sequence[str] | None, more: Mapping[str, Any]) -> WorkerFilter:
    """A filter from the two ways to write one."""
    if filter is not None and (status is not None or more):
        raise BadSetting("give a WorkerFilter or its fields, not both.")
    validation.option_names(more, WorkerFilter, "WorkerFilter")
    return filter if filter is not None else WorkerFilter(status=status, **more)


def check_id(worker_id: str) -> str:
    return codec.check_text(worker_id, what="a worker_id")


def registration_of(
    store: Store, worker: WorkerRegistration | Mapping[str, Any], *, known: bool = True
) -> Registration:
    """A worker as the kernel registers it. `known` is False for an id that only claims."""
    if isinstance(worker, Mapping):
        worker = WorkerRegistration(**worker)
    id = check_id(worker.worker_id)
    said = WorkerNotes(known, worker.host, worker.pid, worker.started_at)
    return Registration(
        incarnation=new_id(store.core.ports),
        id=id,
        name=id,
        hostname=worker.host or "",
        pid=worker.pid or 0,
        version=VERSION,
        capabilities=tuple(worker.capabilities or ()),
        queues=(),
        slots=1,
        pool=worker.pool_id,
        principal=PRINCIPAL,
        metadata=said.text(),
    )


class SQLiteRegistrationBackend(HoldfastRegistrationBackend):
    """A registry in a SQLite file."""

    def __init__(self, path: str | os.PathLike[str] = DEFAULT_PATH, **options: Any) -> None:
        super().__init__(Store(sqlite_url(path)), **options)


class PostgresRegistrationBackend(HoldfastRegistrationBackend):
    """A registry in a PostgreSQL database."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(Store(url), **options)


class MemoryRegistrationBackend(HoldfastRegistrationBackend):
    """A registry in this process, for tests: threads may share it, and it is gone with it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(Store(MEMORY), **options)
