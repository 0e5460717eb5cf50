"""A turn of a run, step by step as the store sees it: load, begin, commit, and what ends or interrupts it.

`holdfast.agents.runs.loop` plays a turn: it loads, begins, calls the model, decides what follows, and commits, or
notes that the call failed. Each step that stores something is here, and is one fenced transaction. So nothing
half-written can exist: an answer, its usage, the calls it asks for with their jobs, and the run's next state are stored
together. Doing a step again after a lost answer is recognised by the token and does nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from holdfast.agents.batches.records import BatchesSql, RequestBody
from holdfast.agents.compaction.automatic import compact_after, is_current
from holdfast.agents.content import estimate, is_more_than_text, readable
from holdfast.agents.events.log import Changes, created, state_change
from holdfast.agents.forks.past import RecordedCalls, load_records
from holdfast.agents.messages import MessageDraft, add_message, add_messages
from holdfast.agents.money.budgets import ExceededBudget, inherited_options, is_limited, reserve, settle
from holdfast.agents.money.cost import Spent
from holdfast.agents.people.questions import channel_of, inquire
from holdfast.agents.people.records import InquiriesSql, NewInquiry
from holdfast.agents.rows import (
    CallRow,
    EndedTurn,
    FailedTurn,
    LoadedRun,
    Mail,
    NewCall,
    NewRun,
    ProviderLaneRow,
    RunMail,
    Steer,
    TurnAttempt,
    WindowBlock,
)
from holdfast.agents.runs.create import routed
from holdfast.agents.runs.decision import Decision, ToolCallRequest
from holdfast.agents.runs.end import (
    CONTENT_KINDS,
    INTERRUPTED,
    PROVIDER_ERROR,
    Conclusion,
    ContentRefusal,
    RefusedCall,
    answer_open_calls,
    end_of,
    end_run,
    is_replaced,
    line_of,
    replace_results,
    result_for_caller,
    retire_refused,
    to_json,
)
from holdfast.agents.runs.history import result_block
from holdfast.agents.statements import (
    AgentsSql,
    CallsSql,
    InboxSql,
    MessagesSql,
    ProviderLanesSql,
    RunsSql,
    SessionsSql,
)
from holdfast.agents.states import CallState, RunState, TurnState
from holdfast.errors import LeaseLost
from holdfast.kernel import codec, leases
from holdfast.kernel.complete import complete, complete_and_settle, error_json
from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.enqueue import enqueue
from holdfast.kernel.families import lock_anchors
from holdfast.kernel.ids import derived_id
from holdfast.kernel.rows import Ending, Fence, Lease, NewJob, Route
from holdfast.kernel.states import State
from holdfast.kernel.waiting import add_children, park
from holdfast.models import Reply, ReplyFold

# Load: everything that decides what is sent.


class TurnInputs(NamedTuple):
    run: LoadedRun
    ahead: bool  # another run of the session comes first: what is loaded is not all that will have been said
    window: list[WindowBlock]
    lanes: list[ProviderLaneRow]
    steers: list[Steer]  # messages that came for it, not said yet
    records: RecordedCalls  # what a fork may be answered with
    kept: RequestBody | None = None  # the answer to its turn, from a batch that another program's worker has read


@reading
async def load(tx: Transaction, job: int) -> TurnInputs | None:
    """Everything that decides what is sent."""
    run = await tx.one(RunsSql.load_run, job=job)
    if run is None:
        return None
    ahead = await _somebody_is_ahead(tx, run)  # before the window: when nobody is, what it shows is final
    window = await tx.many(MessagesSql.window, session=run.session, branch=run.branch)
    lanes = await tx.many(ProviderLanesSql.lanes) if run.lanes else []
    steers = await tx.many(InboxSql.open_steers, run=run.id) if run.steered else []
    batched = run.mode == "batch" and run.prompted
    kept = await tx.one(BatchesSql.kept_answer, run=run.id, turn=run.turns + 1) if batched else None
    return TurnInputs(run, ahead, window, lanes, steers, await load_records(tx, run), kept)


async def _somebody_is_ahead(tx: Transaction, run: LoadedRun) -> bool:
    if run.prompted or run.parent is not None or run.ordinal == 1:
        return False
    return await tx.one(RunsSql.run_ahead, session=run.session, ordinal=run.ordinal) is not None


class Play(NamedTuple):
    """A turn that is being played: under which lease, of which run, and where its changes are announced."""

    lease: Lease
    run: LoadedRun
    number: int
    prefix: str = ""
    notify: bool = False  # whether somebody wants to hear of what is asked of people


# Begin: before the model is called, the prompt and the intent are stored.


class Intent(NamedTuple):
    """A call that is about to be made."""

    model: str
    request_hash: str
    fingerprint: str
    steers: Sequence[Steer] = ()  # which messages it takes along
    nano: int = 0  # the most it may cost
    reason: str = ""  # why it is asked in another way than its run would be


QueueResult = Literal["waiting", "first", "cancelled"]
BeginResult = Literal["begun", "again", "cancelled"] | ExceededBudget


async def queue_up(tx: Transaction, play: Play) -> QueueResult:
    """Park the run until those of its session that came before have ended. "first": they have by now; load again."""
    lease, run = play.lease, play.run
    fence = await leases.hold(tx, lease)
    if fence.cancel_requested_at is not None:
        return "cancelled"
    await tx.run(SessionsSql.lock_lines, sessions=[run.session])
    if not await _somebody_is_ahead(tx, run):
        return "first"
    await park(tx, lease, channel=line_of(run.session), timeout_us=None)
    return "waiting"


class CallMode(NamedTuple):
    """In which way a model is asked: the states of the turn and of its run meanwhile."""

    mode: str
    turn: TurnState
    run: RunState


STREAMED = CallMode("streaming", TurnState.CALLING, RunState.STREAMING)


async def begin(tx: Transaction, play: Play, prompt: Sequence[dict[str, Any]], intent: Intent) -> BeginResult:
    """Store the prompt, if it is not there yet, and that a call is about to be made.

    "again": what was loaded is not what will have been said, for the history has been compacted since. Load it again.
    """
    lease, run, number, prefix, _ = play
    fence = await leases.hold(tx, lease)
    turn = await open_turn(tx, play, prompt, intent, fence, STREAMED)
    if not isinstance(turn, TurnAttempt):
        return turn
    changes = Changes(prefix)
    if intent.reason:
        changes.tell(run.id, "mode_chosen", {"mode": "streaming", "reason": intent.reason})
    if run.state != RunState.STREAMING:
        changes.tell(run.id, "run_state", moved(run, RunState.STREAMING, run.state), topic="run_state")
    if turn.attempts > 1:
        changes.tell(run.id, "turn_restarted", {"turn": number, "attempt": turn.attempts})
    else:
        changes.tell(run.id, "turn_started", {"turn": number, "model": intent.model})
    await changes.write(tx)
    return "begun"


async def open_turn(  # noqa: PLR0917  one beginning for every way of asking
    tx: Transaction, play: Play, prompt: Sequence[dict[str, Any]], intent: Intent, fence: Fence, how: CallMode
) -> TurnAttempt | BeginResult:
    """Under a lease that is held: the prompt, what came since, and the intent; or why the model is not asked now.

    "begun": by an earlier call whose answer was lost.
    """
    lease, run, number = play.lease, play.run, play.number
    if fence.cancel_requested_at is not None:
        return "cancelled"
    if how is not STREAMED and await _is_interrupted(tx, run):
        return "again"  # nobody looks while it waits
    if not run.prompted and not await is_current(tx, run):
        return "again"
    if (run.budgets or is_limited(run)) and (over := await reserve(tx, run, number, intent.nano)) is not None:
        return over
    if not run.prompted:
        await add_message(tx, run, "prompt", 0, prompt)
    await _take_steers(tx, run, number, intent.steers)
    turn = await tx.one(
        RunsSql.begin_turn,
        run=run.id,
        number=number,
        model=intent.model,
        request_hash=intent.request_hash,
        fingerprint=intent.fingerprint,
        epoch=lease.epoch,
        token=lease.token,
        state=how.turn,
        mode=how.mode,
        generation=run.generation,
        next=how.run,
    )
    return "begun" if turn is None else turn


async def _is_interrupted(tx: Transaction, run: LoadedRun) -> bool:
    """Since it was loaded: while its job is held, as here, nobody else can say so."""
    mail = await tx.one(InboxSql.mail, run=run.id)
    return mail is not None and mail.interrupted is not None


async def _take_steers(tx: Transaction, run: LoadedRun, number: int, steers: Sequence[Steer]) -> None:
    """What came for the run is said now, after everything that was said before."""
    for steer in steers:
        await add_messages(tx, [MessageDraft(run, "steer", number, codec.decode(steer.body), steer.id)])
    if steers:
        await tx.run(InboxSql.take_steers, ids=[steer.id for steer in steers], turn=number)


# Commit: what is stored of answers, and everything that follows from them, together or not at all.
#
# Answers come one by one from streams, each under the lease of its run, and by the hundred from batches, whose runs
# wait in the store. What is stored is the same.


class Answer(NamedTuple):
    """What a model said, whole."""

    model: str
    blocks: list[dict[str, Any]]
    stop_reason: str
    spent: Spent
    request_id: str | None
    container: str | None = None
    deltas: Sequence[tuple[str, dict[str, Any]]] = ()  # not journaled yet
    repairs: tuple[dict[str, Any], ...] = ()  # calls that could not be told apart as they came


class CommittedTurn(NamedTuple):
    """One answer of one run, and what follows from it; nothing, when the run has been cancelled meanwhile."""

    run: LoadedRun
    number: int
    answer: Answer
    decision: Decision
    cancelled: bool = False

    @property
    def launched(self) -> list[ToolCallRequest]:
        return [] if self.cancelled else [call for call in self.decision.calls if call.job is not None]

    @property
    def inquiries(self) -> list[NewInquiry]:
        asked = [call.inquiry for call in self.launched if call.inquiry is not None]
        if self.decision.inquiry is not None and not self.cancelled:
            asked.append(self.decision.inquiry)
        return asked

    @property
    def next(self) -> str:
        """The state of the run, unless it ends."""
        if self.inquiries:
            return RunState.AWAITING_INPUT
        if self.launched:
            return RunState.PENDING_TOOLS
        return RunState.STREAMING if self.run.mode == "streaming" else RunState.PENDING

    @property
    def ended(self) -> EndedTurn:
        """What its turn stores of it."""
        answer, spent = self.answer, self.answer.spent
        return EndedTurn(
            run=self.run.id,
            number=self.number,
            next=self.next,
            request_id=answer.request_id,
            stop_reason=answer.stop_reason,
            usage=spent.usage,
            model=answer.model,
            container=answer.container,
            continued=1 if self.decision.continuation or self.decision.inquiry else 0,
            **spent.counters(),
        )


CommitResult = Literal["parked", "next", "ended", "cancelled"]


async def commit(tx: Transaction, play: Play, answer: Answer, decision: Decision) -> CommitResult:
    """Store an answer and everything that follows from it."""
    lease, run = play.lease, play.run
    cancelled = await _fence(tx, play, decision)
    if not cancelled:
        decision = after_mail(await tx.one(InboxSql.mail, run=run.id), decision)
    committed = CommittedTurn(run, play.number, answer, decision, cancelled=bool(cancelled))
    changes = Changes(play.prefix)
    if cancelled is None or not await store_answers(tx, [committed], changes, notify=play.notify):
        return "cancelled" if cancelled else _next(decision)  # an earlier call did all this, and its answer was lost
    if cancelled:
        await changes.write(tx)
        return "cancelled"
    if decision.conclusion is not None:
        await _conclude(tx, lease, run, decision.conclusion, changes)
        return "ended"
    await changes.write(tx)
    if committed.launched:
        await add_children(tx, lease.seq, len(committed.launched))
        await park(tx, lease, channel=None, timeout_us=None)
        return "parked"
    if decision.inquiry is not None:
        await park(tx, lease, channel=channel_of(decision.inquiry.id), timeout_us=None)
        return "parked"
    return "next"


async def _fence(tx: Transaction, play: Play, decision: Decision) -> bool | None:
    """Hold the lease; True when a cancel was asked for. None: an earlier call has given it up, with all this stored."""
    lease = play.lease
    calling = any(call.job is not None for call in decision.calls)
    anchors = [seq for seq in (lease.parent, lease.seq if calling else None) if seq is not None]
    if anchors:  # its parent's, and its own if it is to have children: before the lease, as everybody locks
        await lock_anchors(tx, anchors)
    fence = await leases.try_hold(tx, lease)
    if fence is not None:
        return fence.cancel_requested_at is not None
    turn = await tx.one(RunsSql.find_turn, run=play.run.id, number=play.number)
    stored = (TurnState.COMPLETED, lease.epoch, lease.token)
    if turn is not None and (turn.state, turn.epoch, turn.token) == stored:
        return None
    raise LeaseLost(lease.id, lease.fence)


def after_mail(mail: Mail | RunMail | None, decision: Decision) -> Decision:
    """What follows, when something has come meanwhile: an interrupted run calls nothing, a steered one continues.

    Not beyond its limits: then it ends with its answer, and what has come stays in the history for the next run.
    """
    if mail is None or (decision.conclusion is not None and decision.conclusion.outcome in ("refused", "failed")):
        return decision
    if mail.interrupted is not None and decision.conclusion is None:
        return interrupted(decision)
    if mail.steered and decision.conclusion is not None and mail.interrupted is None and not decision.last:
        return decision._replace(conclusion=None)
    return decision


def interrupted(decision: Decision, text: str = "") -> Decision:
    """The run ends here: its calls are not made."""
    calls = tuple(call._replace(job=None, route=None, inquiry=None) for call in decision.calls)
    return Decision(calls, Conclusion("truncated", text, limited=INTERRUPTED))


def partial_reply(folding: ReplyFold) -> Reply:
    """An interrupted answer: what was said is kept, and counted as far as the provider had."""
    reply = folding.so_far(INTERRUPTED)
    said = estimate(reply.blocks) if reply.blocks else 0
    usage = {**reply.usage, "output_tokens": max(said, int(reply.usage.get("output_tokens") or 0))}
    return replace(reply, blocks=readable(reply.blocks), usage=usage)


def _next(decision: Decision) -> CommitResult:
    if decision.conclusion is not None:
        return "ended"
    waits = decision.inquiry is not None or any(call.job is not None for call in decision.calls)
    return "parked" if waits else "next"


async def store_answers(
    tx: Transaction, turns: Sequence[CommittedTurn], changes: Changes, *, notify: bool
) -> list[CommittedTurn]:
    """Store answers with their calls and questions; returns those that an earlier call had not stored.

    The jobs of the runs are the caller's business: they wait for their calls, continue, or end.
    """
    ended = {tuple(key) for key in await tx.many(RunsSql.end_turns, answers=[each.ended for each in turns])}
    fresh = [each for each in turns if (each.run.id, each.number) in ended]
    if not fresh:
        return []
    await add_messages(tx, [MessageDraft(each.run, "answer", each.number, each.answer.blocks) for each in fresh])
    await settle(tx, [(each.run, each.number, each.answer.spent.cost_nano) for each in fresh])
    for each in fresh:
        for type, data in each.answer.deltas:
            changes.tell(each.run.id, type, data)
        counters = each.answer.spent.counters()
        stopped = {"turn": each.number, "stop_reason": each.answer.stop_reason, **counters}
        if each.answer.repairs:
            changes.tell(each.run.id, "answer_repaired", {"turn": each.number, "calls": list(each.answer.repairs)})
        changes.tell(each.run.id, "turn_ended", stopped)
    await _add_calls(tx, [each for each in fresh if each.decision.calls], changes)
    await _answer_on_the_spot(tx, fresh)
    asked = [inquiry for each in fresh for inquiry in each.inquiries]
    if asked:
        await inquire(tx, asked, changes, notify=notify)
    for each in fresh:
        if each.next in (RunState.PENDING_TOOLS, RunState.AWAITING_INPUT):
            changes.tell(each.run.id, "run_state", moved(each.run, each.next), topic="run_state")
    return fresh


def moved(run: LoadedRun, state: str, before: str | None = None) -> dict[str, Any]:
    """What is announced of a run that is being played."""
    before = before or (RunState.STREAMING if run.mode == "streaming" else run.state)
    return state_change(run.id, run.session, run.agent_name, run.parent, agent=run.agent, state=state, before=before)


async def _add_calls(tx: Transaction, turns: Sequence[CommittedTurn], changes: Changes) -> None:
    if not turns:
        return
    jobs: list[NewJob] = []
    routes: set[Route] = set()
    rows: list[NewCall] = []
    for each in turns:
        started = {call.row.id for call in each.launched}
        for call in each.decision.calls:
            if call.row.id in started and call.job is not None and call.route is not None:
                job, route = call.job._replace(parent=each.run.job), call.route
                if call.child is not None:
                    job, route = await routed(tx, job, route, call.child)
                jobs.append(job)
                routes.add(route)
            skipped = call.row.state is None and call.row.id not in started
            rows.append(call.row._replace(state=CallState.SKIPPED, is_error=1) if skipped else call.row)
            said = {"call": call.row.id, "name": call.row.name, "input": codec.decode(call.row.input)}
            data = {**said, "turn": call.row.turn, **_pending(each.run, call)}
            topic: Literal["tool_pending"] | None = "tool_pending" if call.row.id in started else None
            changes.tell(each.run.id, "tool_called", data, topic=topic)
    if jobs:
        await enqueue(tx, jobs, sorted(routes))
    await tx.run(CallsSql.add_calls, calls=rows)
    await _add_children(tx, turns, changes)


def _pending(run: LoadedRun, call: ToolCallRequest) -> dict[str, Any]:
    return {
        "execution_id": call.row.id,
        "run_id": run.id,
        "tool_name": call.row.name,
        "is_agent_tool": call.child is not None,
        "agent_name": call.row.name if call.child is not None else None,
        "agent_id": call.child,
    }


async def _add_children(tx: Transaction, turns: Sequence[CommittedTurn], changes: Changes) -> None:
    runs: list[NewRun] = []
    for each in turns:
        for call in each.launched:
            if call.child is not None:
                agent = await tx.one(AgentsSql.find_agent, id=call.child)
                assert agent is not None, "an agent with versions that name it is never deleted"
                runs.append(_child(each.run, call, agent.id, agent.name, agent.version))
    if runs:
        await tx.run(RunsSql.add_runs, runs=runs)
        for child in runs:
            changes.tell(child.id, "run_created", created(child), topic="run_created")


def _child(run: LoadedRun, call: ToolCallRequest, agent: str, name: str, version: int) -> NewRun:
    own = codec.decode(run.options)
    task = str(codec.decode(call.row.input).get("task", ""))
    return NewRun(
        id=call.row.id,
        session=run.session,
        branch=call.row.id,
        ordinal=0,
        tenant=run.tenant,
        agent=agent,
        agent_name=name,
        version=version,
        mode=run.mode,
        parent=run.id,
        call=call.row.id,
        root=run.root,
        depth=run.depth + 1,
        input=codec.encode([{"type": "text", "text": task or "(no task was given)"}], what="a task", cap=1 << 26),
        variables=run.variables,
        metadata="{}",
        options=to_json(
            inherited_options(run) | {name: own[name] for name in ("beyond_budget", "fork") if name in own}
        ),
        deadline_us=None if run.deadline_at is None else max(1, run.deadline_at - run.now),
    )


async def _answer_on_the_spot(tx: Transaction, turns: Sequence[CommittedTurn]) -> None:
    """Results of turns all of whose calls were answered at once, and the word to continue where one was cut off."""
    results = []
    for each in turns:
        if each.decision.calls and not each.launched and not each.cancelled:
            results.append(await results_of(tx, each.run, each.number))
    await add_messages(tx, results)
    words = [
        MessageDraft(each.run, "continuation", each.number, [{"type": "text", "text": each.decision.continuation}])
        for each in turns
        if each.decision.continuation is not None and not each.cancelled
    ]
    await add_messages(tx, words)


async def results_of(tx: Transaction, run: LoadedRun, number: int) -> MessageDraft:
    """The results of a turn's calls as one message, in the order in which they were asked for."""
    calls: list[CallRow] = await tx.many(CallsSql.calls_of, run=run.id, turn=number)
    return MessageDraft(run, "results", number, [result_block(call) for call in calls])


