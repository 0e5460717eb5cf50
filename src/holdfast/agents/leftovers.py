"""Leftovers: what agents leave behind in the store and nobody will ask for again."""

from __future__ import annotations

from holdfast.agents.batches.steps import prune_batches
from holdfast.agents.money.budgets import give_up_lapsed
from holdfast.agents.money.statements import BudgetsSql
from holdfast.agents.statements import EventsSql, InboxSql
from holdfast.durations import microseconds
from holdfast.kernel.database import Transaction
from holdfast.settings import Settings
from holdfast.workers.layer import Chore

_USES_US = 400 * 86_400_000_000  # how long what was spent in a period is kept


async def prune(tx: Transaction, settings: Settings) -> int:
    """Forget batches that ended long ago, messages and readers of old, and what was spent in periods long over."""
    age_us = microseconds(settings.batch_retention)
    pruned = await prune_batches(tx, age_us)
    await give_up_lapsed(tx)
    await tx.run(BudgetsSql.prune_uses, age_us=_USES_US)
    await tx.run(InboxSql.prune_steers, age_us=age_us)
    await tx.run(EventsSql.prune_readers)
    return pruned


CHORE = Chore(lambda settings: settings.cleanup_interval, prune)
