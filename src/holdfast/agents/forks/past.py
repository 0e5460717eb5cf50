"""The past of a conversation: what was said before some place, as it was sent then, and whose it was.

Compactions take messages out and put others in their places; all of them are kept, so that what a run once saw can be
found again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from holdfast.agents.compaction.records import CompactionRow
from holdfast.agents.forks.records import ForksSql, PastMessage
from holdfast.agents.people.questions import digest_of_input
from holdfast.agents.queries import list_compactions
from holdfast.agents.rows import CallRow, LoadedRun, RunRow
from holdfast.agents.runs.end import INTERRUPTED
from holdfast.agents.runs.history import result_block
from holdfast.agents.statements import CallsSql, RunsSql
from holdfast.agents.states import CallState, CompactionState
from holdfast.errors import UsageError
from holdfast.kernel import codec
from holdfast.kernel.database import Transaction

Purpose = Literal["fork", "export", "replay"]

OUTDATED = "retired "  # before the fingerprint of an answer that was said after words which were taken out since
_PAUSED = "pause_turn"
_REFUSED = "refusal"
_CUT = ("max_tokens", INTERRUPTED)


class ForkedHistory(NamedTuple):
    messages: list[PastMessage]
    generation: str  # under which thinking in it is valid
    cut: bool = False  # whether it ends with an answer that was cut off


def latest_whole(messages: Sequence[PastMessage]) -> list[PastMessage]:
    """As much as can be gone on from: without a last answer whose calls are open."""
    kept = list(messages)
    while kept and kept[-1].asks:
        kept.pop()
    return kept


def check_whole(messages: Sequence[PastMessage], at: int) -> None:
    """`UsageError` when this ends between a call and its answer."""
    if not messages:
        raise UsageError(f"there is no message at or before {at}; the first one has another number.")
    if messages[-1].asks:
        raise UsageError(
            f"message {messages[-1].ordinal} calls tools whose answers come after it: "
            f"fork before it, or at the message that holds them."
        )


class EarlierTurns(NamedTuple):
    """The turns of a run before this one."""

    run: str
    before: int


async def lineage(tx: Transaction, run: str) -> list[EarlierTurns]:
    """Whose turns a fork has taken over, oldest first. What a run has played itself stands behind them."""
    found: list[EarlierTurns] = []
    fork = await tx.one(ForksSql.fork_of, run=run)
    while fork is not None and fork.forked_from is not None:
        before = min(fork.forked_at or 1, found[-1].before if found else fork.forked_at or 1)
        found.append(EarlierTurns(fork.forked_from, before))
        fork = await tx.one(ForksSql.fork_of, run=fork.forked_from)
    return found[::-1]


async def calls_before(tx: Transaction, run: str) -> list[CallRow]:
    """The calls of the turns that a fork has taken over."""
    return [
        call
        for stretch in await lineage(tx, run)
        for call in await tx.many(CallsSql.calls_of, run=stretch.run, turn=None)
        if call.turn < stretch.before
    ]


async def as_played(tx: Transaction, run: RunRow, at: int | None, to: Purpose = "fork") -> ForkedHistory:
    """What a run had before it when it was about to play this turn.

    Without a turn, all that the run has said is part of it, whatever became of that.
    """
    messages = await tx.many(ForksSql.past, session=run.session)
    turns = await tx.many(RunsSql.list_turns, run=run.id, after=0, limit=1_000_000)
    stops = {turn.number: turn.stop_reason for turn in turns}
    prompt = next((each for each in messages if each.run == run.id and each.kind == "prompt"), None)
    if prompt is None:
        raise UsageError(f"run {run.id} has not begun: there is nothing to {to}.")
    seen = await tx.one(ForksSql.generation_seen, run=run.id, turn=at)
    rows = await list_compactions(tx, run.session, limit=1_000_000)
    generation, chain = _standing("" if seen is None else seen.generation, rows)
    visible = [each for each in messages if _is_visible(each, chain)]
    own = [each for each in visible if each.run == run.id]
    cut = False
    if at is not None:
        own = [each for each in own if _is_before(each, at) and not _declined(each, stops)]
        cut = _is_cut(run, own, stops)
    before = [each for each in visible if each.ordinal < prompt.ordinal and each.run != run.id]
    kept = [*(each for each in before if not _is_left_out(each, run.ordinal)), *own]
    gone = [each.ordinal for each in before if each.retired is not None and each.retired < run.ordinal]
    return ForkedHistory([_with_valid_fingerprint(each, min(gone, default=None)) for each in kept], generation, cut)


def _is_before(message: PastMessage, at: int) -> bool:
    """A message that came for the run is said with the turn that takes it, before its answer."""
    return message.turn < at or (message.kind == "steer" and message.turn == at)


def _declined(message: PastMessage, stops: dict[int, str | None]) -> bool:
    """An answer after which another model was asked: it is never sent again."""
    return message.kind == "answer" and stops.get(message.turn) == _REFUSED


def _is_cut(run: RunRow, own: Sequence[PastMessage], stops: dict[int, str | None]) -> bool:
    """Whether it ends with an answer that was cut off; `UsageError` when nothing can come after its end."""
    last = own[-1]
    if last.kind != "answer" or stops.get(last.turn) == _PAUSED:
        return False
    if stops.get(last.turn) in _CUT and not last.asks:
        return True
    if last.asks:
        raise UsageError(f"the calls of turn {last.turn} of run {run.id} are not answered yet: fork at {last.turn}.")
    raise UsageError(f"run {run.id} ended with turn {last.turn}: fork at {last.turn} or before.")


def _standing(generation: str, rows: Sequence[CompactionRow]) -> tuple[str, set[str]]:
    """The generation that shows what a run saw, and the compactions of this session that it is made of.

    What one that was undone since took out is not known any more: what was said before it stands in its place, whole.
    """
    known = {row.id: row for row in rows}
    while (row := known.get(generation)) is not None and row.state != CompactionState.DONE:
        generation = row.before_generation
    below, chain = generation, set[str]()
    while (row := known.get(below)) is not None:
        chain.add(row.id)
        below = row.before_generation
    return generation, chain


def _is_visible(message: PastMessage, chain: set[str]) -> bool:
    return (message.made_by is None or message.made_by in chain) and message.compacted not in chain


def _is_left_out(message: PastMessage, ordinal: int) -> bool:
    """Whether the run of this place in line was not sent it: its own run was refused, or it was taken out before."""
    if message.retired is not None:
        return message.retired < ordinal
    return not message.live and message.compacted is None


def _with_valid_fingerprint(message: PastMessage, gone: int | None) -> PastMessage:
    """With the fingerprint that is valid again where nothing before it is left out; None: the one that is stored."""
    marked = message.fingerprint is not None and message.fingerprint.startswith(OUTDATED)
    if not marked or (gone is not None and gone < message.ordinal):
        return message._replace(fingerprint=None)
    return message._replace(fingerprint=str(message.fingerprint).removeprefix(OUTDATED))


# Simulation: which calls of a fork are run, which are answered from the record, and which a person is asked about.
#
# What only reads is run. What has an effect outside is never run again by itself, unless the fork says so: the
# world has seen it once already.


Tools = Literal["recorded", "ask", "live"]
Policy = Literal["recorded", "ask", "live", "replayed"]

NOT_RECORDED = "This call is not in the record that is being replayed."
_ENDED = (CallState.COMPLETED, CallState.FAILED)


class RecordedCalls(NamedTuple):
    """What the run that was forked had called from there on, and what the fork has called itself."""

    made: Sequence[CallRow] = ()
    used: Sequence[CallRow] = ()


class Simulation:
    """For one answer of one run: the k-th equal call takes the k-th record."""

    def __init__(self, run: LoadedRun, records: RecordedCalls) -> None:
        self.policy = policy_of(run)
        self._made: defaultdict[str, list[CallRow]] = defaultdict(list)
        for call in records.made:
            self._made[_identity(call.name, codec.decode(call.input))].append(call)
        self._used = Counter(_identity(call.name, codec.decode(call.input)) for call in records.used)

    def take(self, name: str, input: Any) -> CallRow | None:
        """The record of this call, if there is one left that ended. A replay gets the results of the others from the
        run."""
        identity = _identity(name, input)
        place = self._used[identity]
        self._used[identity] += 1
        found = self._made[identity][place : place + 1]
        return found[0] if found and (found[0].state in _ENDED or self.policy == "replayed") else None


def policy_of(run: LoadedRun) -> Policy:
    fork = codec.decode(run.options).get("fork") or {}
    policy: Policy = fork.get("tools", "live")
    return policy


async def load_records(tx: Transaction, run: LoadedRun) -> RecordedCalls:
    """The calls that a fork may be answered with; none for any other run. A fork of a fork has those of both."""
    if run.forked_from is None or policy_of(run) not in ("recorded", "replayed"):
        return RecordedCalls()
    fork = await tx.one(ForksSql.fork_of, run=run.id)
    first = fork.forked_at or 1 if fork is not None else 1
    calls = [
        *await calls_before(tx, run.forked_from),
        *await tx.many(CallsSql.calls_of, run=run.forked_from, turn=None),
    ]
    made = [call for call in calls if call.turn >= first]
    return RecordedCalls(made, await tx.many(CallsSql.calls_of, run=run.id, turn=None))


def recorded_output(record: CallRow) -> str:
    """The result of a recorded call that the model read, as the call that repeats it stores it."""
    return codec.encode(result_block(record).get("content"), what="a recorded answer", cap=1 << 28)


def _identity(name: str, input: Any) -> str:
    return digest_of_input(name, input)
