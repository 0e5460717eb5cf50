"""Pages of tool calls, the last first: by an index each, and every other filter looks at a bounded number of rows."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.agents.listing_rows import CallPlace
from holdfast.agents.queries import AFTER_ALL, LAST
from holdfast.agents.rows import CallRow
from holdfast.agents.statements import CallsSql
from holdfast.agents.states import CallState
from holdfast.kernel.database import Transaction, reading

LOOK = 10_000


class FoundCalls(NamedTuple):
    """A page. `place` is where the look ended, None when nothing is left behind it."""

    rows: list[CallRow]
    place: tuple[int, str] | None
    looked: int


@reading
async def call_page(  # noqa: PLR0913  what it filters by, and how far
    tx: Transaction,
    *,
    name: str | None = None,
    state: str | None = None,
    tenant: str | None = None,
    since: int = 0,
    before: tuple[int, str] = (LAST, AFTER_ALL),
    limit: int = 100,
    look: int = LOOK,
) -> FoundCalls:
    """Calls that have ended, or with a state of open ones those, which have their place by when they began."""
    place = {"before_at": before[0], "before": before[1], "since": since}
    filters = {"name": name, "tenant": tenant, "look": look, "limit": limit}
    if state in (CallState.PENDING, CallState.RUNNING):
        found = await tx.many(CallsSql.calls_open, **filters, **place)
        rows = [row for row in await _read(tx, found) if row.state == state]
        return FoundCalls(rows, _last(found) if len(found) == limit else None, len(found))
    if name is not None and state == CallState.FAILED:
        found = await tx.many(CallsSql.calls_failed, **filters, **place)
        end = await tx.one(CallsSql.end_of_calls_failed, name=name, **place, skipped=look - 1)
    else:
        found = await tx.many(CallsSql.calls_listed, **filters, state=state, **place)
        end = await tx.one(CallsSql.end_of_calls_listed, **place, skipped=look - 1)
    rows = await _read(tx, found)
    if len(found) == limit:
        return FoundCalls(rows, _last(found), len(found))
    return FoundCalls(rows, None if end is None else (end.at, end.id), len(found) if end is None else look)


def _last(found: list[CallPlace]) -> tuple[int, str]:
    return found[-1].at, found[-1].id


async def _read(tx: Transaction, found: list[CallPlace]) -> list[CallRow]:
    ids = [each.id for each in found]
    rows = {row.id: row for row in await tx.many(CallsSql.find_calls, ids=ids)} if ids else {}
    return [rows[id] for id in ids if id in rows]
