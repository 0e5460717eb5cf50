"""How a driver raises its library's error under a name of ours."""

from __future__ import annotations

from typing import NoReturn

from holdfast.errors import QueryTooLong, UsageError


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