# End without another call, or let a person say whether to continue.


AskResult = Literal["asked", "again", "cancelled"]


async def conclude(tx: Transaction, play: Play, prompt: Sequence[dict[str, Any]], conclusion: Conclusion) -> bool:
    """End a run without another call. False: a cancel came first."""
    if not await _hold_and_prompt(tx, play, prompt):
        return False
    await answer_open_calls(tx, play.run)
    await _conclude(tx, play.lease, play.run, conclusion, Changes(play.prefix))
    return True


async def ask_person(tx: Transaction, play: Play, prompt: Sequence[dict[str, Any]], inquiry: NewInquiry) -> AskResult:
    """Let the run wait for a person, unless a cancel came first, or an interruption: then load it again."""
    if not await _hold_and_prompt(tx, play, prompt):
        return "cancelled"
    if await _is_interrupted(tx, play.run):
        return "again"
    changes = Changes(play.prefix)
    asked = await tx.one(InquiriesSql.count_asked, run=play.run.id)
    inquiry = inquiry._replace(id=derived_id(inquiry.id, asked.n if asked else 0))  # it may have asked this before
    await inquire(tx, [inquiry], changes, notify=play.notify)
    await tx.run(RunsSql.move_run, id=play.run.id, state=RunState.AWAITING_INPUT)
    changes.tell(play.run.id, "run_state", moved(play.run, RunState.AWAITING_INPUT, play.run.state), topic="run_state")
    await changes.write(tx)
    await park(tx, play.lease, channel=channel_of(inquiry.id), timeout_us=None)
    return "asked"


