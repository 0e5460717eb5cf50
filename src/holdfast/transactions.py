"""The caller's own transaction: jobs and signals that are there once it commits, and never were if it does not.

A connection is known by the name of its class, so that nothing is imported that the caller does not use. Routes are
written every time and never remembered: a rollback takes them away again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ParamSpec, Protocol, TypeVar

from holdfast.clock import Ports
from holdfast.errors import UsageError
from holdfast.kernel import waiting
from holdfast.kernel.database import Operation
from holdfast.kernel.drivers import dialect_of, sqlite_path
from holdfast.kernel.drivers.lent_postgres import (
    LentAsyncpg,
    LentAsyncPsycopg,
    LentAsyncSqlAlchemy,
    LentConnection,
    LentDjango,
    LentPsycopg,
    LentSqlAlchemy,
)
from holdfast.kernel.enqueue import Accepted
from holdfast.kernel.records import Batch, NewJob, Route
from holdfast.kernel.sql import Dialect
from holdfast.runtime import Transacting, accept, accept_many, signal_id
from holdfast.settings import Settings

P = ParamSpec("P")
R = TypeVar("R")

_LENT: Mapping[str, type[LentConnection]] = {
    "asyncpg.connection.Connection": LentAsyncpg,
    "asyncpg.pool.PoolConnectionProxy": LentAsyncpg,
    "psycopg.Connection": LentPsycopg,
    "psycopg.AsyncConnection": LentAsyncPsycopg,
    "sqlalchemy.engine.base.Connection": LentSqlAlchemy,
    "sqlalchemy.orm.session.Session": LentSqlAlchemy,
    "sqlalchemy.orm.scoping.scoped_session": LentSqlAlchemy,
    "sqlalchemy.ext.asyncio.engine.AsyncConnection": LentAsyncSqlAlchemy,
    "sqlalchemy.ext.asyncio.session.AsyncSession": LentAsyncSqlAlchemy,
    "sqlalchemy.ext.asyncio.scoping.async_scoped_session": LentAsyncSqlAlchemy,
    "django.db.backends.base.base.BaseDatabaseWrapper": LentDjango,
    "django.utils.connection.ConnectionProxy": LentDjango,
}
_APSW = "apsw.Connection"
_OTHER_SQLITE = frozenset({"sqlite3.Connection", "aiosqlite.core.Connection"})
_TITLES = {"postgres": "PostgreSQL", "postgresql": "PostgreSQL", "sqlite": "SQLite"}


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


def lend(connection: Any, url: str, settings: Settings, ports: Ports, *, sync: bool) -> Transacting:
    """The caller's connection as operations see it, or `UsageError` that says what to pass instead.

    `sync`: the call is not awaited, so the connection must not be either. A file is another matter: it is always there.
    """
    name = _known_name(connection)
    kind = _LENT.get(name)
    database = "sqlite" if kind is None else kind.database(connection)
    _refuse_another(dialect_of(url), database)
    if name == _APSW:
        from holdfast.kernel.drivers.lent_sqlite import LentFile

        return LentFile(connection, sqlite_path(url), ports.clock.wall_us)
    if kind is None or database == "sqlite":
        raise UsageError(_two_libraries(name))
    if kind.awaited == sync:
        raise UsageError(_other_call(connection, sync=sync))
    return kind(connection, settings.schema)


def _known_name(connection: object) -> str:
    for kind in type(connection).__mro__:
        name = f"{kind.__module__}.{kind.__qualname__}"
        if name in _LENT or name in _OTHER_SQLITE or name == _APSW:
            return name
    raise UsageError(
        f"tx is {_a(connection)}, which Holdfast does not know. It takes the connection that has the transaction, not "
        f"its pool or engine: of asyncpg, psycopg 3, SQLAlchemy 2 or Django for PostgreSQL, of apsw for SQLite."
    )


def _refuse_another(ours: Dialect, database: str) -> None:
    if _TITLES.get(database) != _TITLES[ours]:
        raise UsageError(
            f"the app's jobs are in {_TITLES[ours]}, and this connection is to {_TITLES.get(database, database)}. "
            f"A transaction has one database: pass a connection to the app's, or leave tx out."
        )


def _other_call(connection: Any, *, sync: bool) -> str:
    if sync:
        return f"{_a(connection)} must be awaited, and a call that ends in _sync cannot: leave _sync out."
    return (
        f"{_a(connection)} blocks, and an awaited call with it would stop the event loop. "
        f"Call enqueue_sync, enqueue_many_sync or signal_sync where you use it, or pass an async connection."
    )


def _two_libraries(name: str) -> str:
    library = name.partition(".")[0]
    return (
        f"{library} opens SQLite files with the standard library's SQLite, Holdfast with apsw's own: two SQLite "
        f"libraries in one process break each other's locks, and the file can be damaged. "
        f"Pass an apsw.Connection on the same file."
    )


def _a(connection: Any) -> str:
    name = f"{type(connection).__module__}.{type(connection).__qualname__}"
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"
