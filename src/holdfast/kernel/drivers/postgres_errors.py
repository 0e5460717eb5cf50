"""What PostgreSQL and the network can answer, sorted by what to do about it."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import asyncpg
from asyncpg import exceptions as pg

from holdfast.errors import BadUrl, HoldfastError, SchemaTooOld, StoreFull, StoreUnavailable

# The transaction did not happen and may simply be run again.
CONFLICT = (pg.DeadlockDetectedError, pg.SerializationError)

# The server is away or the connection is gone; whether the last commit happened is unknown.
AWAY = (
    pg.PostgresConnectionError,
    pg.CannotConnectNowError,
    pg.AdminShutdownError,
    pg.CrashShutdownError,
    pg.TooManyConnectionsError,
    pg.ReadOnlySQLTransactionError,
    pg.InternalClientError,
    asyncpg.InterfaceError,
    OSError,
    asyncio.TimeoutError,
)


def typed(url: str, problem: Exception) -> Exception:
    """The error a caller should see; unknown ones stay as they are."""
    place = describe(url)
    match problem:
        case HoldfastError():
            return problem
        case pg.DiskFullError():
            return StoreFull(f"PostgreSQL at {place} has no space left; nothing was written. Free some and try again.")
        case pg.UndefinedTableError() | pg.InvalidSchemaNameError() | pg.UndefinedFunctionError():
            return SchemaTooOld(f"PostgreSQL at {place} lacks Holdfast's tables ({problem}). Run `holdfast migrate`.")
        case pg.InvalidPasswordError() | pg.InvalidAuthorizationSpecificationError() | pg.InvalidCatalogNameError():
            return BadUrl(f"PostgreSQL at {place} refuses: {problem}. Check user, password and database in the URL.")
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
    parts = urlsplit(url)
    try:
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        port = ""
    return f"{parts.hostname or 'localhost'}{port}{parts.path}"
