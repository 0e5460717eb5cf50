"""The end of a run: whatever ends it, its calls are answered, its end is announced, and its session's next may begin.

This is what the kernel calls in the transaction that ends a job of ours, by any cause: its worker, a cancel, a
deadline, or the sweep after the last rescue. So no call of a tool is ever left without an answer in the history.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, Protocol

from holdfast.agents.content import content_from_outside
from holdfast.agents.definition import AGENT_KIND, KINDS, LAYER, TOOL_KIND
from holdfast.agents.events.log import Changes, state_change
from holdfast.agents.messages import Placed, Said, add_message, add_messages
from holdfast.agents.money import budgets
from holdfast.agents.people.review import review_unknown
from holdfast.agents.people.statements import InquiriesSql
from holdfast.agents.rows import FinishedRun, OpenRun, ReadyRun, RunEnd
from holdfast.agents.runs.history import answers, result_block, uses
from holdfast.agents.runs.refused_content import ASKING_FAILED, refusal_of, retire_unaccepted
from holdfast.agents.statements import CallsSql, InboxSql, MessagesSql, RunsSql, SessionsSql
from holdfast.agents.states import RunState
from holdfast.agents.system_jobs import BATCH
from holdfast.kernel import codec
from holdfast.kernel.database import Transaction
from holdfast.kernel.families import hint
from holdfast.kernel.ids import derived_id
from holdfast.kernel.rows import Ended, Moved
from holdfast.kernel.states import State
from holdfast.kernel.waiting import own_channel
from holdfast.settings import Settings

_ABANDONED = codec.encode(
    {"kind": "cut", "message": "the run ended while the model was asked"}, what="an error", cap=1_000
)


def line_of(session: str) -> str:
    """The channel on which the runs of a session wait for their turn."""
    return own_channel(f"session {session}")


def is_ours(kind: str) -> bool:
    return kind.startswith((AGENT_KIND, TOOL_KIND))


class AgentJobs:
    """The jobs of agents, as the kernel knows their owner: it calls `ended` in the transaction that ends some."""

    name = LAYER
    kinds = KINDS
    own_failures = True
    retry_advice = "Start a new run instead: `holdfast runs retry ID` of its run, or a message in the session."
    cancel_advice: Mapping[str, str] = {
        BATCH: "cancel the runs that wait for it; then Holdfast cancels it at the provider too"
    }

    def __init__(
        self,
        announced: Callable[[], str] = lambda: "",
        notify: Callable[[], bool] = lambda: False,
        output_cap: Callable[[], int] = lambda: Settings().tool_output_cap,
    ) -> None:
        """`announced`: how the channels of the public topics begin. `notify`: whether somebody wants to hear of what is
        asked of people. `output_cap`: characters of a tool's result."""
        self._announced = announced
        self._notify = notify
        self._output_cap = output_cap

    async def held_up(self, tx: Transaction, seqs: Sequence[int]) -> Set[int]:
        return {row.seq for row in await tx.many(RunsSql.held_runs, jobs=seqs)}

    async def ended(self, tx: Transaction, jobs: Sequence[Ended | Moved]) -> None:
        ours = [job for job in jobs if is_ours(job.kind)]
        changes = Changes(self._announced())
        # A run that succeeds has said so itself; the others have not.
        ended = [job.seq for job in ours if job.kind.startswith(AGENT_KIND) and job.state != State.SUCCEEDED]
        for run in await tx.many(RunsSql.open_runs, jobs=ended) if ended else []:
            await _close(tx, run, changes)
        called = [job.seq for job in ours if job.parent is not None]
        if any(job.state == State.FAILED for job in ours if job.parent is not None):
            under_review = await review_unknown(tx, called, changes, notify=self._notify)
            called = [seq for seq in called if seq not in under_review]
        cap = self._output_cap()
        closed = await tx.many(CallsSql.close_calls, jobs=called, cap=cap) if called else []
        if unusual := [call.id for call in closed if call.unusual]:
            await _make_readable(tx, unusual, cap)
        if any(isinstance(job, Moved) for job in ours if job.parent is not None):  # it may have waited for a person
            await tx.run(InquiriesSql.withdraw_calls, calls=[call.id for call in closed])
        for call in closed:
            changes.tell(call.run, "tool_ended", {"call": call.id, "name": call.name, "state": call.state})
        for ready in await tx.many(CallsSql.ready_runs, runs=sorted({call.run for call in closed})) if closed else []:
            await _go_on(tx, ready, changes)
        await changes.write(tx)