async def _hold_and_prompt(tx: Transaction, play: Play, prompt: Sequence[dict[str, Any]]) -> bool:
    lease = play.lease
    if lease.parent is not None:
        await lock_anchors(tx, [lease.parent])
    fence = await leases.hold(tx, lease)
    if fence.cancel_requested_at is not None:
        return False
    if not play.run.prompted:
        await add_message(tx, play.run, "prompt", 0, prompt)
        await tx.run(InboxSql.note_prompted, run=play.run.id, generation=play.run.generation)
    return True


async def _conclude(tx: Transaction, lease: Lease, run: LoadedRun, conclusion: Conclusion, changes: Changes) -> None:
    if conclusion.outcome == "refused":
        await retire_refused(tx, [run.id])
    await end_run(tx, end_of(run.id, conclusion), changes)
    await changes.write(tx)
    await compact_after(tx, run)
    if conclusion.outcome == "failed":
        error = error_json(PROVIDER_ERROR, conclusion.text)
        ending = Ending(*lease.held, "failed", State.FAILED, 0, 1, None, error)
    else:
        ending = Ending(*lease.held, "succeeded", State.SUCCEEDED, 0, 1, to_json(result_for_caller(conclusion)), None)
    if lease.parent is None:
        await complete(tx, [ending])
    else:
        await complete_and_settle(tx, [ending], [lease.parent])


