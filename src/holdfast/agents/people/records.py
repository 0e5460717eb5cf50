"""Rows about people: what is asked of them, and what it is about."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.agents.rows import RowCount
from holdfast.kernel.sql import Exec, Many, One, Statements


class NewInquiry(NamedTuple):
    id: str
    run: str
    session: str
    tenant: str
    kind: str
    call: str | None
    name: str
    digest: str
    data: str
    fallback: str | None  # what is decided when nobody does in time
    timeout_us: int | None


class InquiryRow(NamedTuple):
    id: str
    run: str
    session: str
    tenant: str
    kind: str
    call: str | None
    name: str
    digest: str
    data: str
    state: str
    fallback: str | None
    asked_at: int
    expires_at: int | None
    decided_at: int | None
    decided_by: str | None
    decision: str | None


class AskedAt(NamedTuple):
    asked_at: int
    id: str


class InquiryPlace(NamedTuple):
    """The run that an inquiry is about, and the jobs that wait for it."""

    id: str
    session: str
    branch: str
    job: int
    parent: int | None
    turns: int
    state: str
    agent_name: str
    parent_run: str | None
    options: str
    tokens: int
    cost_nano: int
    continued: int
    definition: str
    call_job: int | None
    finalized_at: int | None
    age_us: int
    root: str
    agent: str


class UnknownCall(NamedTuple):
    """A call that may or may not have taken effect."""

    id: str
    run: str
    turn: int
    name: str
    asked: str  # by the model
    input: str  # what it ran with: a person may have changed that
    job: int
    session: str
    tenant: str
    parent: int
    state: str
    agent_name: str
    parent_run: str | None
    error: str | None
    metadata: str
    changed_by: str | None
    agent: str


# The SQL file of inquiries as Python sees it.


_PACKAGE = "holdfast.agents.sql"


class InquiriesSql(
    Statements, package=_PACKAGE, file="inquiries.sql", rows={"inquiries": NewInquiry}, types={"job": "uuid"}
):
    add_inquiries: Exec
    find_inquiry: One[InquiryRow]
    open_inquiries: Many[InquiryRow]
    inquiries_below: Many[InquiryRow]
    last_decided: One[InquiryRow]
    inquiry_place: One[InquiryPlace]
    decide_inquiry: One[InquiryRow]
    count_asked: One[RowCount]
    count_open: One[RowCount]
    withdraw_inquiries: Exec
    withdraw_calls: Exec
    change_options: Exec
    unknown_calls: Many[UnknownCall]
    hand_over: Exec


class InquiryListsSql(Statements, package=_PACKAGE, file="inquiry_lists.sql"):
    inquiries_all: Many[InquiryRow]
    count_inquiries_all: One[RowCount]
    inquiries_of_run: Many[InquiryRow]
    count_inquiries_of_run: One[RowCount]
    inquiries_open: Many[InquiryRow]
    end_of_inquiries_open: One[AskedAt]
    count_inquiries_open: One[RowCount]
    inquiries_decided: Many[InquiryRow]
    end_of_inquiries_decided: One[AskedAt]
    count_inquiries_decided: One[RowCount]
    inquiries_of_tenant: Many[InquiryRow]
    end_of_inquiries_of_tenant: One[AskedAt]
    count_inquiries_of_tenant: One[RowCount]
