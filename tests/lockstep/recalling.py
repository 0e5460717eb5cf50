"""Every read-then-write of the kernel, cut in two: what was read is acted upon after others came between.

On PostgreSQL others really come between two statements of a transaction. The writing half must therefore be safe
whatever happened since the reading.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, TypeVar

from holdfast.kernel.database import Announcement, Transaction
from holdfast.kernel.sql import Exec, Many, One, Statement

T = TypeVar("T", bound=tuple[Any, ...])


class Recalling:
    """A transaction in which the first answer to one statement is one from earlier."""

    def __init__(self, tx: Transaction, statement: Statement, rows: Collection[tuple[Any, ...]]) -> None:
        self._tx = tx
        self._recalled = {statement: list(rows)}
        self.layers = tx.layers
        self.lent = tx.lent

    async def many(self, statement: Many[T], /, **parameters: object) -> list[T]:
        recalled: Any = self._recalled.pop(statement, None)
        return await self._tx.many(statement, **parameters) if recalled is None else recalled

    async def one(self, statement: One[T], /, **parameters: object) -> T | None:
        recalled: Any = self._recalled.pop(statement, None)
        return await self._tx.one(statement, **parameters) if recalled is None else (recalled[0] if recalled else None)

    async def run(self, statement: Exec, /, **parameters: object) -> None:
        await self._tx.run(statement, **parameters)

    async def hint(self, note: str) -> None:
        await self._tx.hint(note)

    async def announce(self, notes: Sequence[Announcement]) -> None:
        await self._tx.announce(notes)
