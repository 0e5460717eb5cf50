"""Cancel: a job, and then its family, level by level.

What is not running ends at once. What runs is asked to stop; its worker ends it, or the sweep does when the
worker is dead. The list of families still to be cancelled is in the store, so a canceller may die half-way.

A job is locked wherever it stands before anything is done to it. Without that, one which is claimed between the look at
what waits and the look at what runs would be in neither, and would escape.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from holdfast.errors import NotFound
from holdfast.kernel import codec
from holdfast.kernel.complete import error_json
from holdfast.kernel.database import Database, Transaction, reading
from holdfast.kernel.families import lock_jobs, lock_order, parents_of, settle, try_lock_jobs
from holdfast.kernel.ids import JobId
from holdfast.kernel.queries import NEWEST
from holdfast.kernel.routes import capability_of
from holdfast.kernel.rows import MovedJob
from holdfast.kernel.statements import CancelSql, ListingSql, WorkersSql
from holdfast.kernel.states import TERMINAL, State, known_state

_REASON_CAP = 2_000
_FAMILIES = 20  # that one sweep tries, until it finds a child that is free


class Cancelled(NamedTuple):
    """How many jobs ended at once, and how many run and were asked to stop."""

    ended: int
    asked: int


async def cancel(tx: Transaction, id: JobId, *, reason: str) -> State:
    """Cancel one job, and note its family for `cancel_family`. A finished job stays as it is.

    Returns the state the job is in now; RUNNING means that its worker was asked.
    """
    reason = codec.clip(reason, _REASON_CAP)
    found = await tx.one(CancelSql.find_cancellable, id=id)
    locked = await lock_jobs(tx, lock_order([found])) if found else []
    state = next((known_state(job.state) for job in locked if found and job.seq == found.seq), None)
    if found is None or state is None:  # it was never there, or retention has just removed it
        raise NotFound(f"there is no job {id} in this database.")
    if state in TERMINAL:
        return state
    await open_cancellation(tx, [found.seq], reason=reason)
    moved = await _cancel_now(tx, [found.seq], reason)
    return State.CANCELLED if moved else State.RUNNING


async def cancel_family(tx: Transaction, *, limit: int, families: int = 1) -> bool:
    """Cancel some children of cancelled jobs, of so many at once; True while more is to be done."""
    found = await tx.many(CancelSql.next_cancellations, limit=families)
    if not found:
        return False
    reason = found[0].reason
    parents = [family.job for family in found if family.reason == reason]
    children = await tx.many(CancelSql.cancellable_children, parents=parents, limit=limit)
    if not children:
        await _pass_on(tx, parents, reason)
        return True
    await lock_jobs(tx, lock_order(children))
    await _cancel_children(tx, [child.seq for child in children], reason)
    return True


async def cancel_free_family(tx: Transaction, *, limit: int) -> bool:
    """As `cancel_family`, for a sweep: children that somebody else is changing are left to the next one, and a family
    of which nobody is free does not keep those behind it waiting."""
    for family in await tx.many(CancelSql.next_cancellations, limit=_FAMILIES):
        children = await tx.many(CancelSql.cancellable_children, parents=[family.job], limit=limit)
        if not children:
            await _pass_on(tx, [family.job], family.reason)
            return True
        locked = {job.seq for job in await try_lock_jobs(tx, children)}
        if free := [child.seq for child in children if child.seq in locked]:
            await _cancel_children(tx, free, family.reason)
            return True
    return False


async def _pass_on(tx: Transaction, parents: Sequence[int], reason: str) -> None:
    await tx.run(CancelSql.pass_cancellation, parents=parents, reason=reason)
    await tx.run(CancelSql.close_cancellation, jobs=parents)


async def _cancel_children(tx: Transaction, seqs: Sequence[int], reason: str) -> None:
    await open_cancellation(tx, seqs, reason=reason)
    await _cancel_now(tx, seqs, reason)


async def cancel_these(tx: Transaction, seqs: Sequence[int], states: Collection[str], *, reason: str) -> Cancelled:
    """Cancel those of these jobs that are still in one of these states, and note their families."""
    reason = codec.clip(reason, _REASON_CAP)
    kin = await parents_of(tx, seqs)
    locked = await lock_jobs(tx, lock_order(kin))
    meant = set(seqs)
    live = [job.seq for job in locked if job.seq in meant and job.state in states and job.cancel_requested_at is None]
    if not live:
        return Cancelled(0, 0)
    await open_cancellation(tx, live, reason=reason)
    moved = await _cancel_now(tx, live, reason)
    return Cancelled(len(moved), len(live) - len(moved))


async def open_cancellation(tx: Transaction, seqs: Sequence[int], *, reason: str) -> None:
    """Note that the families of these jobs are to be cancelled; `cancel_family` does it. The jobs are locked."""
    await tx.run(CancelSql.open_cancellation, seqs=seqs, reason=reason)


async def _cancel_now(tx: Transaction, seqs: Sequence[int], reason: str) -> list[MovedJob]:
    error = error_json("cancelled", reason)
    moved = await tx.many(CancelSql.cancel, seqs=seqs, error=error)
    await settle(tx, moved)
    asked = await tx.many(CancelSql.request_cancel, seqs=seqs, error=error)
    if asked:
        await tx.hint("cancel " + ",".join(str(w) for w in sorted({a.worker for a in asked})))
    return moved


# Bulk cancel: all live jobs of a queue, a kind, a tenant, some at a time.
#
# What to cancel is found through the routes of the queue and the kind, by the indexes that claims and sweeps read, so
# history and other queues cost nothing. It is then cancelled by seq in transactions of a bounded size. The caller
# may stop at any point, do it again, or have others do the same beside: what was cancelled is not found again.


LIVE = ("scheduled", "pending", "running", "waiting")
Place = Literal["later", "blocked", "pending", "running"]

# What is blocked goes before what can be claimed: the place of a cancelled job in its lane must not go to another that
# is to be cancelled too.
_ORDER: Mapping[Place, frozenset[str]] = {
    "later": frozenset({"scheduled", "waiting"}),
    "blocked": frozenset({"pending"}),
    "pending": frozenset({"pending"}),
    "running": frozenset({"running"}),
}

_AT_ONCE = 1_000  # jobs in one transaction
_FOUND = 50_000  # jobs that one look finds
_FAMILIES_AT_ONCE = 200


class CancelFilter(NamedTuple):
    """Which jobs are meant: those that fit everything that is named, in one of these states."""

    queue: str | None = None
    kind: str | None = None
    tenant: str | None = None
    states: Collection[str] = LIVE
    kept: Collection[str] = ()  # kinds that nobody cancels by hand


async def cancel_many(database: Database, wanted: CancelFilter, *, reason: str) -> AsyncIterator[Cancelled]:
    """Cancel what is there and wanted, and then its families; gives what each transaction did.

    What is enqueued meanwhile stays, unless it belongs to a cancelled family.
    """
    newest = await database.transact(newest_job)
    found = True
    while found:  # a job may move on between two looks; the last pass finds nothing
        found = False
        for state in _ORDER:
            while seqs := await database.transact(find_wanted, wanted, state, upto=newest, limit=_FOUND):
                found = True
                for begin in range(0, len(seqs), _AT_ONCE):
                    part = seqs[begin : begin + _AT_ONCE]
                    yield await database.transact(cancel_these, part, wanted.states, reason=reason)
    while await database.transact(cancel_family, limit=_AT_ONCE, families=_FAMILIES_AT_ONCE):
        pass


@reading
async def count_wanted(tx: Transaction, wanted: CancelFilter, *, cap: int) -> int:
    """How many jobs would be cancelled, their families aside; the count stops at `cap`."""
    newest = await newest_job(tx)
    count = 0
    for state in _ORDER:
        if count < cap:
            count += len(await find_wanted(tx, wanted, state, upto=newest, limit=cap - count))
    return count


@reading
async def newest_job(tx: Transaction) -> int:
    newest = await tx.one(ListingSql.seq_before, before=NEWEST, skipped=0)
    return 0 if newest is None else newest.seq


@reading
async def find_wanted(tx: Transaction, wanted: CancelFilter, state: Place, *, upto: int, limit: int) -> list[int]:
    """Up to `limit` of the jobs that are meant, of those in one place, in ascending order."""
    states = _ORDER[state].intersection(wanted.states)
    routes = await _routes(tx, wanted) if states else []
    if not routes:
        return []
    given: dict[str, Any] = {
        "routes": routes,
        "kind": wanted.kind,
        "tenant": wanted.tenant,
        "kept": sorted(wanted.kept),
        "upto": upto,
        "limit": limit,
    }
    match state:
        case "later":
            rows = await tx.many(CancelSql.cancellable_later, states=sorted(states), **given)
        case "blocked":
            rows = await tx.many(CancelSql.cancellable_later, states=["blocked"], **given)
        case "pending":
            rows = await tx.many(CancelSql.cancellable_ready, **given)
        case _:
            rows = await tx.many(CancelSql.cancellable_running, **given)
    return sorted(row.seq for row in rows)


async def _routes(tx: Transaction, wanted: CancelFilter) -> list[int]:
    """The routes that such jobs may be on; matching is done here, as for claims."""
    return [
        route.id
        for route in await tx.many(WorkersSql.list_routes, since=0)
        if (wanted.queue is None or route.queue == wanted.queue)
        and (wanted.kind is None or capability_of(wanted.kind) in json.loads(route.capabilities))
    ]
