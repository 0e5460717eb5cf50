"""The caller's own transaction: jobs and signals that are there once it commits, and never were if it does not.

Routes are written every time and never remembered: a rollback takes them away again.
"""

from __future__ import annotations

from typing import ParamSpec, Protocol, TypeVar

from holdfast.clock import Ports
from holdfast.kernel import waiting
from holdfast.kernel.database import Operation, Transacting
from holdfast.kernel.enqueue import Accepted
from holdfast.kernel.rows import Batch, NewJob, Route
from holdfast.runtime import accept, accept_many, signal_id
from holdfast.settings import Settings

P = ParamSpec("P")
R = TypeVar("R")


class Intake(Protocol):
    """Who takes work in: the store as one event loop uses it, or a transaction of the caller's."""

    settings: Settings
    ports: Ports

    async def enqueue(self, job: NewJob, route: Route, *, key: str | None, notify: bool) -> Accepted: ...

    async def enqueue_many(self, batch: Batch, route: Route, notify: bool) -> None: ...

    async def signal(self, channel: str, payload: str, key: str | None) -> None: ...

    async def transact(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run an operation of a layer above, as part of what is taken in here."""


class CallersTransaction:
    """An `Intake` that reaches for nothing but the connection it was given."""

    def __init__(self, lent: Transacting, settings: Settings, ports: Ports) -> None:
        self.settings = settings
        self.ports = ports
        self._lent = lent

    async def enqueue(self, job: NewJob, route: Route, *, key: str | None, notify: bool) -> Accepted:
        return await accept(self._lent, job, [route], key=key, notify=notify)

    async def enqueue_many(self, batch: Batch, route: Route, notify: bool) -> None:
        await accept_many(self._lent, batch, [route], notify=notify)

    async def transact(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._lent.transact(operation, *args, **kwargs)

    async def signal(self, channel: str, payload: str, key: str | None) -> None:
        await self._lent.transact(waiting.signal, signal_id(self.ports, channel, key), channel, payload)
