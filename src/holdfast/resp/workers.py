"""Workers behind connections: owners of leases that show no presence, alive while somebody beats for them.

A registration begins a new epoch: what the worker holds passes to it, or is handed back, in the same transaction, and
the epoch before it can write nothing any more. A worker that was silent for 90 seconds is dead until it registers
again.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence, Set
from typing import Any, NamedTuple

from holdfast.brokers.waiters import BrokerScope
from holdfast.errors import DuplicateWorker, StoreRefused
from holdfast.kernel.broker_rows import NOWHERE, BeatAnswer, OwnerBeat, Renewal, WorkerRow
from holdfast.kernel.brokers import release_by_worker, transfer_leases
from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.ids import JobId
from holdfast.kernel.leases import beat_many, beat_unlocked, expire, renew_each
from holdfast.kernel.owners import register_owner
from holdfast.kernel.routes import ANY_JOB, serves
from holdfast.kernel.rows import LeaseRef, Route
from holdfast.kernel.states import ALIVE, WorkerState
from holdfast.kernel.workers import Registration, list_workers, lose_workers, unregister
from holdfast.resp.client import KeyPrincipal
from holdfast.resp.plans import KIND, public_id
from holdfast.resp.records import Epoch, HeldLease, HoldersSql, WorkerEpoch

MOST = 10_000
NEVER_US = 315_360_000_000_000
SILENT = "no heartbeat in its ttl"
PLANS_ONLY = "takes:plans"  # of a worker that leaves jobs without a plan to others


class NotRegistered(StoreRefused):
    """The worker is not registered, was given up, or has registered again elsewhere."""


class WorkerDescription(NamedTuple):
    """What a worker says of itself when it registers."""

    id: str
    hostname: str
    version: str
    tools: tuple[str, ...]
    units: tuple[str, ...]
    slots: int
    tags: tuple[str, ...]
    said: dict[str, Any]

    @property
    def capabilities(self) -> tuple[str, ...]:
        tools = {f"tool:{name}" for name in (*self.tools, *self.units)}
        tools |= {PLANS_ONLY} if self.said.get("takes") == "plans" else set()
        return tuple(sorted({f"job:{KIND}", f"worker:{self.id}", *tools, *self.tags}))


async def register(
    tx: Transaction, who: WorkerDescription, principal: KeyPrincipal, incarnation: str, *, ttl_us: int, release: bool
) -> int:
    """Begin an epoch; its number. `release`: what the worker holds goes back instead of passing to it. So does what it
    holds of another tenant: its key had another one then."""
    metadata = json.dumps({"registration": who.said, "tenant": principal.tenant})
    row = Registration(
        incarnation=incarnation,
        id=who.id,
        name=who.id,
        hostname=who.hostname,
        pid=0,
        version=who.version,
        capabilities=who.capabilities,
        queues=None,
        slots=who.slots,
        principal=principal.name,
        metadata=metadata,
    )
    try:
        made = await register_owner(tx, row, ttl_us=ttl_us, replace=True)
    except DuplicateWorker:
        raise StoreRefused("Worker ID already registered") from None
    if made.before is not None and (release or await _tenant_of(tx, made.before) != principal.tenant):
        while len(await release_by_worker(tx, made.before, limit=MOST)) == MOST:
            pass
    elif made.before is not None:
        while len(await transfer_leases(tx, made.before, made.seq, limit=MOST)) == MOST:
            pass
    return made.seq


async def _tenant_of(tx: Transaction, seq: int) -> str | None:
    rows = await list_workers(tx, all=True, before=seq + 1, limit=1)
    return tenant_of(rows[0]) if rows and rows[0].seq == seq else None


def tenant_of(row: WorkerRow) -> str:
    """Whose jobs a worker gets: those of the tenant of the key that registered it."""
    tenant: str = json.loads(row.metadata or "{}").get("tenant", "")
    return tenant


@reading
async def find_worker(tx: Transaction, id: str, tenant: str | None = None) -> WorkerRow | None:
    """The latest epoch of a worker, whatever became of it; None if this tenant never had it, or it has left."""
    rows = await list_workers(tx, all=True, id=id, limit=1)
    return rows[0] if rows and _is_shown(rows[0], tenant) else None


@reading
async def all_workers(tx: Transaction, tenant: str) -> list[WorkerRow]:
    """The latest epoch of each worker of a tenant that is here, or died."""
    latest: dict[str, WorkerRow] = {}
    for row in await list_workers(tx, all=True, limit=MOST):
        latest.setdefault(row.id, row)
    return [row for row in latest.values() if _is_shown(row, tenant)]


def _is_shown(row: WorkerRow, tenant: str | None) -> bool:
    return row.host == NOWHERE and row.status != WorkerState.STOPPED and tenant in (None, tenant_of(row))


def is_alive(row: WorkerRow) -> bool:
    return row.status in ALIVE and row.heartbeat_at + row.ttl_us > row.now


@reading
async def current(tx: Transaction, id: str, epoch: Epoch | None) -> WorkerEpoch:
    """The live epoch of a worker. `epoch`: the one that the connection has begun, if it has."""
    row = await tx.one(HoldersSql.find_live, id=id)
    if row is None or epoch not in (None, row.epoch):
        raise NotRegistered(f"Worker not registered: {id}")
    return row


def capabilities_of(row: WorkerRow | WorkerEpoch) -> frozenset[str]:
    return frozenset(json.loads(row.capabilities))


def attempt_of(attempts: int, rescues: int) -> int:
    """The number of the attempt under way: lost leases count as those that ended."""
    return attempts + rescues + 1


class Beats(NamedTuple):
    """What heartbeats found: who was alive, and what these hold."""

    alive: frozenset[Epoch]
    held: frozenset[LeaseRef]


async def heartbeat(
    tx: Transaction,
    id: str,
    epoch: Epoch | None,
    *,
    ttl_us: int,
    stats: dict[str, Any] | None = None,
    delivered: frozenset[LeaseRef] = frozenset(),
) -> Beats:
    """Keep a worker alive, and the leases of the jobs that it knows it has, each until its job's time is over.

    It knows of those that it has reported about, and of `delivered`: those whose replies went out over a connection
    that still lives. A job whose reply was lost is renewed by nobody, and comes back. If somebody holds the worker's
    row, this waits: a worker that is told OK was heard of.
    """
    row = await current(tx, id, epoch)
    told = None if stats is None else {row.seq: {"stats": stats, "stats_at": row.now}}
    return await beat_all(tx, [row.epoch], ttl_us=ttl_us, told=told, delivered=delivered, beat=beat_many)


async def beat_all(
    tx: Transaction,
    epochs: Sequence[Epoch],
    *,
    ttl_us: int,
    delivered: frozenset[LeaseRef],
    told: dict[int, dict[str, Any]] | None = None,
    beat: Callable[[Transaction, Sequence[OwnerBeat]], Awaitable[list[BeatAnswer]]] = beat_unlocked,
) -> Beats:
    """The heartbeats of many, by statements whose number does not depend on theirs. `told`: what some of them say.

    `beat`: what happens to a worker whose row somebody holds. No lease outlives what its worker counts as alive.
    """
    told = dict(told or {})
    workers = [epoch.worker for epoch in epochs]
    leases = await tx.many(HoldersSql.held_leases, workers=workers)
    known = [each for each in leases if _knows(each, delivered)]
    active = Counter(each.worker for each in known)
    overtime = [(each.worker, each.id) for each in known if each.claimed_at + (each.timeout_us or NEVER_US) <= each.now]
    gone = {held for held in delivered if held.worker in workers} - {each.held for each in leases}
    for worker, job in [*overtime, *await _taken_away(tx, gone)]:
        said = told.setdefault(worker, {})
        said["flagged"] = [*said.get("flagged", ()), public_id(job)]
    holders = await tx.many(HoldersSql.live_holders, workers=workers, told=sorted(told))
    alive = [row for row in holders if row.epoch in set(epochs)]
    beaten = await beat(
        tx,
        [
            OwnerBeat(
                row.seq,
                active[row.seq],
                None if active[row.seq] else 0,
                json.dumps({**json.loads(row.metadata or "{}"), **told[row.seq]}) if row.seq in told else None,
            )
            for row in alive
        ],
    )
    lasting = {row.seq: row.left_us for row in alive} | {row.seq: ttl_us for row in beaten}
    renewals = [Renewal(*each.held, min(ttl_us, lasting[each.worker])) for each in known if each.worker in lasting]
    await renew_each(tx, renewals, ceiling_us=NEVER_US)
    return Beats(frozenset(row.epoch for row in alive), frozenset(each.held for each in leases))


async def _taken_away(tx: Transaction, gone: Set[LeaseRef]) -> list[tuple[int, JobId]]:
    """The workers and jobs of those of these leases that ended with their job's time, before a heartbeat came."""
    if not gone:
        return []
    found = await tx.many(HoldersSql.taken_away, seqs=sorted(held.seq for held in gone))
    return [(row.worker, row.id) for row in found if row.held in gone]


