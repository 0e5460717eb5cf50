"""The end of a run: whatever ends it, its calls are answered, its end is announced, and its session's next may begin.

This is what the kernel calls in the transaction that ends a job of ours, by any cause: its worker, a cancel, a
deadline, or the sweep after the last rescue. So no call of a tool is ever left without an answer in the history.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from typing import Any, Literal, NamedTuple, Protocol

from holdfast.agents.content import carries_media, content_from_outside, estimate, is_more_than_text
from holdfast.agents.definition import AGENT_KIND, KINDS, LAYER, TOOL_KIND
from holdfast.agents.events.log import Changes, state_change
from holdfast.agents.messages import MessageDraft, RunRef, add_message, add_messages, encode_block
from holdfast.agents.money import budgets
from holdfast.agents.people.questions import review_unknown
from holdfast.agents.people.records import InquiriesSql
from holdfast.agents.rows import BlockRow, FinishedRun, OpenRun, ReadyRun, RunEnd
from holdfast.agents.runs.history import answers, result_block, uses
from holdfast.agents.statements import CallsSql, ContentSql, InboxSql, MessagesSql, RunsSql, SessionsSql
from holdfast.agents.states import RunState
from holdfast.agents.system_jobs import BATCH
from holdfast.durations import microseconds
from holdfast.kernel import codec
from holdfast.kernel.database import Transaction, hint, reading
from holdfast.kernel.ids import derived_id
from holdfast.kernel.rows import EndedLease, MovedJob
from holdfast.kernel.states import State
from holdfast.kernel.waiting import own_channel
from holdfast.reasons import ACCOUNT_REFUSED
from holdfast.settings import Settings
from holdfast.text import plural
from holdfast.workers.layer import Chore

# Content that a provider refuses: a picture that it cannot read, a PDF with too many pages, a file that is gone.
#
# What was said is sent again with every turn, so what is refused once is refused for ever. Results of tools are
# replaced
# by an error (`refused_results`). Whatever else no answer has followed is retired when its run fails for it: it is
# kept,
# and the session continues from what was accepted last.


REFUSED = "The provider refused this content: "
PROVIDER_ERROR = "streaming_error"
# the types of error of runs whose model could not be asked
ASKING_FAILED = (PROVIDER_ERROR, "context_window", ACCOUNT_REFUSED)
_LONGEST = 500
_CAP = 1 << 20
_LONG = 100_000  # tokens: text like that fills half of the smallest window, and is not an old history's fault alone
_STAYS = "results"  # each answers a call: it can be replaced, not taken away
# As streams fail, and as requests of a batch do.
_INVALID = ("bad_request", "invalid_request_error")
_TOO_LARGE = ("context_window", "request_too_large")
_NOT_THERE = ("not_found", "not_found_error")
CONTENT_KINDS = frozenset((*_INVALID, *_TOO_LARGE, *_NOT_THERE))
_FILE = re.compile(r"\bfile_\w+|[Ff]ile not found")
# A refusal that names another part of the request is about the agent: other content would be refused as well.
_OTHER_PART = re.compile(
    r"""^[`"']?(?:tools|system|tool_choice|thinking|output_config|output_format|max_tokens|model|stop_sequences|betas"""
    r"""|temperature|top_p|top_k|metadata|container|context_management|mcp_servers|service_tier|speed)\b"""
)


class ContentRefusal(NamedTuple):
    """What a provider said of a request that it did not take."""

    kind: str
    message: str

    @property
    def words(self) -> str:
        return codec.clip(self.message.removeprefix(f"{self.kind}: "), _LONGEST)

    def is_about(self, blocks: Sequence[dict[str, Any]]) -> bool:
        """Whether it may be these that were refused, of all that a request is made of."""
        if self.kind in _INVALID:
            return _OTHER_PART.match(self.words) is None
        if self.kind in _TOO_LARGE:
            return any(map(carries_media, blocks)) or estimate(list(blocks)) > _LONG
        return self.kind in _NOT_THERE and _FILE.search(self.words) is not None and any(map(carries_media, blocks))


class RefusedContent(Protocol):
    """As much of a run that failed as its refusal needs."""

    @property
    def id(self) -> str: ...
    @property
    def session(self) -> str: ...
    @property
    def branch(self) -> str: ...
    @property
    def turns(self) -> int: ...


async def refusal_of(tx: Transaction, run: RefusedContent) -> ContentRefusal | None:
    """Why the call was not taken that a run has failed with; None when it was for something else."""
    turn = await tx.one(ContentSql.failed_turn, run=run.id, number=run.turns + 1)
    error: dict[str, Any] = (codec.decode(turn.error) if turn is not None else None) or {}
    return ContentRefusal(str(error.get("kind", "")), str(error.get("message", ""))) if error else None


async def retire_unaccepted(
    tx: Transaction, run: RefusedContent, refusal: ContentRefusal | None, changes: Changes
) -> None:
    """Part of what ends a run as failed: take out of the conversation what may have been refused.

    That is all that was said since the last answer, by this run or one that failed before it: prompts, steers, messages
    that joined it. Results of tools stay, as errors where they are more than text.
    """
    if refusal is None or run.branch:  # what a called agent was told is sent by nobody else
        return
    said = await tx.many(ContentSql.unaccepted, session=run.session)
    blocks = await tx.many(MessagesSql.blocks_of, messages=[each.id for each in said]) if said else []
    if not refusal.is_about([codec.decode(block.body) for block in blocks]):
        return
    for each in said:
        if each.kind == _STAYS:
            own = [block for block in blocks if block.message == each.id]
            uses = [use for block in own if (use := _carrier(block)) is not None]
            await replace_results(tx, each.id, RefusedCall(each.run, each.turn), own, uses, refusal)
    gone = [each.id for each in said if each.kind != _STAYS]
    if gone:
        await tx.run(ContentSql.retire_messages, ids=gone)
        changes.tell(run.id, "messages_retired", {"messages": gone, "reason": f"refused: {refusal.words}"})


def _carrier(block: BlockRow) -> str | None:
    """The call that a result which is more than text answers."""
    body = codec.decode(block.body)
    return str(body.get("tool_use_id")) if body.get("type") == "tool_result" and is_more_than_text(body) else None


class RefusedCall(NamedTuple):
    """Whose calls, and of which turn."""

    run: str
    turn: int


async def replace_results(  # noqa: PLR0917  what is replaced, and by what
    tx: Transaction,
    message: str,
    of: RefusedCall,
    blocks: Sequence[BlockRow],
    uses: Collection[str],
    refusal: ContentRefusal,
) -> None:
    """Tell the model of these calls that their results were refused. What the tools returned stands in their jobs."""
    if not uses:
        return
    said = codec.encode(REFUSED + refusal.words, what="an answer", cap=_CAP)
    for use in uses:
        await tx.run(ContentSql.refuse_result, run=of.run, turn=of.turn, use=use, output=said)
    calls = {call.tool_use_id: call for call in await tx.many(CallsSql.calls_of, run=of.run, turn=of.turn)}
    blobs = [row.hash for row in await tx.many(ContentSql.lock_blobs_of, message=message)]
    for block in blocks:
        use = str(codec.decode(block.body).get("tool_use_id"))
        if use in uses:
            result = (
                result_block(calls[use]) if use in calls else error_block(use, refusal)
            )  # a fork has no calls of it
            await tx.run(ContentSql.rewrite_block, message=message, ordinal=block.ordinal, body=encode_block(result))
    if blobs:
        await tx.run(SessionsSql.delete_blobs, hashes=blobs)


def error_block(use: str, refusal: ContentRefusal) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": use, "content": REFUSED + refusal.words, "is_error": True}


def is_replaced(block: dict[str, Any]) -> bool:
    """Whether it reports a refused result."""
    return bool(block.get("is_error")) and REFUSED in str(block.get("content"))


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

    async def ended(self, tx: Transaction, jobs: Sequence[EndedLease | MovedJob]) -> None:
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
        if any(isinstance(job, MovedJob) for job in ours if job.parent is not None):  # it may have waited for a person
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


class RunEnding(RunRef, Protocol):
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
        await add_messages(tx, [MessageDraft(run, "steer", run.turns, codec.decode(steer.body), steer.id)])
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


# How a run ends by itself.


INTERRUPTED = "interrupted"
_STORED_CAP = 1 << 28


class Conclusion(NamedTuple):
    """How a run ends by itself; "failed" when what the model said cannot be followed."""

    outcome: Literal["answered", "refused", "truncated", "limited", "unfit", "failed"]
    text: str
    output: Any = None
    refusal: dict[str, Any] | None = None
    limited: str | None = None


def end_of(run: str, conclusion: Conclusion) -> RunEnd:
    if conclusion.outcome == "failed":
        return RunEnd(run, RunState.FAILED, error_type=PROVIDER_ERROR, error=conclusion.text)
    return RunEnd(
        run,
        RunState.COMPLETED,
        outcome=conclusion.outcome,
        output=to_json({"text": conclusion.text, "output": conclusion.output}),
        refusal=None if conclusion.refusal is None else to_json(conclusion.refusal),
        limited=conclusion.limited,
    )


def result_for_caller(conclusion: Conclusion) -> str:
    """The result for the caller that used the run as a tool."""
    if conclusion.outcome == "unfit":
        return f"{conclusion.text}\n\n(the agent's answer is not what it was to be: {conclusion.limited})"
    return conclusion.text or f"(the agent ended without an answer: {conclusion.outcome})"


async def retire_refused(tx: Transaction, runs: Sequence[str]) -> None:
    """A refused exchange is kept, and never sent again."""
    for run in runs:
        await tx.run(MessagesSql.retire, run=run)


def to_json(value: Any) -> str:
    return codec.encode(value, what="what a run stores", cap=_STORED_CAP)


# Rescue of runs that a living worker holds and that make no progress. What counts is progress, never age.


log = logging.getLogger("holdfast.agents")

_LIMIT = 100


@reading
async def is_stuck(tx: Transaction, settings: Settings) -> bool:
    return bool(await tx.many(RunsSql.find_stuck, timeout_us=microseconds(settings.rescue_timeout), limit=1))


async def rescue(tx: Transaction, settings: Settings) -> int:
    """End the leases of runs without progress: the sweep requeues them, or fails them at their last rescue."""
    timeout_us = microseconds(settings.rescue_timeout)
    stuck = await tx.many(RunsSql.find_stuck, timeout_us=timeout_us, limit=_LIMIT)
    if stuck:
        them = "it" if len(stuck) == 1 else "them"
        said = "%s made no progress for %s; Holdfast takes %s back"
        log.warning(said, plural(len(stuck), "run"), settings.rescue_timeout, them)
        await tx.run(RunsSql.lapse, seqs=[run.seq for run in stuck], timeout_us=timeout_us)
    return len(stuck)


CHORE = Chore(lambda settings: settings.rescue_interval, rescue, is_stuck)
