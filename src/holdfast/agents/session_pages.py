"""Pages of sessions: each filter that has an index is read by it, and every other looks at a bounded number of rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from holdfast.agents.looks import LOOK, FoundRows, Lead, LookPlace, count_rows, find_page
from holdfast.agents.queries import AFTER_ALL, LAST
from holdfast.agents.rows import SessionRow, ValueCount
from holdfast.agents.statements import SessionListsSql
from holdfast.kernel.database import Transaction, reading

SESSION_LEADS: Mapping[str, Lead[SessionRow]] = {
    "all": Lead(SessionListsSql.sessions_all, SessionListsSql.end_of_sessions_all, SessionListsSql.count_sessions_all),
    "of_tenant": Lead(
        SessionListsSql.sessions_of_tenant,
        SessionListsSql.end_of_sessions_of_tenant,
        SessionListsSql.count_sessions_of_tenant,
    ),
    "of_parent": Lead(
        SessionListsSql.sessions_of_parent,
        SessionListsSql.end_of_sessions_of_parent,
        SessionListsSql.count_sessions_of_parent,
    ),
}


class SessionFilters(NamedTuple):
    """What a list of sessions is asked for; None is any. `metadata` is JSON that theirs contain."""

    tenant: str | None = None
    parent: str | None = None
    metadata: str = "{}"

    @property
    def lead(self) -> Lead[SessionRow]:
        """The filter that reads the fewest rows by an index."""
        if self.parent is not None:
            return SESSION_LEADS["of_parent"]
        return SESSION_LEADS["all" if self.tenant is None else "of_tenant"]


@reading
async def session_page(
    tx: Transaction,
    filters: SessionFilters,
    *,
    before: LookPlace = (LAST, AFTER_ALL),
    limit: int = 100,
    look: int = LOOK,
) -> FoundRows[SessionRow]:
    given = _given(filters, before)
    return await find_page(tx, filters.lead, given, lambda row: (row.created_at, row.id), limit=limit, look=look)


@reading
async def list_sessions(tx: Transaction, *, tenant: str | None = None, limit: int = 100) -> list[SessionRow]:
    """The newest sessions, of everybody or of one tenant."""
    return (await session_page(tx, SessionFilters(tenant), limit=limit, look=max(limit, LOOK))).rows


@reading
async def count_sessions(tx: Transaction, filters: SessionFilters, look: int | None = None) -> int:
    """How many there are, among the newest that it looks at."""
    given = _given(filters, (LAST, AFTER_ALL))
    return await count_rows(tx, filters.lead, given, look=LAST if look is None else look)


@reading
async def metadata_values(
    tx: Transaction,
    key: str,
    tenant: str | None = None,
    *,
    after: LookPlace = (LAST, ""),
    limit: int = 1_000,
    look: int | None = None,
) -> list[ValueCount]:
    """The values under a key, among the newest sessions that it looks at."""
    page = {"before": after[0], "after": after[1], "limit": limit, "look": LAST if look is None else look}
    if tenant is None:
        return await tx.many(SessionListsSql.metadata_values, key=key, **page)
    return await tx.many(SessionListsSql.metadata_values_of, key=key, tenant=tenant, **page)


def _given(filters: SessionFilters, before: LookPlace) -> dict[str, Any]:
    return {**filters._asdict(), "before_at": before[0], "before": before[1]}
