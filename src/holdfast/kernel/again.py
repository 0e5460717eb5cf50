"""Again: a new job that says what an ended one said. Terminal stays terminal; the new job names the old."""

from __future__ import annotations

from holdfast.errors import NotFound, StoreRefused
from holdfast.kernel.database import Transaction
from holdfast.kernel.enqueue import Accepted
from holdfast.kernel.families import hint
from holdfast.kernel.ids import JobId
from holdfast.kernel.routes import route_for
from holdfast.kernel.statements import Jobs, Waiting, Why, Workers
from holdfast.kernel.states import TERMINAL


async def retry(tx: Transaction, id: JobId, new_id: JobId) -> Accepted:
    """Enqueue an ended job once more, on its own: without its parent, and without the unique key it had."""
    old = await tx.one(Why.why_job, id=id)
    if old is None:
        raise NotFound(f"there is no job {id} in this database.")
    if old.state not in TERMINAL:
        raise StoreRefused(f"job {id} is {old.state}: only one that has ended can be enqueued again. Cancel it first.")
    if ":" in old.kind:
        raise StoreRefused(f"job {id} is of {old.kind}, which knows more of it than the job says: begin it anew there.")
    if old.capabilities is None:
        await _restore_route(tx, id, old.kind, old.queue, old.route, laned=old.lane is not None)
    again = await tx.one(Jobs.enqueue_again, seq=old.seq, id=new_id)
    if again is not None:
        await hint(tx, [again.route])
    elif await tx.one(Jobs.find_job, id=new_id) is None:  # nor has an earlier call made it: retention was quicker
        raise NotFound(f"there is no job {id} in this database.")
    return Accepted(new_id, fresh=again is not None)


async def _restore_route(tx: Transaction, id: JobId, kind: str, queue: str, number: int, *, laned: bool) -> None:
    """A route nobody used for a day is forgotten. Its number tells whether the kind was all that it required."""
    route = route_for(queue, kind, laned=laned)
    if route.id != number:
        raise StoreRefused(
            f"what job {id} requires of its worker is no longer known, because nobody enqueued its like for a day. "
            f"Enqueue it anew from the program that declares {kind}."
        )
    await tx.run(Workers.add_routes, routes=[route])


async def repeat_child(tx: Transaction, seq: int, id: JobId) -> None:
    """A copy of an ended child under the same parent, which waits for it too. Nobody has seen it; suspend it now."""
    again = await tx.one(Jobs.repeat_child, seq=seq, id=id)
    if again is not None and again.parent is not None:
        await tx.run(Waiting.add_children, seq=again.parent, added=1)
