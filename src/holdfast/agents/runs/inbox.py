"""The inbox: what becomes of a message that arrives while a run of its session is under way.

It waits its turn, is refused, joins the run that is under way or one that has not begun, or ends the one under way.
The sender and the worker that plays lock the run's job first, so a message is never between the two: either the run
takes it before it ends, or it has ended and the message begins another.
"""

from __future__ import annotations

from typing import Literal

from holdfast.agents.compaction.records import CompactionsSql
from holdfast.agents.events.log import Changes
from holdfast.agents.messages import add_message
from holdfast.agents.rows import CurrentRun
from holdfast.agents.runs.end import (
    INTERRUPTED,
    Conclusion,
    answer_open_calls,
    end_of,
    end_run,
    result_for_caller,
    to_json,
)
from holdfast.agents.statements import InboxSql, RunsSql, SessionsSql
from holdfast.errors import NotFound, UsageError
from holdfast.kernel import codec
from holdfast.kernel.cancel import open_cancellation
from holdfast.kernel.database import Transaction
from holdfast.kernel.families import lock_jobs
from holdfast.kernel.ids import JobId, derived_id
from holdfast.kernel.rows import Resolution, Suspension
from holdfast.kernel.states import State
from holdfast.kernel.waiting import own_channel, resolve, suspend

During = Literal["queue", "reject", "interrupt", "steer", "coalesce"]

_CHANNEL = own_channel("interrupted")


def check_lent(during: str | None) -> None:
    """`UsageError` for what cannot be done in a caller's transaction."""
    if during in ("steer", "interrupt", "coalesce"):
        raise UsageError(f"during={during!r} changes an active run, and your transaction would lock it: leave tx out.")


async def joinable(tx: Transaction, session: str, agent: str, during: str) -> CurrentRun | None:
    """The run that a message of this policy joins, its job locked; None: there is none."""
    statement = InboxSql.current_run if during == "steer" else InboxSql.last_accepted
    found = await tx.one(statement, session=session)
    if found is None or (during == "coalesce" and (found.prompted or found.agent_name != agent)):
        return None
    now = await _locked(tx, found)
    return None if now is None or (during == "coalesce" and now.prompted) else now


async def join(tx: Transaction, run: CurrentRun, id: str, blocks: str) -> None:
    """Leave a message for the run's next turn; a second time, under the same id, leaves none."""
    await tx.run(InboxSql.add_steer, id=id, run=run.id, body=blocks)


def steer_id(job: str, key: str | None, run: str) -> str:
    """Of a message that joins a run: by its key, if it has one, else by the id that its own run would have had."""
    return derived_id(run, "steer", key) if key is not None else derived_id(job, "steer")


async def joined_before(tx: Transaction, job: str) -> str | None:
    """The run that a message joined by an earlier call whose answer was lost."""
    found = await tx.one(InboxSql.find_steer, id=derived_id(job, "steer"))
    return None if found is None else found.run


async def steer(tx: Transaction, run: str, id: str, blocks: str) -> None:
    """A message for this very run; `UsageError` when it has ended."""
    await join(tx, await _alive(tx, run, "send a new message to its session"), derived_id(id, "steer"), blocks)


async def interrupt(tx: Transaction, run: str, by: str, prefix: str) -> None:
    """End this run where it is."""
    await stop(tx, await _alive(tx, run, "there is nothing to interrupt"), by, prefix)


async def interrupt_current(tx: Transaction, session: str, ordinal: int, by: str, prefix: str) -> None:
    """End the run of a session that is under way, for a message that takes its place after it."""
    found = await tx.one(InboxSql.current_run, session=session)
    if found is not None and found.ordinal < ordinal and (now := await _locked(tx, found)) is not None:
        await stop(tx, now, by, prefix)


async def stop(tx: Transaction, run: CurrentRun, by: str, prefix: str) -> None:
    """The worker that plays the run keeps what was said so far; without one, the run ends here."""
    if await tx.one(InboxSql.interrupt, run=run.id, by=by) is not None:
        await tx.hint(f"interrupt {run.id}")
    if run.job_state == State.RUNNING:
        return
    if not run.prompted and await _has_its_turn(tx, run):
        await add_message(tx, run, "prompt", 0, codec.decode(run.input))
        history = await tx.one(CompactionsSql.find_generation, id=run.session)
        await tx.run(InboxSql.note_prompted, run=run.id, generation=history.generation if history else "")
    await answer_open_calls(tx, run)
    changes = Changes(prefix)
    conclusion = Conclusion("truncated", "", limited=INTERRUPTED)
    await end_run(tx, end_of(run.id, conclusion), changes)
    await changes.write(tx)
    channel = run.channel
    if run.job_state != State.WAITING:
        channel = _CHANNEL
        await suspend(tx, [Suspension(JobId(run.id), _CHANNEL)])
    await open_cancellation(tx, [run.job], reason=INTERRUPTED)
    result = to_json(result_for_caller(conclusion))
    await resolve(tx, [Resolution(run.job, channel, State.SUCCEEDED, result=result)])


async def _has_its_turn(tx: Transaction, run: CurrentRun) -> bool:
    """Whether nobody comes before it: nothing may be said into the middle of another run."""
    await tx.run(SessionsSql.lock_lines, sessions=[run.session])
    return await tx.one(RunsSql.run_ahead, session=run.session, ordinal=run.ordinal) is None


async def _alive(tx: Transaction, run: str, advice: str) -> CurrentRun:
    found = await tx.one(InboxSql.this_run, run=run)
    now = None if found is None else await _locked(tx, found)
    if now is None:
        raise UsageError(f"run {run} has ended: {advice}.")
    if now.parent is not None:
        raise UsageError(f"run {run} was called by another one: steer or interrupt that.")
    return now


async def _locked(tx: Transaction, run: CurrentRun) -> CurrentRun | None:
    """The run as it is once its job is locked; None when it has ended meanwhile."""
    if not await lock_jobs(tx, [run.job]):
        raise NotFound(f"the job of run {run.id} no longer exists.")
    return await tx.one(InboxSql.this_run, run=run.id)
