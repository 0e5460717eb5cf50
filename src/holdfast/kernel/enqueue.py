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

from holdfast.errors import ChildNotUnique, IdempotencyConflict, NotFound, ParentCancelled, StoreBusy, StoreRefused
from holdfast.kernel import leases
from holdfast.kernel.codec import digest
from holdfast.kernel.database import Transaction, hint, single
from holdfast.kernel.families import lock_anchors
from holdfast.kernel.ids import JobId
from holdfast.kernel.lanes import free_lanes
from holdfast.kernel.ownership import check_owned, retry_advice
from holdfast.kernel.routes import route_for
from holdfast.kernel.rows import Batch, EnqueueResult, JobItem, KeyOwner, Lease, NewJob, Route, UniqueJob
from holdfast.kernel.statements import EnqueueSql, JobsSql, WaitingSql, WhySql
from holdfast.kernel.states import TERMINAL, State
from holdfast.kernel.workers import write_routes

_TRIES = 20
_PAYLOAD, _TURN = NewJob._fields.index("payload"), NewJob._fields.index("turn")
_PLAIN = [
    name
    for name in NewJob._fields[: NewJob._fields.index("lane")]
    if name not in ("id", "payload", "parent", "retry_of", "delay_us", "due_at")
]
_plain = attrgetter(*_PLAIN)


class AcceptedJob(NamedTuple):
    id: JobId
    fresh: bool  # False: the key named a job that was there already
    replaced: bool = False  # that job takes over what this call says


@single
async def enqueue(tx: Transaction, jobs: Sequence[NewJob], routes: Sequence[Route], *, notify: bool = True) -> int:
    """Insert jobs; returns how many were not there yet. `routes`: those that may be new."""
    if len(jobs) == 1:
        return await enqueue_batch(tx, Batch(jobs[0], [jobs[0].id], [jobs[0].payload]), routes, notify=notify)
    alike, items = _packed(jobs)
    check_owned(alike, tx.layers)
    lent = int(tx.lent)
    done = await tx.one(EnqueueSql.enqueue, jobs=alike, items=items, routes=routes, lent=lent, notify=lent * notify)
    return await _hinted(tx, done, notify=notify)


@single
async def enqueue_batch(tx: Transaction, batch: Batch, routes: Sequence[Route], *, notify: bool = True) -> int:
    """Insert the jobs of a batch as `enqueue` would. On a fair queue each takes a turn of its own."""
    job = batch.job
    notified = int(notify and tx.lent)
    plain = dict(zip(_PLAIN, _plain(job), strict=True)) if not routes and _is_plain(job) else None
    if plain is not None and len(batch.ids) == 1:
        one = {"id": batch.ids[0], "payload": batch.payloads[0]}
        done = await tx.one(EnqueueSql.enqueue_one, **one, **plain, notify=notified)
        return await _hinted(tx, done, notify=notify)
    turns: Iterable[int] = count(job.turn) if job.turn else repeat(0)
    items = list(map(JobItem, batch.ids, batch.payloads, turns, repeat(1)))
    if plain is not None:
        done = await tx.one(EnqueueSql.enqueue_plain, items=items, **plain, notify=notified)
    else:
        check_owned([job], tx.layers)
        lent = int(tx.lent)
        done = await tx.one(EnqueueSql.enqueue, jobs=[job], items=items, routes=routes, lent=lent, notify=notified)
    return await _hinted(tx, done, notify=notify)


async def _hinted(tx: Transaction, done: EnqueueResult | None, *, notify: bool) -> int:
    """How many were inserted; workers hear of them after the commit, unless the statement has seen to it."""
    if done is None:
        return 0
    if notify and not tx.lent and done.routes:
        await tx.hint(f"route {done.routes}")
    return done.inserted


def _is_plain(job: NewJob) -> bool:
    """Whether it can be claimed at once, and needs nothing but its own row."""
    return (
        job.lane is None
        and job.unique_key is None
        and not job.turn
        and job.parent is None
        and job.retry_of is None
        and job.layer is None
        and job.due_at is None
        and not job.delay_us
    )


def _packed(jobs: Sequence[NewJob]) -> tuple[list[NewJob], list[JobItem]]:
    """The different jobs, and what each has for itself."""
    alike: dict[tuple[object, ...], int] = {}
    first: list[NewJob] = []
    items: list[JobItem] = []
    for job in jobs:
        shared = job[1:_PAYLOAD] + job[_PAYLOAD + 1 : _TURN] + job[_TURN + 1 :]
        number = alike.setdefault(shared, len(first) + 1)
        if number > len(first):
            first.append(job)
        items.append(JobItem(job.id, job.payload, job.turn, number))
    return first, items


async def submit(
    tx: Transaction, job: NewJob, routes: Sequence[Route], *, key: str | None = None, notify: bool = True
) -> AcceptedJob:
    """Insert one job as its keys ask for."""
    if key is not None:
        return await enqueue_once(tx, job, routes, key=key, notify=notify)
    if job.unique_key is not None:
        return await enqueue_unique(tx, job, routes, notify=notify)
    await enqueue(tx, [job], routes, notify=notify)
    return AcceptedJob(job.id, fresh=True)


