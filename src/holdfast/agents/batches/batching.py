"""Batching: turns that may wait are gathered, many runs' together, for one batch of the provider.

A turn's request is stored before its run gives up its worker, in the batch that is gathering for its lane. The batch is
a job: it submits, polls and collects, under a lease like any other, so whoever dies, another goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.agents.answering import moved
from holdfast.agents.batches.records import NewRequest
from holdfast.agents.changes import Changes
from holdfast.agents.compaction.automatic import is_current
from holdfast.agents.money.budgets import reserve
from holdfast.agents.records import LoadedRun
from holdfast.agents.statements import Batches, Runs
from holdfast.agents.storing import add_message
from holdfast.agents.system import BATCH, system_job
from holdfast.agents.turns import Begun, Intent, Play, take_steers
from holdfast.errors import LeaseLost
from holdfast.kernel import encoding
from holdfast.kernel.database import Transaction
from holdfast.kernel.enqueue import enqueue
from holdfast.kernel.ids import JobId
from holdfast.kernel.statements import Waiting
from holdfast.kernel.waiting import park

_CAP = 1 << 28
_TRIES = 20


class Gathering(NamedTuple):
    """Where a request goes: the lane it shares with others, and the id of a batch, should none be gathering."""

    lane: str
    model: str
    credential: str
    fresh: JobId
    wait_us: int


def channel_of_run(run: str) -> str:
    """Where a run waits for its answer from a batch."""
    return f"batch {run}"


def custom_id(run: str, turn: int, attempt: int) -> str:
    return f"{run}_{turn}_{attempt}"


async def gather(tx: Transaction, where: Gathering, offset: int = 0) -> str:
    """The batch that is gathering for a lane; opened, with its job, if there is none."""
    found = await tx.one(Batches.find_gathering, lane=where.lane)
    if found is not None:
        return found.id
    given = {"lane": where.lane, "model": where.model, "credential": where.credential}
    if await tx.one(Batches.open_batch, id=where.fresh, **given) is not None:
        job, route = system_job(BATCH, where.fresh, {"batch": where.fresh}, where.wait_us)
        await enqueue(tx, [job], [route])
        return where.fresh
    if offset >= _TRIES:
        raise AssertionError(f"lane {where.lane} has a gathering batch that nobody can find")
    return await gather(tx, where, offset + 1)


async def defer(  # noqa: PLR0917  what begins a turn, and where it goes
    tx: Transaction, play: Play, prompt: Sequence[dict[str, Any]], intent: Intent, body: str, where: Gathering
) -> Begun:
    """Store a turn's request for the next batch, and let the run wait for the answer."""
    lease, run, number = play.lease, play.run, play.number
    fence = await tx.one(Waiting.hold, **lease.held._asdict())
    if fence is None:
        return await _done_before(tx, play)
    if fence.cancel_requested_at is not None:
        return "cancelled"
    if not run.prompted and not await is_current(tx, run):
        return "again"
    if run.budgets and (over := await reserve(tx, run, number, intent.nano)) is not None:
        return over
    if not run.prompted:
        await add_message(tx, run, "prompt", 0, prompt)
    await take_steers(tx, run, number, intent.steers)
    turn = await tx.one(
        Runs.begin_turn,
        run=run.id,
        number=number,
        model=intent.model,
        request_hash=intent.request_hash,
        fingerprint=intent.fingerprint,
        epoch=lease.epoch,
        token=lease.token,
        state="batched",
        mode="batch",
        next="batch_submitting",
    )
    assert turn is not None, "a lease that is held has not begun this turn: it would have given the lease up with it"
    await add_requests(tx, where, [(run, number, turn.attempts, body)])
    changes = Changes(play.prefix)
    if run.state != "batch_submitting":
        changes.tell(run.id, "run_state", moved(run, "batch_submitting", run.state), topic="run_state")
    changes.tell(run.id, "turn_started", {"turn": number, "model": intent.model})
    await changes.write(tx)
    await park(tx, lease, channel=channel_of_run(run.id), timeout_us=None)
    return "begun"


async def _done_before(tx: Transaction, play: Play) -> Begun:
    """An earlier call may have done it all, and its answer was lost."""
    lease = play.lease
    turn = await tx.one(Runs.find_turn, run=play.run.id, number=play.number)
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
    await tx.run(Batches.add_requests, requests=rows)


def body_text(body: dict[str, Any]) -> str:
    """A request as a batch carries it."""
    return encoding.encode(body, what="a request", cap=_CAP)
