"""One transaction of PostgreSQL, as an operation sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import starmap
from typing import Any, TypeVar

from asyncpg import exceptions as pg

from holdfast.kernel.database import Owner
from holdfast.kernel.drivers.causes import query_is_wrong, query_wrote
from holdfast.kernel.drivers.postgres_errors import AWAY, BUSY, CONFLICT
from holdfast.kernel.drivers.postgres_pool import PooledConnection
from holdfast.kernel.hints import Announcement
from holdfast.kernel.sql import Exec, Many, One, Rendered, Statement

T = TypeVar("T", bound=tuple[Any, ...])

_UNDO = "rollback to savepoint ad_hoc; select pg_advisory_unlock_all()"


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

    async def ask(
        self, text: str, values: Sequence[Any], schema: str, most: int
    ) -> tuple[list[str], list[tuple[Any, ...]]]:
        """The columns and the first rows of a query that somebody else has written, in a transaction that only reads.

        It finds the views by their names alone. What it sets or locks in the session is undone: others use that next.
        """
        connection = self._line.connection
        await self._execute(f"savepoint ad_hoc; set local search_path = {schema}, public")
        try:
            self._line.ask()
            statement = await connection.prepare(text, name="")  # unnamed: it leaves nothing, behind a pooler either
            cursor = await statement.cursor(*values)
            rows = [tuple(row) for row in await cursor.fetch(most)]
        except pg.PostgresError as problem:
            if not connection.is_closed():
                await self._execute(_UNDO)
            match problem:
                case pg.ReadOnlySQLTransactionError():
                    raise query_wrote(problem) from problem
                case _ if isinstance(problem, (*CONFLICT, *BUSY, *AWAY)):
                    raise
                case _:
                    raise query_is_wrong(problem) from problem
        await self._execute(_UNDO)
        return [attribute.name for attribute in statement.get_attributes()], rows

    async def _execute(self, text: str) -> None:
        self._line.ask()
        await self._line.connection.execute(text)

    async def _rows(self, statement: Statement, parameters: dict[str, Any]) -> list[Any]:
        rendered = self._statements[statement]
        self._line.ask()
        rows: list[Any] = await self._line.connection.fetch(rendered.texts[0], *rendered.arguments(parameters))
        return rows
