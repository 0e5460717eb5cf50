"""What happens to a work item in one transaction: the kernel's operations on its job.

A pool is a queue, an item is a job in it. Who may end a claim is the kernel's to say: every end names the claim's
token, so what a worker says after its item was taken back changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import NotFound
from holdfast.facades.flatagents import worker_rows
from holdfast.facades.flatagents.records import WorkItem
from holdfast.kernel import brokers, codec, demand, queries
from holdfast.kernel.complete import RELEASED, complete_and_settle, error_json, repeated
from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.enqueue import enqueue
from holdfast.kernel.ids import JobId, is_id
from holdfast.kernel.routes import route_for
from holdfast.kernel.rows import Ending, Held, JobRow, Lease, NewJob, Route
from holdfast.kernel.states import State, WorkerState
from holdfast.kernel.workers import Registration

KIND = "flatagents.work"
QUEUE = "flatagents."
_STATUSES = {
    State.RUNNING: "claimed",
    State.SUCCEEDED: "done",
    State.FAILED: "poisoned",
    State.CANCELLED: "cancelled",
}
STATES = {"pending": State.PENDING, "claimed": State.RUNNING, "done": State.SUCCEEDED, "poisoned": State.FAILED}


def queue_of(pool: str) -> str:
    return f"{QUEUE}{pool}"


def route_of(pool: str) -> Route:
    return route_for(queue_of(pool), KIND)


async def push(tx: Transaction, jobs: list[NewJob], route: Route, fired: Sequence[tuple[NewJob, Route]] = ()) -> None:
    """Add items, and with them the executions that they trigger: both are there, or neither is."""
    await enqueue(tx, jobs, [route], notify=True)
    if fired:
        await enqueue(tx, [job for job, _ in fired], sorted({each for _, each in fired}))


async def claim(
    tx: Transaction, pool: str, who: Registration, notes: brokers.ClaimNotes | None = None, *, again: bool
) -> WorkItem | None:
    """The oldest item that nobody has, for this worker; with `again` the one that it has already, if there is one."""
    owner = await worker_rows.owner_for(tx, who)
    held = await brokers.leases_of(tx, owner, queue=queue_of(pool), limit=1) if again else []
    if held:
        return _claimed(held[0].lease, who.id)
    wanted = brokers.Claimer(owner, frozenset({route_of(pool).id}), 1, worker_rows.LASTING_US)
    leases = await brokers.claim_for(tx, [wanted], notes)
    return _claimed(leases[0], who.id) if leases else None


def _claimed(lease: Lease, worker_id: str) -> WorkItem:
    fence = ".".join(map(str, lease.held))
    data = codec.decode(lease.payload)
    return WorkItem(str(lease.id), data, worker_id, lease.attempts, lease.max_attempts, "claimed", fence=fence)


@reading
async def size(tx: Transaction, pool: str) -> demand.Demand:
    return await demand.claimable(tx, [queue_of(pool)])


async def release_by_worker(tx: Transaction, pool: str, worker_id: str) -> int:
    """Take back what every incarnation of a worker has in this pool."""
    row = await worker_rows.latest(tx, worker_id)
    return 0 if row is None else await worker_rows.take_back(tx, row.seq, queue=queue_of(pool))


async def end(tx: Transaction, item_id: str, held: Held | str | None, outcome: str, *, text: str | None = None) -> bool:
    """End a claim, which its token or the name of its worker says; False when it is not current any more."""
    job = await find(tx, item_id)
    claim = await _claim(tx, job, held) if isinstance(held, str) else held
    if claim is None:
        return isinstance(held, str) and await _told_before(tx, job, held, outcome)
    ending = _ending(claim, job, outcome, text)
    worker = await worker_rows.by_number(tx, claim.worker)
    if worker is not None and worker.status != WorkerState.LOST and await complete_and_settle(tx, [ending], []):
        return True
    return bool(await repeated(tx, [ending]))


def _ending(claim: Held, job: JobRow, outcome: str, text: str | None) -> Ending:
    match outcome:
        case "succeeded":
            return Ending(*claim, "succeeded", State.SUCCEEDED, 0, 1, text, None)
        case "failed":
            last = job.attempts + 1 >= job.max_attempts
            error = error_json("work_failed", text or "it failed")
            state, name = (State.FAILED, "failed") if last else (State.PENDING, "retried")
            return Ending(*claim, name, state, 0, 1, None, error)
        case _:
            return Ending(*claim, RELEASED, State.PENDING, 0, 0, None, None)


async def _claim(tx: Transaction, job: JobRow, worker_id: str) -> Held | None:
    found = await brokers.find_lease(tx, job.id, worker_id)
    return None if found is None else found.lease.held


async def _told_before(tx: Transaction, job: JobRow, worker_id: str, outcome: str) -> bool:
    """Whether the last attempt was this worker's, and ended so."""
    attempts = await queries.list_attempts(tx, job.seq)
    worker = await worker_rows.by_number(tx, attempts[-1].worker) if attempts else None
    return worker is not None and worker.id == worker_id and attempts[-1].outcome == outcome


@reading
async def find(tx: Transaction, item_id: str) -> JobRow:
    """The job of an item; `NotFound` when there is none."""
    job = await queries.find_job(tx, JobId(item_id)) if is_id(item_id) else None
    if job is None or job.kind != KIND:
        raise NotFound(f"there is no work item {item_id!r:.80} in this database.")
    return job


@reading
async def seen(tx: Transaction, item_id: str) -> WorkItem:
    return await _item(tx, await find(tx, item_id))


@reading
async def list_items(tx: Transaction, pool: str, status: str | None, limit: int) -> list[WorkItem]:
    """Items of a pool, the newest first."""
    state = None if status is None else STATES[status]
    chosen = queries.JobFilters(queue=queue_of(pool), kind=KIND, state=state)
    page = await queries.list_jobs(tx, chosen, limit=limit)
    return [await _item(tx, job) for job in page]


async def _item(tx: Transaction, job: JobRow) -> WorkItem:
    worker = await worker_rows.by_number(tx, job.worker) if job.worker is not None else None
    error = codec.decode(job.error) if job.error else None
    return WorkItem(
        id=str(job.id),
        data=codec.decode(job.payload),
        claimed_by=None if worker is None else worker.id,
        attempts=job.attempts,
        max_retries=job.max_attempts,
        status=_STATUSES.get(State(job.state), "pending"),
        result=codec.decode(job.result) if job.result else None,
        error=None if error is None else error.get("message"),
    )