# Fail: a call that brought no answer.


async def fail_turn(tx: Transaction, play: Play, error: dict[str, Any], *, unknown: bool, counted: bool) -> FailedTurn:
    """Note that a call failed; returns how often and for how long the turn has been tried."""
    lease, run, number, prefix, _ = play
    await leases.hold(tx, lease)
    turn = await tx.one(
        RunsSql.fail_turn,
        run=run.id,
        number=number,
        epoch=lease.epoch,
        token=lease.token,
        error=to_json(error),
        unknown=int(unknown),
        counted=int(counted),
    )
    if not unknown:
        await settle(tx, [(run, number, 0)])  # what was reserved for it is free while it waits
    if turn is None:
        again = await tx.one(RunsSql.find_turn, run=run.id, number=number)
        if again is None or (again.epoch, again.token) != (lease.epoch, lease.token):
            raise LeaseLost(lease.id, lease.fence)
        return FailedTurn(again.failures, again.attempts, 0)
    changes = Changes(prefix)
    changes.tell(run.id, "turn_failed", {"turn": number, "attempt": turn.attempts, **error})
    await changes.write(tx)
    return turn


# Results of tools that a provider refuses: each is replaced by an error, once, and the model is asked again.
#
# The answer that called the tools was taken, so their results cannot be left out. The provider's words often say which
# block it means (`messages.3.content.1`); where they do not, every result of the turn that is more than text is
# replaced.


