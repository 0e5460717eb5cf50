"""What PostgreSQL and the network can answer, sorted by what to do about it."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import asyncpg
from asyncpg import exceptions as pg

from holdfast.errors import BadPayload, BadUrl, HoldfastError, SchemaTooOld, StoreBusy, StoreFull, StoreUnavailable

# The transaction did not happen and may simply be run again.
CONFLICT = (pg.DeadlockDetectedError, pg.SerializationError)

# The server is away or the connection is gone; whether the last commit happened is unknown.
AWAY = (
    pg.PostgresConnectionError,
    pg.CannotConnectNowError,
    pg.AdminShutdownError,
    pg.CrashShutdownError,
    pg.IdleInTransactionSessionTimeoutError,
    pg.IdleSessionTimeoutError,
    pg.TooManyConnectionsError,
    pg.ReadOnlySQLTransactionError,
    pg.InternalClientError,
    asyncpg.InterfaceError,
    OSError,
    asyncio.TimeoutError,
)


def typed(url: str, problem: Exception) -> Exception:  # noqa: PLR0911  one for each kind of answer
    """The error a caller should see; unknown ones stay as they are."""
    place = describe(url)
    match problem:
        case HoldfastError():
            return problem
        case pg.DiskFullError():
            return StoreFull(f"PostgreSQL at {place} has no space left; nothing was written. Free some and try again.")
        case (
            pg.DeadlockDetectedError() | pg.SerializationError() | pg.LockNotAvailableError() | pg.QueryCanceledError()
        ):
            return StoreBusy(
                f"PostgreSQL at {place} gave a transaction up ({problem}); nothing was written. Try again."
            )
        case pg.TooManyConnectionsError():
            return StoreUnavailable(
                f"PostgreSQL at {place} takes no more connections: {problem}. "
                f"Raise its max_connections, or lower the setting `connections`."
            )
        case pg.InsufficientResourcesError():
            return StoreUnavailable(f"PostgreSQL at {place} is short of resources: {problem}. Try again later.")
        case pg.UndefinedTableError() | pg.InvalidSchemaNameError() | pg.UndefinedFunctionError():
            return SchemaTooOld(f"PostgreSQL at {place} lacks Holdfast's tables ({problem}). Run `holdfast migrate`.")
        case pg.InvalidPasswordError() | pg.InvalidAuthorizationSpecificationError() | pg.InvalidCatalogNameError():
            return BadUrl(f"PostgreSQL at {place} refuses: {problem}. Check user, password and database in the URL.")
        case pg.DataError():
            return BadPayload(f"PostgreSQL cannot hold a value: {problem}.")
        case asyncpg.ClientConfigurationError() | ValueError():
            return BadUrl(
                f"the postgresql:// URL cannot be read: {problem}. Write postgresql://user@host:port/database."
            )
        case pg.ReadOnlySQLTransactionError():
            return StoreUnavailable(f"PostgreSQL at {place} is read-only (a standby?). Point the URL at the primary.")
        case _ if isinstance(problem, AWAY):
            reason = str(problem) or type(problem).__name__
            return StoreUnavailable(
                f"PostgreSQL at {place} cannot be reached: {reason}. Check that it runs and that the URL is right."
            )
        case _:
            return problem


def describe(url: str) -> str:
    """Where a URL points, without its password."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "a URL that cannot be read"
    try:
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        port = ""
    return f"{parts.hostname or 'localhost'}{port}{parts.path}"
