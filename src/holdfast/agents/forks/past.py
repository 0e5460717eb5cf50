"""The past of a conversation: what was said before some place, as it was sent then. Pure, but for `as_played`.

Compactions take messages out and put others in their places; all of them are kept, so that what a run once saw can be
found again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.agents.compaction.records import CompactionRow
from holdfast.agents.forks.records import PastMessage
from holdfast.agents.records import RunRow
from holdfast.agents.statements import Compactions, Forks, Runs
from holdfast.errors import UsageError
from holdfast.kernel.database import Transaction

_PAUSED = "pause_turn"
_REFUSED = "refusal"


class Past(NamedTuple):
    messages: list[PastMessage]
    generation: str  # under which thinking in it is valid


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


async def as_played(tx: Transaction, run: RunRow, at: int | None, generation: str) -> Past:
    """What a run had before it when it was about to play this turn; `generation` is the session's now.

    Without a turn, all that the run has said is part of it, whatever became of that.
    """
    messages = await tx.many(Forks.past, session=run.session)
    turns = await tx.many(Runs.list_turns, run=run.id, after=0, limit=1_000_000)
    stops = {turn.number: turn.stop_reason for turn in turns}
    mine = [each for each in messages if each.run == run.id and each.made_by is None]
    prompt = next((each for each in mine if each.kind == "prompt"), None)
    if prompt is None:
        raise UsageError(f"run {run.id} has not begun: there is nothing yet that could be forked.")
    own = mine
    if at is not None:
        own = [each for each in mine if _is_before(each, at) and not _declined(each, stops)]
        _check_end(run, own, stops)
    rows = await tx.many(Compactions.list_compactions, session=run.session, limit=1_000_000)
    seen = _generation_of(prompt, run.id, rows, generation)
    chain = _chain(seen, rows)
    if any(row.state != "done" for row in chain):  # undone since: the originals say what was said, whole
        seen, chain = "", []
    before = [each for each in messages if each.ordinal < prompt.ordinal and each.run != run.id]
    visible = [each for each in before if _is_visible(each, {row.id for row in chain})]
    return Past([*visible, *own], seen)


def _is_before(message: PastMessage, at: int) -> bool:
    """A message that came for the run is said with the turn that takes it, before its answer."""
    return message.turn < at or (message.kind == "steer" and message.turn == at)


def _declined(message: PastMessage, stops: dict[int, str | None]) -> bool:
    """An answer after which another model was asked: it is never sent again."""
    return message.kind == "answer" and stops.get(message.turn) == _REFUSED


def _check_end(run: RunRow, own: Sequence[PastMessage], stops: dict[int, str | None]) -> None:
    last = own[-1]
    if last.kind != "answer" or stops.get(last.turn) == _PAUSED:
        return
    if last.asks:
        raise UsageError(f"the calls of turn {last.turn} of run {run.id} are not answered yet: fork at {last.turn}.")
    raise UsageError(f"run {run.id} has said its last word with turn {last.turn}: fork at {last.turn} or before.")


def _generation_of(prompt: PastMessage, run: str, rows: Sequence[CompactionRow], now: str) -> str:
    """The generation of the history when the prompt was said: nothing compacts it while a run is under way."""
    changes = [(row.ended_at or 0, row.id) for row in rows if row.state in ("done", "restored")]
    changes += [(row.restored_at, row.before_generation) for row in rows if row.restored_at is not None]
    own = {row.id for row in rows if row.run == run}
    earlier = [change for change in changes if change[0] < prompt.created_at or change[1] in own]
    if earlier:
        return max(earlier)[1]
    if not changes:
        return now
    first = min((row for row in rows if row.state in ("done", "restored")), key=lambda row: row.ended_at or 0)
    return first.before_generation


def _chain(generation: str, rows: Sequence[CompactionRow]) -> list[CompactionRow]:
    """The compactions of this session that a generation is made of."""
    known = {row.id: row for row in rows}
    chain = []
    while (row := known.get(generation)) is not None:
        chain.append(row)
        generation = row.before_generation
    return chain


def _is_visible(message: PastMessage, chain: set[str]) -> bool:
    if not message.live and message.compacted is None:
        return False  # declined
    return (message.made_by is None or message.made_by in chain) and message.compacted not in chain