async def _make_readable(tx: Transaction, calls: Sequence[str], cap: int) -> None:
    """Results of tools that others may have run, through a broker or a gateway: the model reads text or blocks."""
    for call in await tx.many(CallsSql.outputs_of, ids=calls):
        output = codec.decode(call.output)
        content = content_from_outside(output, cap)
        if content != output:
            text = codec.encode(content, what="the result of a tool", cap=len(call.output) * 8 + 1_000)
            await tx.run(CallsSql.set_output, id=call.id, output=text)


async def _close(tx: Transaction, run: OpenRun, changes: Changes) -> None:
    """Its job has ended without the run's saying so."""
    error: dict[str, Any] = codec.decode(run.error) or {}
    await answer_open_calls(tx, run)
    if run.state == State.FAILED and error.get("type") in ASKING_FAILED:
        await retire_unaccepted(tx, run, await refusal_of(tx, run), changes)
    end = RunEnd(run.id, run.state, error_type=str(error.get("type", "")), error=str(error.get("message", "")))
    await end_run(tx, end, changes)


class RunEnding(Placed, Protocol):
    """As much of a run that ends as its calls need."""

    @property
    def turns(self) -> int: ...


async def answer_open_calls(tx: Transaction, run: RunEnding) -> None:
    """Close whatever the last answer of a run asked for: results of those calls that ended, errors for the others."""
    await tx.run(CallsSql.skip_calls, run=run.id)
    last = await tx.many(MessagesSql.last_live, session=run.session, branch=run.branch)
    blocks = [codec.decode(row.body) for row in last]
    if last and last[0].message == derived_id(run.id, "answer", run.turns) and uses(blocks):
        calls = {call.tool_use_id: call for call in await tx.many(CallsSql.calls_of, run=run.id, turn=run.turns)}
        await add_message(tx, run, "results", run.turns, answers(blocks, calls))


async def _go_on(tx: Transaction, run: ReadyRun, changes: Changes) -> None:
    """The last of its calls has ended: their results become one message, and the run is pending again."""
    calls = await tx.many(CallsSql.calls_of, run=run.id, turn=run.turns)
    await add_message(tx, run, "results", run.turns, [result_block(call) for call in calls])
    await tx.run(RunsSql.move_run, id=run.id, state=RunState.PENDING)
    changes.tell(run.id, "tools_complete", {"run_id": run.id}, topic="tools_complete")
    state = state_change(
        run.id, run.session, run.agent_name, run.parent, agent=run.agent, state=RunState.PENDING, before=run.state
    )
    changes.tell(run.id, "run_state", state, topic="run_state")


async def _keep_unread(tx: Transaction, run: FinishedRun) -> None:
    """What was said to a run that ended before it read it stays in the history: the next run reads it.

    What was said to one that has never begun has gone with its own message.
    """
    steers = await tx.many(InboxSql.open_steers, run=run.id)
    for steer in steers:
        await add_messages(tx, [Said(run, "steer", run.turns, codec.decode(steer.body), steer.id)])
    await tx.run(InboxSql.take_steers, ids=[steer.id for steer in steers], turn=run.turns)


async def end_run(tx: Transaction, end: RunEnd, changes: Changes) -> None:
    """Finish the run's own row, record the event, and let the next run of its session begin."""
    await end_runs(tx, [end], changes)


async def end_runs(tx: Transaction, ends: Sequence[RunEnd], changes: Changes) -> None:
    done = await tx.many(RunsSql.finish_runs, ends=ends)
    if calling := [run.id for run in done if run.calling]:
        await tx.run(RunsSql.abandon_calls, runs=calling, error=_ABANDONED)
    if unsettled := [run.id for run in done if run.reserved]:
        await budgets.free(tx, unsettled)
    for run in done:
        if run.steered and run.prompted:
            await _keep_unread(tx, run)
        if run.previous_state == RunState.AWAITING_INPUT:
            await tx.run(InquiriesSql.withdraw_inquiries, run=run.id)
        moved = state_change(
            run.id, run.session, run.agent_name, run.parent, agent=run.agent, state=run.state, before=run.previous_state
        )
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
        await tx.run(SessionsSql.lock_lines, sessions=sessions)
        woken = await tx.many(RunsSql.wake_next, sessions=sessions)
        await hint(tx, [job.route for job in woken])
