"""What PostgreSQL and the network can answer to asyncpg, sorted by what to do about it.

It is apart from `errors` because it imports asyncpg, which a program that uses SQLite need not have.
"""

from __future__ import annotations

import asyncio

import asyncpg
from asyncpg import exceptions as pg

from holdfast.errors import BadUrl, HoldfastError, StoreUnavailable
from holdfast.kernel.drivers.addresses import server_of
from holdfast.kernel.drivers.errors import answered

# The transaction did not happen and may simply be run again.
CONFLICT = (pg.DeadlockDetectedError, pg.SerializationError)

# The transaction waited too long for somebody else's, and did not happen. Nothing is wrong with the connection.
BUSY = (pg.LockNotAvailableError, pg.QueryCanceledError)

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


def typed(url: str, problem: Exception) -> Exception:
    """The error a caller should see; unknown ones stay as they are."""
    server = f"PostgreSQL at {server_of(url)}"
    match problem:
        case HoldfastError():
            return problem
        case pg.PostgresError(sqlstate=str(code)) if known := answered(server, code, problem):
            return known
        case asyncpg.ClientConfigurationError() | ValueError():
            return BadUrl(
                f"the postgresql:// URL cannot be read: {problem}. Write postgresql://user@host:port/database."
            )
        case _ if isinstance(problem, AWAY):
            reason = str(problem) or type(problem).__name__
            return StoreUnavailable(
                f"{server} cannot be reached: {reason}. Check that it runs and that the URL is right."
            )
        case _:
            return problem
