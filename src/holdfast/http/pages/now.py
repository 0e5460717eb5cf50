"""Now: what is wrong and since when, and how much there is to do. The first page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.agents.doctor import examine_app
from holdfast.agents.people.inquiry import Inquiry
from holdfast.agents.states import RunState
from holdfast.agents.values.lanes import ClosedLaneRecord
from holdfast.agents.values.runs import RunRecord
from holdfast.app import core_of
from holdfast.http.api.inquiries import list_inquiries
from holdfast.http.api.paging import Paging
from holdfast.http.api.runs import list_runs
from holdfast.http.api.seen import Sight
from holdfast.http.api.streams import Alive
from holdfast.http.live.sampler import Sample
from holdfast.http.pages.routes import Pages
from holdfast.kernel.doctor_database import Finding
from holdfast.values import Page

pages = Pages()
_FEW = Paging(None, 8)
_MANY = Paging(None, 100)


@dataclass(frozen=True, slots=True)
class NowView:
    """`sample` and `lanes` are of the fleet: who is a tenant does not see them."""

    failed: Page[RunRecord]
    newest: Page[RunRecord]
    inquiries: Page[Inquiry]
    sample: Sample | None
    lanes: Sequence[ClosedLaneRecord]


@dataclass(frozen=True, slots=True)
class HealthView:
    findings: list[Finding]


@pages.page("/", "now.html", like="GET /system")
async def show_now(seen: Sight, live: Alive) -> NowView:
    whole = seen.tenant is None and not seen.pinned
    return NowView(
        failed=await list_runs(seen, _FEW, state=RunState.FAILED),
        newest=await list_runs(seen, _FEW),
        inquiries=await list_inquiries(seen, _MANY),
        sample=await live.sampler.sample() if whole else None,
        lanes=await seen.hf.lanes.list() if whole else [],
    )


@pages.page("/now/health", "health.html", like="GET /system/doctor")
async def show_health(seen: Sight) -> HealthView:
    """What the doctor says, as a part of the first page."""
    found = [each for each in await examine_app(core_of(seen.hf)) if each.level != "ok"]
    return HealthView(sorted(found, key=lambda each: ("problem", "warning", "note").index(each.level)))
