"""Parents and children: a counter that changes in the transaction that ends a child.

Nobody counts children under READ COMMITTED. A parent is always older than its children, so locking in
ascending seq locks parents first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from holdfast.kernel.database import Transaction
from holdfast.kernel.hints import route_note
from holdfast.kernel.lanes import free_lanes
from holdfast.kernel.records import Ended, Kin, Moved
from holdfast.kernel.statements import Jobs
from holdfast.kernel.states import TERMINAL, State


def lock_order(family: Iterable[Kin | tuple[int, int | None]]) -> list[int]:
    """Jobs and their parents, each once, in the one order everybody locks."""
    return sorted({seq for kin in family for seq in kin if seq is not None})


async def settle(tx: Transaction, moved: Iterable[Ended | Moved]) -> None:
    """Tell whoever follows those that ended, their parents, and the lanes they left; wake who has work now.

    Followers come first: one that gives a parent another child keeps it waiting.
    """
    moved = list(moved)
    for follower in tx.followers:
        await follower.ended(tx, moved)
    pending = {job.route for job in moved if job.state == State.PENDING}
    ended = Counter(job.parent for job in moved if job.parent is not None and job.state in TERMINAL)
    for parent, count in sorted(ended.items()):
        settled = await tx.one(Jobs.settle_parent, parent=parent, ended=count)
        if settled is not None and settled.state == State.PENDING:
            pending.add(settled.route)
    await hint(tx, pending)
    await free_lanes(tx, {job.lane for job in moved if job.lane is not None})


async def hint(tx: Transaction, routes: Iterable[int]) -> None:
    """Wake the workers that serve these routes, when this transaction commits."""
    if note := route_note(routes):
        await tx.hint(note)
