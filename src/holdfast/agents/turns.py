"""Turns: what is written before a model is called, and after it has answered. Each is one fenced transaction.

Nothing half-written can exist: the answer, its usage, the calls it asks for with their jobs, and the run's next
state are stored together. Doing it again after a lost answer is recognised by the token and does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from holdfast.agents.changes import Changes
from holdfast.agents.creating import created
from holdfast.agents.ending import End, end_run, line_of
from holdfast.agents.history import result_block
from holdfast.agents.records import FailedTurn, LaneRow, LoadedRun, NewCall, NewRun, WindowBlock
from holdfast.agents.statements import Agents, Calls, Messages, Providers, Runs, Sessions
from holdfast.agents.storing import add_message
from holdfast.errors import LeaseLost
from holdfast.kernel import encoding
from holdfast.kernel.complete import complete, complete_and_settle, error_json
from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.enqueue import enqueue
from holdfast.kernel.families import lock_order
from holdfast.kernel.ids import derived_id
from holdfast.kernel.records import Ending, Lease, NewJob, Route
from holdfast.kernel.statements import Jobs, Waiting
from holdfast.kernel.states import State
from holdfast.kernel.waiting import park

PROVIDER_ERROR = "streaming_error"


class Loaded(NamedTuple):
    run: LoadedRun
    ahead: bool  # another run of the session comes first: what is loaded is not all that will have been said
    window: list[WindowBlock]
    lanes: list[LaneRow]


class Play(NamedTuple):
    """A turn that is being played: under which lease, of which run, and where its changes are announced."""

    lease: Lease
    run: LoadedRun
    number: int
    prefix: str = ""


class Intent(NamedTuple):
    """A call that is about to be made."""

    model: str
    request_hash: str
    fingerprint: str


class Spent(NamedTuple):
    """What one answer used and cost."""

    usage: str
    input_tokens: int
    output_tokens: int
    cache_write_tokens: int
    cache_read_tokens: int
    cost_nano: int

    def counters(self) -> dict[str, int]:
        return {
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cache_write_tokens": self.cache_write_tokens,
            "cache_read_tokens": self.cache_read_tokens,
            "cost_nano": self.cost_nano,
        }


class Answer(NamedTuple):
    """What a model said, whole."""

    model: str
    blocks: list[dict[str, Any]]
    stop_reason: str
    spent: Spent
    request_id: str | None
    container: str | None = None
    deltas: Sequence[tuple[str, dict[str, Any]]] = ()  # not journaled yet


class Call(NamedTuple):
    """One request to run a tool: with a job, or answered on the spot."""

    row: NewCall
    job: NewJob | None = None
    route: Route | None = None
    child: str | None = None  # the id of the agent that answers it in a run of its own


class Conclusion(NamedTuple):
    """How a run ends by itself; "failed" when what the model said cannot be followed."""

    outcome: Literal["answered", "refused", "truncated", "limited", "failed"]
    text: str
    output: Any = None
    refusal: dict[str, Any] | None = None
    limited: str | None = None


Queued = Literal["waiting", "first", "cancelled"]
Committed = Literal["parked", "next", "ended", "cancelled"]


@reading
async def load(tx: Transaction, job: int) -> Loaded | None:
    """Everything that decides what is sent."""
    run = await tx.one(Runs.load_run, job=job)
    if run is None:
        return None
    ahead = await _somebody_is_ahead(tx, run)  # before the window: when nobody is, what it shows is final
    window = await tx.many(Messages.window, session=run.session, branch=run.branch)
    return Loaded(run, ahead, window, await tx.many(Providers.closed_lanes) if run.lanes else [])


async def _somebody_is_ahead(tx: Transaction, run: LoadedRun) -> bool:
    if run.prompted or run.parent is not None or run.ordinal == 1:
        return False
    return await tx.one(Runs.run_ahead, session=run.session, ordinal=run.ordinal) is not None


async def queue_up(tx: Transaction, play: Play) -> Queued:
    """Park the run until those of its session that came before have ended. "first": they have by now; load again."""
    lease, run = play.lease, play.run
    fence = await tx.one(Waiting.hold, **lease.held._asdict())
    if fence is None:
        raise LeaseLost(lease.id, lease.fence)
    if fence.cancel_requested_at is not None:
        return "cancelled"
    await tx.run(Sessions.lock_line, line=line_of(run.session))
    if not await _somebody_is_ahead(tx, run):
        return "first"
    await park(tx, lease, channel=line_of(run.session), timeout_us=None)
    return "waiting"


async def begin(tx: Transaction, play: Play, prompt: Sequence[dict[str, Any]], intent: Intent) -> bool:
    """Store the prompt, if it is not there yet, and that a call is about to be made. False: a cancel came first."""
    lease, run, number, prefix = play
    fence = await tx.one(Waiting.hold, **lease.held._asdict())
    if fence is None:
        raise LeaseLost(lease.id, lease.fence)
    if fence.cancel_requested_at is not None:
        return False
    if not run.prompted:
        await add_message(tx, run, "prompt", 0, prompt)
    turn = await tx.one(
        Runs.begin_turn,
        run=run.id,
        number=number,
        model=intent.model,
        request_hash=intent.request_hash,
        fingerprint=intent.fingerprint,
        epoch=lease.epoch,
        token=lease.token,
    )
    if turn is None:
        return True  # begun by an earlier call whose answer was lost
    changes = Changes(prefix)
    if run.state != "streaming":
        changes.tell(run.id, "run_state", state_of(run, "streaming"), topic="run_state")
    if turn.attempts > 1:
        changes.tell(run.id, "turn_restarted", {"turn": number, "attempt": turn.attempts})
    else:
        changes.tell(run.id, "turn_started", {"turn": number, "model": intent.model})
    await changes.write(tx)
    return True


async def commit(
    tx: Transaction, play: Play, answer: Answer, calls: Sequence[Call], conclusion: Conclusion | None
) -> Committed:
    """Store an answer and everything that follows from it."""
    lease, run, number, prefix = play
    cancelled = await _fence(tx, play)
    launched = [call for call in calls if call.job is not None] if not cancelled else []
    counters = answer.spent.counters()
    ended = cancelled is not None and await tx.one(
        Runs.end_turn,
        run=run.id,
        number=number,
        next="pending_tools" if launched else "streaming",
        request_id=answer.request_id,
        stop_reason=answer.stop_reason,
        usage=answer.spent.usage,
        model=answer.model,
        container=answer.container,
        **counters,
    )
    if not ended:  # an earlier call has done all this, and its answer was lost
        return "cancelled" if cancelled else _next(calls, conclusion)
    await add_message(tx, run, "answer", number, answer.blocks)
    changes = Changes(prefix)
    for type, data in answer.deltas:
        changes.tell(run.id, type, data)
    changes.tell(run.id, "turn_ended", {"turn": number, "stop_reason": answer.stop_reason, **counters})
    if calls:
        await _add_calls(tx, play, calls, launched, changes)
    if cancelled:
        await changes.write(tx)
        return "cancelled"
    if calls and not launched:
        await answer_calls(tx, run, number)
    if conclusion is not None:
        await _conclude(tx, lease, run, conclusion, changes)
        return "ended"
    if launched:
        changes.tell(run.id, "run_state", state_of(run, "pending_tools", "streaming"), topic="run_state")
        await changes.write(tx)
        await park(tx, lease, channel=None, timeout_us=None)
        return "parked"
    await changes.write(tx)
    return "next"


async def _fence(tx: Transaction, play: Play) -> bool | None:
    """Hold the lease; True when a cancel was asked for. None: an earlier call has given it up, with all this stored."""
    lease, run, number, _ = play
    if lease.parent is not None:  # parents before children, as everybody locks
        await tx.many(Jobs.lock_jobs, seqs=lock_order([(lease.seq, lease.parent)]))
    fence = await tx.one(Waiting.hold, **lease.held._asdict())
    if fence is not None:
        return fence.cancel_requested_at is not None
    turn = await tx.one(Runs.find_turn, run=run.id, number=number)
    if turn is not None and turn.state == "completed" and (turn.epoch, turn.token) == (lease.epoch, lease.token):
        return None
    raise LeaseLost(lease.id, lease.fence)


def _next(calls: Sequence[Call], conclusion: Conclusion | None) -> Committed:
    if conclusion is not None:
        return "ended"
    return "parked" if any(call.job is not None for call in calls) else "next"


async def _add_calls(
    tx: Transaction, play: Play, calls: Sequence[Call], launched: Sequence[Call], changes: Changes
) -> None:
    lease, run = play.lease, play.run
    if launched:
        jobs = [call.job._replace(parent=lease.seq) for call in launched if call.job is not None]
        routes = {call.route for call in launched if call.route is not None}
        added = await enqueue(tx, jobs, sorted(routes))
        await tx.run(Waiting.add_children, seq=lease.seq, added=added)
    started = {call.row.id for call in launched}
    rows = [
        call.row
        if call.row.state is not None or call.row.id in started
        else call.row._replace(state="skipped", is_error=1)
        for call in calls
    ]
    await tx.run(Calls.add_calls, calls=rows)
    for call in calls:
        said = {"call": call.row.id, "name": call.row.name, "input": encoding.decode(call.row.input)}
        told = {**said, "turn": call.row.turn, **_pending(run, call)}
        changes.tell(run.id, "tool_called", told, topic="tool_pending" if call.row.id in started else None)
    await _add_children(tx, run, [call for call in launched if call.child is not None], changes)


def _pending(run: LoadedRun, call: Call) -> dict[str, Any]:
    return {
        "execution_id": call.row.id,
        "run_id": run.id,
        "tool_name": call.row.name,
        "is_agent_tool": call.child is not None,
        "agent_name": call.row.name if call.child is not None else None,
    }


async def _add_children(tx: Transaction, run: LoadedRun, calls: Sequence[Call], changes: Changes) -> None:
    runs: list[NewRun] = []
    own = encoding.decode(run.options)
    for call in calls:
        agent = await tx.one(Agents.find_agent, id=call.child)
        assert agent is not None, "an agent with versions that name it is never deleted"
        task = str(encoding.decode(call.row.input).get("task", ""))
        child = NewRun(
            id=call.row.id,
            session=run.session,
            branch=call.row.id,
            ordinal=0,
            tenant=run.tenant,
            agent=agent.id,
            agent_name=agent.name,
            version=agent.version,
            mode=run.mode,
            parent=run.id,
            call=call.row.id,
            root=run.root,
            depth=run.depth + 1,
            input=encoding.encode(
                [{"type": "text", "text": task or "(no task was given)"}], what="a task", cap=1 << 26
            ),
            variables=run.variables,
            metadata="{}",
            options=_json({name: given for name, given in own.items() if name == "limits"}),
        )
        runs.append(child)
    if runs:
        await tx.run(Runs.add_runs, runs=runs)
        for child in runs:
            changes.tell(child.id, "run_created", created(child), topic="run_created")


async def answer_calls(tx: Transaction, run: LoadedRun, number: int) -> None:
    """Write the results of a turn's calls as one message, in the order in which they were asked for."""
    calls = await tx.many(Calls.calls_of, run=run.id, turn=number)
    await add_message(tx, run, "results", number, [result_block(call) for call in calls])


