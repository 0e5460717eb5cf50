"""Clean-up: what ended runs leave behind, removed by one worker in small transactions, again and again.

Runs are walked in the order in which they ended. How far the walk came is stored for each kind of what it removes, and
for each tenant that has ages of its own. A tree of runs is pruned as a whole, when the run at its top has ended long
enough ago; a tree from which a fork was made stays. Rows that say what was used and what it cost stay too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from holdfast.agents.queries import delete_session
from holdfast.agents.retention.ages import Ages, Kind, default_ages, own_ages, raise_horizon
from holdfast.agents.retention.records import Mark, PruningSql
from holdfast.agents.statements import SessionsSql
from holdfast.errors import NotFound, UsageError
from holdfast.kernel.database import Transaction
from holdfast.kernel.queries import now
from holdfast.settings import Settings
from holdfast.workers.layer import Chore

# Whole conversations that were not used for long: removed on request, or after the age that a setting gives.


LOOK = 200  # sessions that one transaction looks at
MOST = 5  # sessions that one transaction removes
EVENT_ROWS = 2_000  # events of a session that one transaction removes


START = Mark(0, "")


class PruneResult(NamedTuple):
    """How many sessions went, and where the next look begins; None at the end."""

    removed: int
    upto: Mark | None
    more: bool = False  # something is left for the next transaction


async def prune_some_sessions(
    tx: Transaction, after: Mark, before: int, *, tenant: str | None, own: bool
) -> PruneResult:
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
            return PruneResult(removed, upto, more=True)
        removed += session.prunable
        upto = Mark(session.at, session.id)
    return PruneResult(removed, upto if len(found) == LOOK else None, more=len(found) == LOOK)


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
    gone = await tx.many(PruningSql.prune_events, roots=[root.id for root in roots], limit=EVENT_ROWS) if roots else []
    if len(gone) == EVENT_ROWS:
        return False
    await delete_session(tx, id)
    return True


RUNS = 100  # ended runs that one transaction looks at, for each kind
ROWS = 1_000  # rows that one statement removes
_TENANTS = 5  # tenants with ages of their own, in one transaction, up to the first that has more
_BLOBS = 200
_START = Mark(0, "")


async def prune_deltas(tx: Transaction, roots: Sequence[str], limit: int) -> int:
    await tx.run(PruningSql.forget_trees, roots=roots)
    return len(await tx.many(PruningSql.prune_deltas, roots=roots, limit=limit))


async def prune_events(tx: Transaction, roots: Sequence[str], limit: int) -> int:
    gone = await tx.many(PruningSql.prune_events, roots=roots, limit=limit)
    await raise_horizon(tx, [(row.epoch, row.tx, row.pos) for row in gone if row.announced])
    return len(gone)


async def prune_inquiries(tx: Transaction, roots: Sequence[str], limit: int) -> int:
    return len(await tx.many(PruningSql.prune_inquiries, roots=roots, limit=limit))


async def prune_turns(tx: Transaction, roots: Sequence[str], limit: int) -> int:
    return len(await tx.many(PruningSql.prune_turns, roots=roots, limit=limit))


_BY_RUN: Mapping[Kind, Callable[[Transaction, Sequence[str], int], Awaitable[int]]] = {
    "deltas": prune_deltas,
    "events": prune_events,
    "inquiries": prune_inquiries,
    "turns": prune_turns,
}


async def prune(tx: Transaction, settings: Settings) -> bool:
    """Remove some of what is old enough; True when there is more."""
    moment = await now(tx)
    more = await _prune_tenant(tx, "", default_ages(settings), moment)
    last = await tx.one(PruningSql.find_mark, kind="tenants", tenant="") or _START
    tenants = await tx.many(PruningSql.own_ages, after=last.id, limit=_TENANTS)
    upto = ""
    for row in tenants:
        has_more = await _prune_tenant(tx, row.tenant, own_ages(row, settings), moment)
        more = more or has_more
        if has_more or (row is tenants[-1] and len(tenants) == _TENANTS):
            upto = row.tenant
            break
    if tenants or last.id:
        await tx.run(PruningSql.set_mark, kind="tenants", tenant="", at=0, id=upto)
    await _prune_blobs(tx)
    return more or bool(upto)


async def _prune_tenant(tx: Transaction, tenant: str, ages: Ages, moment: int) -> bool:
    """Of one tenant, or, where it is empty, of all that have no ages of their own."""
    more = False
    for kind in _BY_RUN:
        if age := ages.us(kind):
            more = await _walk(tx, kind, tenant, moment - age) or more
    if age := ages.us("sessions"):
        more = await _prune_sessions(tx, tenant, moment - age) or more
    return more


async def _walk(tx: Transaction, kind: Kind, tenant: str, before: int) -> bool:
    mark = await tx.one(PruningSql.find_mark, kind=kind, tenant=tenant) or _START
    given = {"at": mark.at, "id": mark.id, "before": before, "limit": RUNS}
    if tenant:
        found = await tx.many(PruningSql.ended_roots_of, tenant=tenant, **given)
    else:
        found = await tx.many(PruningSql.ended_roots, **given)
    if not found:
        return False
    roots = [run.id for run in found if run.root and not run.kept]
    if roots and await _BY_RUN[kind](tx, roots, ROWS) >= ROWS:
        return True
    await _move(tx, kind, tenant, mark, Mark(found[-1].at, found[-1].id))
    return len(found) == RUNS


async def _move(tx: Transaction, kind: Kind, tenant: str, seen: Mark, to: Mark) -> None:
    given = {"at": to.at, "id": to.id, "seen_at": seen.at, "seen_id": seen.id}
    await tx.run(PruningSql.move_mark, kind=kind, tenant=tenant, **given)


async def _prune_sessions(tx: Transaction, tenant: str, before: int) -> bool:
    """Sessions that are old and still used are passed, so the walk starts again at its end."""
    mark = await tx.one(PruningSql.find_mark, kind="sessions", tenant=tenant) or _START
    some = await prune_some_sessions(tx, mark, before, tenant=tenant or None, own=False)
    upto = some.upto or _START
    if upto != mark:
        await _move(tx, "sessions", tenant, mark, upto)
    return some.removed > 0 and some.more


async def _prune_blobs(tx: Transaction) -> None:
    """Bodies that no block names any more: a few at a time, all of them in the end."""
    mark = await tx.one(PruningSql.find_mark, kind="blobs", tenant="") or _START
    found = await tx.many(PruningSql.blobs_after, after=mark.id, limit=_BLOBS)
    strays = [blob.hash for blob in found if blob.stray]
    if strays:
        await tx.many(PruningSql.hold_blobs, hashes=strays)
        await tx.run(SessionsSql.delete_blobs, hashes=strays)
    upto = found[-1].hash if len(found) == _BLOBS else ""
    if upto != mark.id:
        await tx.run(PruningSql.set_mark, kind="blobs", tenant="", at=0, id=upto)


CHORE = Chore(lambda settings: settings.cleanup_interval, prune)
