"""What the job of a batch stores: each step under its lease, so that who was overtaken changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.agents.batches.records import BatchesSql, BatchRow, NewRequest, OpenRequest, RequestBody, RequestRow
from holdfast.agents.events.log import Changes, state_change
from holdfast.agents.lanes import lane_of
from holdfast.agents.rows import LoadedRun, TurnAttempt
from holdfast.agents.runs.turn import BeginResult, CallMode, Intent, Play, moved, open_turn
from holdfast.agents.statements import RunsSql
from holdfast.agents.states import BatchState, RunState, TurnState
from holdfast.agents.system_jobs import BATCH, system_job
from holdfast.errors import LeaseLost, NotFound, StoreBusy
from holdfast.kernel import codec, leases
from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.enqueue import enqueue
from holdfast.kernel.ids import JobId, derived_id
from holdfast.kernel.rows import Lease
from holdfast.kernel.waiting import own_channel, park
from holdfast.models.batches import MOST_BYTES, MOST_REQUESTS
from holdfast.settings import Settings
from holdfast.workers.layer import Chore

# Gathering: turns that may wait are collected, many runs' together, for one batch of the provider.
#
# A turn's request is stored before its run gives up its worker, in the batch that is gathering for its lane. The
# batch is
# a job: it submits, polls and collects, under a lease like any other, so if a worker dies, another continues.


_REQUEST_CAP = 1 << 28
_TRIES = 20
_BATCHED = CallMode("batch", TurnState.BATCHED, RunState.BATCH_SUBMITTING)


class BatchDestination(NamedTuple):
    """Where a request goes: the lane it shares with others, and the id of a batch, should none be gathering."""

    lane: str
    model: str
    credential: str
    fresh: JobId
    wait_us: int


def batch_lane(credential: str, model: str) -> str:
    """The lane that batches are submitted by: a batch has limits of its own."""
    return f"{lane_of(credential, model)}/batch"


def channel_of_run(run: str) -> str:
    """Where a run waits for its answer from a batch."""
    return own_channel(f"batch {run}")


def custom_id(run: str, turn: int, attempt: int) -> str:
    return f"{run}_{turn}_{attempt}"


async def gather(tx: Transaction, where: BatchDestination) -> str:
    """The batch that is gathering for a lane; opened, with its job, if there is none."""
    given = {"lane": where.lane, "model": where.model, "credential": where.credential}
    for _ in range(_TRIES):
        if (found := await tx.one(BatchesSql.find_gathering, lane=where.lane)) is not None:
            return found.id
        if await tx.one(BatchesSql.open_batch, id=where.fresh, **given) is not None:
            job, route = system_job(BATCH, where.fresh, {"batch": where.fresh}, where.wait_us)
            await enqueue(tx, [job], [route])
            return where.fresh
    raise StoreBusy(f"batches of lane {where.lane} close as fast as they open; try again.")


async def defer(  # noqa: PLR0917  what begins a turn, and where it goes
    tx: Transaction,
    play: Play,
    prompt: Sequence[dict[str, Any]],
    intent: Intent,
    body: str,
    where: BatchDestination,
    within_us: int | None = None,
) -> BeginResult:
    """Store a turn's request for the next batch, and let the run wait for the answer.

    `within_us` is what its time limit leaves: then the run is played again, answer or not.
    """
    lease, run, number = play.lease, play.run, play.number
    fence = await leases.try_hold(tx, lease)
    if fence is None:
        return await _done_before(tx, play)
    turn = await open_turn(tx, play, prompt, intent, fence, _BATCHED)
    if not isinstance(turn, TurnAttempt):
        return turn
    if turn.attempts > 1:
        await tx.run(BatchesSql.drop_turn, run=run.id, turn=number)
    await add_requests(tx, where, [(run, number, turn.attempts, body)])
    changes = Changes(play.prefix)
    if run.state != RunState.BATCH_SUBMITTING:
        changes.tell(run.id, "run_state", moved(run, RunState.BATCH_SUBMITTING, run.state), topic="run_state")
    changes.tell(run.id, "turn_started", {"turn": number, "model": intent.model})
    await changes.write(tx)
    await park(tx, lease, channel=channel_of_run(run.id), timeout_us=within_us)
    return "begun"


async def _done_before(tx: Transaction, play: Play) -> BeginResult:
    """An earlier call may have done it all, and its answer was lost."""
    lease = play.lease
    turn = await tx.one(RunsSql.find_turn, run=play.run.id, number=play.number)
    if turn is not None and (turn.epoch, turn.token) == (lease.epoch, lease.token):
        return "begun"
    raise LeaseLost(lease.id, lease.fence)


async def add_requests(
    tx: Transaction, where: BatchDestination, requests: Sequence[tuple[LoadedRun, int, int, str]]
) -> None:
    """Requests of runs, each with its turn, the number of its attempt and its body, for their lane's next batch."""
    batch = await gather(tx, where)
    rows = [
        NewRequest(custom_id(run.id, turn, attempt), batch, run.id, run.job, turn, attempt, body, len(body.encode()))
        for run, turn, attempt, body in requests
    ]
    await tx.run(BatchesSql.add_requests, requests=rows)


