"""One transaction of PostgreSQL, as an operation sees it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import starmap
from typing import Any, Protocol, TypeVar

from asyncpg import exceptions as pg

from holdfast.errors import StoreUnfit
from holdfast.kernel.database import Announcement, Bounds, Owner, is_single
from holdfast.kernel.drivers.addresses import server_of
from holdfast.kernel.drivers.errors import query_is_wrong, query_wrote, too_long, wrote
from holdfast.kernel.drivers.postgres_errors import AWAY, BUSY, CONFLICT
from holdfast.kernel.drivers.postgres_pool import Connection, ConnectionPool, PooledConnection
from holdfast.kernel.row_security import role_of, tenant_setting
from holdfast.kernel.sql import Exec, Many, One, Rendered, Statement
from holdfast.settings import Settings

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


# Operations within bounds on PostgreSQL: reads over connections of their own, tenants under a role of their own.
#
# A connection for reads is read-only, and the server ends a statement that takes too long. Behind a pooler the
# session is
# not ours, so both go with each transaction. So does the role, everywhere: it is taken where row security is on.


R = TypeVar("R")

_SECURED = "select coalesce((select relrowsecurity from pg_class where oid = to_regclass($1)), false)"
_BECOME = "select set_config('role', $1, true), set_config($2, $3, true)"
_ASK_AGAIN = 30.0  # seconds after which somebody may have turned row security on or off


class ConnectionSource(Protocol):
    """What the database offers to those who open connections beside its own."""

    url: str
    settings: Settings
    direct: bool
    web_limits: str

    @property
    def session(self) -> str: ...

    @property
    def cached(self) -> int: ...

    def now(self) -> float: ...

    async def pool(self) -> ConnectionPool: ...

    async def dial(self, url: str, use: str, *, cached_statements: int = 0) -> Connection: ...

    async def verify(self, line: PooledConnection) -> None: ...

    def transaction_on(self, line: PooledConnection) -> PostgresTransaction: ...

    def transaction(self, connection: Connection, *, reads: bool = False) -> AbstractAsyncContextManager[None]: ...

    def post(self, tx: PostgresTransaction) -> None: ...


class BoundedUse:
    """How one database is used within bounds."""

    def __init__(self, database: ConnectionSource) -> None:
        self._database = database
        self._pool: ConnectionPool | None = None
        self._secured = False
        self._ask_at = float("-inf")

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
            tenant = bounds.tenant if await self._is_secured(line, bounds) else None
            if database.direct and is_single(operation) and tenant is None:
                answer = await operation(tx, *args, **kwargs)
            else:
                async with database.transaction(line.connection, reads=bounds.reads):
                    if tenant is not None:
                        await self._become(line, tenant)
                    answer = await operation(tx, *args, **kwargs)
        database.post(tx)
        return answer

    async def _is_secured(self, line: PooledConnection, bounds: Bounds) -> bool:
        """Whether row security is on, as far as it matters here."""
        if bounds.tenant is None:
            return False
        now = self._database.now()
        if now >= self._ask_at:
            line.ask()
            async with self._database.transaction(line.connection, reads=True):
                table = f"{self._database.settings.schema}.run"
                self._secured = bool(await line.connection.fetchval(_SECURED, table))
            self._ask_at = now + _ASK_AGAIN
        return self._secured

    async def _become(self, line: PooledConnection, tenant: str) -> None:
        """Take the role of tenants, until the transaction ends."""
        schema = self._database.settings.schema
        line.ask()
        try:
            await line.connection.fetch(_BECOME, role_of(schema), tenant_setting(schema), tenant)
        except (pg.InsufficientPrivilegeError, pg.InvalidParameterValueError) as problem:
            raise StoreUnfit(
                f"row security is on, and this login may not take the role {role_of(schema)}: {problem}. "
                f"Grant it: `grant {role_of(schema)} to LOGIN`, or `holdfast migrate --no-row-security`."
            ) from problem

    def _reading(self) -> ConnectionPool:
        if self._pool is None:
            settings = self._database.settings
            self._pool = ConnectionPool(self._connect, settings.connections, settings.call_patience)
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
