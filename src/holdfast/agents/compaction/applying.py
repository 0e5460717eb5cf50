"""Applying: a compaction as the store sees it, from the intent before its call to the history after it, and back.

Whatever stops it, the history is either the one before or the one after. Doing any of this again after a lost answer is
recognised by the ids and does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.agents.changes import Changes
from holdfast.agents.compaction.partition import Said
from holdfast.agents.compaction.records import CompactionRow, LiveMessage, NewMade
from holdfast.agents.money.budgets import charge
from holdfast.agents.records import NewBlock
from holdfast.agents.statements import Compactions, Sessions
from holdfast.agents.storing import encode_block
from holdfast.errors import LeaseLost, NotFound, SessionBusy, UsageError
from holdfast.kernel import encoding
from holdfast.kernel.database import Transaction
from holdfast.kernel.ids import derived_id
from holdfast.kernel.records import Lease
from holdfast.kernel.statements import Waiting

# Which calls of a row are charged is told by the bits of one number: after so many attempts, a new row is begun.
MOST_ATTEMPTS = 60


class Intent(NamedTuple):
    """A compaction that is about to be made. `attempts` tells who holds it: it rises whenever somebody begins it."""

    id: str
    session: str
    run: str | None
    strategy: str
    trigger: str
    model: str
    config: str
    generation: str
    tokens_before: int
    attempts: int


class Change(NamedTuple):
    """What it does to the history: which messages are not sent any more, and which are, in their places."""

    seen: list[LiveMessage]
    tokens_after: int
    archived: list[str]
    made: list[NewMade]
    blocks: list[NewBlock]
    removed: int = 0
    pruned: int = 0
    summary: str | None = None

    @classmethod
    def begun(cls, seen: list[LiveMessage], tokens_after: int) -> Change:
        return cls(seen, tokens_after, [], [], [])

    def replaced(
        self, gone: Sequence[Said], place: Said, kind: str, blocks: Sequence[dict[str, Any]], by: str
    ) -> Change:
        """With one more message in the place of some."""
        id = derived_id(by, kind, place.id)
        made = NewMade(id, place.ordinal, "user", place.run, place.turn, kind)
        rows = [
            NewBlock(id, ordinal, str(block.get("type", "")), encode_block(block), None)
            for ordinal, block in enumerate(blocks)
        ]
        return self._replace(
            archived=[*self.archived, *(message.id for message in gone)],
            made=[*self.made, made],
            blocks=[*self.blocks, *rows],
        )


async def begin_compaction(tx: Transaction, intent: Intent, lease: Lease | None) -> CompactionRow:
    """Write down that a summary is about to be bought, as long as the history is the one it would be of."""
    await _lock(tx, intent.session)
    await _hold(tx, lease)
    await _check_generation(tx, intent)
    await _check_idle(tx, intent.session)
    row = await tx.one(Compactions.begin_compaction, **intent._asdict())
    if row is None and intent.attempts == 0:
        row = await tx.one(Compactions.find_compaction, id=intent.id)  # by an earlier call whose answer was lost
    elif row is None:
        raise SessionBusy(f"session {intent.session} is being compacted by somebody else.")
    assert row is not None
    if intent.run is not None:
        changes = Changes()
        told = {"compaction": row.id, "tokens_before": intent.tokens_before, "model": intent.model}
        changes.tell(intent.run, "compaction_started", told)
        await changes.write(tx)
    return row


async def fail_compaction(
    tx: Transaction, intent: Intent, error: str, spent: dict[str, Any] | None, *, unknown: bool
) -> None:
    """Note that there is no summary, and what the attempt has cost all the same."""
    text = encoding.clip(error, 2_000)
    if spent is not None:
        await _charge(tx, intent, spent)
    await tx.run(Compactions.fail_compaction, id=intent.id, attempts=intent.attempts, error=text, unknown=int(unknown))


async def _charge(tx: Transaction, intent: Intent, spent: dict[str, Any]) -> None:
    """Account for a call of the summariser, once."""
    call = 1 << (max(intent.attempts, 1) - 1)
    charged = await tx.one(Compactions.charge_compaction, id=intent.id, call=call, **spent)
    if charged is not None:
        await charge(tx, intent.session, spent["cost_nano"])


async def apply_compaction(
    tx: Transaction, change: Change, intent: Intent, spent: dict[str, Any] | None, lease: Lease | None
) -> CompactionRow | str:
    """Put the new history in place of the old one, or say why not. What was bought is charged either way."""
    await _lock(tx, intent.session)
    await _hold(tx, lease)
    done = await tx.one(Compactions.find_compaction, id=intent.id)
    if done is not None and (done.state, done.attempts) == ("done", intent.attempts or 1):
        return done  # an earlier call did it, and its answer was lost
    if spent is not None:
        await _charge(tx, intent, spent)
        await tx.run(Compactions.overtaken, id=intent.id, attempts=intent.attempts)
    if (moved := await _moved_on(tx, change, intent)) is not None:
        await tx.run(Compactions.fail_compaction, id=intent.id, attempts=intent.attempts, error=moved, unknown=0)
        return moved
    if spent is None:
        await tx.one(Compactions.begin_compaction, **intent._asdict())
    row = await tx.one(
        Compactions.end_compaction,
        id=intent.id,
        attempts=intent.attempts or 1,
        tokens_after=change.tokens_after,
        removed=change.removed,
        pruned=change.pruned,
        summary=change.summary,
    )
    if row is None:
        return f"session {intent.session} is being compacted by somebody else."
    await tx.run(Compactions.archive, id=intent.id, messages=change.archived)
    await tx.run(Compactions.add_made, id=intent.id, session=intent.session, made=change.made, blocks=change.blocks)
    await tx.run(Compactions.set_generation, session=intent.session, generation=intent.id, counted=1)
    await _tell(tx, row)
    return row


async def _tell(tx: Transaction, row: CompactionRow) -> None:
    if row.run is None:
        return
    changes = Changes()
    told = {"compaction": row.id, "tokens_before": row.tokens_before, "tokens_after": row.tokens_after or 0}
    changes.tell(row.run, "compacted", {**told, "removed": row.removed, "pruned": row.pruned, "model": row.model})
    await changes.write(tx)


async def restore_compaction(tx: Transaction, session: str, generation: str) -> CompactionRow:
    """Undo the compaction that made this generation: what it took out is sent again, byte for byte."""
    await _lock(tx, session)
    held = await tx.one(Compactions.find_generation, id=session)
    row = await tx.one(Compactions.find_compaction, id=generation)
    if row is None:
        raise UsageError(f"compaction {generation} of session {session} is not there any more: it cannot be undone.")
    if row.session != session:
        raise UsageError(
            f"session {session} is a fork of what was compacted in session {row.session}: restore it there."
        )
    if held is None or held.generation != generation:
        if row.state == "restored":
            return row  # by an earlier call whose answer was lost
        raise SessionBusy(f"session {session} was compacted meanwhile; look again before you restore it.")
    await _check_idle(tx, session)
    await tx.run(Compactions.withdraw_made, id=generation, session=session)
    await tx.run(Compactions.bring_back, id=generation, session=session)
    await tx.run(Compactions.set_generation, session=session, generation=row.before_generation, counted=0)
    restored = await tx.one(Compactions.restore_compaction, id=generation)
    assert restored is not None, "a compaction that stands is done"
    return restored


async def preserve(tx: Transaction, session: str, message: str, *, preserved: bool) -> None:
    """Mark a message as one that no compaction touches, or take the mark away."""
    await _lock(tx, session)
    if await tx.one(Compactions.preserve, id=message, session=session, preserved=int(preserved)) is None:
        raise NotFound(f"there is no message {message} in session {session}.")


async def _hold(tx: Transaction, lease: Lease | None) -> None:
    """After the session: that one may have to be waited for, and a job that is held cannot have its lease renewed."""
    if lease is not None and await tx.one(Waiting.hold, **lease.held._asdict()) is None:
        raise LeaseLost(lease.id, lease.fence)


async def _lock(tx: Transaction, session: str) -> None:
    if await tx.one(Sessions.lock_session, id=session) is None:
        raise NotFound(f"there is no session {session} in this database.")


async def _check_idle(tx: Transaction, session: str) -> None:
    if (run := await tx.one(Compactions.under_way, session=session)) is not None:
        raise SessionBusy(f"session {session} has a run under way ({run.id}): what it has sent must stay as it is.")


async def _check_generation(tx: Transaction, intent: Intent) -> None:
    held = await tx.one(Compactions.find_generation, id=intent.session)
    if held is None or held.generation != intent.generation:
        raise SessionBusy(f"session {intent.session} was compacted or restored meanwhile.")


async def _moved_on(tx: Transaction, change: Change, intent: Intent) -> str | None:
    """Why this cannot be applied any more; None when the history is what was read, and nobody uses it."""
    try:
        await _check_generation(tx, intent)
        await _check_idle(tx, intent.session)
    except SessionBusy as busy:
        return str(busy)
    if await tx.many(Compactions.live_messages, session=intent.session) != change.seen:
        return f"something was said or marked in session {intent.session} while it was being compacted."
    return None