async def conclude(tx: Transaction, play: Play, prompt: Sequence[dict[str, Any]], conclusion: Conclusion) -> bool:
    """End a run without another call. False: a cancel came first."""
    lease, run, _, prefix = play
    if lease.parent is not None:
        await tx.many(Jobs.lock_jobs, seqs=lock_order([(lease.seq, lease.parent)]))
    fence = await tx.one(Waiting.hold, **lease.held._asdict())
    if fence is None:
        raise LeaseLost(lease.id, lease.fence)
    if fence.cancel_requested_at is not None:
        return False
    if not run.prompted:
        await add_message(tx, run, "prompt", 0, prompt)
    await _conclude(tx, lease, run, conclusion, Changes(prefix))
    return True


async def _conclude(tx: Transaction, lease: Lease, run: LoadedRun, conclusion: Conclusion, changes: Changes) -> None:
    if conclusion.outcome == "refused":
        await tx.run(Messages.retire, run=run.id)
    await end_run(tx, run.id, _end(conclusion), changes)
    await changes.write(tx)
    if conclusion.outcome == "failed":
        error = error_json(PROVIDER_ERROR, conclusion.text)
        ending = Ending(*lease.held, "failed", State.FAILED, 0, 1, None, error)
    else:
        told = conclusion.text or f"(the agent ended without an answer: {conclusion.outcome})"
        ending = Ending(*lease.held, "succeeded", State.SUCCEEDED, 0, 1, _json(told), None)
    if lease.parent is None:
        await complete(tx, [ending])
    else:
        await complete_and_settle(tx, [ending], [lease.parent])


