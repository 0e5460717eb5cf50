"""Queues: policy, pauses, and how much is in each."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from holdfast.errors import NotFound
from holdfast.kernel.database import LOOK, Transaction, reading, single
from holdfast.kernel.flow_rows import LaneRow, QueueCount, QueueRow
from holdfast.kernel.statements import QueuesSql, WatchSql
from holdfast.validation import did_you_mean, named

CAP = 10_000  # counts stop here: "10,000 or more"


@dataclass(frozen=True, slots=True)
class QueueStats:
    """A queue and how much is in it; each count stops at `CAP`."""

    queue: QueueRow
    pending: int
    blocked: int
    running: int
    later: int  # scheduled or waiting
    succeeded: int  # in the last minute, as are the next two
    failed: int
    cancelled: int


@single
async def set_queue(
    tx: Transaction,
    name: str,
    *,
    on_orphan: str,
    fair: bool = False,
    keep_us: int | None = None,
    keep_jobs: int | None = None,
    lost_counts: bool = False,
) -> None:
    """Write a queue's policy. `lost_counts`: a lost lease is an attempt, and there is no pause before the next one."""
    limits = {"keep_us": keep_us, "keep_jobs": keep_jobs, "lost_counts": int(lost_counts)}
    await tx.run(QueuesSql.set_queue, name=name, on_orphan=on_orphan, fair=int(fair), **limits)


@single
async def pause_queue(tx: Transaction, name: str, *, reason: str) -> None:
    """From this commit on nothing of the queue is claimed; what runs continues."""
    await tx.one(QueuesSql.pause_queue, name=name, reason=reason)


async def resume_queue(tx: Transaction, name: str) -> bool:
    """Resume the queue; False when it was not paused."""
    if await tx.one(QueuesSql.resume_queue, name=name) is not None:
        await tx.hint(LOOK)
        return True
    known = [queue.name for queue in await tx.many(QueuesSql.list_queues)]
    if name not in known:
        raise NotFound(absent_queue(name, known))
    return False


def absent_queue(name: str, known: Sequence[str]) -> str:
    return f"there is no queue {name!r}; {named('queue', known)}.{did_you_mean(name, known)}"


@reading
async def find_queue(tx: Transaction, name: str) -> QueueRow | None:
    return await tx.one(QueuesSql.find_queue, name=name)


@reading
async def list_queues(tx: Transaction) -> list[QueueRow]:
    return await tx.many(QueuesSql.list_queues)


@reading
async def count_blocked(tx: Transaction) -> dict[str, int]:
    """How many jobs of each queue their lanes hold back; all counts together stop at `CAP`."""
    return _sum(await tx.many(QueuesSql.count_blocked, cap=CAP))


@reading
async def list_lanes(
    tx: Transaction, *, queue: str | None = None, after: str = "", limit: int = 1_000
) -> list[LaneRow]:
    """Lanes by name: all of them, or those that jobs of a queue are in: its own, and those of kinds on its routes."""
    kinds: set[str] = set()
    if queue is not None:
        waiting = [each for each in await tx.many(WatchSql.backlogs, cap=CAP) if each.queue == queue]
        kinds = {capability for each in waiting for capability in json.loads(each.capabilities)}
    chosen = {"all": int(queue is None), "own": f"queue:{queue}", "kinds": sorted(kinds)}
    return await tx.many(QueuesSql.list_lanes, **chosen, after=after, cap=CAP, limit=limit)


@reading
async def queue_stats(tx: Transaction) -> list[QueueStats]:
    """Every queue with its counts; what finished is of the last minute."""
    pending = _sum(await tx.many(QueuesSql.count_pending, cap=CAP))
    later = _sum(await tx.many(QueuesSql.count_later, cap=CAP))
    blocked = _sum(await tx.many(QueuesSql.count_blocked, cap=CAP))
    running = _sum(await tx.many(QueuesSql.count_running))
    finished = {
        (f.queue, f.state): f.jobs for f in await tx.many(QueuesSql.count_finished, since_us=60_000_000, cap=CAP)
    }
    return [
        QueueStats(
            queue,
            pending[queue.name],
            blocked[queue.name],
            running[queue.name],
            later[queue.name],
            *(finished.get((queue.name, state), 0) for state in ("succeeded", "failed", "cancelled")),
        )
        for queue in await tx.many(QueuesSql.list_queues)
    ]


def _sum(counts: Iterable[QueueCount]) -> defaultdict[str, int]:
    total: defaultdict[str, int] = defaultdict(int)
    for count in counts:
        total[count.queue] = min(CAP, total[count.queue] + count.jobs)
    return total
