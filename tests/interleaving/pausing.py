"""An operation that stops after one of its statements, inside its open transaction, until it is let go."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from holdfast.kernel.database import is_single, single
from holdfast.kernel.sql import Statement


class Call(NamedTuple):
    """An operation and what it is called with."""

    operation: Callable[..., Awaitable[Any]]
    args: tuple[Any, ...]
    options: dict[str, Any]


def call(operation: Callable[..., Awaitable[Any]], /, *args: Any, **options: Any) -> Call:
    return Call(operation, args, options)


class Gate:
    """Where an operation stops: after so many of its statements. 0: nowhere, it is only watched."""

    def __init__(self, after: int = 0) -> None:
        self.after = after
        self.statements: list[str] = []
        self.begun = 0  # more than once: the database ended it as a victim, and the driver began it again
        self.pid = 0
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def passed(self, statement: Statement) -> None:
        self.statements.append(statement.name)
        if self.begun == 1 and len(self.statements) == self.after:
            self.reached.set()
            await self.opened.wait()


class PausingTransaction:
    """A transaction that tells the gate of each statement, and otherwise is the one it was made of."""

    def __init__(self, tx: Any, gate: Gate) -> None:
        self._tx = tx
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)

    async def many(self, statement: Any, /, **parameters: object) -> Any:
        rows = await self._tx.many(statement, **parameters)
        await self._gate.passed(statement)
        return rows

    async def one(self, statement: Any, /, **parameters: object) -> Any:
        row = await self._tx.one(statement, **parameters)
        await self._gate.passed(statement)
        return row

    async def run(self, statement: Any, /, **parameters: object) -> None:
        await self._tx.run(statement, **parameters)
        await self._gate.passed(statement)


def through(gate: Gate, what: Call) -> Callable[[Any], Awaitable[Any]]:
    """The operation, as `transact` takes it. One that is to stop runs in a transaction also where it need not."""

    async def operation(tx: Any) -> Any:
        gate.begun += 1
        gate.statements.clear()
        gate.pid = tx._line.connection.get_server_pid()
        return await what.operation(PausingTransaction(tx, gate), *what.args, **what.options)

    if not gate.after and is_single(what.operation):
        return single(operation)
    return operation
