"""Workers as the store knows them: one row per incarnation, and its number is never used again."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import NamedTuple

from holdfast.errors import DuplicateWorker, NotFound
from holdfast.kernel.database import Transaction, reading, single
from holdfast.kernel.leases import FOREVER
from holdfast.kernel.records import DutyRow, LastBeat, Route, Sight, WorkerRow
from holdfast.kernel.statements import Workers


class Registration(NamedTuple):
    """Who a worker is and what it can do. `incarnation` is new with every registration."""

    incarnation: str
    id: str
    name: str
    hostname: str
    pid: int
    version: str
    capabilities: tuple[str, ...]
    queues: tuple[str, ...] | None
    slots: int
    code: int | None = None  # the schema version of its code
    lines: str | None = None  # as JSON: {line: [slots, taken]}


async def register(
    tx: Transaction, who: Registration, routes: Sequence[Route], *, ttl_us: int, gone: Collection[int]
) -> int:
    """Write a new incarnation and the routes of its handlers; refuse an id that a live worker has."""
    other = await tx.one(Workers.find_live_worker, id=who.id, incarnation=who.incarnation)
    if other is not None:
        if other.fresh and other.seq not in gone:
            raise DuplicateWorker(who.id, other.hostname, other.pid)
        await tx.run(Workers.replace_worker, seq=other.seq, gone=int(other.seq in gone))
    if routes:
        await tx.run(Workers.add_routes, routes=routes)
    row = await tx.one(
        Workers.register,
        incarnation=who.incarnation,
        id=who.id,
        name=who.name,
        hostname=who.hostname,
        pid=who.pid,
        version=who.version,
        capabilities=json.dumps(who.capabilities),
        queues=json.dumps(who.queues),
        slots=who.slots,
        ttl_us=ttl_us,
        code=who.code,
        lines=who.lines,
    ) or await tx.one(Workers.find_incarnation, incarnation=who.incarnation)
    if row is None:  # a namesake came in between: judge it as if it had been there before
        return await register(tx, who, routes, ttl_us=ttl_us, gone=gone)
    return row.seq


@reading
async def live_namesake(tx: Transaction, id: str, incarnation: str) -> int | None:
    """Another live incarnation with this id whose presence may be asked after, if there is one."""
    other = await tx.one(Workers.find_live_worker, id=id, incarnation=incarnation)
    return other.seq if other is not None and other.presence else None


@single
async def advertise_presence(tx: Transaction, worker: int, *, presence: bool) -> None:
    await tx.run(Workers.advertise_presence, seq=worker, presence=int(presence))


@single
async def drain(tx: Transaction, worker: int, incarnation: str | None = None) -> None:
    """Say that this worker takes no more work; there is no way back."""
    await tx.one(Workers.drain, seq=worker, incarnation=incarnation)


async def ask_to_drain(tx: Transaction, id: str) -> None:
    """Mark a live worker as draining: it learns of it by its next heartbeat, which the hint makes come at once."""
    found = await tx.one(Workers.find_live_worker, id=id, incarnation="")
    if found is None:
        raise NotFound(f"there is no live worker {id!r}; `holdfast workers ls --all` shows those that left.")
    await tx.one(Workers.drain, seq=found.seq, incarnation=None)
    await tx.hint(f"cancel {found.seq}")


@single
async def unregister(tx: Transaction, worker: int, *, reason: str, incarnation: str | None = None) -> None:
    await tx.run(Workers.unregister, seq=worker, reason=reason, incarnation=incarnation)


@single
async def lose_workers(
    tx: Transaction,
    *,
    gone: Collection[int],
    reason: str,
    last_beats: Collection[int] | None = None,
    until: int = FOREVER,
) -> int:
    """Give up workers that were silent beyond their TTL by `until`, or are in `gone`; their leases are left alone.

    `last_beats`: the last heartbeat of each when it was missed first, in the order of `gone`. Whoever has beaten since
    then is left alone.
    """
    lost = await tx.many(
        Workers.lose_workers,
        gone=sorted(gone) if last_beats is None else [],
        missed=list(gone) if last_beats is not None else [],
        last_beats=list(last_beats or ()),
        reason=reason,
        until=until,
    )
    return len(lost)


@reading
async def present_workers(tx: Transaction) -> list[LastBeat]:
    return await tx.many(Workers.present_workers)


class Standing(NamedTuple):
    """What the store says to a worker whose heartbeat it did not take."""

    known: bool  # False: it has no row of this incarnation
    live: bool  # it counts as alive, but the store has forgotten its last heartbeats


async def judge_self(tx: Transaction, incarnation: str) -> Standing:
    """Why a heartbeat was refused. Where the store has forgotten what it had confirmed, the epoch rises.

    A worker that was given up has a row which says so. No row, or one that lacks the last heartbeats, means that an
    older state of the store was restored: numbers and tokens given out since then will be given out again. From here
    on tokens carry another epoch, so what was claimed before cannot be mistaken for what is claimed now.
    """
    row = await tx.one(Workers.find_incarnation, incarnation=incarnation)
    standing = Standing(row is not None, row is not None and row.status in ("active", "draining"))
    if standing.live or not standing.known:
        await tx.one(Workers.bump_epoch)
    return standing


@reading
async def oldest_code(tx: Transaction) -> int:
    """The schema version that code must have to use the tables."""
    row = await tx.one(Workers.oldest_code)
    return row.at if row is not None else 0


@reading
async def list_workers(tx: Transaction, *, all: bool, limit: int) -> list[WorkerRow]:
    return await tx.many(Workers.list_workers, all=int(all), limit=limit)


def lines_of(row: WorkerRow) -> dict[str, tuple[int, int]]:
    """The slots of each line that a worker serves, and how many were taken at its last heartbeat; empty: not told."""
    return {name: (slots, taken) for name, (slots, taken) in json.loads(row.lines or "{}").items()}


@reading
async def list_duties(tx: Transaction) -> list[DutyRow]:
    return await tx.many(Workers.list_duties)


@reading
async def look(tx: Transaction, worker: int, routes: Sequence[int]) -> Sight:
    """One cheap question: is there anything for this worker to claim, wake, end or rescue?"""
    sight = await tx.one(Workers.look, worker=worker, routes=routes)
    assert sight is not None
    return sight


async def prune_routes(tx: Transaction, *, age_us: int, limit: int) -> None:
    """Forget routes that nobody has written for so long and no live job is on, the oldest first."""
    await tx.run(Workers.prune_routes, age_us=age_us, limit=limit)


@reading
async def list_routes(tx: Transaction, *, since: int) -> list[Route]:
    return await tx.many(Workers.list_routes, since=since)
