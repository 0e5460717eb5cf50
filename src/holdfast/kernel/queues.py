"""Queues: policy, pauses, and how much is in each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.errors import NotFound
from holdfast.kernel.database import Transaction, reading, single
from holdfast.kernel.hints import LOOK
from holdfast.kernel.records_flow import LaneRow, QueueCount, QueueRow
from holdfast.kernel.statements import Queues

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
) -> None:
    await tx.run(Queues.set_queue, name=name, on_orphan=on_orphan, fair=int(fair), keep_us=keep_us, keep_jobs=keep_jobs)


@single
async def pause_queue(tx: Transaction, name: str, *, reason: str) -> None:
    """From this commit on nothing of the queue is claimed; what runs goes on."""
    await tx.one(Queues.pause_queue, name=name, reason=reason)


async def resume_queue(tx: Transaction, name: str) -> bool:
    """Let it be claimed again; False when it was not paused."""
    if await tx.one(Queues.resume_queue, name=name) is not None:
        await tx.hint(LOOK)
        return True
    known = [queue.name for queue in await tx.many(Queues.list_queues)]
    if name not in known:
        raise NotFound(f"there is no queue {name!r}; there are {', '.join(known) or 'none yet'}.")
    return False


@reading
async def find_queue(tx: Transaction, name: str) -> QueueRow | None:
    return await tx.one(Queues.find_queue, name=name)


@reading
async def list_queues(tx: Transaction) -> list[QueueRow]:
    return await tx.many(Queues.list_queues)


@reading
async def count_blocked(tx: Transaction) -> dict[str, int]:
    """How many jobs of each queue their lanes hold back; all counts together stop at `CAP`."""
    return {row.queue: row.jobs for row in await tx.many(Queues.count_blocked, cap=CAP)}


@reading
async def list_lanes(tx: Transaction, *, limit: int = 1_000) -> list[LaneRow]:
    return await tx.many(Queues.list_lanes, cap=CAP, limit=limit)


@reading
async def queue_stats(tx: Transaction) -> list[QueueStats]:
    """Every queue with its counts; what finished is of the last minute."""
    pending = _sum(await tx.many(Queues.count_pending, cap=CAP))
    later = _sum(await tx.many(Queues.count_later, cap=CAP))
    blocked = _sum(await tx.many(Queues.count_blocked, cap=CAP))
    running = _sum(await tx.many(Queues.count_running))
    finished = {(f.queue, f.state): f.jobs for f in await tx.many(Queues.count_finished, since_us=60_000_000, cap=CAP)}
    return [
        QueueStats(
            queue,
            pending[queue.name],
            blocked[queue.name],
            running[queue.name],
            later[queue.name],
            *(finished.get((queue.name, state), 0) for state in ("succeeded", "failed", "cancelled")),
        )
        for queue in await tx.many(Queues.list_queues)
    ]


def _sum(counts: Iterable[QueueCount]) -> defaultdict[str, int]:
    total: defaultdict[str, int] = defaultdict(int)
    for count in counts:
        total[count.queue] = min(CAP, total[count.queue] + count.jobs)
    return total
