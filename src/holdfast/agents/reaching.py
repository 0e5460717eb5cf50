"""Reaching: what the app is to agents, and the store through it."""

from __future__ import annotations

import weakref
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

from holdfast.agents.definitions import ToolSpec
from holdfast.agents.streams import Streams
from holdfast.kernel.database import Operation
from holdfast.runtime import Runtime
from holdfast.settings import Settings
from holdfast.transactions import Intake
from holdfast.workers.definitions import Registry

if TYPE_CHECKING:
    from holdfast.agents.collections import SessionsList, Tenant
    from holdfast.agents.compaction.compacting import Compactor
    from holdfast.agents.handles import Run

P = ParamSpec("P")
R = TypeVar("R")


class App(Protocol):
    """As much of the app as agents need."""

    settings: Settings
    registry: Registry
    watched: weakref.WeakSet[Run[Any]] | None
    compactor: Compactor

    def runtime(self) -> Runtime: ...

    def streams(self) -> Streams: ...

    def intake(self, tx: object | None, *, sync: bool = False) -> Intake: ...

    def call(self, coroutine: Coroutine[Any, Any, R]) -> R: ...

    async def ensure_worker(self, *, adopting: bool = False) -> None: ...

    def require_key(self, model: str) -> None: ...

    async def why(self, id: str) -> str: ...

    def tool_named(self, name: str) -> ToolSpec: ...

    @property
    def sessions(self) -> SessionsList: ...

    def tenant(self, id: str) -> Tenant: ...


class Reaching:
    """Whatever reaches the store through the app."""

    _app: App

    async def _transact(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._app.runtime().transact(operation, *args, **kwargs)
