"""Bounded looks: a list reads so many rows of an index for those that fit, and says where it stopped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from holdfast.agents.rows import RowCount
from holdfast.kernel.database import Transaction
from holdfast.kernel.sql import Many, One
from holdfast.values.page import Page, cursor

R = TypeVar("R", bound=tuple[Any, ...])
V = TypeVar("V")
LookPlace = tuple[int, str]

LOOK = 10_000


class Lead(NamedTuple, Generic[R]):
    """The statements of one filter that has an index: a page, where a look ends, and how many fit.

    Without an `end`, a page that is not full is the last.
    """

    page: Many[R]
    end: One[Any] | None
    total: One[RowCount]


class FoundRows(NamedTuple, Generic[R]):
    """A page. `place` is where the look ended, None when nothing is left behind it."""

    rows: list[R]
    place: LookPlace | None
    looked: int


async def find_page(
    tx: Transaction, lead: Lead[R], given: Mapping[str, Any], mark: Callable[[R], LookPlace], *, limit: int, look: int
) -> FoundRows[R]:
    rows = await tx.many(lead.page, **given, look=look, limit=limit)
    if len(rows) >= limit:
        return FoundRows(rows, mark(rows[-1]), len(rows))
    end = None if lead.end is None else await tx.one(lead.end, **given, skipped=look - 1)
    return FoundRows(rows, None if end is None else (end[0], end[1]), len(rows) if end is None else look)


async def count_rows(tx: Transaction, lead: Lead[R], given: Mapping[str, Any], *, look: int) -> int:
    """How many there are, among those that one look sees."""
    counted = await tx.one(lead.total, **given, look=look)
    return 0 if counted is None else counted.n


def shown_page(found: FoundRows[R], value: Callable[[R], V]) -> Page[V]:
    """What a look has found, as callers see it."""
    further = None if found.place is None else cursor(*found.place)
    return Page(map(value, found.rows), next=further, looked=found.looked)
