"""Pages of tool calls, the last first: by an index each, and every other filter looks at a bounded number of rows."""

from __future__ import annotations

from typing import Any, NamedTuple

from holdfast.agents.listing_rows import CallPlace
from holdfast.agents.looks import LOOK, FoundRows, Lead, LookPlace, count_rows, find_page
from holdfast.agents.queries import AFTER_ALL, LAST
from holdfast.agents.rows import CallRow
from holdfast.agents.statements import CallListsSql, CallsSql
from holdfast.agents.states import CallState
from holdfast.kernel.database import Transaction, reading

_LISTED = Lead(CallListsSql.calls_listed, CallListsSql.end_of_calls_listed, CallListsSql.count_calls_listed)
_FAILED = Lead(CallListsSql.calls_failed, CallListsSql.end_of_calls_failed, CallListsSql.count_calls_failed)
_OPEN = (CallState.PENDING, CallState.RUNNING)


class CallFilters(NamedTuple):
    """What a list of calls is asked for; None is any. `name` is that of a tool."""

    name: str | None = None
    state: str | None = None
    tenant: str | None = None
    since: int = 0

    @property
    def lead(self) -> Lead[CallPlace]:
        """By which index calls that have ended are read."""
        return _FAILED if self.name is not None and self.state == CallState.FAILED else _LISTED


@reading
async def call_page(
    tx: Transaction,
    filters: CallFilters,
    *,
    before: LookPlace = (LAST, AFTER_ALL),
    limit: int = 100,
    look: int = LOOK,
) -> FoundRows[CallRow]:
    """Calls that have ended, or with a state of open ones those, which have their place by when they began."""
    given = _given(filters, before)
    if filters.state in _OPEN:
        found = await tx.many(CallListsSql.calls_open, **{**given, "state": None}, limit=limit, look=look)
        rows = [row for row in await _read(tx, found) if row.state == filters.state]
        return FoundRows(rows, _place(found[-1]) if len(found) == limit else None, len(found))
    page = await find_page(tx, filters.lead, given, _place, limit=limit, look=look)
    return FoundRows(await _read(tx, page.rows), page.place, page.looked)


@reading
async def count_calls(tx: Transaction, filters: CallFilters, *, look: int = LOOK) -> int:
    """How many there are, among the last that one look sees; of open calls, those of any state."""
    given = _given(filters, (LAST, AFTER_ALL))
    if filters.state not in _OPEN:
        return await count_rows(tx, filters.lead, given, look=look)
    counted = await tx.one(CallListsSql.count_calls_open, **{**given, "state": None}, look=look)
    return 0 if counted is None else counted.n


def _given(filters: CallFilters, before: LookPlace) -> dict[str, Any]:
    return {**filters._asdict(), "before_at": before[0], "before": before[1]}


def _place(found: CallPlace) -> LookPlace:
    return found.at, found.id


async def _read(tx: Transaction, found: list[CallPlace]) -> list[CallRow]:
    ids = [each.id for each in found]
    rows = {row.id: row for row in await tx.many(CallsSql.find_calls, ids=ids)} if ids else {}
    return [rows[id] for id in ids if id in rows]