def _knows(lease: HeldLease, delivered: frozenset[LeaseRef]) -> bool:
    """Whether the holder of a lease knows that it has it."""
    if lease.held in delivered:
        return True
    told = json.loads(lease.progress) if lease.progress else {}
    return told.get("attempt") == attempt_of(lease.attempts, lease.rescues)


@reading
async def is_silent(tx: Transaction, *, until: int) -> bool:
    """Whether `give_up_silent` would find anybody."""
    return bool(await tx.many(HoldersSql.silent_holders, until=until))


async def give_up_silent(tx: Transaction, *, limit: int, chance: random.Random, until: int) -> bool:
    """Give up workers that were silent until then, and take back what they hold, however long their leases still are;
    whether there were any. A worker that is heard of meanwhile stays."""
    silent = await tx.many(HoldersSql.silent_holders, until=until)
    if not silent:
        return False
    live = [row for row in silent if row.status in ALIVE]
    beats = [row.heartbeat_at for row in live]
    await lose_workers(tx, gone=[row.seq for row in live], last_beats=beats, reason=SILENT, until=until)
    await expire(tx, gone=[row.seq for row in silent], limit=limit, backoff_us=0, chance=chance, until=until)
    return True


async def leave(tx: Transaction, id: str, epoch: Epoch | None, *, force: bool) -> None:
    """Unregister. Refused while the worker holds jobs, unless it is forced: then they go back at once."""
    row = await current(tx, id, epoch)
    if not force and row.leases:
        raise StoreRefused(f"Worker has {row.leases} active jobs; finish them, or UNREGISTER {id} FORCE")
    while len(await release_by_worker(tx, row.seq, limit=MOST)) == MOST:
        pass
    await unregister(tx, row.seq, reason="unregistered" if not row.leases else "unregistered by force")


def takes(queue: str, capabilities: Collection[str]) -> BrokerScope:
    """What a worker takes from a queue that it names. Of which kind a job is, is a matter of the queue; everything else
    that it requires the worker must have. A worker that registered with `"takes": "plans"` gets nothing else."""
    any_job = () if PLANS_ONLY in capabilities else (ANY_JOB,)
    return BrokerScope((queue,), frozenset({*capabilities, *any_job}))


@reading
async def unserved(tx: Transaction, routes: list[Route], tenant: str) -> frozenset[int]:
    """The routes whose jobs of this tenant no live worker can take, of any sort."""
    live = [row for row in await list_workers(tx, all=False, limit=MOST) if is_alive(row)]
    served = [
        (row.host == NOWHERE, json.loads(row.queues), frozenset(json.loads(row.capabilities)))
        for row in live
        if row.host != NOWHERE or tenant_of(row) == tenant
    ]

    def is_served(route: Route) -> bool:
        return any(
            serves(route, *takes(route.queue, able)) if here else serves(route, queues, able)
            for here, queues, able in served
        )

    return frozenset(route.id for route in routes if not is_served(route))
