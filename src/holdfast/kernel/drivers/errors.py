"""How a driver raises its library's error under a name of ours."""

from __future__ import annotations

from typing import NoReturn

from holdfast.errors import (
    BadPayload,
    BadUrl,
    HoldfastError,
    QueryTooLong,
    SchemaTooOld,
    StoreBusy,
    StoreFull,
    StoreUnavailable,
    UsageError,
)


def raise_as(known: Exception, problem: Exception) -> NoReturn:
    """Raise `known`, caused by `problem`. An error that has no name of ours is not its own cause."""
    if known is problem:
        raise problem
    raise known from problem


def too_long(store: str) -> QueryTooLong:
    return QueryTooLong(
        f"{store} ended a read that took too long. "
        f"Ask for less: a narrower filter, a smaller page. The setting `web_patience` says how long a query may take."
    )


def wrote(problem: Exception) -> RuntimeError:
    """A fault of ours: what reads for the web must not write."""
    return RuntimeError(f"a read for the web tried to write, and nothing was changed: {problem}")


def query_wrote(problem: Exception) -> UsageError:
    """A fault of who wrote an ad hoc query."""
    return UsageError(f"a query may only read, and this one would do more; nothing was changed: {problem}")


def query_is_wrong(problem: Exception) -> UsageError:
    return UsageError(f"the database refuses the query: {problem}")


# What a PostgreSQL server answers, by SQLSTATE: the same, whichever library carried the question.


def answered(server: str, code: str, reason: object) -> HoldfastError | None:  # noqa: PLR0911  one for each answer
    """The error a caller should see; None for what has no type of ours. `server` begins the message."""
    match code[:2], code:
        case _, "53100":
            return StoreFull(f"{server} has no space left; nothing was written. Free some and try again.")
        case _, "40P01" | "40001" | "55P03" | "57014":  # deadlock, serialization, lock not available, cancelled
            return StoreBusy(f"{server} rolled a transaction back ({reason}); nothing was written. Try again.")
        case _, "53300":
            return StoreUnavailable(
                f"{server} accepts no more connections: {reason}. "
                f"Raise its max_connections, or lower the setting `connections`."
            )
        case "53", _:
            return StoreUnavailable(f"{server} is short of resources: {reason}. Try again later.")
        case _, "42P01" | "3F000" | "42883":  # no such table, schema, function
            return SchemaTooOld(f"{server} lacks Holdfast's tables ({reason}). Run `holdfast migrate`.")
        case _, "28P01" | "28000" | "3D000":
            return BadUrl(f"{server} refuses: {reason}. Check user, password and database in the URL.")
        case "22", _:
            return BadPayload(f"PostgreSQL cannot store a value: {reason}.")
        case _, "25006":
            return StoreUnavailable(f"{server} is read-only (a standby?). Point the URL at the primary.")
        case ("08", _) | (_, "57P01" | "57P02" | "57P03" | "57P05" | "25P03"):  # gone, going, or not there yet
            return StoreUnavailable(
                f"{server} cannot be reached: {reason}. Check that it runs and that the URL is right."
            )
        case _:
            return None
