"""What a pool looks like to a person or a program: read from the store, so in any process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from holdfast.kernel import pools
from holdfast.kernel.broker_rows import WorkerRow
from holdfast.kernel.database import Database
from holdfast.kernel.pool_rows import PoolRow
from holdfast.kernel.pools import PoolSight, Serves
from holdfast.kernel.states import WorkerState
from holdfast.pools.policy import WorkerPool, policy_of
from holdfast.pools.size import judge
from holdfast.values.times import moment
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


def served_by(policy: WorkerPool, offers: tuple[str, ...]) -> Serves:
    """What workers of a pool take: jobs of the runtime itself too."""
    return Serves(Role(queues=policy.queues).served_queues, offers)


async def stats_of(database: Database, row: PoolRow) -> PoolStats:
    policy = policy_of(row.settings)
    sight = await database.transact(pools.look_at_pool, row.name, served_by(policy, offers_of(row)))
    return told(row.name, policy, sight, keepers=row.keepers)


def told(name: str, policy: WorkerPool, sight: PoolSight, *, keepers: int) -> PoolStats:
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
