"""The commit of a compaction as the store sees it, from the intent before its call to the history after it, and back.

Whatever stops it, the history is either the one before or the one after. Doing any of this again after a lost answer is
recognised by the ids and does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.agents.compaction.partition import HistoryMessage
from holdfast.agents.compaction.records import (
    CompactionRow,
    CompactionsSql,
    LiveMessage,
    SessionSnapshot,
    SummaryMessage,
)
from holdfast.agents.events.log import Changes
from holdfast.agents.messages import encode_block
from holdfast.agents.money import budgets
from holdfast.agents.money.budgets import ExceededBudget, is_limited
from holdfast.agents.rows import LoadedRun, NewBlock
from holdfast.agents.statements import SessionsSql
from holdfast.agents.states import CompactionState
from holdfast.errors import NotFound, SessionBusy, UsageError
from holdfast.kernel import codec, leases
from holdfast.kernel.database import Transaction
from holdfast.kernel.ids import derived_id
from holdfast.kernel.rows import Lease

# The bits of one number say which calls of a row are charged. After so many attempts, a new row begins.
MOST_ATTEMPTS = 60


class CompactionIntent(NamedTuple):
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
    reporting_run: str | None  # the run whose events report it
    leaves: CompactionRow | None = None  # one that another run began and left

    @property
    def row(self) -> dict[str, Any]:
        """What is stored of it."""
        return {name: value for name, value in self._asdict().items() if name not in ("reporting_run", "leaves")}

    @property
    def payer(self) -> str:
        """Who answers for what is reserved: a run does until it ends."""
        return self.run or self.id


class CompactionPrice(NamedTuple):
    """The most that a summary may cost, and for how long its call may take."""

    nano: int
    lasting_us: int
    run: LoadedRun | None  # which has it made before its call


class CompactionChange(NamedTuple):
    """What it does to the history: which messages are not sent any more, and which are, in their places."""

    seen: list[LiveMessage]
    tokens_after: int
    archived: list[str]
    made: list[SummaryMessage]
    blocks: list[NewBlock]
    removed: int = 0
    pruned: int = 0
    summary: str | None = None

    @classmethod
    def begun(cls, seen: list[LiveMessage], tokens_after: int) -> CompactionChange:
        return cls(seen, tokens_after, [], [], [])

    def replaced(
        self,
        gone: Sequence[HistoryMessage],
        place: HistoryMessage,
        kind: str,
        blocks: Sequence[dict[str, Any]],
        by: str,
    ) -> CompactionChange:
        """With one more message in the place of some."""
        id = derived_id(by, kind, place.id)
        made = SummaryMessage(id, place.ordinal, "user", place.run, place.turn, kind)
        rows = [
            NewBlock(id, ordinal, str(block.get("type", "")), encode_block(block), None)
            for ordinal, block in enumerate(blocks)
        ]
        return self._replace(
            archived=[*self.archived, *(message.id for message in gone)],
            made=[*self.made, made],
            blocks=[*self.blocks, *rows],
        )


async def begin_compaction(
    tx: Transaction, intent: CompactionIntent, price: CompactionPrice, lease: Lease | None
) -> CompactionRow | ExceededBudget:
    """Write down that a summary is about to be bought, as long as the history is the one it would be of.

    `ExceededBudget`: a budget does not hold what it may cost, and nothing begins.
    """
    await _lock(tx, intent.session)
    await _hold(tx, lease)
    held = await _check_generation(tx, intent)
    await _check_idle(tx, intent)
    limited = price.run is not None and is_limited(price.run)
    if (held.budgets or limited) and (over := await _reserve(tx, intent, price, held)) is not None:
        return over
    if (left := intent.leaves) is not None and left.state == CompactionState.CALLING:
        why = "it was given up for another"
        await tx.one(CompactionsSql.fail_compaction, id=left.id, attempts=left.attempts, error=why, unknown=1)
    row = await tx.one(CompactionsSql.begin_compaction, **intent.row)
    if row is None and intent.attempts == 0:
        row = await tx.one(CompactionsSql.find_compaction, id=intent.id)  # by an earlier call whose answer was lost
    elif row is None:
        raise SessionBusy(f"session {intent.session} is being compacted by another process.")
    assert row is not None
    await _tell(tx, intent, "compaction_started", {"compaction": row.id, "tokens_before": intent.tokens_before})
    return row


async def _reserve(
    tx: Transaction, intent: CompactionIntent, price: CompactionPrice, held: SessionSnapshot
) -> ExceededBudget | None:
    if price.run is not None:
        return await budgets.reserve(tx, price.run, budgets.SUMMARY, price.nano)
    lasting = price.lasting_us
    call = budgets.BudgetedCall(intent.id, budgets.SUMMARY, intent.session, held.tenant, held.now, lasting_us=lasting)
    return await budgets.reserve_apart(tx, call, price.nano)


async def fail_compaction(
    tx: Transaction, intent: CompactionIntent, error: str, spent: dict[str, Any] | None, *, unknown: bool
) -> None:
    """Note that there is no summary, and what the attempt has cost nevertheless."""
    text = codec.clip(error, 2_000)
    if spent is not None:
        await _charge(tx, intent, spent)
    given = {"id": intent.id, "attempts": intent.attempts, "error": text, "unknown": int(unknown)}
    if await tx.one(CompactionsSql.fail_compaction, **given) is not None:
        await budgets.release(tx, intent.payer)


async def _charge(tx: Transaction, intent: CompactionIntent, spent: dict[str, Any]) -> None:
    """Account for a call of the summariser, once, in place of what was reserved for it."""
    call = 1 << (max(intent.attempts, 1) - 1)
    charged = await tx.one(CompactionsSql.charge_compaction, id=intent.id, call=call, **spent)
    if charged is None:
        return
    await budgets.charge(tx, intent.session, spent["cost_nano"])
    if charged.attempts == max(intent.attempts, 1):  # otherwise what is reserved is that of who began it again
        await budgets.release(tx, intent.payer)
    await tx.run(CompactionsSql.overtaken, id=intent.id, attempts=intent.attempts)


async def apply_compaction(
    tx: Transaction,
    change: CompactionChange,
    intent: CompactionIntent,
    spent: dict[str, Any] | None,
    lease: Lease | None,
) -> CompactionRow | str:
    """Put the new history in place of the old one, or say why not. What was bought is charged either way."""
    await _lock(tx, intent.session)
    await _hold(tx, lease)
    done = await tx.one(CompactionsSql.find_compaction, id=intent.id)
    if done is not None and (done.state, done.attempts) == (CompactionState.DONE, intent.attempts or 1):
        return done  # an earlier call did it, and its answer was lost
    if spent is not None:
        await _charge(tx, intent, spent)
    if (moved := await _conflict_of(tx, change, intent)) is not None:
        await tx.one(CompactionsSql.fail_compaction, id=intent.id, attempts=intent.attempts, error=moved, unknown=0)
        return moved
    if spent is None:
        await tx.one(CompactionsSql.begin_compaction, **intent.row)
    row = await tx.one(
        CompactionsSql.end_compaction,
        id=intent.id,
        attempts=intent.attempts or 1,
        tokens_after=change.tokens_after,
        removed=change.removed,
        pruned=change.pruned,
        summary=change.summary,
    )
    if row is None:
        return f"session {intent.session} is being compacted by another process."
    await tx.run(CompactionsSql.archive, id=intent.id, messages=change.archived)
    await tx.run(CompactionsSql.add_made, id=intent.id, session=intent.session, made=change.made, blocks=change.blocks)
    await tx.run(CompactionsSql.set_generation, session=intent.session, generation=intent.id, counted=1)
    data = {"compaction": row.id, "tokens_before": row.tokens_before, "tokens_after": row.tokens_after or 0}
    await _tell(tx, intent, "compacted", {**data, "removed": row.removed, "pruned": row.pruned})
    return row


async def _tell(tx: Transaction, intent: CompactionIntent, type: str, data: dict[str, Any]) -> None:
    if intent.reporting_run is None:  # nobody has said anything by a run yet
        return
    changes = Changes()
    changes.tell(intent.reporting_run, type, {**data, "model": intent.model})
    await changes.write(tx)


async def restore_compaction(tx: Transaction, session: str, generation: str) -> CompactionRow:
    """Undo the compaction that made this generation: what it took out is sent again, byte for byte."""
    await _lock(tx, session)
    held = await tx.one(CompactionsSql.find_generation, id=session)
    row = await tx.one(CompactionsSql.find_compaction, id=generation)
    if row is None:
        raise UsageError(f"compaction {generation} of session {session} no longer exists: it cannot be undone.")
    if row.session != session:
        raise UsageError(
            f"session {session} is a fork of what was compacted in session {row.session}: restore it there."
        )
    if held is None or held.generation != generation:
        if row.state == CompactionState.RESTORED:
            return row  # by an earlier call whose answer was lost
        raise SessionBusy(f"session {session} was compacted meanwhile; look again before you restore it.")
    if (run := await tx.one(CompactionsSql.under_way, session=session)) is not None:
        raise _busy(session, run.id)
    await tx.run(CompactionsSql.withdraw_made, id=generation, session=session)
    await tx.run(CompactionsSql.bring_back, id=generation, session=session)
    await tx.run(CompactionsSql.set_generation, session=session, generation=row.before_generation, counted=0)
    restored = await tx.one(CompactionsSql.restore_compaction, id=generation)
    assert restored is not None, "a compaction that stands is done"
    return restored


async def preserve(tx: Transaction, session: str, message: str, *, preserved: bool) -> None:
    """Mark a message as one that no compaction touches, or take the mark away."""
    await _lock(tx, session)
    if await tx.one(CompactionsSql.preserve, id=message, session=session, preserved=int(preserved)) is None:
        raise NotFound(f"there is no message {message} in session {session}.")


async def _hold(tx: Transaction, lease: Lease | None) -> None:
    """After the session: that one may have to be waited for, and a job that is held cannot have its lease renewed."""
    if lease is not None:
        await leases.hold(tx, lease)


async def _lock(tx: Transaction, session: str) -> None:
    if await tx.one(SessionsSql.lock_session, id=session) is None:
        raise NotFound(f"there is no session {session} in this database.")


async def _check_idle(tx: Transaction, intent: CompactionIntent) -> None:
    """Nobody uses the history but the run that has it compacted before its call."""
    run = await tx.one(CompactionsSql.under_way, session=intent.session)
    if run is not None and run.id != intent.run:
        raise _busy(intent.session, run.id)


def _busy(session: str, run: str) -> SessionBusy:
    return SessionBusy(f"session {session} has an active run ({run}): its messages cannot change now.")


async def _check_generation(tx: Transaction, intent: CompactionIntent) -> SessionSnapshot:
    held = await tx.one(CompactionsSql.find_generation, id=intent.session)
    if held is None or held.generation != intent.generation:
        raise SessionBusy(f"session {intent.session} was compacted or restored meanwhile.")
    return held


async def _conflict_of(tx: Transaction, change: CompactionChange, intent: CompactionIntent) -> str | None:
    """Why this cannot be applied any more; None when the history is what was read, and nobody uses it."""
    try:
        await _check_generation(tx, intent)
        await _check_idle(tx, intent)
    except SessionBusy as busy:
        return str(busy)
    if await tx.many(CompactionsSql.live_messages, session=intent.session) != change.seen:
        return f"messages were added or marked in session {intent.session} while it was being compacted."
    return None
