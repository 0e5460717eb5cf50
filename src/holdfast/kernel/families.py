"""Parents and children, and the locks that keep jobs where they are.

A parent's counter changes in the transaction that ends a child. Nobody counts children under READ COMMITTED. A
transaction that ends a child has locked the parent's row of `job` in an earlier statement; one that launches a child
holds the parent's lease; one that parks a parent has both: the snapshot of a statement that locks is older than the
lock.

That row is never moved, so it is the anchor of every verb that must find a job wherever it stands. A claim, an ending
and a wake-up do not take it: they move a job from table to table by the lock of its row there. So a verb that holds the
anchor may still find a row gone, and looks for it again until it has locked it. A parent is always older than its
children, so locking in ascending seq locks parents first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from holdfast.errors import StoreBusy
from holdfast.kernel.database import Transaction, hint
from holdfast.kernel.lanes import free_lanes
from holdfast.kernel.rows import ChildRef, EndedLease, LockedJob, MovedJob
from holdfast.kernel.statements import JobsSql
from holdfast.kernel.states import TERMINAL, State

_TRIES = 100


def lock_order(family: Iterable[ChildRef | tuple[int, int | None]]) -> list[int]:
    """Jobs and their parents, each once, in the one order everybody locks."""
    return sorted({seq for kin in family for seq in kin if seq is not None})


async def parents_of(tx: Transaction, seqs: Sequence[int]) -> list[ChildRef]:
    """Those of these jobs that are there, each with its parent."""
    return await tx.many(JobsSql.parents_of, seqs=seqs)


async def lock_anchors(tx: Transaction, seqs: Iterable[int]) -> set[int]:
    """Lock the rows of these jobs that never move; returns the jobs that are there. The jobs may still move."""
    return {row.seq for row in await tx.many(JobsSql.lock_anchors, seqs=sorted(set(seqs)))}


async def lock_jobs(tx: Transaction, seqs: Iterable[int]) -> list[LockedJob]:
    """Lock these jobs, wherever they stand; nobody moves them until the commit. Returns those that are there."""
    missing = await lock_anchors(tx, seqs)
    locked: list[LockedJob] = []
    for _ in range(_TRIES):
        if not missing:
            return sorted(locked)
        found = await tx.many(JobsSql.lock_places, seqs=sorted(missing))
        locked += found
        missing -= {job.seq for job in found}  # the others moved on while we waited for them
    raise StoreBusy(
        f"job number {min(missing)} was in no state table each time we looked: it changes its state all the time, or "
        f"somebody has edited its row by hand. Try again; `holdfast doctor` lists jobs that are in no table."
    )


async def try_lock_jobs(tx: Transaction, family: Sequence[ChildRef]) -> list[LockedJob]:
    """Those of these jobs that nobody else is changing, nor their parents, nor what their layers keep, locked as by
    `lock_jobs`."""
    anchored = {row.seq for row in await tx.many(JobsSql.try_lock_anchors, seqs=lock_order(family))}
    seqs = [job.seq for job in family if job.seq in anchored and (job.parent is None or job.parent in anchored)]
    locked = await tx.many(JobsSql.try_lock_places, seqs=sorted(seqs)) if seqs else []
    for layer in tx.layers if locked else ():
        held_up = await layer.held_up(tx, sorted(job.seq for job in locked))
        locked = [job for job in locked if job.seq not in held_up]
    return sorted(locked)


async def settle(tx: Transaction, moved: Iterable[EndedLease | MovedJob]) -> None:
    """Notify the layers of the ended jobs, their parents and their lanes; wake workers that have work now.

    The anchors of the parents are locked. Layers come first: one that gives a parent another child keeps it waiting.
    """
    moved = list(moved)
    for layer in tx.layers:
        if theirs := [job for job in moved if job.state in TERMINAL and job.kind.startswith(layer.kinds)]:
            await layer.ended(tx, theirs)
    pending = {job.route for job in moved if job.state == State.PENDING}
    ended = Counter(job.parent for job in moved if job.parent is not None and job.state in TERMINAL)
    for parent, count in sorted(ended.items()):
        left = await tx.one(JobsSql.settle_parent, parent=parent, ended=count)
        if left is not None and left.open_children == 0 and (woken := await tx.one(JobsSql.wake_parent, seq=parent)):
            pending.add(woken.route)
    await hint(tx, pending)
    await free_lanes(tx, {job.lane for job in moved if job.lane is not None})
