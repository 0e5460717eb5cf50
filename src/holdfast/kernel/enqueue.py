"""Enqueue: durably accept work.

The id is made before the call, so repeating it after a lost answer inserts nothing twice. A key makes repeated
*submits* one job: same tenant, key, kind and payload is the same job, anything else under that key is refused.
A unique key says that one such job is enough for now: while it is pending, while it lives, or for a window of time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count, repeat
from operator import attrgetter
from typing import NamedTuple

from holdfast.errors import IdempotencyConflict, LeaseLost, ParentCancelled, StoreBusy
from holdfast.kernel.database import Transaction, single
from holdfast.kernel.encoding import digest
from holdfast.kernel.families import hint
from holdfast.kernel.ids import JobId
from holdfast.kernel.lanes import free_lanes
from holdfast.kernel.records import Batch, Enqueued, Item, Lease, NewJob, Route, UniqueJob
from holdfast.kernel.statements import Jobs, Waiting
from holdfast.kernel.states import State

_TRIES = 20
_PAYLOAD, _TURN = NewJob._fields.index("payload"), NewJob._fields.index("turn")
_PLAIN = [
    name
    for name in NewJob._fields[: NewJob._fields.index("lane")]
    if name not in ("id", "payload", "parent", "retry_of")
]
_plain = attrgetter(*_PLAIN)


class Accepted(NamedTuple):
    id: JobId
    fresh: bool  # False: the key named a job that was there already
    replaced: bool = False  # that job takes over what this call says


@single
async def enqueue(tx: Transaction, jobs: Sequence[NewJob], routes: Sequence[Route], *, notify: bool = True) -> int:
    """Insert jobs; returns how many were not there yet. `routes`: those that may be new."""
    if len(jobs) == 1:
        return await enqueue_batch(tx, Batch(jobs[0], [jobs[0].id], [jobs[0].payload]), routes, notify=notify)
    alike, items = _packed(jobs)
    done = await tx.one(Jobs.enqueue, jobs=alike, items=items, routes=routes, notify=int(notify and tx.lent))
    return await _told(tx, done, notify=notify)


@single
async def enqueue_batch(tx: Transaction, batch: Batch, routes: Sequence[Route], *, notify: bool = True) -> int:
    """Insert the jobs of a batch as `enqueue` would. On a fair queue each takes a turn of its own."""
    job = batch.job
    turns: Iterable[int] = count(job.turn) if job.turn else repeat(0)
    items = list(map(Item, batch.ids, batch.payloads, turns, repeat(1)))
    if not routes and _is_plain(job):
        shared = dict(zip(_PLAIN, _plain(job), strict=True))
        done = await tx.one(Jobs.enqueue_plain, items=items, **shared, notify=int(notify and tx.lent))
    else:
        done = await tx.one(Jobs.enqueue, jobs=[job], items=items, routes=routes, notify=int(notify and tx.lent))
    return await _told(tx, done, notify=notify)


async def _told(tx: Transaction, done: Enqueued | None, *, notify: bool) -> int:
    """How many were inserted; workers hear of them after the commit, unless the statement has seen to it."""
    assert done is not None
    if notify and not tx.lent and done.routes:
        await tx.hint(f"route {done.routes}")
    return done.inserted


def _is_plain(job: NewJob) -> bool:
    return job.lane is None and job.unique_key is None and not job.turn and job.parent is None and job.retry_of is None


def _packed(jobs: Sequence[NewJob]) -> tuple[list[NewJob], list[Item]]:
    """The different jobs, and what each has for itself."""
    alike: dict[tuple[object, ...], int] = {}
    first: list[NewJob] = []
    items: list[Item] = []
    for job in jobs:
        shared = job[1:_PAYLOAD] + job[_PAYLOAD + 1 : _TURN] + job[_TURN + 1 :]
        number = alike.setdefault(shared, len(first) + 1)
        if number > len(first):
            first.append(job)
        items.append(Item(job.id, job.payload, job.turn, number))
    return first, items


async def submit(
    tx: Transaction, job: NewJob, routes: Sequence[Route], *, key: str | None = None, notify: bool = True
) -> Accepted:
    """Insert one job as its keys ask for."""
    if key is not None:
        return await enqueue_once(tx, job, routes, key=key, notify=notify)
    if job.unique_key is not None:
        return await enqueue_unique(tx, job, routes, notify=notify)
    await enqueue(tx, [job], routes, notify=notify)
    return Accepted(job.id, fresh=True)


async def enqueue_once(
    tx: Transaction, job: NewJob, routes: Sequence[Route], *, key: str, notify: bool = True
) -> Accepted:
    """Insert a job under a key, or return the job that the key already names."""
    meaning = digest(f"{job.kind}\x1f{job.payload}")
    owner = await tx.one(Jobs.take_key, tenant=job.tenant, key=key, digest=meaning, job=job.id)
    if owner is None or owner.job == job.id:
        await enqueue(tx, [job], routes, notify=notify)
        return Accepted(job.id, fresh=True)
    if owner.digest != meaning:
        raise IdempotencyConflict(key, owner.job)
    return Accepted(owner.job, fresh=False)


async def enqueue_unique(tx: Transaction, job: NewJob, routes: Sequence[Route], *, notify: bool = True) -> Accepted:
    """Insert a job unless its unique key is taken: then that job stays, or takes over what this one says.

    Only an insert writes the lane's limits: whoever replaces a job has to lock it before its lane.

    One that was claimed takes over nothing. If it keeps its key all the same, as in the scopes `live` and `window`,
    the answer is neither fresh nor replaced, and what this call says is not accepted.
    """
    for _ in range(_TRIES):
        if await enqueue(tx, [job], routes, notify=notify):
            return Accepted(job.id, fresh=True)
        holder = await tx.one(
            Jobs.find_unique, id=job.id, unique_key=job.unique_key, scope=job.unique_scope, window_us=job.window_us or 1
        )
        if holder is None:
            continue  # it let go of the key in between
        untouched = holder.token == 0 and holder.state in (State.SCHEDULED, State.PENDING)
        if holder.id == job.id or not (job.replaces and untouched):
            return Accepted(holder.id, fresh=holder.id == job.id)
        if await _replace(tx, holder, job, notify=notify):
            return Accepted(holder.id, fresh=False, replaced=True)
    raise StoreBusy(f"the unique key of job {job.id} changes hands all the time; try again.")


async def _replace(tx: Transaction, holder: UniqueJob, job: NewJob, *, notify: bool) -> bool:
    """False, and nothing was done: the holder was claimed or ended since it was found."""
    replaced = await tx.one(
        Jobs.replace,
        seq=holder.seq,
        payload=job.payload,
        metadata=job.metadata,
        priority=job.priority,
        due_at=job.due_at,
        delay_us=job.delay_us,
        timeout_us=job.timeout_us,
        deadline_us=job.deadline_us,
    )
    if replaced is None:
        return False
    if replaced.state == State.PENDING:
        if notify:
            await hint(tx, [replaced.route])
    elif replaced.lane is not None and not tx.lent:
        # It may have been let through already, and its place is free now. A caller's transaction does not say so:
        # whatever it wrote into the lane's row would lock it, and the lane would stand still until the commit. There
        # the place stays empty until the next look at the lane, which may be a minute away.
        await free_lanes(tx, [replaced.lane])
    return True


async def enqueue_children(tx: Transaction, parent: Lease, children: Sequence[NewJob], routes: Sequence[Route]) -> int:
    """Insert the children of a running job; returns how many. Their ids are derived, so a second launch adds none."""
    fence = await tx.one(Waiting.hold, **parent.held._asdict())
    if fence is None:
        raise LeaseLost(parent.id, parent.fence)
    if fence.cancel_requested_at is not None:
        raise ParentCancelled(parent.id)
    mine = [child._replace(parent=parent.seq) for child in children]
    if inserted := await enqueue(tx, mine, routes):
        await tx.run(Waiting.add_children, seq=parent.seq, added=inserted)
    return inserted