_PLACE = re.compile(r"\bmessages\.(\d{1,9})\.content\.(\d{1,9})\b")


def may_repair_results(kind: str, turn: int) -> bool:
    """Whether results of tools may be what was refused: the first turn has none."""
    return turn > 1 and kind in CONTENT_KINDS


def to_replace(results: Sequence[dict[str, Any]], sent: Sequence[dict[str, Any]], refusal: ContentRefusal) -> list[str]:
    """Which calls' results the refusal is about; none when results were replaced before. `sent`: the whole request."""
    if any(map(is_replaced, results)) or not refusal.is_about(results):
        return []
    carriers = [str(block["tool_use_id"]) for block in results if is_more_than_text(block)]
    place = _PLACE.search(refusal.message)
    if place is None:
        return carriers
    message, number = int(place[1]), int(place[2])
    content = sent[message]["content"] if message < len(sent) else None
    block = content[number] if isinstance(content, list) and number < len(content) else {}
    if any(block.get("tool_use_id") == result["tool_use_id"] for result in results):
        return [str(block["tool_use_id"])]
    # What is old was taken before: it is one too many now. What is new and no result is not ours to replace.
    return carriers if message < len(sent) - 1 or block.get("type") == "tool_result" else []


async def repair_results(  # noqa: PLR0917  whose results, and what was said of them
    tx: Transaction,
    run: LoadedRun,
    turn: int,
    sent: Sequence[dict[str, Any]],
    refusal: ContentRefusal,
    changes: Changes,
) -> bool:
    """Replace what was refused of the results that this turn was to read; False: there is nothing to replace."""
    message = derived_id(run.id, "results", turn - 1)
    blocks = await tx.many(MessagesSql.blocks_of, messages=[message])
    results = [codec.decode(block.body) for block in blocks]
    uses = to_replace([block for block in results if block.get("type") == "tool_result"], sent, refusal)
    if not uses:
        return False
    await replace_results(tx, message, RefusedCall(run.id, turn - 1), blocks, uses, refusal)
    changes.tell(run.id, "results_refused", {"turn": turn, "calls": uses, "message": refusal.words})
    return True


async def fail_and_repair(
    tx: Transaction, play: Play, error: dict[str, Any], sent: Sequence[dict[str, Any]], *, unknown: bool
) -> bool:
    """Note that a call was refused, and make its results such that it can be made again; False: nothing is changed."""
    changes = Changes(play.prefix)
    refusal = ContentRefusal(str(error["kind"]), str(error["message"]))
    await leases.hold(tx, play.lease)
    turn = await tx.one(RunsSql.find_turn, run=play.run.id, number=play.number)
    failed = (TurnState.FAILED, play.lease.epoch, play.lease.token)
    if turn is not None and (turn.state, turn.epoch, turn.token) == failed:
        return True  # an earlier call did it, and its answer was lost
    if not await repair_results(tx, play.run, play.number, sent, refusal, changes):
        return False
    await fail_turn(tx, play, error, unknown=unknown, counted=unknown)
    await changes.write(tx)
    return True
