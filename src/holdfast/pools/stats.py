"""What a pool looks like to a person or a program: read from the store, so in any process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from holdfast import validation
from holdfast.client.core import Core
from holdfast.errors import NotFound
from holdfast.kernel import pools, queues
from holdfast.kernel.broker_rows import WorkerRow
from holdfast.kernel.database import Database
from holdfast.kernel.demand import claimable
from holdfast.kernel.pools import PoolScope, PoolSnapshot
from holdfast.kernel.queues import absent_queue
from holdfast.kernel.rows import PoolRow
from holdfast.kernel.states import WorkerState
from holdfast.pools.size import WorkerPool, busy_workers, desired_workers, judge, policy_of
from holdfast.values import Page, moment, part_of
from holdfast.workers.role import Role

PoolWorkerStatus = Literal["starting", "idle", "processing", "draining"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolWorker:
    """A worker of a pool. `jobs` is how many it runs."""

    status: PoolWorkerStatus
    jobs: int
    hostname: str
    pid: int
    started_at: datetime
    idle_since: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStats:
    """A pool at one moment.

    `pending` is how many jobs its workers could claim, `desired` how many workers it should have, `keepers` how many
    processes decide about it. If workers cannot start, `problem` says why the last one failed, `failures` how many
    starts failed in a row, and `retry_in` when the pool tries again.
    """

    name: str
    min: int
    max: int
    slots: int
    desired: int
    pending: int
    running: int
    total: int
    starting: int
    idle: int
    processing: int
    draining: int
    keepers: int
    failures: int
    problem: str
    retry_in: timedelta | None
    workers: dict[str, PoolWorker]


def settings_json(policy: WorkerPool, offers: tuple[str, ...]) -> str:
    """How a pool is written down: its policy, and what its workers offer, for who reads it without its program."""
    return json.dumps(json.loads(policy.as_json()) | {"offers": offers}, sort_keys=True)


def offers_of(row: PoolRow) -> tuple[str, ...]:
    """What the workers of a pool can do, as its keepers wrote it down."""
    return tuple(json.loads(row.settings).get("offers", ()))


def served_by(policy: WorkerPool, offers: tuple[str, ...]) -> PoolScope:
    """What workers of a pool take: jobs of the runtime itself too."""
    return PoolScope(Role(queues=policy.queues).served_queues, offers)


async def stats_of(database: Database, row: PoolRow) -> PoolStats:
    policy = policy_of(row.settings)
    sight = await database.transact(pools.look_at_pool, row.name, served_by(policy, offers_of(row)))
    return told(row.name, policy, sight, keepers=row.keepers)


def told(name: str, policy: WorkerPool, sight: PoolSnapshot, *, keepers: int) -> PoolStats:
    sizing = judge(policy, sight)
    workers = {worker.id: _worker(worker) for worker in sight.workers}
    states = [worker.status for worker in workers.values()]
    now = max((worker.now for worker in sight.past), default=0)
    trouble = sizing.trouble
    return PoolStats(
        name=name,
        min=policy.min,
        max=policy.max,
        slots=policy.slots or 1,
        desired=sizing.desired,
        pending=sight.pending,
        running=sight.running,
        total=len(workers),
        starting=states.count("starting"),
        idle=states.count("idle"),
        processing=states.count("processing"),
        draining=states.count("draining"),
        keepers=keepers,
        failures=trouble.failures,
        problem=trouble.reason,
        retry_in=timedelta(microseconds=max(0, trouble.retry_at - now)) if trouble.failures else None,
        workers=workers,
    )


def _worker(row: WorkerRow) -> PoolWorker:
    return PoolWorker(
        status=_status(row),
        jobs=row.leases,
        hostname=row.hostname,
        pid=row.pid,
        started_at=moment(row.started_at),
        idle_since=None if row.idle_since is None or row.leases else moment(row.idle_since),
    )


def _status(row: WorkerRow) -> PoolWorkerStatus:
    match row.status:
        case WorkerState.STARTING:
            return "starting"
        case WorkerState.DRAINING:
            return "draining"
        case _:
            return "processing" if row.leases else "idle"


# The pools in the store, and what its queues ask of pools that nobody here keeps.


class Pools:
    """The pools in the store."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def list(self, *, all: bool = False, limit: int = 1_000, after: str | None = None) -> Page[PoolStats]:
        """Pools by name: those that somebody keeps or that have workers; with `all`, those of the past too."""
        database = await self._core.opened()
        found = [await stats_of(database, row) for row in await database.transact(pools.list_pools)]
        kept = [stats for stats in found if all or stats.keepers or stats.total]
        return part_of(kept, validation.page(limit), after, lambda stats: stats.name)

    async def get(self, name: str) -> PoolStats:
        """A pool at this moment, also one of the past; `NotFound` when there was none of this name."""
        database = await self._core.opened()
        for row in await database.transact(pools.list_pools):
            if row.name == name:
                return await stats_of(database, row)
        raise NotFound(f"there is no pool {name[:80]!r} in this database.")

    async def demand(self, queue: str, policy: WorkerPool) -> QueueDemand:
        """How many workers of this policy a queue needs now, for who starts them elsewhere."""
        return await demand_of(await self._core.opened(), queue, policy.with_slots(self._core.settings.concurrency))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDemand:
    """What a queue asks for: `desired` workers, for `pending` jobs that could start and `running` ones."""

    queue: str
    pending: int
    running: int
    desired: int


async def demand_of(database: Database, queue: str, policy: WorkerPool) -> QueueDemand:
    """Jobs that the workers of no pool could run do not count, where the store knows of any pool for the queue."""
    rows = await database.transact(pools.list_pools)
    offers = [offers_of(row) for row in rows if _serves(policy_of(row.settings), queue)]
    capabilities = {name for offered in offers for name in offered} if offers else None
    found = await database.transact(claimable, [queue], capabilities=capabilities)
    if found == (0, 0):
        await _require(database, queue)
    desired = desired_workers(policy, *found, working=busy_workers(policy, found.running))
    return QueueDemand(queue=queue, pending=found.pending, running=found.running, desired=desired)


def _serves(policy: WorkerPool, queue: str) -> bool:
    return policy.queues is None or queue in policy.queues


async def _require(database: Database, queue: str) -> None:
    names = [row.name for row in await database.transact(queues.list_queues)]
    if queue not in names:
        raise NotFound(absent_queue(queue, names))
