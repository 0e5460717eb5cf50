"""Now: what is wrong and since when, and how much there is to do. The first page."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.agents.people.inquiry import Inquiry
from holdfast.agents.states import RunState
from holdfast.agents.values.runs import RunRecord
from holdfast.http.api.inquiries import list_inquiries
from holdfast.http.api.paging import Paging
from holdfast.http.api.runs import list_runs
from holdfast.http.api.seen import Sight
from holdfast.http.pages.routes import Pages
from holdfast.values import Page

pages = Pages()
_FEW = Paging(None, 10)


@dataclass(frozen=True, slots=True)
class NowView:
    failed: Page[RunRecord]
    inquiries: Page[Inquiry]


@pages.page("/", "now.html", like="GET /system")
async def show_now(seen: Sight) -> NowView:
    return NowView(
        failed=await list_runs(seen, _FEW, state=RunState.FAILED),
        inquiries=await list_inquiries(seen, _FEW),
    )