def body_text(body: dict[str, Any]) -> str:
    """A request as a batch carries it."""
    return codec.encode(body, what="a request", cap=_REQUEST_CAP)


_PAGE = 1_000
_CAP = 1 << 20
_ENVELOPE = 100  # bytes around each request, beside its custom id
_LAST, _AFTER_ALL = 1 << 62, "\U0010ffff"


@reading
async def find_batch(tx: Transaction, id: str) -> BatchRow | None:
    return await tx.one(BatchesSql.find_batch, id=id)


async def close(tx: Transaction, lease: Lease, row: BatchRow, where: BatchDestination) -> list[str]:
    """Take no more requests. What is beyond the provider's limits goes with the next batch.

    Returns the ids of requests each of which is too large for any batch.
    """
    await leases.hold(tx, lease)
    await tx.one(BatchesSql.close_gathering, id=row.id)
    await tx.run(BatchesSql.drop_requests, batch=row.id)
    size, bytes = 0, 0
    beyond: list[str] = []
    too_large: list[str] = []
    for each in await tx.many(BatchesSql.request_sizes, batch=row.id):
        weight = each.bytes + len(each.custom_id) + _ENVELOPE
        if weight > MOST_BYTES:
            too_large.append(each.custom_id)
        elif size + 1 > MOST_REQUESTS or bytes + weight > MOST_BYTES:
            beyond.append(each.custom_id)
        else:
            size, bytes = size + 1, bytes + weight
    if beyond:
        await tx.run(BatchesSql.move_requests, ids=beyond, into=await gather(tx, where))
    return too_large


