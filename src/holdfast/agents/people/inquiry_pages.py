"""Pages of inquiries, the oldest first: by an index each, and every other filter looks at a bounded number of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.agents.looks import LOOK, FoundRows, Lead, LookPlace, count_rows, find_page
from holdfast.agents.people.inquiry_rows import InquiryRow
from holdfast.agents.people.statements import InquiryListsSql
from holdfast.agents.states import InquiryState
from holdfast.kernel.database import Transaction, reading

_FIRST = (-1, "")
_ALL = Lead(InquiryListsSql.inquiries_all, None, InquiryListsSql.count_inquiries_all)
_OF_RUN = Lead(InquiryListsSql.inquiries_of_run, None, InquiryListsSql.count_inquiries_of_run)
_OPEN = Lead(
    InquiryListsSql.inquiries_open, InquiryListsSql.end_of_inquiries_open, InquiryListsSql.count_inquiries_open
)
_DECIDED = Lead(
    InquiryListsSql.inquiries_decided, InquiryListsSql.end_of_inquiries_decided, InquiryListsSql.count_inquiries_decided
)
_OF_TENANT = Lead(
    InquiryListsSql.inquiries_of_tenant,
    InquiryListsSql.end_of_inquiries_of_tenant,
    InquiryListsSql.count_inquiries_of_tenant,
)


class InquiryFilters(NamedTuple):
    """What a list of inquiries is asked for; None is any. `run` stands for the runs below it too."""

    state: str | None = InquiryState.OPEN
    tenant: str | None = None
    run: str | None = None

    @property
    def lead(self) -> Lead[InquiryRow]:
        """The filter that reads the fewest rows by an index. Open ones are few."""
        if self.run is not None:
            return _OF_RUN
        if self.state == InquiryState.OPEN:
            return _OPEN
        if self.tenant is not None:
            return _OF_TENANT
        return _ALL if self.state is None else _DECIDED


@reading
async def inquiry_page(
    tx: Transaction, filters: InquiryFilters, *, after: LookPlace = _FIRST, limit: int = 100, look: int = LOOK
) -> FoundRows[InquiryRow]:
    given = _given(filters, after)
    return await find_page(tx, filters.lead, given, lambda row: (row.asked_at, row.id), limit=limit, look=look)


@reading
async def count_inquiries(tx: Transaction, filters: InquiryFilters, *, look: int = LOOK) -> int:
    """How many there are, among the oldest that one look sees."""
    return await count_rows(tx, filters.lead, _given(filters, _FIRST), look=look)


@reading
async def list_inquiries(
    tx: Transaction,
    *,
    state: str | None = InquiryState.OPEN,
    tenant: str | None = None,
    run: str | None = None,
    limit: int = 100,
) -> Sequence[InquiryRow]:
    """The first of them."""
    return (await inquiry_page(tx, InquiryFilters(state, tenant, run), limit=limit, look=max(limit, LOOK))).rows


def _given(filters: InquiryFilters, after: LookPlace) -> dict[str, Any]:
    return {**filters._asdict(), "after_at": after[0], "after": after[1]}
