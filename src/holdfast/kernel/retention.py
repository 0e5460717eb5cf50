"""Retention: finished jobs leave after a while, with everything that was theirs.

A queue keeps its jobs for a time, and no more than so many; what its policy leaves open the settings decide. A child
goes only after its parent, so a parent that still waits for it can read how it ended.

No call looks at more than so many jobs. The caller remembers how far it got: it continues after what had to stay,
and comes back to that later, some at a time. A large number of jobs to keep is counted over several rounds.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from holdfast.kernel.database import Database, Transaction, reading
from holdfast.kernel.duties import hold
from holdfast.kernel.families import lock_anchors
from holdfast.kernel.flow_rows import CountedBack
from holdfast.kernel.queries import NEWEST, now
from holdfast.kernel.rows import Term
from holdfast.kernel.statements import RetentionSql
from holdfast.kernel.tally import tally_removed_jobs

LOOK = 500  # finished jobs that one transaction looks at
COUNT = 10_000  # finished jobs that one statement counts
ROUND = 10  # how often one round of a duty looks behind, and counts, in each queue
_BY_NUMBER = (
    RetentionSql.prune_endings,
    RetentionSql.prune_attempts,
    RetentionSql.prune_steps,
    RetentionSql.prune_families,
    RetentionSql.prune_progress,
)


class KeepRule(NamedTuple):
    """How long, and how many."""

    us: int
    jobs: int
    firm: bool = False  # also where a queue's policy says otherwise


class Limit(NamedTuple):
    """What one queue keeps: what ended after this moment, and no more than so many."""

    queue: str
    before: int
    most: int


class PrunePosition(NamedTuple):
    """How far a walk through finished jobs came: one commit may end a thousand at the same moment."""

    at: int
    seq: int


BEGIN = PrunePosition(0, 0)


class PruneStep(NamedTuple):
    """What one look did: how many it removed or would remove, and where the next begins; None at the end."""

    jobs: int
    upto: PrunePosition | None


class Pruner:
    """Prunes a store again and again, as a duty does, or once and thoroughly, as a person wants it."""

    def __init__(self, database: Database, keep: KeepRule, *, look: int = LOOK, count: int = COUNT) -> None:
        self._database = database
        self._keep = keep
        self._look = look
        self._count = count
        self._front: dict[str, PrunePosition] = {}  # everything up to here has been looked at
        self._behind: dict[str, PrunePosition] = {}  # where the next look at what had to stay begins
        self._counting: dict[str, tuple[int, int]] = {}  # how far the last jobs are counted, and how many there are
        self._kept: dict[str, int] = {}  # what finished before this is more than the queue keeps

    async def round(self, *, under: tuple[Term, int]) -> AsyncIterator[int]:
        """What a duty does now and then: gives how many each transaction removed."""
        for limit in await self._limits():
            before = max(limit.before, await self._count_back(limit, steps=ROUND))
            queue = limit.queue
            looked = 0
            while True:  # what has become old enough since the last round
                stretch = await self._prune(queue, self._front.get(queue, BEGIN), before, under)
                yield stretch.jobs
                if stretch.upto is None:
                    break
                self._front[queue] = stretch.upto
            while looked < ROUND:  # what had to stay then
                looked += 1
                stretch = await self._prune(queue, self._behind.get(queue, BEGIN), before, under)
                yield stretch.jobs
                self._behind[queue] = stretch.upto or BEGIN
                if stretch.upto is None:
                    break

    async def thoroughly(self, *, queue: str | None = None) -> AsyncIterator[int]:
        """Everything that may go, children of removed parents included: gives how many each transaction removed."""
        limits = [limit._replace(before=await self._exactly(limit)) for limit in await self._limits(queue)]
        removed = True
        while removed:
            removed = False
            for limit in limits:
                after: PrunePosition | None = BEGIN
                while after is not None:
                    stretch = await self._prune(limit.queue, after, limit.before, None)
                    yield stretch.jobs
                    removed, after = removed or stretch.jobs > 0, stretch.upto

    async def prunable(self, *, cap: int, queue: str | None = None) -> dict[str, int]:
        """How many jobs could be removed from each queue now; counts stop at `cap`."""
        found: dict[str, int] = {}
        for limit in await self._limits(queue):
            before = await self._exactly(limit)
            after: PrunePosition | None = BEGIN
            while after is not None and found.get(limit.queue, 0) < cap:
                stretch = await self._database.transact(
                    find_prunable, limit.queue, after=after, before=before, look=self._look
                )
                found[limit.queue] = min(cap, found.get(limit.queue, 0) + stretch.jobs)
                after = stretch.upto
        return {name: jobs for name, jobs in found.items() if jobs}

    async def _limits(self, queue: str | None = None) -> list[Limit]:
        limits = await self._database.transact(find_limits, self._keep)
        return [limit for limit in limits if queue is None or limit.queue == queue]

    async def _prune(self, queue: str, after: PrunePosition, before: int, under: tuple[Term, int] | None) -> PruneStep:
        return await self._database.transact(prune, queue, after=after, before=before, look=self._look, under=under)

    async def _exactly(self, limit: Limit) -> int:
        self._counting.pop(limit.queue, None)
        return max(limit.before, await self._count_back(limit, steps=None))

    async def _count_back(self, limit: Limit, *, steps: int | None) -> int:
        """The moment up to which there are more jobs than the queue keeps, as far as is known.

        A count that takes several rounds is of the past when it is done: jobs that finished meanwhile stay longer.
        """
        queue = limit.queue
        if limit.most == 0:
            return limit.before
        below, counted = self._counting.pop(queue, (NEWEST, 0))
        taken = 0
        while steps is None or taken < steps:
            taken += 1
            wanted = min(self._count, limit.most - counted)
            found = await self._database.transact(count_back, queue, below=below, limit=wanted)
            if found.at is None or found.jobs < wanted:  # there are fewer than it keeps
                return self._kept.get(queue, 0)
            below, counted = found.at, counted + found.jobs
            if counted >= limit.most:
                self._kept[queue] = below - 1  # what ended together with the last one stays too
                return self._kept[queue]
        self._counting[queue] = below, counted
        return self._kept.get(queue, 0)


@reading
async def find_limits(tx: Transaction, keep: KeepRule) -> list[Limit]:
    """Each queue with finished jobs, and what it keeps."""
    queues = await tx.many(RetentionSql.finished_queues)
    if not queues:
        return []
    now_us = await now(tx)
    limits = []
    for found in queues:
        us = keep.us if keep.firm or found.keep_us is None else found.keep_us
        most = keep.jobs if keep.firm or found.keep_jobs is None else found.keep_jobs
        limits.append(Limit(found.queue, now_us if most == 0 else now_us - us, most))
    return limits


@reading
async def count_back(tx: Transaction, queue: str, *, below: int, limit: int) -> CountedBack:
    """How many finished before a moment, and when the first of them; it counts no more than `limit`."""
    found = await tx.one(RetentionSql.count_back, queue=queue, below=below, limit=limit)
    assert found is not None
    return found


@reading
async def find_prunable(tx: Transaction, queue: str, *, after: PrunePosition, before: int, look: int) -> PruneStep:
    """Of the next finished jobs of a queue, how many may go."""
    seqs, upto = await _find(tx, queue, after, before, look)
    return PruneStep(len(seqs), upto)


async def prune(
    tx: Transaction, queue: str, *, after: PrunePosition, before: int, look: int, under: tuple[Term, int] | None = None
) -> PruneStep:
    """Look at the next finished jobs of a queue, and remove those that may go. `under`: a duty and its holder."""
    if under is not None:
        await hold(tx, *under)
    seqs, upto = await _find(tx, queue, after, before, look)
    return PruneStep(await remove(tx, seqs) if seqs else 0, upto)


async def _find(
    tx: Transaction, queue: str, after: PrunePosition, before: int, look: int
) -> tuple[list[int], PrunePosition | None]:
    rows = await tx.many(
        RetentionSql.find_prunable, queue=queue, after=after.at, after_seq=after.seq, before=before, limit=look
    )
    seqs = [row.seq for row in rows if row.prunable]
    return seqs, None if len(rows) < look else PrunePosition(rows[-1].at, rows[-1].seq)


async def remove(tx: Transaction, seqs: Sequence[int]) -> int:
    """Remove those of these jobs that have finished, with everything that was theirs; returns how many."""
    there = await lock_anchors(tx, seqs)
    if there:
        await tally_removed_jobs(tx, sorted(there))
    gone = await tx.many(RetentionSql.prune, seqs=sorted(there)) if there else []
    if gone:
        numbers, ids = [row.seq for row in gone], [row.id for row in gone]
        for statement in _BY_NUMBER:
            await tx.run(statement, seqs=numbers)
        await tx.run(RetentionSql.prune_unique_keys, jobs=ids)
        await tx.run(RetentionSql.release_keys, jobs=ids)
    return len(gone)
