"""Whole conversations that were not used for long: removed on request, or after the age that a setting gives."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.agents.queries import delete_session
from holdfast.agents.retention.retention_rows import Mark
from holdfast.agents.retention.statements import PruningSql
from holdfast.agents.statements import SessionsSql
from holdfast.errors import NotFound, UsageError
from holdfast.kernel.database import Transaction

LOOK = 200  # sessions that one transaction looks at
MOST = 5  # sessions that one transaction removes
ROWS = 2_000  # events of a session that one transaction removes


START = Mark(0, "")


class Pruned(NamedTuple):
    """How many sessions went, and where the next look begins; None at the end."""

    removed: int
    upto: Mark | None
    more: bool = False  # something is left for the next transaction


async def prune_some_sessions(tx: Transaction, after: Mark, before: int, *, tenant: str | None, own: bool) -> Pruned:
    """Look at the next sessions, and remove those where nothing happened since `before`.

    Without a tenant, of all; then those of tenants with ages of their own stay, unless `own` says otherwise.
    """
    given = {"at": after.at, "id": after.id, "before": before, "limit": LOOK}
    if tenant is None:
        found = await tx.many(PruningSql.old_sessions, own=int(not own), **given)
    else:
        found = await tx.many(PruningSql.old_sessions_of, tenant=tenant, **given)
    removed, upto = 0, after
    for session in found:
        if session.prunable and (removed == MOST or not await _removed(tx, session.id)):
            return Pruned(removed, upto, more=True)
        removed += session.prunable
        upto = Mark(session.at, session.id)
    return Pruned(removed, upto if len(found) == LOOK else None, more=len(found) == LOOK)


async def _removed(tx: Transaction, id: str) -> bool:
    """One that was used or removed meanwhile is let be."""
    try:
        return await remove_session(tx, id)
    except (NotFound, UsageError):
        return True


async def remove_session(tx: Transaction, id: str) -> bool:
    """Remove a session; False when it has so many events that this takes another transaction.

    `UsageError` while a run of it is open. Its events are not there for anybody any more, as when it is deleted.
    """
    await tx.one(SessionsSql.lock_session, id=id)
    roots = await tx.many(PruningSql.roots_in, session=id)
    if any(root.busy for root in roots):
        raise UsageError(f"session {id} has an active run: cancel it or wait for its end.")
    gone = await tx.many(PruningSql.prune_events, roots=[root.id for root in roots], limit=ROWS) if roots else []
    if len(gone) == ROWS:
        return False
    await delete_session(tx, id)
    return True
