"""Rerun: a new job that says what an ended one said. Terminal stays terminal; the new job names the old."""

from __future__ import annotations

from holdfast.errors import NotFound, StoreRefused
from holdfast.kernel.database import Transaction
from holdfast.kernel.enqueue import Accepted
from holdfast.kernel.families import hint
from holdfast.kernel.ids import JobId
from holdfast.kernel.ownership import retry_advice
from holdfast.kernel.routes import route_for
from holdfast.kernel.statements import EnqueueSql, JobsSql, WaitingSql, WhySql
from holdfast.kernel.states import TERMINAL
from holdfast.kernel.workers import write_routes


async def retry(tx: Transaction, id: JobId, new_id: JobId) -> Accepted:
    """Enqueue an ended job once more, on its own: without its parent, and without the unique key it had."""
    old = await tx.one(WhySql.why_job, id=id)
    if old is None:
        raise NotFound(f"there is no job {id} in this database.")
    if old.state not in TERMINAL:
        raise StoreRefused(f"job {id} is {old.state}: only an ended job can be enqueued again. Cancel it first.")
    if old.layer is not None:
        raise StoreRefused(
            f"job {id} ({old.kind}) belongs to {old.layer}, and cannot be enqueued again by itself. "
            f"{retry_advice(old.layer, tx.layers)}"
        )
    if old.capabilities is None:
        await _restore_route(tx, id, old.kind, old.queue, old.route, laned=old.lane is not None)
    again = await tx.one(EnqueueSql.enqueue_again, seq=old.seq, id=new_id)
    if again is not None:
        await hint(tx, [again.route])
    elif await tx.one(JobsSql.find_job, id=new_id) is None:  # nor has an earlier call made it: retention was quicker
        raise NotFound(f"there is no job {id} in this database.")
    return Accepted(new_id, fresh=again is not None)


async def _restore_route(tx: Transaction, id: JobId, kind: str, queue: str, number: int, *, laned: bool) -> None:
    """A route nobody used for a day is forgotten. Its number tells whether the kind was all that it required."""
    route = route_for(queue, kind, laned=laned)
    if route.id != number:
        raise StoreRefused(
            f"Holdfast no longer knows which capabilities job {id} requires, because no such job was enqueued for a "
            f"day. Enqueue a new job from the program that declares {kind}."
        )
    await write_routes(tx, [route])


async def repeat_child(tx: Transaction, seq: int, id: JobId) -> None:
    """A copy of an ended child under the same parent, which waits for it too. Nobody has seen it; suspend it now."""
    again = await tx.one(EnqueueSql.repeat_child, seq=seq, id=id)
    if again is not None and again.parent is not None:
        await tx.run(WaitingSql.add_children, seq=again.parent, added=1)
