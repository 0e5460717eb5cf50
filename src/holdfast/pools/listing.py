"""The pools in the store, and what its queues ask of pools that nobody here keeps."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast import validation
from holdfast.core import Core
from holdfast.errors import NotFound
from holdfast.kernel import pools, queues
from holdfast.kernel.database import Database
from holdfast.kernel.demand import claimable
from holdfast.kernel.queues import absent_queue
from holdfast.pools.policy import WorkerPool, policy_of
from holdfast.pools.size import busy_workers, desired_workers
from holdfast.pools.stats import PoolStats, offers_of, stats_of
from holdfast.values.page import Page, part_of


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
