"""Now: what is wrong and since when, and how much there is to do. The first page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from holdfast.agents.states import RunState
from holdfast.agents.values import ClosedLaneRecord, Inquiry, RunRecord
from holdfast.app import core_of
from holdfast.http.api.inquiries import list_inquiries
from holdfast.http.api.routes import Paging
from holdfast.http.api.runs import list_runs
from holdfast.http.api.seen import PrincipalScope, RequestScope
from holdfast.http.api.streams import Alive
from holdfast.http.live.live import Sample
from holdfast.http.pages.charts import by_hour, sparkline, trends
from holdfast.http.pages.filters import now_of
from holdfast.http.pages.routes import Pages
from holdfast.http.pages.words import span
from holdfast.kernel.doctor import Finding, Level
from holdfast.kernel.queries import count_failed
from holdfast.text import plural
from holdfast.values import Page, microseconds
from holdfast.values.jobs import FailureRecord, StatRecord

# Why work waits, all of it: how much is behind each gate, as one sample of the fleet says. Pure.


class WaitReason(NamedTuple):
    """What work waits for, how much of it, and where one sees more: `rule` is the route of the API that shows it."""

    words: str
    number: int
    path: str
    rule: str
    query: dict[str, str]


def gates(sample: Sample) -> list[WaitReason]:
    """The same ones in the same order, so that nothing moves when a count becomes none."""
    ready = sum(each.pending for each in sample.queues if not each.paused_at)
    paused = sum(each.pending for each in sample.queues if each.paused_at)
    return [
        WaitReason("a free slot of a worker" if sample.workers else "a worker: none is live", ready, *_WORKERS),
        WaitReason("a queue that is paused", paused, *_QUEUES),
        WaitReason("a lane that is full", sum(each.blocked for each in sample.queues), *_QUEUES),
        WaitReason("a provider whose lane is closed", sum(sample.waiting_behind.values()), *_QUEUES),
        WaitReason("a person", sample.inquiries, "/inbox", "GET /inquiries", {}),
        WaitReason("its time, or what it started", sum(each.later for each in sample.queues), *_LATER),
    ]


_QUEUES: tuple[str, str, dict[str, str]] = ("/queues", "GET /queues", {})
_WORKERS: tuple[str, str, dict[str, str]] = ("/workers", "GET /workers", {})
_LATER: tuple[str, str, dict[str, str]] = ("/jobs", "GET /jobs", {"state": "scheduled"})


# The headline: what is not well, the most important first. Pure.
#
# All is well when nothing failed in the last quarter of an hour, nobody waits long for a person, no old work waits
# while every slot is taken, no provider's lane is closed before work, and the doctor finds nothing to fix.


RECENTLY = timedelta(minutes=15)  # how long a failure is news
MANY_FAILED = 1_000  # jobs that failed or were cancelled recently, among which those that failed are counted
PATIENCE = timedelta(hours=1)  # of who asked a person
SOON = timedelta(minutes=10)  # before the time of a question is over
OLD = 300.0  # seconds that work waits where every slot is taken
_LEVELS: Sequence[Level] = ("problem", "warning", "note")


class MoreLink(NamedTuple):
    """Where one sees more: `rule` is the route of the API that shows it."""

    words: str
    path: str
    rule: str
    state: str | None = None


class FleetProblem(NamedTuple):
    """Something that is not well, or worth a note; `check` is what the doctor calls it."""

    check: str
    level: Level
    sentence: str
    remedy: str = ""
    way: MoreLink | None = None


class NowSnapshot(NamedTuple):
    """What the page knows: the last failed runs, the oldest inquiries, how many jobs failed recently."""

    now: datetime
    sample: Sample | None
    failed: Page[RunRecord]
    inquiries: Page[Inquiry]
    failed_jobs: int = 0


_FAILED_JOBS = MoreLink("Failed jobs", "/jobs", "GET /jobs", "failed")
_FAILED_RUNS = MoreLink("Failed runs", "/runs", "GET /runs", "failed")
_INBOX = MoreLink("Inbox", "/inbox", "GET /inquiries")
_SEE_WORKERS = MoreLink("Workers", "/workers", "GET /workers")
_SEE_QUEUES = MoreLink("Queues", "/queues", "GET /queues")
_WAYS = {
    "jobs": MoreLink("Jobs", "/jobs", "GET /jobs"),
    "lanes": _SEE_QUEUES,
    "queues": _SEE_QUEUES,
    "schedules": MoreLink("Schedules", "/schedules", "GET /schedules"),
    "sessions": MoreLink("Sessions", "/sessions", "GET /sessions"),
    "work": _SEE_WORKERS,
    "workers": _SEE_WORKERS,
}


def things(known: NowSnapshot, findings: Sequence[Finding] = ()) -> list[FleetProblem]:
    """What is not well, then what is worth a note. What the doctor says with a remedy is not said twice."""
    found = [FleetProblem(*each, _WAYS.get(each.check)) for each in findings if each.level != "ok"]
    said = {each.check for each in found if each.level != "note"}
    seen = [each for each in _seen(known) if each.check not in said]
    problems = [each for each in found if each.level == "problem"]
    return sorted([*problems, *seen, *(each for each in found if each not in problems)], key=_rank)


def _rank(thing: FleetProblem) -> int:
    return _LEVELS.index(thing.level)


def _seen(known: NowSnapshot) -> Iterator[FleetProblem]:
    if known.sample is not None:
        yield from _without_worker(known.sample)
    yield from _failures(known)
    yield from _unanswered(known)
    if known.sample is not None:
        yield from _backlog(known.sample)
        yield from _closed(known.sample)


def _without_worker(sample: Sample) -> Iterator[FleetProblem]:
    waiting = sum(each.pending for each in sample.queues if not each.paused_at)
    if waiting and not sample.workers:
        said = f"{plural(waiting, 'job waits', 'jobs wait')}, and no worker is alive."
        yield FleetProblem("work", "problem", said, "Start one: `holdfast worker …`.", _SEE_WORKERS)


def _failures(known: NowSnapshot) -> Iterator[FleetProblem]:
    """Of jobs, as fresh as they are known; else of runs, which who is a tenant sees too."""
    sample, minutes = known.sample, round(RECENTLY.total_seconds() / 60)
    now = sum(each.failed for each in sample.queues) if sample else 0
    recent = [each for each in known.failed if each.finalized_at and known.now - each.finalized_at <= RECENTLY]
    more = " or more" if known.failed.next and len(recent) == len(known.failed) else ""
    remedy = "Fix the cause, then try a whole group of failures again."
    if now:
        yield FleetProblem(
            "failed", "problem", f"{plural(now, 'job')} failed in the last minute.", remedy, _FAILED_JOBS
        )
    elif known.failed_jobs:
        jobs = f"{MANY_FAILED:,} jobs or more" if known.failed_jobs >= MANY_FAILED else plural(known.failed_jobs, "job")
        said = f"{jobs} failed in the last {minutes} minutes."
        yield FleetProblem("failed", "problem", said, remedy, _FAILED_JOBS)
    elif recent:
        said = f"{plural(len(recent), 'run', more=more)} failed in the last {minutes} minutes."
        yield FleetProblem("failed", "problem", said, remedy, _FAILED_RUNS)


def _unanswered(known: NowSnapshot) -> Iterator[FleetProblem]:
    """Those that will soon be decided without a person come before those that have waited for long."""
    number = known.sample.inquiries if known.sample else len(known.inquiries)
    least = "At least " if known.sample is None and known.inquiries.next else ""
    more = f" {least}{plural(number, 'question is', 'questions are')} open."
    ending = [each.expires_at - known.now for each in known.inquiries if each.expires_at]
    if soon := [each for each in ending if timedelta() < each <= SOON]:
        said = f"The time to answer a question ends in {span(min(soon))}.{more}"
        yield FleetProblem("people", "warning", said, "", _INBOX)
    elif known.inquiries and (waited := known.now - min(each.asked_at for each in known.inquiries)) >= PATIENCE:
        yield FleetProblem(
            "people", "warning", f"A question has waited for a person for {span(waited)}.{more}", "", _INBOX
        )


def _backlog(sample: Sample) -> Iterator[FleetProblem]:
    old = [each for each in sample.queues if not each.paused_at and sample.oldest_pending.get(each.name, 0.0) >= OLD]
    if old and sample.slots and sample.active >= sample.slots:
        waiting = sum(each.pending for each in old)
        oldest = max(sample.oldest_pending[each.name] for each in old)
        said = (
            f"{plural(waiting, 'job waits', 'jobs wait')} while every slot is taken; the oldest is {span(oldest)} old."
        )
        yield FleetProblem("backlog", "warning", said, "Start more workers, or give them more slots.", _SEE_WORKERS)


def _closed(sample: Sample) -> Iterator[FleetProblem]:
    behind = {name: waiting for name, waiting in sample.waiting_behind.items() if waiting}
    if behind:
        name = max(behind, key=lambda each: behind[each])
        said = f"Lane {name} is closed, and {plural(behind[name], 'run waits', 'runs wait')} behind it."
        yield FleetProblem("lanes", "warning", said, "", _SEE_QUEUES)


pages = Pages()
_FEW = Paging(None, 8)
_MANY = Paging(None, 100)


@dataclass(frozen=True, slots=True)
class DaySummary:
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
    waiting_for: Sequence[WaitReason]
    lanes: Sequence[ClosedLaneRecord]
    day: DaySummary | None
    things: Sequence[FleetProblem]


@dataclass(frozen=True, slots=True)
class HealthView:
    things: Sequence[FleetProblem]


@pages.page("/", "now.html", like="GET /system")
async def show_now(seen: RequestScope, live: Alive) -> NowView:
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
        things=things(NowSnapshot(now_of(seen), sample, failed, inquiries, await _failed_jobs(seen) if sample else 0)),
    )


async def _day(seen: PrincipalScope) -> DaySummary:
    whole = await seen.runs.stats(since="24h", step="all")
    hours = await seen.runs.stats("state", since="24h", step="hour")
    failures = [each for each in hours if each.state == RunState.FAILED]
    return DaySummary(
        runs=next(iter(whole), None),
        failed=sum(each.count for each in failures),
        ended_line=sparkline(by_hour(seen, hours), "Runs that ended, by hour", tone="runs"),
        failed_line=sparkline(by_hour(seen, failures), "Runs that failed, by hour", tone="failed"),
        groups=await seen.runs.failures(since="24h", limit=8),
        trends=trends(seen, await seen.runs.stats("source", since="24h", step="hour", state="failed"), "source"),
    )


@pages.page("/now/health", "health.html", like="GET /system/doctor")
async def show_health(seen: RequestScope, live: Alive) -> HealthView:
    """What is not well, as a part of the first page."""
    known = NowSnapshot(
        now_of(seen),
        await live.sampler.sample(),
        await list_runs(seen, _FEW, state=RunState.FAILED),
        await list_inquiries(seen, _MANY),
        await _failed_jobs(seen),
    )
    return HealthView(things(known, await live.checkup.findings()))


async def _failed_jobs(seen: PrincipalScope) -> int:
    since = microseconds(now_of(seen) - RECENTLY)
    return await core_of(seen.hf).runtime().transact(count_failed, since, look=MANY_FAILED)
