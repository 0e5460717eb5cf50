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

from holdfast.agents import listings
from holdfast.app import core_of
from holdfast.http.api.seen import PrincipalScope, RequestScope
from holdfast.http.pages.charts import bars
from holdfast.http.pages.filters import Tab, now_of
from holdfast.http.pages.routes import Pages
from holdfast.kernel import codec, queries
from holdfast.kernel.failure_groups import FailureKey, likeness
from holdfast.values import moment
from holdfast.values.jobs import FailureRecord

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


class FoundFailures(NamedTuple):
    """The failures of a group that a look has found; `reach` is how far it went back, None when it saw all."""

    found: Sequence[Occurrence]
    reach: datetime | None = None


@dataclass(frozen=True, slots=True)
class FailureGroupView:
    """`group` is None when the store has counted no such failure, or has forgotten them.

    `short` is from when on failures are drawn, if the look did not reach far enough; `tenant` is the one chosen.
    """

    of: Failing
    group: FailureRecord | None
    last: Sequence[Occurrence]
    drawing: Markup
    begins: str
    drawn: int
    short: datetime | None
    tenant: str | None
    times: tuple[Tab, ...]
    since: Since


@pages.page("/failures", "failures.html", like="GET /system/failures")
async def show_failures(
    seen: RequestScope,
    of: Failing = "jobs",
    kind: str = "",
    error: str = "",
    message: str = "",
    tenant: str | None = None,
    since: Since = "24h",
) -> FailureGroupView:
    whose = seen.chosen(tenant or None)
    group = await _group(seen, of, (kind, error, message), whose)
    looked = await (_jobs if of == "jobs" else _runs)(seen, group, whose) if group else FoundFailures([])
    counts = _by_step([each.at for each in looked.found], now_of(seen), since)
    first = now_of(seen) - _STEPS[since][0] * _STEPS[since][1]
    return FailureGroupView(
        of=of,
        group=group,
        last=looked.found[:_SHOWN],
        drawing=bars(counts, f"Failures by {'hour' if since == '24h' else 'day'}, in UTC", tone="failed"),
        begins=counts[0][0],
        drawn=sum(number for _, number in counts),
        short=looked.reach if looked.reach and looked.reach > first else None,
        tenant=tenant or None,
        times=TABS,
        since=since,
    )


async def _group(
    seen: PrincipalScope, of: Failing, wanted: tuple[str, str, str], whose: str | None
) -> FailureRecord | None:
    kind = wanted[0]
    if of == "jobs":
        groups = await seen.hf.jobs.failures(kind=kind, tenant=whose, limit=_GROUPS)
    else:
        groups = await seen.runs.failures(kind=kind, tenant=whose, limit=_GROUPS)
    return next((each for each in groups if (each.kind, each.error, each.message) == wanted), None)


async def _jobs(seen: PrincipalScope, group: FailureRecord, whose: str | None) -> FoundFailures:
    page = await core_of(seen.hf).runtime().transact(queries.list_failed, group.kind, whose, limit=LOOK)
    found = []
    for row in page.rows:
        its = codec.decode(row.error)
        its = its if isinstance(its, dict) else {}
        traits = FailureKey(row.tenant, group.kind, its.get("type"), its.get("message"))
        found.append((traits, Occurrence(row.id, moment(row.at), traits.message or "")))
    return await _looked(seen, group, found, page.reach)


async def _runs(seen: PrincipalScope, group: FailureRecord, whose: str | None) -> FoundFailures:
    page = await core_of(seen.hf).runtime().transact(listings.list_failed, group.kind, whose, limit=LOOK)
    found = []
    for row in page.rows:
        traits = FailureKey(row.tenant, group.kind, row.error, row.message)
        found.append((traits, Occurrence(row.id, moment(row.at), row.message or "")))
    return await _looked(seen, group, found, page.reach)


async def _looked(
    seen: PrincipalScope, group: FailureRecord, found: Sequence[tuple[FailureKey, Occurrence]], reach: int | None
) -> FoundFailures:
    """Those of the group, the last first."""
    transact = core_of(seen.hf).runtime().transact
    like = await transact(likeness, group.subject, group.error, group.message, [traits for traits, _ in found])
    its = [each for traits, each in found if like.has(traits)]
    return FoundFailures(sorted(its, key=lambda each: each.at, reverse=True), moment(reach))


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
