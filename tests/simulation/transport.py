"""One process's way to the store, where requests and answers get lost.

A call is a request that travels to the store, a transaction there, and an answer that travels back. A process that
is stopped or dies in between does not stop its request: what was sent is committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from typing import Any, NamedTuple, ParamSpec, TypeVar

from holdfast.clock import Clock
from holdfast.errors import StoreUnavailable
from holdfast.kernel.database import BlockingStore, Guard, Operation, Presence, StoredSchema
from holdfast.kernel.sql import Dialect
from tests.simulation.presence import SimPresence
from tests.simulation.store import Caller, Ear, Store

P = ParamSpec("P")
R = TypeVar("R")


class Away(Exception):
    """The connection was lost; whether the transaction happened is unknown."""


class Request(NamedTuple):
    operation: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    again: bool  # sent before, and its answer was lost
    answer: asyncio.Future[Any]


class SimDatabase:
    dialect: Dialect = "sqlite"

    def __init__(self, store: Store, caller: Caller, clock: Clock) -> None:
        self._store = store
        self._caller = caller
        self._clock = clock
        self.presence: Presence = SimPresence(store, caller)

    @property
    def crowd(self) -> float:
        return self._store.options.crowd

    def introduce(self, owner: str) -> None: ...

    async def connect(self) -> None: ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def transact(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """As a driver does it: on a lost connection repeat the whole operation, or give up, as this world has it."""
        options = self._store.options
        patience = self._clock.monotonic() + options.settings.store_patience.total_seconds()
        pause, again = 0.02, False
        while True:
            answer: asyncio.Future[R] = self._store.loop.create_future()
            self._send(self._arrive, Request(operation, args, kwargs, again, answer))
            try:
                return await answer
            except Away as lost:
                if not options.repeats or self._clock.monotonic() >= patience:
                    raise StoreUnavailable(f"the simulated store: {lost}.") from None
            await self._clock.sleep(pause * (0.5 + self._store.chance.random()))
            pause, again = min(pause * 2, 5.0), True

    def blocking(self) -> BlockingStore:
        raise NotImplementedError("a simulated process has no threads")

    async def listen(self, heard: Callable[[str], None]) -> None:
        self._store.listen(Ear(self._caller, heard, copy_context()))

    def unlisten(self, heard: Callable[[str], None]) -> None:
        self._store.unlisten(self._caller, heard)

    async def script(self, statements: Sequence[str], *, at: int | None, guard: Guard | None = None) -> bool:
        return self._store.file.script(statements, at=at, guard=guard)

    async def tidy(self, after: int) -> bool:
        return False

    async def stored_schema(self) -> StoredSchema | None:
        return self._store.file.stored_schema()

    def _send(self, to: Callable[..., None], *what: Any, after: float = 0.0) -> None:
        self._store.loop.call_later(after + self._store.delay(), to, *what, context=self._store.context)

    def _arrive(self, request: Request) -> None:
        store = self._store
        if request.answer.cancelled() and (store.healed or store.chance.random() < 0.5):
            return  # whoever asked went away before it was sent
        fate = store.fate(request.operation)
        if store.away:
            store.observer.refused(self._caller, request.operation)
        if store.away or fate == "lost_request":
            self._send(_lose, request.answer, "refused")
        elif fate == "slow":
            self._send(self._execute, request, "", after=store.hold_up())
        else:
            self._execute(request, fate)

    def _execute(self, request: Request, fate: str) -> None:
        store = self._store
        result = store.execute(self._caller, request.operation, request.args, request.kwargs, again=request.again)
        if fate == "lost_answer":
            self._send(_lose, request.answer, "the answer was lost")
            return
        if fate == "crash_at_commit":
            self._caller.crash()
        elif fate == "stall_at_commit":
            self._caller.freeze(store.hold_up())
        if store.chance.random() < 0.3:
            self._send(self._deliver, request.answer, result)
        else:
            self._deliver(request.answer, result)

    def _deliver(self, answer: asyncio.Future[Any], result: Any) -> None:
        if answer.done() or self._caller.dead:
            return
        if isinstance(result, Exception):
            answer.set_exception(result)
        else:
            self._store.audit.answer(result)
            answer.set_result(result)


def _lose(answer: asyncio.Future[Any], why: str) -> None:
    if not answer.done():
        answer.set_exception(Away(why))
