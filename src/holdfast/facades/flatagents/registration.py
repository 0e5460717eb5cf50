"""Registries of workers: `SQLiteRegistrationBackend` and its siblings, which differ in where they keep their rows.

Each call returns what it says; its form for async code ends in `_async`.
"""

from __future__ import annotations

import builtins
import os
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast import validation
from holdfast.distribution import VERSION
from holdfast.errors import BadSetting
from holdfast.facades.flatagents import worker_rows as rows
from holdfast.facades.flatagents.records import (
    HEARTBEAT_INTERVAL,
    STALE_AFTER,
    WorkerFilter,
    WorkerRecord,
    WorkerRegistration,
)
from holdfast.facades.flatagents.store import DEFAULT_PATH, MEMORY, Store, Stored, sqlite_url
from holdfast.kernel import codec
from holdfast.kernel.ids import new_id
from holdfast.kernel.workers import Registration


class HoldfastRegistrationBackend(Stored):
    """Workers by id, each heard of from time to time. `heartbeat_interval` is how often, in seconds."""

    def __init__(self, store: Store, *, heartbeat_interval: float = HEARTBEAT_INTERVAL) -> None:
        super().__init__(store)
        if not 0 < heartbeat_interval < 10**9:
            raise BadSetting(f"heartbeat_interval is a number of seconds greater than 0, not {heartbeat_interval!r}.")
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
        return await self._store.transact(rows.register, registration_of(self._store, worker), stale_us=stale_us)

    def heartbeat(self, worker_id: str, metadata: Mapping[str, Any] | None = None) -> None:
        """Say that a worker lives. `UnknownWorker` when it was given up: it must stop."""
        self._store.call(self.heartbeat_async(worker_id, metadata))

    async def heartbeat_async(self, worker_id: str, metadata: Mapping[str, Any] | None = None) -> None:
        await self._store.transact(rows.heartbeat, check_id(worker_id), dict(metadata or {}))

    def update_status(self, worker_id: str, status: str) -> None:
        """Set a status, the document's or one of your own. `UnknownWorker` when the worker is gone."""
        self._store.call(self.update_status_async(worker_id, status))

    async def update_status_async(self, worker_id: str, status: str) -> None:
        codec.check_text(status, what="a worker's status")
        await self._store.transact(rows.update_status, check_id(worker_id), status)

    def get(self, worker_id: str) -> WorkerRecord | None:
        return self._store.call(self.get_async(worker_id))

    async def get_async(self, worker_id: str) -> WorkerRecord | None:
        return await self._store.transact(rows.get, check_id(worker_id))

    def list(
        self, filter: WorkerFilter | None = None, *, status: str | Sequence[str] | None = None, **more: Any
    ) -> builtins.list[WorkerRecord]:
        """The workers that fit, the newest first: `list(WorkerFilter(…))` or `list(status="active", pool_id=…)`."""
        return self._store.call(self.list_async(filter, status=status, **more))

    async def list_async(
        self, filter: WorkerFilter | None = None, *, status: str | Sequence[str] | None = None, **more: Any
    ) -> builtins.list[WorkerRecord]:
        wanted = filter_of(filter, status, more)
        return await self._store.transact(rows.list_records, wanted)

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
    said = rows.WorkerNotes(known, worker.host, worker.pid, worker.started_at)
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
        principal=rows.PRINCIPAL,
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
