"""Enqueue: durably accept work.

The id is made before the call, so repeating it after a lost answer inserts nothing twice. A key makes repeated
*submits* one job: same tenant, key, kind and payload is the same job, anything else under that key is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.errors import IdempotencyConflict, LeaseLost, ParentCancelled
from holdfast.kernel.database import Transaction, single
from holdfast.kernel.encoding import digest
from holdfast.kernel.ids import JobId
from holdfast.kernel.records import Lease, NewJob, Route
from holdfast.kernel.statements import Jobs, Waiting


class Accepted(NamedTuple):
    id: JobId
    fresh: bool  # False: the key named a job that was there already


@single
async def enqueue(tx: Transaction, jobs: Sequence[NewJob], routes: Sequence[Route], *, notify: bool = True) -> int:
    """Insert jobs that have no key; returns how many were not there yet. `routes`: those that may be new."""
    done = await tx.one(Jobs.enqueue, jobs=jobs, routes=routes, notify=int(notify))
    return done.inserted if done else 0


async def enqueue_once(
    tx: Transaction, job: NewJob, routes: Sequence[Route], *, key: str, notify: bool = True
) -> Accepted:
    """Insert a job under a key, or return the job that the key already names."""
    meaning = digest(f"{job.kind}\x1f{job.payload}")
    owner = await tx.one(Jobs.take_key, tenant=job.tenant, key=key, digest=meaning, job=job.id)
    if owner is None or owner.job == job.id:
        await tx.one(Jobs.enqueue, jobs=[job], routes=routes, notify=int(notify))
        return Accepted(job.id, fresh=True)
    if owner.digest != meaning:
        raise IdempotencyConflict(key, owner.job)
    return Accepted(owner.job, fresh=False)


async def enqueue_children(tx: Transaction, parent: Lease, children: Sequence[NewJob], routes: Sequence[Route]) -> None:
    """Insert the children of a running job. Their ids are derived, so a second launch adds none."""
    fence = await tx.one(Waiting.hold, **parent.held._asdict())
    if fence is None:
        raise LeaseLost(parent.id, parent.fence)
    if fence.cancel_requested_at is not None:
        raise ParentCancelled(parent.id)
    mine = [child._replace(parent=parent.seq) for child in children]
    done = await tx.one(Jobs.enqueue, jobs=mine, routes=routes, notify=1)
    if done and done.inserted:
        await tx.run(Waiting.add_children, seq=parent.seq, added=done.inserted)
