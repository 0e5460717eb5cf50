"""What a test asks the store of people and of money."""

from __future__ import annotations

from decimal import Decimal

from holdfast.agents import queries, run_pages
from holdfast.agents.money.usage import TimeSpan, usage_of_all
from holdfast.agents.people.inquiry import Inquiry, inquiry_of
from holdfast.agents.people.inquiry_pages import list_inquiries
from holdfast.kernel import codec
from holdfast.kernel.database import Database

_MOST = 10_000


async def open_inquiries(database: Database, run: str | None) -> list[Inquiry]:
    """What people are asked by anybody, or by a run and all below it; `run` may be an inquiry or a call, too."""
    rows = await database.transact(list_inquiries, state="open", limit=_MOST)
    if run is None:
        return [inquiry_of(row) for row in rows]
    tree = await _tree(database, run)
    return [inquiry_of(row) for row in rows if row.run in tree or run in (row.id, row.call)]


async def _tree(database: Database, run: str) -> set[str]:
    found, new = {run}, [run]
    while new:
        below = await database.transact(run_pages.list_runs, parent=new.pop(), limit=_MOST)
        found |= {row.id for row in below}
        new += [row.id for row in below]
    return found


async def spent(database: Database, tenant: str | None) -> Decimal:
    rows = await database.transact(usage_of_all, (), TimeSpan(0, queries.LAST), tenant)
    return sum((Decimal(row.cost_nano) for row in rows), Decimal(0)) / 1_000_000_000


def described(inquiry: Inquiry) -> str:
    """An inquiry in a line."""
    if inquiry.call is not None:
        return f"{inquiry.kind} of {inquiry.call.name}({codec.encode(inquiry.call.input, what='', cap=1 << 26)})"
    return f"{inquiry.kind}: {inquiry.data.get('question') or inquiry.data.get('reason') or inquiry.name}"
