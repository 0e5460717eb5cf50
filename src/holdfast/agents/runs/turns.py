"""Turns: what is written before a model is called, and after it has answered. Each is one fenced transaction.

Nothing half-written can exist: the answer, its usage, the calls it asks for with their jobs, and the run's next
state are stored together. Doing it again after a lost answer is recognised by the token and does nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from holdfast.agents.batches.records import BatchesSql, RequestBody
from holdfast.agents.compaction.automatic import compact_after, is_current
from holdfast.agents.content import estimate, is_more_than_text, readable
from holdfast.agents.events.log import Changes
from holdfast.agents.forks.past import Records, load_records
from holdfast.agents.messages import Said, add_message, add_messages
from holdfast.agents.money.budgets import Over, is_limited, reserve, settle
from holdfast.agents.people.questions import channel_of, inquire
from holdfast.agents.people.records import InquiriesSql, NewInquiry
from holdfast.agents.rows import FailedTurn, LoadedRun, Mail, MailOf, ProviderLaneRow, Steer, TurnAttempt, WindowBlock
from holdfast.agents.runs.commit import (
    INTERRUPTED,
    PROVIDER_ERROR,
    Answer,
    Conclusion,
    Decision,
    Turned,
    end_of,
    moved,
    result_for_caller,
    retire_refused,
    store_answers,
    to_json,
)
from holdfast.agents.runs.end import (
    CONTENT_KINDS,
    ContentRefusal,
    RefusedCall,
    answer_open_calls,
    end_run,
    is_replaced,
    line_of,
    replace_results,
)
from holdfast.agents.runs.history import CLIENT_USE
from holdfast.agents.statements import InboxSql, MessagesSql, ProvidersSql, RunsSql, SessionsSql
from holdfast.agents.states import RunState, TurnState
from holdfast.errors import LeaseLost
from holdfast.kernel import codec, leases
from holdfast.kernel.complete import complete, complete_and_settle, error_json
from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.families import lock_anchors
from holdfast.kernel.ids import derived_id
from holdfast.kernel.rows import Ending, Fence, Lease
from holdfast.kernel.states import State
from holdfast.kernel.waiting import add_children, park
from holdfast.models import Folding, Reply


class Loaded(NamedTuple):
    run: LoadedRun
    ahead: bool  # another run of the session comes first: what is loaded is not all that will have been said
    window: list[WindowBlock]
    lanes: list[ProviderLaneRow]
    steers: list[Steer]  # messages that came for it, not said yet
    records: Records  # what a fork may be answered with
    kept: RequestBody | None = None  # the answer to its turn, from a batch that another program's worker has read


class Play(NamedTuple):
    """A turn that is being played: under which lease, of which run, and where its changes are announced."""

    lease: Lease
    run: LoadedRun
    number: int
    prefix: str = ""
    notify: bool = False  # whether somebody wants to hear of what is asked of people


class Intent(NamedTuple):
    """A call that is about to be made."""

    model: str
    request_hash: str
    fingerprint: str
    steers: Sequence[Steer] = ()  # which messages it takes along
    nano: int = 0  # the most it may cost
    reason: str = ""  # why it is asked in another way than its run would be


Queued = Literal["waiting", "first", "cancelled"]
Begun = Literal["begun", "again", "cancelled"] | Over
Committed = Literal["parked", "next", "ended", "cancelled"]
Asking = Literal["asked", "again", "cancelled"]


@reading
async def load(tx: Transaction, job: int) -> Loaded | None:
    """Everything that decides what is sent."""
    run = await tx.one(RunsSql.load_run, job=job)
    if run is None:
        return None
    ahead = await _somebody_is_ahead(tx, run)  # before the window: when nobody is, what it shows is final
    window = await tx.many(MessagesSql.window, session=run.session, branch=run.branch)
    lanes = await tx.many(ProvidersSql.lanes) if run.lanes else []
    steers = await tx.many(InboxSql.open_steers, run=run.id) if run.steered else []
    batched = run.mode == "batch" and run.prompted
    kept = await tx.one(BatchesSql.kept_answer, run=run.id, turn=run.turns + 1) if batched else None
    return Loaded(run, ahead, window, lanes, steers, await load_records(tx, run), kept)


async def _somebody_is_ahead(tx: Transaction, run: LoadedRun) -> bool:
    if run.prompted or run.parent is not None or run.ordinal == 1:
        return False
    return await tx.one(RunsSql.run_ahead, session=run.session, ordinal=run.ordinal) is not None


async def queue_up(tx: Transaction, play: Play) -> Queued:
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


async def begin(tx: Transaction, play: Play, prompt: Sequence[dict[str, Any]], intent: Intent) -> Begun:
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


class How(NamedTuple):
    """In which way a model is asked: the states of the turn and of its run meanwhile."""

    mode: str
    turn: TurnState
    run: RunState


STREAMED = How("streaming", TurnState.CALLING, RunState.STREAMING)


async def open_turn(  # noqa: PLR0917  one beginning for every way of asking
    tx: Transaction, play: Play, prompt: Sequence[dict[str, Any]], intent: Intent, fence: Fence, how: How
) -> TurnAttempt | Begun:
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
        await add_messages(tx, [Said(run, "steer", number, codec.decode(steer.body), steer.id)])
    if steers:
        await tx.run(InboxSql.take_steers, ids=[steer.id for steer in steers], turn=number)


async def commit(tx: Transaction, play: Play, answer: Answer, decision: Decision) -> Committed:
    """Store an answer and everything that follows from it."""
    lease, run = play.lease, play.run
    cancelled = await _fence(tx, play, decision)
    if not cancelled:
        decision = after_mail(await tx.one(InboxSql.mail, run=run.id), decision)
    turned = Turned(run, play.number, answer, decision, cancelled=bool(cancelled))
    changes = Changes(play.prefix)
    if cancelled is None or not await store_answers(tx, [turned], changes, notify=play.notify):
        return "cancelled" if cancelled else _next(decision)  # an earlier call did all this, and its answer was lost
    if cancelled:
        await changes.write(tx)
        return "cancelled"
    if decision.conclusion is not None:
        await _conclude(tx, lease, run, decision.conclusion, changes)
        return "ended"
    await changes.write(tx)
    if turned.launched:
        await add_children(tx, lease.seq, len(turned.launched))
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


def after_mail(mail: Mail | MailOf | None, decision: Decision) -> Decision:
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


def so_far(folding: Folding) -> Reply:
    """An interrupted answer: what was said is kept, and counted as far as the provider had."""
    reply = folding.so_far(INTERRUPTED)
    said = estimate(reply.blocks) if reply.blocks else 0
    usage = {**reply.usage, "output_tokens": max(said, int(reply.usage.get("output_tokens") or 0))}
    return replace(reply, blocks=readable(reply.blocks), usage=usage)


def _next(decision: Decision) -> Committed:
    if decision.conclusion is not None:
        return "ended"
    waits = decision.inquiry is not None or any(call.job is not None for call in decision.calls)
    return "parked" if waits else "next"


async def conclude(tx: Transaction, play: Play, prompt: Sequence[dict[str, Any]], conclusion: Conclusion) -> bool:
    """End a run without another call. False: a cancel came first."""
    if not await _hold_and_prompt(tx, play, prompt):
        return False
    await answer_open_calls(tx, play.run)
    await _conclude(tx, play.lease, play.run, conclusion, Changes(play.prefix))
    return True


async def ask_person(tx: Transaction, play: Play, prompt: Sequence[dict[str, Any]], inquiry: NewInquiry) -> Asking:
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
# The answer that called the tools was taken, so their results cannot be left out. The provider's words often say
# which
# block it means (`messages.3.content.1`); where they do not, every result of the turn that is more than text is
# replaced.


_PLACE = re.compile(r"\bmessages\.(\d{1,9})\.content\.(\d{1,9})\b")


def may_be_mended(kind: str, turn: int) -> bool:
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


async def mend_results(  # noqa: PLR0917  whose results, and what was said of them
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


async def fail_and_mend(
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
    if not await mend_results(tx, play.run, play.number, sent, refusal, changes):
        return False
    await fail_turn(tx, play, error, unknown=unknown, counted=unknown)
    await changes.write(tx)
    return True


# Ids of calls: every call of an answer has one that no other call of the conversation has.
#
# Providers see to that, and what stands between us and them does not always. The answer is paid for, so it is kept: a
# call without an id, or with one that is taken, gets an id of ours. It is made from the run, the turn and the place,
# so
# that reading the same answer again gives the same one.


_ID = re.compile("[a-zA-Z0-9_-]{1,256}")
UNNAMED = "unnamed"  # what a call without a name is called in the history


class Mended(NamedTuple):
    """An answer whose calls can be told apart, and what was changed for that, one entry for each call."""

    reply: Reply
    repairs: tuple[dict[str, Any], ...] = ()


def used_ids(window: Sequence[WindowBlock]) -> set[str]:
    """The ids of the calls that were made before."""
    return {str(codec.decode(row.body).get("id")) for row in window if row.type == CLIENT_USE}


def mended(reply: Reply, run: str, turn: int, taken: Collection[str] = ()) -> Mended:
    """The answer with an id and a name for each call; `taken` are the ids of earlier ones."""
    uses = [place for place, block in enumerate(reply.blocks) if block.get("type") == CLIENT_USE]
    if not uses:
        return Mended(reply)
    blocks, seen = list(reply.blocks), set(taken)
    repairs: list[dict[str, Any]] = []
    bad: dict[str, str] = {}
    nameless: set[str] = set()
    for place in uses:
        block = blocks[place]
        id, name, given = block.get("id"), block.get("name"), block.get("input")
        own = id if isinstance(id, str) and _ID.fullmatch(id) and id not in seen else _own_id(run, turn, place)
        named = isinstance(name, str) and bool(name.strip())
        seen.add(own)
        if not named:
            nameless.add(own)
        if place in reply.bad_places or not isinstance(given, dict):
            bad[own] = reply.bad_inputs.get(str(id), "")
        if own != id or not named or not isinstance(given, dict):
            blocks[place] = {
                **block,
                "id": own,
                "name": name if named else UNNAMED,
                "input": given if isinstance(given, dict) else {},
            }
        if own != id or not named:
            repairs.append({"index": place, "was": codec.clip(str(id), 200), "id": own, "named": named})
    kept = replace(reply, blocks=blocks, bad_inputs=bad, nameless=frozenset(nameless), duplicates=())
    return Mended(kept, tuple(repairs))


def _own_id(run: str, turn: int, place: int) -> str:
    return "toolu_" + derived_id(run, "use", turn, place).replace("-", "")
