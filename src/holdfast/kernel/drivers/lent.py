"""Connections that a caller lends: which libraries Holdfast knows, and what it says about the others.

A connection is known by the name of its class, so that nothing is imported that the caller does not use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.clock import Ports
from holdfast.errors import UsageError
from holdfast.kernel.database import CallerConnection
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
from holdfast.kernel.sql import Dialect
from holdfast.settings import Settings

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


def lend(connection: Any, url: str, settings: Settings, ports: Ports, *, sync: bool) -> CallerConnection:
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
        return f"{_a(connection)} must be awaited, but a call that ends in _sync cannot await: leave _sync out."
    return (
        f"{_a(connection)} blocks, and an awaited call with it would stop the event loop. "
        f"Where you use it, make the call that blocks too: enqueue_sync, enqueue_many_sync, ctx.step_sync or "
        f"hf.sync.signal. Or pass an async connection."
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
