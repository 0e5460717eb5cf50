"""Operations within bounds on PostgreSQL: reads over connections of their own.

A connection for reads is read-only, and the server ends a statement that takes too long. Behind a pooler the session is
not ours, so both go with each transaction.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

from asyncpg import exceptions as pg

from holdfast.kernel.bounds import Bounds
from holdfast.kernel.database import is_single
from holdfast.kernel.drivers.addresses import server_of
from holdfast.kernel.drivers.causes import too_long, wrote
from holdfast.kernel.drivers.postgres_pool import Connection, Pool, PooledConnection
from holdfast.kernel.drivers.postgres_transaction import PostgresTransaction
from holdfast.settings import Settings

R = TypeVar("R")


class Sessions(Protocol):
    """What the database offers to those who open connections beside its own."""

    url: str
    settings: Settings
    direct: bool
    web_limits: str

    @property
    def session(self) -> str: ...

    @property
    def cached(self) -> int: ...

    async def pool(self) -> Pool: ...

    async def dial(self, url: str, use: str, *, cached_statements: int = 0) -> Connection: ...

    async def verify(self, line: PooledConnection) -> None: ...

    def transaction_on(self, line: PooledConnection) -> PostgresTransaction: ...

    def transaction(self, connection: Connection, *, reads: bool = False) -> AbstractAsyncContextManager[None]: ...

    def post(self, tx: PostgresTransaction) -> None: ...


class BoundedUse:
    """How one database is used within bounds."""

    def __init__(self, database: Sessions) -> None:
        self._database = database
        self._pool: Pool | None = None

    async def attempt(self, bounds: Bounds, operation: Callable[..., Awaitable[R]], args: Any, kwargs: Any) -> R:
        try:
            return await self._attempt(bounds, operation, args, kwargs)
        except pg.QueryCanceledError as problem:
            if not bounds.reads:
                raise
            raise too_long(f"PostgreSQL at {server_of(self._database.url)}") from problem
        except pg.ReadOnlySQLTransactionError as problem:
            if not bounds.reads:
                raise
            raise wrote(problem) from problem

    async def _attempt(self, bounds: Bounds, operation: Callable[..., Awaitable[R]], args: Any, kwargs: Any) -> R:
        database = self._database
        everybodys = await database.pool()
        async with (self._reading() if bounds.reads else everybodys).line() as line:
            tx = database.transaction_on(line)
            if database.direct and is_single(operation):
                answer = await operation(tx, *args, **kwargs)
            else:
                async with database.transaction(line.connection, reads=bounds.reads):
                    answer = await operation(tx, *args, **kwargs)
        database.post(tx)
        return answer

    def _reading(self) -> Pool:
        if self._pool is None:
            settings = self._database.settings
            self._pool = Pool(self._connect, settings.connections, settings.call_patience)
        return self._pool

    async def _connect(self) -> Connection:
        """A connection that changes nothing, and on which nothing takes long."""
        database = self._database
        connection = await database.dial(database.url, "web", cached_statements=database.cached)
        if not database.direct:
            return connection
        line = PooledConnection(connection, database.settings.call_patience)
        try:
            line.ask()
            read_only = "set default_transaction_read_only = on; "
            await connection.execute(database.session + read_only + database.web_limits.format(scope=""))
            await database.verify(line)
        except BaseException:
            connection.terminate()
            raise
        finally:
            line.rest()
        return connection

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()