async def enqueue_once(
    tx: Transaction, job: NewJob, routes: Sequence[Route], *, key: str, notify: bool = True
) -> AcceptedJob:
    """Insert a job under a key, or return the job that the key already names."""
    meaning = digest(f"{job.kind}\x1f{job.payload}")
    owner = await take_key(tx, job.tenant, key, meaning, job.id)
    if owner is None or owner.job == job.id:
        await enqueue(tx, [job], routes, notify=notify)
        return AcceptedJob(job.id, fresh=True)
    if owner.digest != meaning:
        raise IdempotencyConflict(key, owner.job)
    return AcceptedJob(owner.job, fresh=False)


async def take_key(tx: Transaction, tenant: str, key: str, meaning: str, job: str) -> KeyOwner | None:
    """Take a key for a job, unless a job has it already; returns which job has it now, and what that was to mean."""
    return await tx.one(EnqueueSql.take_key, tenant=tenant, key=key, digest=meaning, job=job)


async def find_key(tx: Transaction, tenant: str, key: str) -> KeyOwner | None:
    """Which job has a key, without taking it; None when none has it."""
    return await tx.one(EnqueueSql.find_key, tenant=tenant, key=key)


async def enqueue_unique(tx: Transaction, job: NewJob, routes: Sequence[Route], *, notify: bool = True) -> AcceptedJob:
    """Insert a job unless its unique key is taken: then that job stays, or takes over what this one says.

    Only an insert writes the lane's limits: a call that replaces a job has to lock it before its lane.

    One that was claimed takes over nothing. If it nevertheless keeps its key, as in the scopes `live` and `window`,
    the answer is neither fresh nor replaced, and what this call says is not accepted.
    """
    for _ in range(_TRIES):
        if await enqueue(tx, [job], routes, notify=notify):
            return AcceptedJob(job.id, fresh=True)
        holder = await _holder_of(tx, job)
        if holder is None:
            continue  # retention has just removed it, with its key
        if holder.id == job.id:
            return AcceptedJob(holder.id, fresh=True)
        untouched = holder.token == 0 and holder.state in (State.SCHEDULED, State.PENDING)
        if _has_let_go(holder, job.unique_scope):
            continue  # since our statement looked: the next one takes the key over
        if not (job.replaces and untouched):
            return AcceptedJob(holder.id, fresh=False)
        if await _replace(tx, holder, job, notify=notify):
            return AcceptedJob(holder.id, fresh=False, replaced=True)
    raise StoreBusy(f"the unique key of job {job.id} keeps changing its owner; try again.")


def _has_let_go(holder: UniqueJob, scope: str | None) -> bool:
    """Whether the job that has a unique key holds it no longer. Once it has let go, it never holds it again."""
    return (scope == "pending" and holder.token > 0) or (scope == "live" and holder.state in TERMINAL)


async def _replace(tx: Transaction, holder: UniqueJob, job: NewJob, *, notify: bool) -> bool:
    """False, and nothing was done: the holder was claimed, ended or moved since it was found."""
    await lock_anchors(tx, [holder.seq])
    replaced = await tx.one(
        EnqueueSql.replace,
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
    """Insert the children of a running job; returns how many. Their ids are derived, so a second launch adds none.

    `ChildNotUnique` when another job has the unique key of one: its parent would wait for nothing.
    """
    fence = await leases.hold(tx, parent)
    if fence.cancel_requested_at is not None:
        raise ParentCancelled(parent.id)
    mine, inserted = [child._replace(parent=parent.seq) for child in children], 0
    for _ in range(_TRIES):
        added = await enqueue(tx, mine, routes)
        if added:
            await tx.run(WaitingSql.add_children, seq=parent.seq, added=added)
        inserted += added
        if inserted == len(mine) or not await _is_blocked(tx, parent, mine):
            return inserted
    raise StoreBusy(f"the unique keys of the children of job {parent.id} keep changing their owners; try again.")


async def _is_blocked(tx: Transaction, parent: Lease, children: Sequence[NewJob]) -> bool:
    """Whether a child that was not launched before is missing, though nobody has its unique key any more."""
    blocked = False
    for child in children:
        holder = None if child.unique_key is None else await _holder_of(tx, child)
        if holder is not None and holder.id != child.id and not _has_let_go(holder, child.unique_scope):
            raise ChildNotUnique(parent.id, child.kind, holder.id)
        blocked |= child.unique_key is not None and (holder is None or holder.id != child.id)
    return blocked


async def _holder_of(tx: Transaction, job: NewJob) -> UniqueJob | None:
    """The job itself, if it is there; otherwise the job that has its unique key."""
    return await tx.one(
        EnqueueSql.find_unique,
        id=job.id,
        unique_key=job.unique_key,
        scope=job.unique_scope,
        window_us=job.window_us,
    )


# Rerun: a new job that says what an ended one said. Terminal stays terminal; the new job names the old.


async def retry(tx: Transaction, id: JobId, new_id: JobId) -> AcceptedJob:
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
    return AcceptedJob(new_id, fresh=again is not None)


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
