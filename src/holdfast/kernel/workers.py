"""Workers as the store knows them: one row per incarnation, and its number is never used again."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import NamedTuple

from holdfast.errors import DuplicateWorker, NotFound, StoreRefused
from holdfast.kernel.broker_rows import StaleWorker, WorkerRow
from holdfast.kernel.database import Database, Transaction, reading, single
from holdfast.kernel.leases import FOREVER
from holdfast.kernel.rows import DutyRow, LastBeat, Observation, Route
from holdfast.kernel.statements import WorkersSql
from holdfast.kernel.states import ALIVE, WorkerState
from holdfast.text import plural
from holdfast.validation import did_you_mean

_NAMED = 1_000  # workers among which a misspelt one is looked for
_MOST_LIVES = 1_000  # of one worker, that the store remembers
_MOST_ADOPTED = 500  # notes of routes in one transaction


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
    lines: str | None = None  # its slots, as JSON: {group: [slots, taken]}
    pool: str | None = None
    principal: str | None = None  # who registers it
    metadata: str | None = None  # as JSON
    host: int | None = None  # the worker in whose process it lives; None: its own process; NOWHERE


async def register(
    tx: Transaction, who: Registration, routes: Sequence[Route], *, ttl_us: int, gone: Collection[int]
) -> int:
    """Write a new incarnation and the routes of its handlers; refuse an id that a live worker has."""
    other = await tx.one(WorkersSql.find_live_worker, id=who.id, incarnation=who.incarnation)
    if other is not None:
        if other.fresh and other.process not in gone:
            raise DuplicateWorker(who.id, other.hostname, other.pid)
        await tx.run(WorkersSql.replace_worker, seq=other.seq, gone=int(other.process in gone))
    await write_routes(tx, routes)
    new = await insert_worker(tx, who, ttl_us=ttl_us)
    if new is not None:
        return new
    row = await tx.one(WorkersSql.find_incarnation, incarnation=who.incarnation)
    if row is None:  # a namesake came in between: judge it as if it had been there before
        return await register(tx, who, routes, ttl_us=ttl_us, gone=gone)
    return row.seq


async def insert_worker(tx: Transaction, who: Registration, *, ttl_us: int) -> int | None:
    """Write the row of an incarnation; None when it is there already, or another live worker has the id."""
    own = {"pool": who.pool, "principal": who.principal, "metadata": who.metadata}
    row = await tx.one(WorkersSql.register, **_row_of(who), **own, host=who.host, ttl_us=ttl_us)
    return None if row is None else row.seq


def _row_of(who: Registration) -> dict[str, object]:
    named = who._replace(capabilities=(), queues=None)._asdict()
    kept = {name: named[name] for name in ("incarnation", "id", "name", "hostname", "pid", "version", "slots")}
    listed = {"capabilities": json.dumps(who.capabilities), "queues": json.dumps(who.queues)}
    return {**kept, **listed, "code": who.code, "lines": who.lines}


@reading
async def live_namesake(tx: Transaction, id: str, incarnation: str) -> int | None:
    """Whose presence may be asked after, if another live incarnation has this id: its own, or that of its host."""
    other = await tx.one(WorkersSql.find_live_worker, id=id, incarnation=incarnation)
    return other.process if other is not None and other.presence else None


@single
async def advertise_presence(tx: Transaction, worker: int, *, presence: bool) -> None:
    await tx.run(WorkersSql.advertise_presence, seq=worker, presence=int(presence))


@single
async def drain(tx: Transaction, worker: int, incarnation: str | None = None) -> None:
    """Say that this worker takes no more work; there is no way back."""
    await tx.one(WorkersSql.drain, seq=worker, incarnation=incarnation)


async def ask_to_drain(tx: Transaction, id: str) -> None:
    """Mark a live worker as draining: it learns of it by its next heartbeat, which the hint makes come at once."""
    found = await tx.one(WorkersSql.find_live_worker, id=id, incarnation="")
    if found is None:
        live = await list_workers(tx, all=False, limit=_NAMED)
        close = did_you_mean(id, [row.id for row in live])
        raise NotFound(f"there is no live worker {id!r}; `holdfast workers ls --all` shows those that left.{close}")
    await tx.one(WorkersSql.drain, seq=found.seq, incarnation=None)
    await tx.hint(f"cancel {found.seq}")


async def forget(tx: Transaction, id: str) -> None:
    """Remove what is stored of a worker that has left or died. `StoreRefused` while it lives or its jobs are leased."""
    rows = await list_workers(tx, all=True, id=id, limit=_MOST_LIVES)
    if not rows:
        known = await list_workers(tx, all=True, limit=_NAMED)
        raise NotFound(f"there is no worker {id!r} in this database.{did_you_mean(id, [row.id for row in known])}")
    for row in rows:
        if row.status == WorkerState.STARTING or (row.status in ALIVE and row.heartbeat_at + row.ttl_us > row.now):
            raise StoreRefused(f"worker {id!r} is {row.status}: stop it first, then forget it.")
        if row.status in ALIVE:
            await lose(tx, row.seq, reason="silent, and forgotten")
    if held := sum(row.leases for row in rows):
        raise StoreRefused(f"worker {id!r} still holds {plural(held, 'job')}: forget it when every lease has ended.")
    await tx.run(WorkersSql.prune_workers, seqs=sorted(row.seq for row in rows))


@single
async def unregister(tx: Transaction, worker: int, *, reason: str, incarnation: str | None = None) -> None:
    await tx.run(WorkersSql.unregister, seq=worker, reason=reason, incarnation=incarnation)


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

    Who lives in their processes goes with them.

    `last_beats`: the last heartbeat of each when it was missed first, in the order of `gone`. A worker that has beaten
    since then is left alone.
    """
    lost = await tx.many(
        WorkersSql.lose_workers,
        gone=sorted(gone) if last_beats is None else [],
        missed=list(gone) if last_beats is not None else [],
        last_beats=list(last_beats or ()),
        reason=reason,
        until=until,
    )
    return len(lost)


