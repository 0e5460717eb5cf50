"""Now: what is wrong and since when, and how much there is to do. The first page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.agents.people.inquiry import Inquiry
from holdfast.agents.states import RunState
from holdfast.agents.values.lanes import ClosedLaneRecord
from holdfast.agents.values.runs import RunRecord
from holdfast.app import core_of
from holdfast.http.api.inquiries import list_inquiries
from holdfast.http.api.paging import Paging
from holdfast.http.api.runs import list_runs
from holdfast.http.api.seen import Seen, Sight
from holdfast.http.api.streams import Alive
from holdfast.http.live.sampler import Sample
from holdfast.http.pages.charts import sparkline
from holdfast.http.pages.filters import now_of
from holdfast.http.pages.gates import WaitingFor, gates
from holdfast.http.pages.headline import MANY_FAILED, RECENTLY, Known, Thing, things
from holdfast.http.pages.routes import Pages
from holdfast.http.pages.trends import by_hour, trends
from holdfast.kernel.troubled_jobs import count_failed
from holdfast.values import Page
from holdfast.values.tallies import FailureRecord, StatRecord
from holdfast.values.times import microseconds

pages = Pages()
_FEW = Paging(None, 8)
_MANY = Paging(None, 100)


@dataclass(frozen=True, slots=True)
class Day:
    """What the tally says of the last 24 hours. Where sessions are pinned there is none: it knows no sessions."""

    runs: StatRecord | None
    failed: int
    ended_line: str
    failed_line: str
    groups: Sequence[FailureRecord]
    trends: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NowView:
    """`sample` and `lanes` are of the fleet: who is a tenant does not see them."""

    failed: Page[RunRecord]
    newest: Page[RunRecord]
    inquiries: Page[Inquiry]
    sample: Sample | None
    waiting_for: Sequence[WaitingFor]
    lanes: Sequence[ClosedLaneRecord]
    day: Day | None
    things: Sequence[Thing]


@dataclass(frozen=True, slots=True)
class HealthView:
    things: Sequence[Thing]


@pages.page("/", "now.html", like="GET /system")
async def show_now(seen: Sight, live: Alive) -> NowView:
    sample = await live.sampler.sample() if seen.sees_fleet else None
    failed = await list_runs(seen, _FEW, state=RunState.FAILED)
    inquiries = await list_inquiries(seen, _MANY)
    return NowView(
        failed=failed,
        newest=await list_runs(seen, _FEW),
        inquiries=inquiries,
        sample=sample,
        waiting_for=gates(sample) if sample else [],
        lanes=await seen.hf.lanes.list() if sample else [],
        day=None if seen.pinned else await _day(seen),
        things=things(Known(now_of(seen), sample, failed, inquiries, await _failed_jobs(seen) if sample else 0)),
    )


async def _day(seen: Seen) -> Day:
    whole = await seen.runs.stats(since="24h", step="all")
    hours = await seen.runs.stats("state", since="24h", step="hour")
    failures = [each for each in hours if each.state == RunState.FAILED]
    return Day(
        runs=next(iter(whole), None),
        failed=sum(each.count for each in failures),
        ended_line=sparkline(by_hour(seen, hours), "Runs that ended, by hour", tone="runs"),
        failed_line=sparkline(by_hour(seen, failures), "Runs that failed, by hour", tone="failed"),
        groups=await seen.runs.failures(since="24h", limit=8),
        trends=trends(seen, await seen.runs.stats("source", since="24h", step="hour", state="failed"), "source"),
    )


@pages.page("/now/health", "health.html", like="GET /system/doctor")
async def show_health(seen: Sight, live: Alive) -> HealthView:
    """What is not well, as a part of the first page."""
    known = Known(
        now_of(seen),
        await live.sampler.sample(),
        await list_runs(seen, _FEW, state=RunState.FAILED),
        await list_inquiries(seen, _MANY),
        await _failed_jobs(seen),
    )
    return HealthView(things(known, await live.checkup.findings()))


async def _failed_jobs(seen: Seen) -> int:
    since = microseconds(now_of(seen) - RECENTLY)
    return await core_of(seen.hf).runtime().transact(count_failed, since, look=MANY_FAILED)
