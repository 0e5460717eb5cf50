"""Pools: places for workers that are to start, taken by their processes, and given up by the keeper that saw
them end.

How large a pool should be is decided above. Here a decision and what follows from it are one transaction, which begins
with the pool's turn: each decider sees what the one before decided, so two of them never start too many.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from holdfast.errors import PlaceLost
from holdfast.kernel.broker_rows import WorkerRow
from holdfast.kernel.database import Transaction, reading, single
from holdfast.kernel.demand import SeenRoutes, demand_on, routes_served
from holdfast.kernel.queues import CAP
from holdfast.kernel.rows import PastWorker, PlaceStanding, PoolRow, Route
from holdfast.kernel.sql import catalogue
from holdfast.kernel.statements import PoolsSql, WorkersSql
from holdfast.kernel.states import WorkerState
from holdfast.kernel.workers import Registration, pool_workers, write_routes

_PAST = 60  # workers of a pool that are remembered


class PoolSnapshot(NamedTuple):
    """A pool at one moment."""

    pending: int
    workers: Sequence[WorkerRow]
    past: Sequence[PastWorker]
    settings: str | None = None  # how it was declared last
    routes: SeenRoutes = SeenRoutes(frozenset(), frozenset())

    @property
    def running(self) -> int:
        """The jobs that its workers hold."""
        return sum(worker.leases for worker in self.workers)


class ResizePlan(NamedTuple):
    """What a decision asks for."""

    start: int
    retire: Sequence[int]  # by number, workers that have been idle for so long

    @property
    def changes(self) -> bool:
        return bool(self.start or self.retire)


class ResizeResult(NamedTuple):
    started: Sequence[str]  # the places to start processes for, by id
    retired: Sequence[str]


class PoolTerms(NamedTuple):
    """What a pool's policy says to the store."""

    name: str
    slots: int
    boot_us: int
    idle_us: int
    turn_us: int


class PoolScope(NamedTuple):
    """What the workers of a pool take; None: every queue."""

    queues: tuple[str, ...] | None
    capabilities: tuple[str, ...]


Judge = Callable[[PoolSnapshot], ResizePlan]


@single
async def put_pool(tx: Transaction, name: str, settings: str) -> None:
    """Write down how a pool is declared."""
    await tx.run(PoolsSql.put_pool, name=name, settings=settings)


@reading
async def list_pools(tx: Transaction, name: str | None = None, *, limit: int = 1_000) -> list[PoolRow]:
    return await tx.many(PoolsSql.list_pools, name=name, limit=limit)


@reading
async def load(tx: Transaction, queues: Collection[str] | None, *, threshold: int = 1) -> int:
    """How many jobs of these queues (None: of all) should have a slot, as `load_question` asks it."""
    every = int(queues is None)
    row = await tx.one(PoolsSql.load, every=every, queues=sorted(queues or ()), threshold=threshold, cap=CAP)
    return 0 if row is None else row.jobs


def load_question(queues: Collection[str] | None, schema: str, *, threshold: int = 1) -> str:
    """The text by which an outside program asks PostgreSQL for `load`. Every release may have another."""
    rendered = catalogue((PoolsSql,), "postgres", schema)[PoolsSql.load]
    names = ", ".join("'" + name.replace("'", "''") + "'" for name in sorted(queues or ()))
    values = {
        "every": str(int(queues is None)),
        "queues": f"array[{names}]",
        "threshold": str(threshold),
        "cap": str(CAP),
    }
    lines = [line.strip() for line in rendered.texts[0].splitlines() if not line.startswith("--")]
    text = " ".join(lines)
    for number, parameter in enumerate(rendered.parameters, 1):
        text = text.replace(f"${number}", values[parameter.name])
    return text


@reading
async def look_at_pool(tx: Transaction, pool: str, serves: PoolScope) -> PoolSnapshot:
    """The pool as it is now. On PostgreSQL each statement sees its own moment: `resize` looks again."""
    routes = await routes_served(tx, serves.queues, serves.capabilities)
    demand = await demand_on(tx, routes.served)
    workers = await pool_workers(tx, pool)
    past = await tx.many(PoolsSql.past_of_pool, pool=pool, limit=_PAST)
    declared = await tx.many(PoolsSql.list_pools, name=pool, limit=1)
    settings = declared[0].settings if declared else None
    return PoolSnapshot(demand.pending, workers, past, settings, routes)


async def resize(
    tx: Transaction, terms: PoolTerms, *, serves: PoolScope, judge: Judge, ids: Sequence[str]
) -> ResizeResult | None:
    """Decide, and do it: one at a time for each pool. None when another has just decided.

    `ids` are the names of workers that may be started, as many as the pool may have.
    """
    turn = await tx.one(WorkersSql.take_turn, name=f"pool {terms.name}", pause_us=terms.turn_us)
    if turn is None:
        return None
    wanted = judge(await look_at_pool(tx, terms.name, serves))
    started = await _open(tx, terms, ids[: wanted.start])
    retired = [await _retire_worker(tx, seq, terms.idle_us) for seq in wanted.retire]
    return ResizeResult(started, [id for id in retired if id is not None])


async def _open(tx: Transaction, terms: PoolTerms, ids: Sequence[str]) -> list[str]:
    if not ids:
        return []
    rows = await tx.many(
        PoolsSql.open_places, places=list(ids), pool=terms.name, slots=terms.slots, boot_us=terms.boot_us
    )
    return [row.id for row in rows]


async def _retire_worker(tx: Transaction, seq: int, idle_us: int) -> str | None:
    """Ask an idle worker to leave; None when it has work, or does not count as idle for long enough."""
    row = await tx.one(PoolsSql.retire_worker, seq=seq, idle_us=idle_us)
    if row is None:
        return None
    await tx.hint(f"cancel {seq}")
    return row.id


async def occupy(tx: Transaction, who: Registration, routes: Sequence[Route], *, ttl_us: int) -> int:
    """Make the place that was opened for this worker its own, or raise `PlaceLost`: then its process must leave."""
    await write_routes(tx, routes)
    row = await tx.one(
        PoolsSql.occupy,
        incarnation=who.incarnation,
        id=who.id,
        name=who.name,
        hostname=who.hostname,
        pid=who.pid,
        version=who.version,
        capabilities=json.dumps(who.capabilities),
        queues=json.dumps(who.queues),
        slots=who.slots,
        code=who.code,
        lines=who.lines,
        pool=who.pool,
        ttl_us=ttl_us,
    ) or await tx.one(WorkersSql.find_incarnation, incarnation=who.incarnation)
    if row is None:
        raise PlaceLost(who.id, who.pool or "")
    return row.seq


@single
async def give_place_up(tx: Transaction, pool: str, id: str, *, reason: str, lost: bool = True) -> int | None:
    """Its process has ended, or never began: the worker's number, or None when its row says so already.

    `lost`: False when that was asked for, so that it does not count as a start that failed.
    """
    status = WorkerState.LOST if lost else WorkerState.STOPPED
    row = await tx.one(PoolsSql.give_place_up, pool=pool, id=id, reason=reason, status=status)
    return None if row is None else row.seq


@reading
async def standing_of_places(tx: Transaction, pool: str, ids: Collection[str]) -> dict[str, PlaceStanding]:
    """What the store says of these workers, by id."""
    return {row.id: row for row in await tx.many(PoolsSql.standing_of_places, pool=pool, ids=sorted(ids))}
