"""Watching the store: what changed, how fast it moves, what is stuck. Nothing here changes a row.

On SQLite a reader takes no turn among the writers, so whoever watches holds nobody up.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.queues import CAP
from holdfast.kernel.records_flow import LaneRow
from holdfast.kernel.sightings import Backlog, Change, Symptoms
from holdfast.kernel.statements import Queues, Watch, Workers

LOOK = 1_000  # ended jobs of one queue that are looked at for those in one state


@reading
async def changes(
    tx: Transaction, *, after: int, since: int, known: Sequence[int], queue: str | None = None, limit: int = 1_000
) -> list[Change]:
    """Jobs new since a seq, claimed or ended since a moment, or known already: as they stand, oldest first.

    With `queue`, what ended elsewhere is not asked for; what is new elsewhere is told all the same, so that the caller
    knows how far it has seen.
    """
    found = await tx.many(Watch.created_since, after=after, limit=limit)
    found += await tx.many(Watch.claimed_since, after=since, limit=limit)
    names = [queue] if queue is not None else [row.name for row in await tx.many(Queues.list_queues)]
    for name in names:
        found += await tx.many(Watch.ended_since, queue=name, after=since, state=None, look=limit, limit=limit)
    if known:
        found += await tx.many(Watch.states_of, seqs=list(known))
    latest = {change.seq: change for change in found}
    return sorted(latest.values(), key=lambda change: (change.at, change.seq))


@reading
async def failures(tx: Transaction, *, since: int, limit: int) -> list[Change]:
    """The last jobs that failed since a moment, newest first."""
    found: list[Change] = []
    for row in await tx.many(Queues.list_queues):
        found += await tx.many(Watch.ended_since, queue=row.name, after=since, state="failed", look=LOOK, limit=limit)
    return sorted(found, key=lambda change: -change.at)[:limit]


@reading
async def ended(tx: Transaction, moments: Sequence[tuple[int, int]]) -> list[dict[str, int]]:
    """For each span of time, how many jobs ended in it, by queue."""
    return [
        {row.queue: row.jobs for row in await tx.many(Watch.count_ended, after=after, until=until, cap=CAP)}
        for after, until in moments
    ]


@reading
async def held_by(tx: Transaction, worker: int, *, limit: int = 1_000) -> list[Change]:
    return await tx.many(Watch.held_by, worker=worker, limit=limit)


@reading
async def backlogs(tx: Transaction) -> list[Backlog]:
    return await tx.many(Watch.backlogs, cap=CAP)


def lanes_of(queue: str, lanes: Iterable[LaneRow], backlogs: Iterable[Backlog]) -> list[LaneRow]:
    """The lanes that jobs of a queue are in: the queue's own, and those of the kinds that its routes name."""
    needed = {c for backlog in backlogs if backlog.queue == queue for c in json.loads(backlog.capabilities)}
    return [lane for lane in lanes if lane.name == f"queue:{queue}" or lane.name.partition("/")[0] in needed]


@reading
async def symptoms(tx: Transaction, *, grace_us: int) -> Symptoms:
    found = await tx.one(Watch.symptoms, grace_us=grace_us, cap=CAP)
    assert found is not None
    return found


@reading
async def stranded_lanes(tx: Transaction, *, limit: int = CAP) -> list[str]:
    """Lanes that could let a blocked job through, and that nobody is to look at."""
    return [lane.name for lane in await tx.many(Watch.stranded_lanes, limit=limit)]


@reading
async def missing_lanes(tx: Transaction, *, limit: int = CAP) -> list[str]:
    """Lanes that live jobs name and whose limits are not in the store."""
    return [lane.name for lane in await tx.many(Watch.missing_lanes, limit=limit)]


@reading
async def cluster_epoch(tx: Transaction) -> int:
    cluster = await tx.one(Workers.cluster)
    assert cluster is not None
    return cluster.epoch
