"""PostgreSQL through a connection that the caller lends: our statements become part of its transaction.

Nothing of the caller's is committed or rolled back, and nothing is set or looked up on it. What the server answers
becomes a typed error; what the library says of its connection stays as it is. A library is imported here only when a
connection of its kind came.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import starmap
from typing import Any, ClassVar, ParamSpec, TypeVar

from holdfast.errors import HoldfastError, UsageError
from holdfast.kernel.database import Announcement, Operation, Owner, is_single
from holdfast.kernel.drivers.errors import answered
from holdfast.kernel.sql import Exec, Many, One, Statement, Style, catalogue
from holdfast.kernel.statements import GROUPS, JobsSql

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound=tuple[Any, ...])

_IDLE = 0  # libpq: connected, and in no transaction
_SQLALCHEMY_STYLES: Mapping[str, Style] = {"asyncpg": "dollar", "psycopg": "pyformat"}
_AT_ONCE = {"stream_results": False}  # whatever the caller set for its own reads


class LentConnection(ABC):
    """The caller's connection while an operation has it: the `Transaction` that operations see."""

    awaited: ClassVar[bool]  # its calls are awaited; those of the others block
    layers: Sequence[Owner] = ()  # nothing ends in a caller's transaction
    lent = True

    def __init__(self, connection: Any, schema: str) -> None:
        self._connection = connection
        self._statements = catalogue(GROUPS, "postgres", schema, self.style(connection))

    @classmethod
    def database(cls, _connection: Any) -> str:
        """What is at the other end."""
        return "postgresql"

    @classmethod
    def style(cls, _connection: Any) -> Style:
        """How its library spells parameters."""
        return "pyformat"

    async def transact(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run `operation` whole or not at all, in the caller's transaction; if none is open, in one of its own."""
        try:
            if is_single(operation):
                return await operation(self, *args, **kwargs)
            async with self._together(), self._whole():
                return await operation(self, *args, **kwargs)
        except Exception as problem:
            known = _typed(problem)
            if known is None:
                raise
            raise known from problem

    async def many(self, statement: Many[T], /, **parameters: object) -> list[T]:
        return list(starmap(statement.record, await self._rows(statement, parameters)))

    async def one(self, statement: One[T], /, **parameters: object) -> T | None:
        rows = await self._rows(statement, parameters)
        return statement.record(*rows[0]) if rows else None

    async def run(self, statement: Exec, /, **parameters: object) -> None:
        await self._rows(statement, parameters)

    async def hint(self, note: str) -> None:
        """With the caller's commit, and not before: only the server knows when that is."""
        await self.run(JobsSql.hint, note=note)

    async def announce(self, notes: Sequence[Announcement]) -> None:
        if notes:
            await self.run(JobsSql.announce, notes=notes)

    async def _rows(self, statement: Statement, parameters: dict[str, Any]) -> Sequence[Any]:
        rendered = self._statements[statement]
        return await self._fetch(rendered.texts[0], rendered.arguments(parameters))

    @abstractmethod
    async def _fetch(self, text: str, arguments: list[Any]) -> Sequence[Any]: ...

    @asynccontextmanager
    async def _whole(self) -> AsyncIterator[None]:
        """Undo what an operation wrote before it was refused or cancelled: the caller may catch that, and commit."""
        await self._fetch("savepoint holdfast", [])
        try:
            yield
        except BaseException:
            with suppress(Exception):  # of a connection that is gone, the first error tells more
                await self._fetch("rollback to savepoint holdfast", [])
                await self._fetch("release savepoint holdfast", [])
            raise
        await self._fetch("release savepoint holdfast", [])

    @property
    def commits_each(self) -> bool:
        """Would the connection commit each statement by itself, because no transaction is open?"""
        return False

    @asynccontextmanager
    async def _together(self) -> AsyncIterator[None]:
        """Where the connection would commit each statement by itself, make it one commit."""
        yield


class LentAsyncpg(LentConnection):
    awaited = True

    @classmethod
    def style(cls, _connection: Any) -> Style:
        return "dollar"

    async def _fetch(self, text: str, arguments: list[Any]) -> Sequence[Any]:
        rows: Sequence[Any] = await self._connection.fetch(text, *arguments)
        return rows

    @property
    def commits_each(self) -> bool:
        return not self._connection.is_in_transaction()

    @asynccontextmanager
    async def _together(self) -> AsyncIterator[None]:
        if self.commits_each:
            async with self._connection.transaction():
                yield
        else:
            yield


class LentPsycopg(LentConnection):
    """With cursors of the plain kind: the connection's own may spell parameters and rows in another way."""

    awaited = False

    async def _fetch(self, text: str, arguments: list[Any]) -> Sequence[Any]:
        from psycopg import Cursor
        from psycopg.rows import tuple_row

        with Cursor(self._connection, row_factory=tuple_row) as cursor:
            cursor.execute(text.encode(), _named(arguments), prepare=False)
            return cursor.fetchall() if cursor.description else ()

    @property
    def commits_each(self) -> bool:
        return _commits_each(self._connection)

    @asynccontextmanager
    async def _together(self) -> AsyncIterator[None]:
        if self.commits_each:
            with self._connection.transaction():
                yield
        else:
            yield


class LentAsyncPsycopg(LentConnection):
    awaited = True

    async def _fetch(self, text: str, arguments: list[Any]) -> Sequence[Any]:
        from psycopg import AsyncCursor
        from psycopg.rows import tuple_row

        async with AsyncCursor(self._connection, row_factory=tuple_row) as cursor:
            await cursor.execute(text.encode(), _named(arguments), prepare=False)
            return await cursor.fetchall() if cursor.description else ()

    @property
    def commits_each(self) -> bool:
        return _commits_each(self._connection)

    @asynccontextmanager
    async def _together(self) -> AsyncIterator[None]:
        if self.commits_each:
            async with self._connection.transaction():
                yield
        else:
            yield


class LentDjango(LentConnection):
    awaited = False

    @classmethod
    def database(cls, connection: Any) -> str:
        return str(connection.vendor)

    async def _fetch(self, text: str, arguments: list[Any]) -> Sequence[Any]:
        with self._connection.cursor() as cursor:
            cursor.execute(text, _named(arguments))
            rows: Sequence[Any] = cursor.fetchall() if cursor.description else ()
            return rows

    @property
    def commits_each(self) -> bool:
        return bool(self._connection.get_autocommit())

    @asynccontextmanager
    async def _together(self) -> AsyncIterator[None]:
        """Not by `atomic()`, which takes a connection's name and may find another one."""
        if not self.commits_each:
            yield
            return
        self._connection.set_autocommit(False)
        try:
            yield
            self._connection.commit()
        except BaseException:
            self._connection.rollback()
            raise
        finally:
            self._connection.set_autocommit(True)


class LentSqlAlchemy(LentConnection):
    """A connection, or a session and the connection it has for its transaction.

    The statement goes to the driver as it is: SQLAlchemy's own `text()` would give each text parameter a cast to
    varchar, which PostgreSQL then refuses to put into a json column.
    """

    awaited = False

    @classmethod
    def database(cls, connection: Any) -> str:
        return str(_sqlalchemy_dialect(connection).name)

    @classmethod
    def style(cls, connection: Any) -> Style:
        driver = _sqlalchemy_dialect(connection).driver
        if driver not in _SQLALCHEMY_STYLES:
            raise UsageError(
                f"this is SQLAlchemy over {driver}; Holdfast can join transactions over psycopg (3) or asyncpg. "
                f"Write postgresql+psycopg:// or postgresql+asyncpg:// in the engine's URL."
            )
        return _SQLALCHEMY_STYLES[driver]

    async def _fetch(self, text: str, arguments: list[Any]) -> Sequence[Any]:
        connection = self._connection if _is_connection(self._connection) else self._connection.connection()
        _refuse_autocommit(connection)
        return _fetched(connection.exec_driver_sql(text, self._bound(arguments), _AT_ONCE))

    def _bound(self, arguments: list[Any]) -> Any:
        return tuple(arguments) if self.style(self._connection) == "dollar" else _named(arguments)


class LentAsyncSqlAlchemy(LentSqlAlchemy):
    awaited = True

    async def _fetch(self, text: str, arguments: list[Any]) -> Sequence[Any]:
        connection = self._connection if _is_connection(self._connection) else await self._connection.connection()
        _refuse_autocommit(connection.sync_connection)
        return _fetched(await connection.exec_driver_sql(text, self._bound(arguments), _AT_ONCE))


def _named(arguments: list[Any]) -> dict[str, Any]:
    return {f"p{number}": argument for number, argument in enumerate(arguments, 1)}


def _commits_each(connection: Any) -> bool:
    """Is this psycopg connection in autocommit, and not in an explicit transaction?"""
    return bool(connection.autocommit) and connection.info.transaction_status == _IDLE


def _is_connection(connection: Any) -> bool:
    """SQLAlchemy's connection, or a session?"""
    return hasattr(connection, "exec_driver_sql")


def _sqlalchemy_dialect(connection: Any) -> Any:
    return connection.dialect if _is_connection(connection) else connection.get_bind().dialect


def _refuse_autocommit(connection: Any) -> None:
    if connection.connection.dbapi_connection.autocommit:
        raise UsageError(
            "this SQLAlchemy connection is in AUTOCOMMIT: it has no transaction to join. Leave tx out, or use an "
            "engine with another isolation level."
        )


def _fetched(result: Any) -> Sequence[Any]:
    rows: Sequence[Any] = result.fetchall() if result.returns_rows else ()
    return rows


def _typed(problem: Exception) -> HoldfastError | None:
    """What the server said, found below what the libraries made of it; None when it is not from the server."""
    at: Any = problem
    said: Any = None
    while at is not None and not isinstance(at, HoldfastError):
        if isinstance(getattr(at, "sqlstate", None), str):
            said = at
        at = getattr(at, "orig", None) or at.__cause__
    if said is None:
        return None
    reason = str(said).partition("\n")[0]
    return answered("PostgreSQL behind the given connection", said.sqlstate, reason)
