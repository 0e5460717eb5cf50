"""Totals: what was used and paid for by what is not there any more, so that sums stay what they were."""

from __future__ import annotations

from holdfast.agents import tallies
from holdfast.agents.retention.retention_rows import Total
from holdfast.agents.retention.statements import TotalsSql
from holdfast.agents.tallies import count_removed
from holdfast.kernel.database import Transaction
from holdfast.kernel.tally_erasure import ERASED

_PAGE = 500


async def keep_used(tx: Transaction, session: str, tenant: str) -> None:
    """Add what a session has used to the totals, in the transaction that removes it."""
    await tx.run(TotalsSql.keep_turns, session=session)
    await tx.run(TotalsSql.keep_compactions, session=session, tenant=tenant)
    await tx.run(TotalsSql.forget_trees_in, session=session)
    await count_removed(tx, session, tenant)


async def make_nameless(tx: Transaction, tenant: str) -> bool:
    """Leave no name of an agent in the totals of a tenant; True when there are more."""
    found: list[Total] = await tx.many(TotalsSql.totals_of, tenant=tenant, erased=ERASED, limit=_PAGE)
    for row in found:
        where = {"day": row.day, "tenant": tenant, "agent": row.agent, "model": row.model, "mode": row.mode}
        await tx.run(TotalsSql.delete_total, **where)
        await tx.run(TotalsSql.add_total, **{**row._asdict(), "agent": ERASED})
    more = await tallies.make_nameless(tx, tenant)
    return more or len(found) == _PAGE
