"""One group of failures: how often it happened over time, and the last of them.

The tally knows how many there were, and not when each happened. So the times are those of rows, as far as one look
reaches; the page says how far that is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple

from markupsafe import Markup

from holdfast.app import core_of
from holdfast.http.api.seen import Seen, Sight
from holdfast.http.pages.charts import bars
from holdfast.http.pages.filters import Tab, now_of
from holdfast.http.pages.routes import Pages
from holdfast.kernel.failure_groups import Likeness, likeness
from holdfast.values.tallies import FailureRecord

pages = Pages()

Failing = Literal["jobs", "runs"]
Since = Literal["24h", "14d"]
TABS = (Tab("24h", "24 hours"), Tab("14d", "14 days"))
LOOK = 500  # failures of the same kind that are looked at
_SHOWN = 20
_GROUPS = 1_000
_STEPS: Mapping[Since, tuple[timedelta, int, str]] = {
    "24h": (timedelta(hours=1), 24, "%d %b %H:%M UTC"),
    "14d": (timedelta(days=1), 14, "%d %b"),
}


class Occurrence(NamedTuple):
    """One failure of a group."""

    id: str
    at: datetime
    said: str


class Looked(NamedTuple):
    """The failures of a group that a look has found; `reach` is when the oldest was that it saw, if there are more."""

    found: Sequence[Occurrence]
    reach: datetime | None


@dataclass(frozen=True, slots=True)
class FailureGroupView:
    """`group` is None when the store has counted no such failure, or has forgotten them.

    `short` is from when on failures are drawn, if `look` of them did not reach far enough.
    """

    of: Failing
    group: FailureRecord | None
    last: Sequence[Occurrence]
    drawing: Markup
    begins: str
    drawn: int
    look: int
    short: datetime | None
    times: tuple[Tab, ...]
    since: Since


@pages.page("/failures", "failures.html", like="GET /system/failures")
async def show_failures(
    seen: Sight, of: Failing = "jobs", kind: str = "", error: str = "", message: str = "", since: Since = "24h"
) -> FailureGroupView:
    group = await _group(seen, of, (kind, error, message))
    looked = await (_jobs if of == "jobs" else _runs)(seen, group) if group else Looked([], None)
    counts = _by_step([each.at for each in looked.found], now_of(seen), since)
    first = now_of(seen) - _STEPS[since][0] * _STEPS[since][1]
    return FailureGroupView(
        of=of,
        group=group,
        last=looked.found[:_SHOWN],
        drawing=bars(counts, f"Failures by {'hour' if since == '24h' else 'day'}, in UTC", tone="failed"),
        begins=counts[0][0],
        drawn=sum(number for _, number in counts),
        look=LOOK,
        short=looked.reach if looked.reach and looked.reach > first else None,
        times=TABS,
        since=since,
    )


async def _group(seen: Seen, of: Failing, wanted: tuple[str, str, str]) -> FailureRecord | None:
    kind = wanted[0]
    if of == "jobs":
        groups = await seen.hf.jobs.failures(kind=kind, tenant=seen.tenant, limit=_GROUPS)
    else:
        groups = await seen.runs.failures(kind=kind, limit=_GROUPS)
    return next((each for each in groups if (each.kind, each.error, each.message) == wanted), None)


async def _jobs(seen: Seen, group: FailureRecord) -> Looked:
    like = await _like(seen, "jobs", group)
    page = await seen.hf.jobs.list(state="failed", kind=group.kind, tenant=seen.tenant, limit=LOOK, look=10_000)
    found = []
    for job in page:
        its = job.error if isinstance(job.error, dict) else {}
        if job.finished_at and like.has(job.kind, its.get("type"), its.get("message")):
            found.append(Occurrence(job.id, job.finished_at, str(its.get("message") or "")))
    return _looked(found, [job.finished_at for job in page], more=page.next is not None)


async def _runs(seen: Seen, group: FailureRecord) -> Looked:
    like = await _like(seen, "runs", group)
    page = await seen.runs.list(state="failed", agent=group.kind, limit=LOOK)
    found = [
        Occurrence(run.id, run.finalized_at, run.error or "")
        for run in page
        if run.finalized_at and like.has(run.agent_name, run.error_type, run.error)
    ]
    return _looked(found, [run.finalized_at for run in page], more=page.next is not None)


async def _like(seen: Seen, of: Failing, group: FailureRecord) -> Likeness:
    transact = core_of(seen.hf).runtime().transact
    return await transact(likeness, of, group.error, group.message, seen.tenant)


def _looked(found: Sequence[Occurrence], times: Sequence[datetime | None], *, more: bool) -> Looked:
    seen = [each for each in times if each is not None]
    newest_first = sorted(found, key=lambda each: each.at, reverse=True)
    return Looked(newest_first, min(seen) if more and seen else None)


def _by_step(times: Sequence[datetime], now: datetime, since: Since) -> list[tuple[str, int]]:
    """How often in each hour or day, the oldest first, with none where nothing failed."""
    size, number, words = _STEPS[since]
    counts = Counter(_begin(each, since) for each in times)
    last = _begin(now, since)
    steps = [last - size * back for back in range(number - 1, -1, -1)]
    return [(each.strftime(words), counts[each]) for each in steps]


def _begin(at: datetime, since: Since) -> datetime:
    hour = at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    return hour if since == "24h" else hour.replace(hour=0)
