"""The headline: what is not well, the most important first. Pure.

All is well when nothing failed in the last quarter of an hour, nobody waits long for a person, no old work waits
while every slot is taken, no provider's lane is closed before work, and the doctor finds nothing to fix.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from holdfast.agents.people.inquiry import Inquiry
from holdfast.agents.values.runs import RunRecord
from holdfast.http.live.sampler import Sample
from holdfast.http.pages.words import span
from holdfast.kernel.doctor_database import Finding, Level
from holdfast.shown_text import plural
from holdfast.values import Page

RECENTLY = timedelta(minutes=15)  # how long a failure is news
MANY_FAILED = 1_000  # jobs that failed or were cancelled recently, among which those that failed are counted
PATIENCE = timedelta(hours=1)  # of who asked a person
SOON = timedelta(minutes=10)  # before the time of a question is over
OLD = 300.0  # seconds that work waits where every slot is taken
_LEVELS: Sequence[Level] = ("problem", "warning", "note")


class SeeMore(NamedTuple):
    """Where one sees more: `rule` is the route of the API that shows it."""

    words: str
    path: str
    rule: str
    state: str | None = None


class Thing(NamedTuple):
    """Something that is not well, or worth a note; `check` is what the doctor calls it."""

    check: str
    level: Level
    sentence: str
    remedy: str = ""
    way: SeeMore | None = None


class Known(NamedTuple):
    """What the page knows: the last failed runs, the oldest inquiries, how many jobs failed recently."""

    now: datetime
    sample: Sample | None
    failed: Page[RunRecord]
    inquiries: Page[Inquiry]
    failed_jobs: int = 0


_FAILED_JOBS = SeeMore("Failed jobs", "/jobs", "GET /jobs", "failed")
_FAILED_RUNS = SeeMore("Failed runs", "/runs", "GET /runs", "failed")
_INBOX = SeeMore("Inbox", "/inbox", "GET /inquiries")
_WORKERS = SeeMore("Workers", "/workers", "GET /workers")
_QUEUES = SeeMore("Queues", "/queues", "GET /queues")
_WAYS = {
    "jobs": SeeMore("Jobs", "/jobs", "GET /jobs"),
    "lanes": _QUEUES,
    "queues": _QUEUES,
    "schedules": SeeMore("Schedules", "/schedules", "GET /schedules"),
    "sessions": SeeMore("Sessions", "/sessions", "GET /sessions"),
    "work": _WORKERS,
    "workers": _WORKERS,
}


def things(known: Known, findings: Sequence[Finding] = ()) -> list[Thing]:
    """What is not well, then what is worth a note. What the doctor says with a remedy is not said twice."""
    found = [Thing(*each, _WAYS.get(each.check)) for each in findings if each.level != "ok"]
    said = {each.check for each in found if each.level != "note"}
    seen = [each for each in _seen(known) if each.check not in said]
    problems = [each for each in found if each.level == "problem"]
    return sorted([*problems, *seen, *(each for each in found if each not in problems)], key=_rank)


def _rank(thing: Thing) -> int:
    return _LEVELS.index(thing.level)


def _seen(known: Known) -> Iterator[Thing]:
    if known.sample is not None:
        yield from _without_worker(known.sample)
    yield from _failures(known)
    yield from _unanswered(known)
    if known.sample is not None:
        yield from _backlog(known.sample)
        yield from _closed(known.sample)


def _without_worker(sample: Sample) -> Iterator[Thing]:
    waiting = sum(each.pending for each in sample.queues if not each.paused_at)
    if waiting and not sample.workers:
        said = f"{plural(waiting, 'job waits', 'jobs wait')}, and no worker is alive."
        yield Thing("work", "problem", said, "Start one: `holdfast worker …`.", _WORKERS)


def _failures(known: Known) -> Iterator[Thing]:
    """Of jobs, as fresh as they are known; else of runs, which who is a tenant sees too."""
    sample, minutes = known.sample, round(RECENTLY.total_seconds() / 60)
    now = sum(each.failed for each in sample.queues) if sample else 0
    recent = [each for each in known.failed if each.finalized_at and known.now - each.finalized_at <= RECENTLY]
    more = " or more" if known.failed.next and len(recent) == len(known.failed) else ""
    remedy = "Fix the cause, then try a whole group of failures again."
    if now:
        yield Thing("failed", "problem", f"{plural(now, 'job')} failed in the last minute.", remedy, _FAILED_JOBS)
    elif known.failed_jobs:
        jobs = f"{MANY_FAILED:,} jobs or more" if known.failed_jobs >= MANY_FAILED else plural(known.failed_jobs, "job")
        said = f"{jobs} failed in the last {minutes} minutes."
        yield Thing("failed", "problem", said, remedy, _FAILED_JOBS)
    elif recent:
        said = f"{plural(len(recent), 'run', more=more)} failed in the last {minutes} minutes."
        yield Thing("failed", "problem", said, remedy, _FAILED_RUNS)


def _unanswered(known: Known) -> Iterator[Thing]:
    """Those that will soon be decided without a person come before those that have waited for long."""
    number = known.sample.inquiries if known.sample else len(known.inquiries)
    least = "At least " if known.sample is None and known.inquiries.next else ""
    more = f" {least}{plural(number, 'question is', 'questions are')} open."
    ending = [each.expires_at - known.now for each in known.inquiries if each.expires_at]
    if soon := [each for each in ending if timedelta() < each <= SOON]:
        said = f"The time to answer a question ends in {span(min(soon))}.{more}"
        yield Thing("people", "warning", said, "", _INBOX)
    elif known.inquiries and (waited := known.now - min(each.asked_at for each in known.inquiries)) >= PATIENCE:
        yield Thing("people", "warning", f"A question has waited for a person for {span(waited)}.{more}", "", _INBOX)


def _backlog(sample: Sample) -> Iterator[Thing]:
    old = [each for each in sample.queues if not each.paused_at and sample.oldest_pending.get(each.name, 0.0) >= OLD]
    if old and sample.slots and sample.active >= sample.slots:
        waiting = sum(each.pending for each in old)
        oldest = max(sample.oldest_pending[each.name] for each in old)
        said = (
            f"{plural(waiting, 'job waits', 'jobs wait')} while every slot is taken; the oldest is {span(oldest)} old."
        )
        yield Thing("backlog", "warning", said, "Start more workers, or give them more slots.", _WORKERS)


def _closed(sample: Sample) -> Iterator[Thing]:
    behind = {name: waiting for name, waiting in sample.waiting_behind.items() if waiting}
    if behind:
        name = max(behind, key=lambda each: behind[each])
        said = f"Lane {name} is closed, and {plural(behind[name], 'run waits', 'runs wait')} behind it."
        yield Thing("lanes", "warning", said, "", _QUEUES)