def _end(conclusion: Conclusion) -> End:
    if conclusion.outcome == "failed":
        return End("failed", error_type=PROVIDER_ERROR, error=conclusion.text)
    return End(
        "completed",
        outcome=conclusion.outcome,
        output=_json({"text": conclusion.text, "output": conclusion.output}),
        refusal=None if conclusion.refusal is None else _json(conclusion.refusal),
        limited=conclusion.limited,
    )


async def fail_turn(tx: Transaction, play: Play, error: dict[str, Any], *, unknown: bool, counted: bool) -> FailedTurn:
    """Note that a call failed; returns how often and for how long the turn has been tried."""
    lease, run, number, prefix = play
    if await tx.one(Waiting.hold, **lease.held._asdict()) is None:
        raise LeaseLost(lease.id, lease.fence)
    turn = await tx.one(
        Runs.fail_turn,
        run=run.id,
        number=number,
        epoch=lease.epoch,
        token=lease.token,
        error=_json(error),
        unknown=int(unknown),
        counted=int(counted),
    )
    if turn is None:
        again = await tx.one(Runs.find_turn, run=run.id, number=number)
        if again is None or (again.epoch, again.token) != (lease.epoch, lease.token):
            raise LeaseLost(lease.id, lease.fence)
        return FailedTurn(again.failures, again.attempts, 0)
    changes = Changes(prefix)
    changes.tell(run.id, "turn_failed", {"turn": number, "attempt": turn.attempts, **error})
    await changes.write(tx)
    return turn


def state_of(run: LoadedRun, state: str, before: str | None = None) -> dict[str, Any]:
    """What is announced of a change of state."""
    return {
        "run_id": run.id,
        "session_id": run.session,
        "agent_name": run.agent_name,
        "state": state,
        "previous_state": before or run.state,
        "parent_run_id": run.parent,
    }


def call_id(run: str, turn: int, ordinal: int) -> str:
    return derived_id(run, "call", turn, ordinal)


def _json(value: Any) -> str:
    return encoding.encode(value, what="what a run stores", cap=1 << 28)