async def lose(tx: Transaction, worker: int, *, reason: str) -> bool:
    """Give up one worker, and who lives in its process; False when it was given up or has left before.

    A sweep leaves a worker whose row somebody holds to the next one. Who calls this needs it now, and waits. Their
    leases are left alone: `leases.expire` or `brokers.release_by_worker` takes them back.
    """
    await tx.many(WorkersSql.lock_worker, seq=worker)
    return await lose_workers(tx, gone=[worker], reason=reason, until=0) > 0


@reading
async def stale_workers(
    tx: Transaction, *, threshold_us: int, pool: str | None = None, limit: int = 1_000
) -> list[StaleWorker]:
    """Live workers without a heartbeat for so long, of a pool or of all; the most silent first."""
    return await tx.many(WorkersSql.stale_workers, age_us=threshold_us, pool=pool, limit=limit)


@reading
async def pool_workers(tx: Transaction, pool: str, *, limit: int = 10_000) -> list[WorkerRow]:
    """The workers of a pool that live, and those that are starting; the oldest first."""
    return await tx.many(WorkersSql.pool_workers, pool=pool, limit=limit)


@reading
async def present_workers(tx: Transaction) -> list[LastBeat]:
    return await tx.many(WorkersSql.present_workers)


class WorkerStanding(NamedTuple):
    """What the store says to a worker whose heartbeat it did not take."""

    known: bool  # False: it has no row of this incarnation
    live: bool  # it counts as alive, but the store has forgotten its last heartbeats


async def judge_self(tx: Transaction, incarnation: str) -> WorkerStanding:
    """Why a heartbeat was refused. Where the store has forgotten what it had confirmed, the epoch rises.

    A worker that was given up has a row which says so. No row, or one that lacks the last heartbeats, means that an
    older state of the store was restored: numbers and tokens given out since then will be given out again. From here
    on tokens carry another epoch, so what was claimed before cannot be mistaken for what is claimed now.
    """
    row = await tx.one(WorkersSql.find_incarnation, incarnation=incarnation)
    standing = WorkerStanding(row is not None, row is not None and row.status in ALIVE)
    if standing.live or not standing.known:
        await tx.one(WorkersSql.bump_epoch)
    return standing


@reading
async def oldest_code(tx: Transaction) -> int:
    """The schema version that code must have to use the tables."""
    row = await tx.one(WorkersSql.oldest_code)
    return row.at if row is not None else 0


async def absent_workers(database: Database) -> set[int]:
    """Live workers whose presence is gone now: the numbers that lists and `why` need as `absent`.

    One that holds nothing may be dead for a whole TTL before another worker gives it up.
    """
    beats = await database.transact(present_workers)
    return await database.presence.absent([worker for worker, _ in beats])


@reading
async def list_workers(
    tx: Transaction,
    *,
    all: bool,
    limit: int,
    before: int = FOREVER,
    id: str | None = None,
    absent: Collection[int] = (),
) -> list[WorkerRow]:
    """Workers, the newest first: of one id, or of any, and those before a number.

    `absent`: from `absent_workers`; who lives in their processes is absent too.
    """
    page = {"all": int(all), "before": before, "limit": limit}
    if id is not None:
        rows = await tx.many(WorkersSql.lives_of_worker, id=id, **page)
    else:
        rows = await tx.many(WorkersSql.list_workers, **page)
    return [row._replace(absent=1, presence=0) if (row.host or row.seq) in absent else row for row in rows]


