"""The SQL file of inquiries as Python sees it."""

from __future__ import annotations

from holdfast.agents.people.inquiry_rows import InquiryPlace, InquiryRow, NewInquiry, UnknownCall
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
    list_inquiries: Many[InquiryRow]
    inquiry_place: One[InquiryPlace]
    decide_inquiry: One[InquiryRow]
    count_asked: One[RowCount]
    count_open: One[RowCount]
    withdraw_inquiries: Exec
    withdraw_calls: Exec
    change_options: Exec
    unknown_calls: Many[UnknownCall]
    hand_over: Exec