async def split(tx: Transaction, lease: Lease, row: BatchRow, where: BatchDestination) -> None:
    """Give the second half to a batch of its own; a second time, with the same new id, gives nothing."""
    await leases.hold(tx, lease)
    if await tx.one(BatchesSql.split_batch, id=where.fresh, batch=row.id) is None:
        return
    job, route = system_job(BATCH, where.fresh, {"batch": where.fresh})
    await enqueue(tx, [job], [route])
    ids = [each.custom_id for each in await tx.many(BatchesSql.request_sizes, batch=row.id)]
    await tx.run(BatchesSql.move_requests, ids=ids[len(ids) // 2 :], into=where.fresh)


@reading
async def request_bodies(tx: Transaction, id: str, after: str) -> list[RequestBody]:
    return await tx.many(BatchesSql.request_bodies, batch=id, after=after, limit=_PAGE)


async def intend(tx: Transaction, lease: Lease, id: str) -> set[str] | None:
    """Store that the batch is about to be submitted; returns the ids of what is still wanted of it.

    What runs that have ended meanwhile had asked for is not submitted any more. None: it has been intended already.
    """
    await leases.hold(tx, lease)
    await tx.run(BatchesSql.drop_requests, batch=id)
    wanted = await tx.many(BatchesSql.request_sizes, batch=id)
    size, bytes = len(wanted), sum(each.bytes for each in wanted)
    if wanted and await tx.one(BatchesSql.intend, id=id, size=size, bytes=bytes) is None:
        return None
    return {each.custom_id for each in wanted}


async def refused(tx: Transaction, lease: Lease, id: str, error: str, *, troubled: bool) -> int | None:
    """The provider has not taken it; returns for how long it has taken nothing, in microseconds.

    `troubled`: by no fault of the batch's, so that time alone helps. Anything else ends such a time. None, and nothing
    was stored: the provider has the batch after all, by an earlier submit.
    """
    await leases.hold(tx, lease)
    found = await tx.one(BatchesSql.refused, id=id, error=codec.clip(error, 2_000), troubled=int(troubled))
    return None if found is None else found.us


async def search(tx: Transaction, lease: Lease, id: str, error: str) -> None:
    """Whether the provider has the batch is not known: it is looked for."""
    await leases.hold(tx, lease)
    await tx.run(BatchesSql.search, id=id, unknown=1, held=None, error=codec.clip(error, 2_000))


async def hold(tx: Transaction, lease: Lease, id: str, held: dict[str, Any]) -> None:
    await leases.hold(tx, lease)
    text = codec.encode(held, what="what may be a batch", cap=_CAP)
    await tx.run(BatchesSql.search, id=id, unknown=0, held=text, error=None)


@reading
async def taken_ids(tx: Transaction, ids: Sequence[str]) -> set[str]:
    return {row.id for row in await tx.many(BatchesSql.taken_ids, ids=ids)}


@reading
async def is_request(tx: Transaction, id: str, custom_id: str) -> bool:
    return await tx.one(BatchesSql.is_request, batch=id, custom_id=custom_id) is not None


async def give_up_search(tx: Transaction, lease: Lease, id: str) -> int | None:
    """The provider does not have it, as far as it shows: it may be submitted again. Returns what `refused` does."""
    await leases.hold(tx, lease)
    await tx.run(BatchesSql.note_unknown, batch=id)
    return await refused(tx, lease, id, "it was not among the provider's batches", troubled=True)


async def take(tx: Transaction, lease: Lease, id: str, provider_id: str) -> bool:
    """The provider has it. False: it has another one in its place, or another batch of ours has this one."""
    await leases.hold(tx, lease)
    await tx.run(BatchesSql.lock_provider_id, provider_id=provider_id)
    if await tx.one(BatchesSql.take_batch, id=id, provider_id=provider_id) is not None:
        await tx.run(BatchesSql.send_requests, batch=id)
        return True
    row = await tx.one(BatchesSql.find_batch, id=id)
    return row is not None and row.provider_id == provider_id


async def adopt_orphan(tx: Transaction, id: str, provider_id: str, orphan: JobId) -> bool:
    """What one who was overtaken knows: the provider has a batch of these requests.

    The worker that looks for it has it now. If it was submitted again meanwhile, this one is known as an orphan, with a
    job that looks after it; True: it is to be cancelled.
    """
    row = await tx.one(BatchesSql.find_batch, id=id)
    if row is None or row.provider_id == provider_id:
        return False
    await tx.run(BatchesSql.lock_provider_id, provider_id=provider_id)
    if await tx.one(BatchesSql.offer_batch, id=id, provider_id=provider_id) is not None:
        await tx.run(BatchesSql.send_requests, batch=id)
        return False
    error = f"submitted late, in place of batch {id}"
    if await tx.one(BatchesSql.add_orphan, id=orphan, provider_id=provider_id, error=error, batch=id) is None:
        return False
    job, route = system_job(BATCH, orphan, {"batch": orphan})
    await enqueue(tx, [job], [route])
    return True


async def move_runs(tx: Transaction, lease: Lease, id: str, *, before: RunState, state: RunState, prefix: str) -> int:
    """Tell some of the batch's runs how far it is; 0 when all have been told."""
    await leases.hold(tx, lease)
    runs = await tx.many(BatchesSql.runs_to_move, batch=id, state=before, limit=_PAGE)
    if runs:
        changes = Changes(prefix)
        for run in await tx.many(BatchesSql.move_runs, ids=[run.id for run in runs], state=state, before=before):
            moved = state_change(
                run.id, run.session, run.agent_name, run.parent, agent=run.agent, state=state, before=run.state
            )
            changes.tell(run.id, "run_state", moved, topic="run_state")
        await changes.write(tx)
    return len(runs)


@reading
async def is_wanted(tx: Transaction, id: str) -> bool:
    counted = await tx.one(BatchesSql.wanted_requests, batch=id)
    return counted is not None and counted.n > 0


@reading
async def agents_in(tx: Transaction, id: str) -> list[str]:
    """The names of the agents whose turns wait in a batch."""
    return [row.id for row in await tx.many(BatchesSql.agents_in, batch=id)]


async def rekey(tx: Transaction, lease: Lease, id: str, credential: str, lane: str) -> None:
    """The batch continues under the key of the worker that holds its lease."""
    await leases.hold(tx, lease)
    await tx.run(BatchesSql.rekey_batch, id=id, credential=credential, lane=lane)


async def note_poll(tx: Transaction, lease: Lease, id: str, state: BatchState, counts: dict[str, int]) -> None:
    await leases.hold(tx, lease)
    await tx.run(BatchesSql.note_poll, id=id, state=state, counts=codec.encode(counts, what="counts", cap=_CAP))


async def note_error(tx: Transaction, lease: Lease, id: str, error: str) -> None:
    await leases.hold(tx, lease)
    await tx.run(BatchesSql.note_error, id=id, error=codec.clip(error, 2_000))


async def note_download(tx: Transaction, lease: Lease, id: str, downloads: int, error: str) -> None:
    """The results could not be read, so many times by now."""
    await leases.hold(tx, lease)
    held = codec.encode({"downloads": downloads}, what="a count", cap=_CAP)
    await tx.run(BatchesSql.note_download, id=id, held=held, error=codec.clip(error, 2_000))


async def lose(tx: Transaction, lease: Lease, id: str, error: str) -> None:
    """The provider has no such batch any more: its results will not come."""
    await leases.hold(tx, lease)
    await tx.run(BatchesSql.note_poll, id=id, state=BatchState.COLLECTING, counts="{}")
    await tx.run(BatchesSql.note_error, id=id, error=codec.clip(error, 2_000))


@reading
async def unanswered(tx: Transaction, id: str, limit: int) -> list[OpenRequest]:
    return await tx.many(BatchesSql.unanswered, batch=id, limit=limit)


async def end(tx: Transaction, lease: Lease, id: str, state: BatchState, error: str | None) -> bool:
    """End a batch. False, and nothing was stored: it is in a state in which it cannot end so. Look at it again."""
    await leases.hold(tx, lease)
    said = None if error is None else codec.clip(error, 2_000)
    return await tx.one(BatchesSql.end_batch, id=id, state=state, error=said) is not None


@reading
async def list_batches(
    tx: Transaction, *, state: str | None = None, before: tuple[int, str] = (_LAST, _AFTER_ALL), limit: int = 100
) -> list[BatchRow]:
    return await tx.many(BatchesSql.list_batches, state=state, before_at=before[0], before=before[1], limit=limit)


@reading
async def batch_requests(tx: Transaction, id: str, *, after: str = "", limit: int = 1_000) -> list[RequestRow]:
    if await tx.one(BatchesSql.find_batch, id=id) is None:
        raise NotFound(f"there is no batch {id} in this database.")
    return await tx.many(BatchesSql.list_requests, batch=id, after=after, limit=limit)


async def prune_batches(tx: Transaction, age_us: int) -> int:
    """Forget batches that ended so long ago, with their requests."""
    ids = [row.id for row in await tx.many(BatchesSql.prune_batches, age_us=age_us, limit=_PAGE)]
    if ids:
        await tx.run(BatchesSql.delete_requests, ids=ids)
        await tx.run(BatchesSql.delete_batches, ids=ids)
    return len(ids)


async def revive(tx: Transaction, _settings: Settings) -> int:
    """Give a job to every batch whose job has ended before it, however that was brought about."""
    found = await tx.many(BatchesSql.jobless_batches, limit=_PAGE)
    for row in found:
        fresh = derived_id(row.job, "again")
        if await tx.one(BatchesSql.revive_batch, id=row.id, before=row.job, job=fresh) is not None:
            job, route = system_job(BATCH, fresh, {"batch": row.id})
            await enqueue(tx, [job], [route])
    return len(found)


CHORE = Chore(lambda settings: settings.cleanup_interval, revive)
