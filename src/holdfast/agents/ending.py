"""Ending: whatever ends a run, its calls are answered, its end is told, and the next of its session may begin.

This is what the kernel calls in the transaction that ends a job of ours, whoever ended it: its worker, a cancel, a
deadline, or the sweep after the last rescue. So no call of a tool is ever left without an answer in the history.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from holdfast.agents.changes import Changes, state_change
from holdfast.agents.definitions import AGENT_KIND, TOOL_KIND
from holdfast.agents.history import answers, result_block, uses
from holdfast.agents.money import budgets
from holdfast.agents.people.reviewing import review_unknown
from holdfast.agents.records import FinishedRun, OpenRun, ReadyRun, RunEnd
from holdfast.agents.statements import Calls, Inbox, Inquiries, Messages, Runs, Sessions
from holdfast.agents.storing import Placed, Said, add_message, add_messages
from holdfast.kernel import encoding
from holdfast.kernel.database import Transaction
from holdfast.kernel.families import hint
from holdfast.kernel.ids import derived_id
from holdfast.kernel.records import Ended, Moved
from holdfast.kernel.states import TERMINAL, State
from holdfast.kernel.waiting import own_channel

_ABANDONED = encoding.encode(
    {"kind": "cut", "message": "the run ended while the model was asked"}, what="an error", cap=1_000
)


def line_of(session: str) -> str:
    """The channel on which the runs of a session wait for their turn."""
    return own_channel(f"session {session}")


def is_ours(kind: str) -> bool:
    return kind.startswith((AGENT_KIND, TOOL_KIND))


class Following:
    """Follows jobs of agents and tools to their end."""

    def __init__(self, prefix: str, notify: Callable[[], bool] = lambda: False) -> None:
        """`notify`: whether somebody wants to hear of what is asked of people."""
        self._prefix = prefix
        self._notify = notify

    async def ended(self, tx: Transaction, moved: Sequence[Ended | Moved]) -> None:
        ours = [job for job in moved if job.state in TERMINAL and is_ours(job.kind)]
        changes = Changes(self._prefix)
        # A run that succeeds has said so itself; the others have not.
        ended = [job.seq for job in ours if job.kind.startswith(AGENT_KIND) and job.state != State.SUCCEEDED]
        for run in await tx.many(Runs.open_runs, jobs=ended) if ended else []:
            await _close(tx, run, changes)
        called = [job.seq for job in ours if job.parent is not None]
        if any(job.state == State.FAILED for job in ours if job.parent is not None):
            under_review = await review_unknown(tx, called, changes, notify=self._notify)
            called = [seq for seq in called if seq not in under_review]
        closed = await tx.many(Calls.close_calls, jobs=called) if called else []
        if any(isinstance(job, Moved) for job in ours if job.parent is not None):  # it may have waited for a person
            await tx.run(Inquiries.withdraw_calls, calls=[call.id for call in closed])
        for call in closed:
            changes.tell(call.run, "tool_ended", {"call": call.id, "name": call.name, "state": call.state})
        for ready in await tx.many(Calls.ready_runs, runs=sorted({call.run for call in closed})) if closed else []:
            await _go_on(tx, ready, changes)
        await changes.write(tx)


async def _close(tx: Transaction, run: OpenRun, changes: Changes) -> None:
    """Its job has ended without the run's saying so."""
    error: dict[str, Any] = encoding.decode(run.error) or {}
    await answer_open_calls(tx, run)
    end = RunEnd(run.id, run.state, error_type=str(error.get("type", "")), error=str(error.get("message", "")))
    await end_run(tx, end, changes)


class Ending(Placed, Protocol):
    """As much of a run that ends as its calls need."""

    @property
    def turns(self) -> int: ...


async def answer_open_calls(tx: Transaction, run: Ending) -> None:
    """Close whatever the last answer of a run asked for: results of those calls that ended, errors for the others."""
    await tx.run(Calls.skip_calls, run=run.id)
    last = await tx.many(Messages.last_live, session=run.session, branch=run.branch)
    blocks = [encoding.decode(row.body) for row in last]
    if last and last[0].message == derived_id(run.id, "answer", run.turns) and uses(blocks):
        calls = {call.tool_use_id: call for call in await tx.many(Calls.calls_of, run=run.id, turn=run.turns)}
        await add_message(tx, run, "results", run.turns, answers(blocks, calls))


async def _go_on(tx: Transaction, run: ReadyRun, changes: Changes) -> None:
    """The last of its calls has ended: their results become one message, and the run is pending again."""
    calls = await tx.many(Calls.calls_of, run=run.id, turn=run.turns)
    await add_message(tx, run, "results", run.turns, [result_block(call) for call in calls])
    await tx.run(Runs.move_run, id=run.id, state="pending")
    changes.tell(run.id, "tools_complete", {"run_id": run.id}, topic="tools_complete")
    state = state_change(run.id, run.session, run.agent_name, run.parent, state="pending", before=run.state)
    changes.tell(run.id, "run_state", state, topic="run_state")


async def _keep_unread(tx: Transaction, run: FinishedRun) -> None:
    """What was said to a run that ended before it read it stays in the history: the next run reads it.

    What was said to one that has never begun has gone with its own message.
    """
    steers = await tx.many(Inbox.open_steers, run=run.id)
    for steer in steers:
        await add_messages(tx, [Said(run, "steer", run.turns, encoding.decode(steer.body), steer.id)])
    await tx.run(Inbox.take_steers, ids=[steer.id for steer in steers], turn=run.turns)


async def end_run(tx: Transaction, end: RunEnd, changes: Changes) -> None:
    """Finish the run's own row, tell of it, and let the next run of its session begin."""
    await end_runs(tx, [end], changes)


async def end_runs(tx: Transaction, ends: Sequence[RunEnd], changes: Changes) -> None:
    done = await tx.many(Runs.finish_runs, ends=ends)
    if calling := [run.id for run in done if run.calling]:
        await tx.run(Runs.abandon_calls, runs=calling, error=_ABANDONED)
    if unsettled := [run.id for run in done if run.reserved]:
        await budgets.free(tx, unsettled)
    for run in done:
        if run.steered and run.prompted:
            await _keep_unread(tx, run)
        if run.previous_state == "awaiting_input":
            await tx.run(Inquiries.withdraw_inquiries, run=run.id)
        before = run.previous_state
        moved = state_change(run.id, run.session, run.agent_name, run.parent, state=run.state, before=before)
        changes.tell(run.id, "run_state", moved, topic="run_state")
        final = {
            "run_id": run.id,
            "session_id": run.session,
            "state": run.state,
            "parent_run_id": run.parent,
            "parent_tool_execution_id": run.call,
        }
        changes.tell(run.id, "run_ended", final, topic="run_finalized")
    sessions = sorted({run.session for run in done if run.parent is None})
    if sessions:
        await tx.run(Sessions.lock_lines, sessions=sessions)
        woken = await tx.many(Runs.wake_next, sessions=sessions)
        await hint(tx, [job.route for job in woken])
