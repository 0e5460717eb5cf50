"""One transaction of PostgreSQL, as an operation sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import starmap
from typing import Any, TypeVar

from holdfast.kernel.database import Owner
from holdfast.kernel.drivers.postgres_pool import PooledConnection
from holdfast.kernel.hints import Announcement
from holdfast.kernel.sql import Exec, Many, One, Rendered, Statement

T = TypeVar("T", bound=tuple[Any, ...])


class PostgresTransaction:
    """One connection while an operation has it, and the hints it sends when it has committed."""

    lent = False

    def __init__(
        self, line: PooledConnection, statements: Mapping[Statement, Rendered], layers: Sequence[Owner] = ()
    ) -> None:
        self._line = line
        self._statements = statements
        self.layers = layers
        self.hints: list[str] = []
        self.announcements: list[Announcement] = []

    async def many(self, statement: Many[T], /, **parameters: object) -> list[T]:
        return list(starmap(statement.record, await self._rows(statement, parameters)))

    async def one(self, statement: One[T], /, **parameters: object) -> T | None:
        rows = await self._rows(statement, parameters)
        return statement.record(*rows[0]) if rows else None

    async def run(self, statement: Exec, /, **parameters: object) -> None:
        await self._rows(statement, parameters)

    async def hint(self, note: str) -> None:
        self.hints.append(note)

    async def announce(self, notes: Sequence[Announcement]) -> None:
        self.announcements += notes

    async def _rows(self, statement: Statement, parameters: dict[str, Any]) -> list[Any]:
        rendered = self._statements[statement]
        self._line.ask()
        rows: list[Any] = await self._line.connection.fetch(rendered.texts[0], *rendered.arguments(parameters))
        return rows