HANGING = "hanging"  # the slots of threads in calls that were given up and have not returned


HOLD_REMEDY = 'Run what blocks on a thread: make the handler a plain `def`, or declare it with isolate="process".'
LOOP = "loop"  # beside the slots of each group: who held the worker's event loop


class LoopHold(NamedTuple):
    """Something that kept a worker's event loop from running anything else, as of the worker's last heartbeat."""

    name: str
    seconds: float  # for how long
    ago: float | None  # how many seconds before the heartbeat it ended; None: it still held the loop then

    def words(self, loop: str) -> str:
        """What it did to `loop`."""
        lasted = f"{self.seconds:.1f} s" if self.seconds < 10 else f"{self.seconds:,.0f} s"
        said = f"{self.name} has held {loop} for {lasted} and still holds it"
        return said if self.ago is None else f"{self.name} held {loop} for {lasted}"


def slots_of(row: WorkerRow) -> dict[str, tuple[int, int]]:
    """The slots of each group, and how many were taken at the worker's last heartbeat; empty: it did not say."""
    said = json.loads(row.lines or "{}")
    return {name: (each[0], each[1]) for name, each in said.items() if name != LOOP}


def loop_hold_of(row: WorkerRow) -> LoopHold | None:
    """Who holds the worker's event loop, or held it lately."""
    said = json.loads(row.lines or "{}").get(LOOP)
    return None if said is None else LoopHold(*said)


@reading
async def list_duties(tx: Transaction) -> list[DutyRow]:
    return await tx.many(WorkersSql.list_duties)


@reading
async def look(tx: Transaction, worker: int, routes: Sequence[int]) -> Observation:
    """One cheap question: is there anything for this worker to claim, wake, end or rescue?"""
    sight = await tx.one(WorkersSql.look, worker=worker, served=routes)
    assert sight is not None
    return sight


async def prune_routes(tx: Transaction, *, age_us: int, limit: int) -> None:
    """Forget routes that nobody has written for so long and no live job is on, the oldest first."""
    await tx.run(WorkersSql.prune_routes, age_us=age_us, limit=limit)


async def write_routes(tx: Transaction, routes: Sequence[Route]) -> None:
    """Let workers know these routes. Of one whose row somebody holds a note is left; nobody waits for it."""
    if not routes:
        return
    known, free = await _held_and_free(tx, routes)
    written = [route for route in routes if route.id in free or route.id not in known]
    if written:
        await tx.run(WorkersSql.add_routes, routes=written)
    if held := [route for route in routes if route.id in known - free]:
        await tx.run(WorkersSql.note_routes, routes=held)


async def learn_routes(database: Database, *, since: int) -> list[Route]:
    """The routes since then. A worker learns its routes by this. It writes only where there are notes."""
    routes, is_noted = await database.transact(survey_routes, since=since)
    return await database.transact(adopt_routes, since=since) if is_noted else routes


@reading
async def survey_routes(tx: Transaction, *, since: int) -> tuple[list[Route], bool]:
    """The routes since then, and whether there is a note about any."""
    noted = await tx.many(WorkersSql.noted_routes, limit=1)
    return await tx.many(WorkersSql.list_routes, since=since), bool(noted)


async def adopt_routes(tx: Transaction, *, since: int, limit: int = _MOST_ADOPTED) -> list[Route]:
    """Do what notes about routes say, then `list_routes`. While the row of a route is missing, a claim does not see
    that its queue is paused."""
    noted = await tx.many(WorkersSql.noted_routes, limit=limit)
    if noted:
        known, free = await _held_and_free(tx, noted)
        if adopted := [route for route in noted if route.id in free or route.id not in known]:
            await tx.run(WorkersSql.add_routes, routes=adopted)
            await tx.run(WorkersSql.drop_route_notes, ids=[route.id for route in adopted])
    return await tx.many(WorkersSql.list_routes, since=since)


async def _held_and_free(tx: Transaction, routes: Sequence[Route]) -> tuple[set[int], set[int]]:
    """Which of these routes have a row, and which of those rows are locked for this transaction now."""
    ids = sorted(route.id for route in routes)
    free = {row.route for row in await tx.many(WorkersSql.lock_routes, ids=ids)}
    known = free | (
        {row.route for row in await tx.many(WorkersSql.known_routes, ids=ids)} if len(free) < len(ids) else set()
    )
    return known, free


@reading
async def list_routes(tx: Transaction, *, since: int) -> list[Route]:
    return await tx.many(WorkersSql.list_routes, since=since)
