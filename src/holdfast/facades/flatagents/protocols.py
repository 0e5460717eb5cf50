"""FlatAgents' interfaces: what registries of workers and pools of work can do. You may implement them yourself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from holdfast.facades.flatagents.records import WorkerFilter, WorkerRecord, WorkerRegistration, WorkItem


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
