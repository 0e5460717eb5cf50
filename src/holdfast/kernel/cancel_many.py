"""Bulk cancel: all live jobs of a queue, a kind, a tenant, some at a time.

What to cancel is found through the routes of the queue and the kind, by the indexes that claims and sweeps read, so
history and other queues cost nothing. It is then cancelled by seq in transactions of a bounded size. The caller
may stop at any point, do it again, or have others do the same beside: what was cancelled is not found again.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any, Literal, NamedTuple

from holdfast.kernel.cancel import Cancelled, cancel_family, cancel_these
from holdfast.kernel.database import Database, Transaction, reading
from holdfast.kernel.queries import NEWEST
from holdfast.kernel.routes import capability_of
from holdfast.kernel.statements import CancelSql, ListingSql, WorkersSql

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
_FAMILIES = 200


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
    while await database.transact(cancel_family, limit=_AT_ONCE, families=_FAMILIES):
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
