"""Watching the store: what changed, how fast it moves, what is stuck. Nothing here changes a row.

On SQLite a reader takes no turn among the writers, so a watcher delays no writer.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.queues import CAP
from holdfast.kernel.rows import AheadOfClock, Backlog, Change, Latencies, Misplaced, RetriedKind, Symptoms
from holdfast.kernel.statements import LanesSql, LeasesSql, QueuesSql, WatchSql, WorkersSql

# The store's clock after it went back: times that were written before lie in the future and are brought back.
#
# Every step is bounded and does nothing the second time, so any worker that notices does it. What a person gave as a
# time, and what was due after a pause, stays: nobody can tell the two apart.


GRACE_US = 5_000_000  # clocks are set by as much without further ado


@reading
async def ahead_of_clock(tx: Transaction, *, lease_ttl_us: int) -> AheadOfClock:
    """What bears a time that the clock has yet to reach, because it has gone back since."""
    found = await tx.one(WorkersSql.ahead_of_clock, ttl_us=lease_ttl_us, grace_us=GRACE_US)
    assert found is not None
    return found


async def bring_back(tx: Transaction, *, lease_ttl_us: int, duty_ttl_us: int, limit: int) -> bool:
    """Bring lanes, leases, workers, duties and routes back to now; True when there may be more to do.

    A lane is as far ahead of the clock as it was when it was charged. A lease ends, a worker is silent, and a
    process is late, no later than if it had been renewed or started now.
    """
    leases = await tx.many(LeasesSql.shorten_leases, ttl_us=lease_ttl_us, limit=limit)
    lanes = await tx.many(LanesSql.mend_lanes, limit=limit)
    await tx.run(WorkersSql.bring_back_workers)
    await tx.run(WorkersSql.bring_back_duties, ttl_us=duty_ttl_us)
    await tx.run(WorkersSql.bring_back_routes)
    return len(leases) == limit or len(lanes) == limit


LOOK = 1_000  # jobs of one queue or place that are looked at for those in one state, or in none


@reading
async def changes(
    tx: Transaction, *, after: int, since: int, known: Sequence[int], queue: str | None = None, limit: int = 1_000
) -> list[Change]:
    """Jobs new since a seq, claimed or ended since a moment, or known already: as they stand, oldest first.

    With `queue`, this reads nothing about jobs that ended in other queues. It still returns jobs that are new in other
    queues, so that the caller knows how far it has seen.
    """
    found = await tx.many(WatchSql.created_since, after=after, limit=limit)
    found += await tx.many(WatchSql.claimed_since, after=since, limit=limit)
    names = [queue] if queue is not None else [row.name for row in await tx.many(QueuesSql.list_queues)]
    for name in names:
        found += await tx.many(WatchSql.ended_since, queue=name, after=since, state=None, look=limit, limit=limit)
    if known:
        found += await tx.many(WatchSql.states_of, seqs=list(known))
    latest = {change.seq: change for change in found}
    return sorted(latest.values(), key=lambda change: (change.at, change.seq))


@reading
async def failures(tx: Transaction, *, since: int, limit: int) -> list[Change]:
    """The last jobs that failed since a moment, newest first."""
    found: list[Change] = []
    for row in await tx.many(QueuesSql.list_queues):
        found += await tx.many(
            WatchSql.ended_since, queue=row.name, after=since, state="failed", look=LOOK, limit=limit
        )
    return sorted(found, key=lambda change: -change.at)[:limit]


@reading
async def ended(tx: Transaction, moments: Sequence[tuple[int, int]]) -> list[dict[str, int]]:
    """For each span of time, how many jobs ended in it, by queue."""
    return [
        {row.queue: row.jobs for row in await tx.many(WatchSql.count_ended, after=after, until=until, cap=CAP)}
        for after, until in moments
    ]


@reading
async def held_by(tx: Transaction, worker: int, *, limit: int = 1_000) -> list[Change]:
    return await tx.many(WatchSql.held_by, worker=worker, limit=limit)


@reading
async def backlogs(tx: Transaction) -> list[Backlog]:
    return await tx.many(WatchSql.backlogs, cap=CAP)


@reading
async def symptoms(tx: Transaction, *, grace_us: int) -> Symptoms:
    found = await tx.one(WatchSql.symptoms, grace_us=grace_us, cap=CAP)
    assert found is not None
    return found


@reading
async def latencies(tx: Transaction, queues: Sequence[str]) -> dict[str, Latencies]:
    """How long the last jobs of these queues waited and ran, of those that ended in the last minute."""
    found: dict[str, Latencies] = {}
    for queue in queues:
        row = await tx.one(WatchSql.latencies, queue=queue, since_us=60_000_000, look=LOOK)
        assert row is not None
        found[queue] = row
    return found


@reading
async def retried_most(
    tx: Transaction, *, kind: str | None, tenant: str | None, since: int, limit: int, look: int = 5 * LOOK
) -> list[RetriedKind]:
    """Kinds of jobs whose attempts failed and were tried again most, among the last attempts of the newest jobs."""
    return await tx.many(WatchSql.retried_most, kind=kind, tenant=tenant, since=since, look=look, limit=limit)


async def stranded_lanes(tx: Transaction, *, limit: int = CAP) -> list[str]:
    """Lanes that could let a blocked job through, and that nobody is to look at."""
    return [lane.name for lane in await tx.many(WatchSql.stranded_lanes, limit=limit)]


@reading
async def missing_lanes(tx: Transaction, *, limit: int = CAP) -> list[str]:
    """Lanes that live jobs name and whose limits are not in the store."""
    return [lane.name for lane in await tx.many(WatchSql.missing_lanes, limit=limit)]


@reading
async def misplaced(tx: Transaction, *, limit: int = LOOK) -> list[Misplaced]:
    """Jobs that do not stand in exactly one place, among the newest and some of each place."""
    return await tx.many(WatchSql.misplaced, limit=limit)


@reading
async def cluster_epoch(tx: Transaction) -> int:
    cluster = await tx.one(WorkersSql.cluster)
    assert cluster is not None
    return cluster.epoch
