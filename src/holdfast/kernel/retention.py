"""Retention: finished jobs leave after a while, with their attempts and steps.

A queue keeps its jobs for a time, and no more than so many; what its policy leaves open the settings decide. A child
goes only after its parent, so whoever still waits for it can read how it ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.duties import hold
from holdfast.kernel.reading import now
from holdfast.kernel.records import Term
from holdfast.kernel.statements import Retention


class Keep(NamedTuple):
    """How long, and how many."""

    us: int
    jobs: int
    firm: bool = False  # also where a queue's policy says otherwise


async def prune(
    tx: Transaction, keep: Keep, *, limit: int, queue: str | None = None, under: tuple[Term, int] | None = None
) -> int:
    """Remove up to `limit` finished jobs of each queue, or of one; returns how many. `under`: a duty and its holder."""
    if under is not None:
        await hold(tx, *under)
    pruned = 0
    for name, before in (await _limits(tx, keep, queue)).items():
        pruned += await _prune_queue(tx, name, before, limit)
    return pruned


@reading
async def prunable(tx: Transaction, keep: Keep, *, cap: int, queue: str | None = None) -> dict[str, int]:
    """How many jobs `prune` would remove from each queue; counts stop at `cap`."""
    found = {
        name: len(await tx.many(Retention.find_prunable, queue=name, before=before, limit=cap))
        for name, before in (await _limits(tx, keep, queue)).items()
    }
    return {name: jobs for name, jobs in found.items() if jobs}


async def _limits(tx: Transaction, keep: Keep, queue: str | None) -> dict[str, int]:
    """Each queue with finished jobs, or the one that is meant, and the moment up to which they may go."""
    limits: dict[str, int] = {}
    queues = await tx.many(Retention.finished_queues)
    if not queues:
        return limits
    now_us = await now(tx)
    for found in queues:
        if queue is not None and found.queue != queue:
            continue
        limits[found.queue] = now_us - (keep.us if keep.firm or found.keep_us is None else found.keep_us)
        most = keep.jobs if keep.firm or found.keep_jobs is None else found.keep_jobs
        last = await tx.one(Retention.last_kept, queue=found.queue, kept_before=max(0, most - 1))
        if last is not None:  # what ended together with it stays too: one commit may end a whole batch
            limits[found.queue] = max(limits[found.queue], last.at - 1 if most else now_us)
    return limits


async def _prune_queue(tx: Transaction, queue: str, before: int, limit: int) -> int:
    seqs = [kin.seq for kin in await tx.many(Retention.find_prunable, queue=queue, before=before, limit=limit)]
    return await remove(tx, seqs) if seqs else 0


async def remove(tx: Transaction, seqs: Sequence[int]) -> int:
    """Remove those of these jobs that have finished, with their attempts and steps; returns how many."""
    gone = [row.seq for row in await tx.many(Retention.prune, seqs=sorted(seqs))]
    await tx.run(Retention.prune_attempts, seqs=gone)
    await tx.run(Retention.prune_steps, seqs=gone)
    return len(gone)
