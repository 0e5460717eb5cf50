"""FlatAgents' records, by the names and fields of its document. Times are ISO 8601 texts in UTC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from holdfast.errors import NotFound

WorkerStatus = Literal["active", "terminating", "terminated", "lost"]
"""The statuses that mean something here; any other text is stored and shown."""

ItemStatus = Literal["pending", "claimed", "done", "poisoned"]

HEARTBEAT_INTERVAL = 30.0  # seconds
STALE_AFTER = 2  # heartbeat intervals
MAX_RETRIES = 3  # tries in all
MAX_WORKERS = 10


class UnknownWorker(NotFound, KeyError):
    """No live worker has this id: it never registered, or was given up. Stop, and register as a new one."""

    __str__ = Exception.__str__


@dataclass(frozen=True, slots=True)
class WorkerRegistration:
    """Who a worker says it is. `started_at`: None stands for now."""

    worker_id: str
    host: str | None = None
    pid: int | None = None
    capabilities: Sequence[str] = ()
    started_at: str | None = None
    pool_id: str | None = None


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A worker as the registry knows it."""

    worker_id: str
    host: str | None
    pid: int | None
    capabilities: tuple[str, ...]
    started_at: str
    pool_id: str | None
    status: str
    last_heartbeat: str
    current_task_id: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    incarnation: int = 0  # rises whenever the id is registered again


@dataclass(frozen=True, slots=True)
class WorkerFilter:
    """Which workers a list shows: those to whom all of this applies."""

    status: str | Sequence[str] | None = None
    capability: str | None = None
    stale_threshold_seconds: float | None = None
    pool_id: str | None = None


@dataclass(frozen=True, slots=True)
class WorkItem:
    """An item of a pool. `attempts` are the tries that have ended; `fence` names the claim, if this is one."""

    id: str
    data: Any
    claimed_by: str | None = None
    attempts: int = 0
    max_retries: int = MAX_RETRIES
    status: str = "pending"
    result: Any = None
    error: str | None = None
    fence: str | None = None


# FlatAgents' interfaces: what registries of workers and pools of work can do. You may implement them yourself.


@runtime_checkable
class RegistrationBackend(Protocol):
    """Which workers there are, and when each was heard of last."""

    def register(self, worker: WorkerRegistration) -> WorkerRecord: ...

    def heartbeat(self, worker_id: str, metadata: Mapping[str, Any] | None = None) -> None: ...

    def update_status(self, worker_id: str, status: str) -> None: ...

    def get(self, worker_id: str) -> WorkerRecord | None: ...

    def list(
        self, filter: WorkerFilter | None = None, *, status: str | Sequence[str] | None = None
    ) -> list[WorkerRecord]: ...


@runtime_checkable
class WorkPool(Protocol):
    """Items that workers claim, each by one of them at a time."""

    def push(self, item: Any, options: Mapping[str, Any] | None = None) -> str: ...

    def claim(self, worker_id: str) -> WorkItem | None: ...

    def complete(self, item_id: str, result: Any = None) -> Any: ...

    def fail(self, item_id: str, error: str | None = None) -> Any: ...

    def size(self) -> int: ...

    def release_by_worker(self, worker_id: str) -> int: ...


@runtime_checkable
class WorkBackend(Protocol):
    """Pools by name."""

    def pool(self, name: str) -> WorkPool: ...
