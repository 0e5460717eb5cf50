"""The SQL file of inquiries as Python sees it."""

from __future__ import annotations

from holdfast.agents.people.inquiry_rows import AskedAt, InquiryPlace, InquiryRow, NewInquiry, UnknownCall
from holdfast.agents.rows import RowCount
from holdfast.kernel.sql import Exec, Many, One, Statements

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
