"""What happens to a run in one transaction: the kernel's operations on the job that its id stands for now.

A run id is an alias, so it outlives its jobs and is never given to another run. Who may hold, extend or end a lease is
the kernel's to say; here it is only found by the owner's name. An owner is a string that anybody may choose, so it is
stored apart from workers, which may have the same name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.errors import NotFound
from holdfast.facades.universal_agent.run_words import SeenRun, attempt_dict
from holdfast.kernel import aliases, brokers, codec, leases, queries, waiting
from holdfast.kernel.broker_rows import Alias, OwnedLease, OwnerBeat, Renewal
from holdfast.kernel.complete import complete_and_settle
from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.enqueue import enqueue
from holdfast.kernel.ids import JobId
from holdfast.kernel.owners import register_owner
from holdfast.kernel.rows import Ending, JobRow, LastStep, Lease, NewJob, Route
from holdfast.kernel.states import State
from holdfast.kernel.workers import Registration, list_workers

SCOPE = "universal_agent"
_CHECKPOINT = "checkpoint "


async def queue(tx: Transaction, run_id: str, job: NewJob, routes: Sequence[Route], digest: str) -> Alias:
    """Enqueue a job under this id, unless it stands for one already."""
    alias = await aliases.name_job(tx, SCOPE, run_id, job.id, digest=digest)
    if alias.job == job.id:
        await enqueue(tx, [job], routes, notify=True)
    return alias


async def queue_again(tx: Transaction, run_id: str, job: NewJob, routes: Sequence[Route], digest: str) -> bool:
    """Let a new job continue a run that has ended; False when it has not."""
    seen = await look(tx, run_id)
    if seen is None or not seen.ended:
        return False
    if await aliases.follow(tx, seen.alias, job.id, digest=digest, attempts=seen.attempts) is None:
        return False
    await enqueue(tx, [job], routes, notify=True)
    return True


@reading
async def look(tx: Transaction, run_id: str) -> SeenRun | None:
    """The run as it stands; None when nobody has queued it."""
    alias = await aliases.find_alias(tx, SCOPE, run_id)
    if alias is None:
        return None
    job = await _job(tx, alias.job)
    if job is None:
        return SeenRun(alias, None, None, alias.attempts)
    ended = await queries.count_attempts(tx, job.seq)
    held = job.state == State.RUNNING
    return SeenRun(alias, job, await _name(tx, job.worker) if held else None, alias.attempts + ended + held)


@reading
async def attempts(tx: Transaction, run_id: str) -> list[dict[str, Any]]:
    """Every attempt that is still known, numbered from the first one on; the canonical one is the last success."""
    found: list[dict[str, Any]] = []
    for alias in await aliases.list_aliases(tx, SCOPE, run_id):
        job = await _job(tx, alias.job)
        rows = [] if job is None else await queries.list_attempts(tx, job.seq)
        for number, row in enumerate(rows, alias.attempts + 1):
            found.append(attempt_dict(number, row, await _name(tx, row.worker)))
    best = max((each["attempt_number"] for each in found if each["status"] == "completed"), default=None)
    return [{**each, "canonical": each["attempt_number"] == best} for each in found]


async def acquire(
    tx: Transaction, run_id: str, owner: Registration, ttl_us: int, notes: brokers.ClaimNotes | None = None
) -> bool:
    """Take the run for an owner, if it can be had now. What cannot be had is not touched."""
    seen = await look(tx, run_id)
    if seen is None or seen.job is None or seen.ended:
        return False
    job = seen.job
    if job.state == State.RUNNING and (job.lease_until or 0) > await queries.now(tx):
        return False
    who = await register_owner(tx, owner, ttl_us=ttl_us)
    return await brokers.take(tx, who.seq, job.id, ttl_us, notes=notes) is not None


async def heartbeat(tx: Transaction, run_id: str, owner: str, ttl_us: int, *, ceiling_us: int) -> bool:
    """Extend the lease that an owner holds; False when it is lost."""
    held = await _lease(tx, run_id, owner)
    if held is None or await leases.try_hold(tx, held.lease) is None:  # a renewal alone skips what others have locked
        return False
    await leases.beat_many(tx, [OwnerBeat(held.worker, 1)])
    return await leases.renew_one(tx, Renewal(*held.lease.held, ttl_us), ceiling_us=ceiling_us) is not None


async def end(tx: Transaction, run_id: str, owner: str, ending: Ending, *, asked: bool = False) -> bool:
    """End an owner's attempt; False when its lease is lost. `asked`: only if a cancel was requested.

    `ending` names no lease yet: it is this one's.
    """
    held = await _lease(tx, run_id, owner)
    if held is None or (asked and held.cancel_requested_at is None):
        return False
    seq, worker, epoch, token = held.lease.held
    own = ending._replace(seq=seq, worker=worker, epoch=epoch, token=token)
    return bool(await complete_and_settle(tx, [own], [] if held.parent is None else [held.parent]))


async def save_checkpoint(tx: Transaction, run_id: str, holder: Lease | str, id: str, text: str) -> bool:
    """Store a checkpoint under a lease, or the one of an owner; False when that owner does not hold the run."""
    if isinstance(holder, str):
        held = await _lease(tx, run_id, holder)
        if held is None:
            return False
        holder = held.lease
    await waiting.store_step(tx, holder, f"{_CHECKPOINT}{id}", text)
    return True


@reading
async def checkpoints(tx: Transaction, run_id: str) -> list[dict[str, Any]]:
    """The checkpoints of all jobs that the run has had, numbered from the first one on."""
    found: list[dict[str, Any]] = []
    for alias in await aliases.list_aliases(tx, SCOPE, run_id):
        job = await _job(tx, alias.job)
        steps = [] if job is None else await waiting.list_steps(tx, job.seq)
        for step in (step for step in steps if step.name.startswith(_CHECKPOINT)):
            found.append(_checkpoint(step.name, step.result, len(found) + 1))
    return found


@reading
async def last_checkpoint(tx: Transaction, run_id: str) -> dict[str, Any] | None:
    """The newest of `checkpoints`, with its number; None when there is none."""
    newest: LastStep | None = None
    number = 0
    for alias in await aliases.list_aliases(tx, SCOPE, run_id):
        job = await _job(tx, alias.job)
        found = None if job is None else await waiting.last_step(tx, job.seq, _CHECKPOINT)
        if found is not None:
            newest, number = found, number + found.number
    return None if newest is None else _checkpoint(newest.name, newest.result, number)


def _checkpoint(name: str, result: str, number: int) -> dict[str, Any]:
    return {"checkpoint_id": name.removeprefix(_CHECKPOINT), "number": number, **codec.decode(result)}


def owner_id(owner: str) -> str:
    """Under which id an owner is stored. No worker of runs can have it: theirs has no slash."""
    return f"{SCOPE}/{owner}"


async def _lease(tx: Transaction, run_id: str, owner: str) -> OwnedLease | None:
    """What an owner of this name holds, or else a worker."""
    alias = await aliases.find_alias(tx, SCOPE, run_id)
    if alias is None:
        return None
    held = await brokers.find_lease(tx, alias.job, owner_id(owner))
    return held or await brokers.find_lease(tx, alias.job, owner)


async def _job(tx: Transaction, id: JobId) -> JobRow | None:
    try:
        return await queries.find_job(tx, id)
    except NotFound:  # retention has removed it
        return None


async def _name(tx: Transaction, worker: int | None) -> str | None:
    """How its callers call a worker or an owner, by its number."""
    if worker is None:
        return None
    rows = await list_workers(tx, all=True, limit=1, before=worker + 1)
    if not rows or rows[0].seq != worker:
        return None
    return rows[0].name if rows[0].principal == SCOPE else rows[0].id
