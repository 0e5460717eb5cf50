"""Gathering: turns that may wait are collected, many runs' together, for one batch of the provider.

A turn's request is stored before its run gives up its worker, in the batch that is gathering for its lane. The batch is
a job: it submits, polls and collects, under a lease like any other, so if a worker dies, another continues.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.agents.batches.batch_rows import NewRequest
from holdfast.agents.batches.statements import BatchesSql
from holdfast.agents.events.log import Changes
from holdfast.agents.lanes import lane_of
from holdfast.agents.rows import LoadedRun, TurnAttempt
from holdfast.agents.runs.commit import moved
from holdfast.agents.runs.turns import Begun, How, Intent, Play, open_turn
from holdfast.agents.statements import RunsSql
from holdfast.agents.states import RunState, TurnState
from holdfast.agents.system_jobs import BATCH, system_job
from holdfast.errors import LeaseLost, StoreBusy
from holdfast.kernel import codec, leases
from holdfast.kernel.database import Transaction
from holdfast.kernel.enqueue import enqueue
from holdfast.kernel.ids import JobId
from holdfast.kernel.waiting import own_channel, park

_CAP = 1 << 28
_TRIES = 20
_BATCHED = How("batch", TurnState.BATCHED, RunState.BATCH_SUBMITTING)


class Gathering(NamedTuple):
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


async def gather(tx: Transaction, where: Gathering) -> str:
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
    where: Gathering,
    within_us: int | None = None,
) -> Begun:
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


async def _done_before(tx: Transaction, play: Play) -> Begun:
    """An earlier call may have done it all, and its answer was lost."""
    lease = play.lease
    turn = await tx.one(RunsSql.find_turn, run=play.run.id, number=play.number)
    if turn is not None and (turn.epoch, turn.token) == (lease.epoch, lease.token):
        return "begun"
    raise LeaseLost(lease.id, lease.fence)


async def add_requests(tx: Transaction, where: Gathering, requests: Sequence[tuple[LoadedRun, int, int, str]]) -> None:
    """Requests of runs, each with its turn, the number of its attempt and its body, for their lane's next batch."""
    batch = await gather(tx, where)
    rows = [
        NewRequest(custom_id(run.id, turn, attempt), batch, run.id, run.job, turn, attempt, body, len(body.encode()))
        for run, turn, attempt, body in requests
    ]
    await tx.run(BatchesSql.add_requests, requests=rows)


def body_text(body: dict[str, Any]) -> str:
    """A request as a batch carries it."""
    return codec.encode(body, what="a request", cap=_CAP)
