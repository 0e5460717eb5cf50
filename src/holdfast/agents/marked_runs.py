"""Marked runs: those whose metadata contain something, among the newest; and which values the newest have."""

from __future__ import annotations

from typing import Any, NamedTuple

from holdfast.agents.queries import AFTER_ALL, LAST
from holdfast.agents.rows import RunRow
from holdfast.agents.statements import MarkedRunsSql, RunsSql
from holdfast.kernel import codec
from holdfast.kernel.database import Transaction, reading

LOOK = 10_000
LOOK_FOR_VALUES = 1_000


class RunMarks(NamedTuple):
    """What is asked for. `metadata` is JSON that those of a run contain; None is any."""

    metadata: str
    tenant: str | None = None
    session: str | None = None
    agent: str | None = None
    state: str | None = None
    mode: str | None = None
    parent: str | None = None
    since: int = 0


class MarkedPage(NamedTuple):
    """`place` is where the look ended, None when nothing is left behind it."""

    rows: list[RunRow]
    place: tuple[int, str] | None
    looked: int


@reading
async def marked_page(
    tx: Transaction, marks: RunMarks, *, before: tuple[int, str] = (LAST, AFTER_ALL), limit: int = 100
) -> MarkedPage:
    """The newest first."""
    page: dict[str, Any] = {"before_at": before[0], "before": before[1], "since": marks.since}
    wanted = {**marks._asdict(), **page}
    if marks.tenant is None:
        del wanted["tenant"]
        found = await tx.many(MarkedRunsSql.marked, **wanted, look=LOOK, limit=limit)
        end = await tx.one(MarkedRunsSql.end_of_marked, **page, skipped=LOOK - 1)
    else:
        found = await tx.many(MarkedRunsSql.marked_of_tenant, **wanted, look=LOOK, limit=limit)
        end = await tx.one(MarkedRunsSql.end_of_marked_of_tenant, tenant=marks.tenant, **page, skipped=LOOK - 1)
    ids = [each.id for each in found]
    rows = {row.id: row for row in await tx.many(RunsSql.find_runs, ids=ids)} if ids else {}
    shown = [rows[id] for id in ids if id in rows]
    if len(found) == limit:
        return MarkedPage(shown, (found[-1].created_at, found[-1].id), len(found))
    return MarkedPage(shown, None if end is None else (end.created_at, end.id), len(found) if end is None else LOOK)


@reading
async def mark_values(tx: Transaction, key: str, tenant: str | None, limit: int) -> list[tuple[Any, int]]:
    """The values that the newest runs have under a key of their metadata, each with how many of them have it."""
    page = {"key": key, "look": LOOK_FOR_VALUES, "limit": limit}
    if tenant is None:
        found = await tx.many(MarkedRunsSql.mark_values, **page)
    else:
        found = await tx.many(MarkedRunsSql.mark_values_of_tenant, tenant=tenant, **page)
    return [(codec.decode(row.value), row.n) for row in found]
