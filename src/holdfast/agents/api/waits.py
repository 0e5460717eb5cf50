"""Waits: the times in which something was to be done and nobody did it, each with its reason. No I/O.

Where a worker had the job there is no wait. What is left belongs to a person, a batch, the session, or to whatever the
attempt before it said.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, NamedTuple

from holdfast.agents.money.budgets import BudgetWait

Cause = Literal["queue", "session", "lane", "budget", "person", "batch", "retry"]

_SHORTEST = timedelta(milliseconds=1)
_FREE = "no worker had taken it yet"


class Interval(NamedTuple):
    begin: datetime
    end: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldInterval:
    """A time in which a worker had the job; `outcome` and `ended_at` are None while it lasts."""

    worker: str
    outcome: str | None
    error_type: str | None
    message: str
    started_at: datetime
    ended_at: datetime | None


class KnownInterval(NamedTuple):
    """A time whose reason is known: nobody needs to guess what was waited for."""

    cause: Cause
    reason: str
    begin: datetime
    end: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitInterval:
    cause: Cause
    reason: str
    started_at: datetime
    ended_at: datetime | None


def waits(
    begin: datetime,
    end: datetime | None,
    now: datetime,
    held: Sequence[HeldInterval],
    *,
    known: Iterable[KnownInterval] = (),
    busy: Iterable[Interval] = (),
    open_reason: tuple[Cause, str] | None = None,
) -> list[WaitInterval]:
    """What was waited for from `begin` to `end`, or until now. `busy` are times that others worked in.

    `open_reason` is what holds it now, for a wait that has not ended.
    """
    left = without([Interval(begin, end or now)], [Interval(each.started_at, each.ended_at or now) for each in held])
    found: list[WaitInterval] = []
    for each in known:
        mine = within(left, Interval(each.begin, each.end or now))
        left = without(left, mine)
        found += [_wait(each.cause, each.reason, part, end is None and part.end >= now) for part in mine]
    for part in without(left, busy):
        lasts = end is None and part.end >= now
        cause, reason = open_reason if lasts and open_reason is not None else _after(part.begin, held)
        found.append(_wait(cause, reason, part, lasts))
    return sorted(
        (each for each in found if (each.ended_at or now) - each.started_at >= _SHORTEST),
        key=lambda each: each.started_at,
    )


def _wait(cause: Cause, reason: str, part: Interval, lasts: bool) -> WaitInterval:
    return WaitInterval(cause=cause, reason=reason, started_at=part.begin, ended_at=None if lasts else part.end)


def _after(begin: datetime, held: Sequence[HeldInterval]) -> tuple[Cause, str]:
    """What the last attempt before a time says about it."""
    before = [each for each in held if each.ended_at is not None and each.ended_at <= begin]
    last = max(before, key=lambda each: each.ended_at or begin, default=None)
    match None if last is None else last.outcome:
        case "lost":
            worker = f"worker {last.worker}" if last is not None and last.worker else "its worker"
            return "queue", f"{worker} was lost, and no other had taken it yet"
        case "snoozed":
            over = last is not None and last.error_type == BudgetWait.error_type
            return ("budget" if over else "lane"), (last.message if last else "") or "it was put off"
        case "retried":
            return "retry", f"it is tried again after: {last.message if last else ''}"
        case _:
            return "queue", _FREE


def without(parts: Iterable[Interval], taken: Iterable[Interval]) -> list[Interval]:
    """What is left of some times when others are taken out of them."""
    left = list(parts)
    for hole in taken:
        cut: list[Interval] = []
        for part in left:
            if hole.end <= part.begin or hole.begin >= part.end:
                cut.append(part)
                continue
            if hole.begin > part.begin:
                cut.append(Interval(part.begin, hole.begin))
            if hole.end < part.end:
                cut.append(Interval(hole.end, part.end))
        left = cut
    return left


def within(parts: Iterable[Interval], whole: Interval) -> list[Interval]:
    """What of some times lies in another one."""
    cut = [Interval(max(part.begin, whole.begin), min(part.end, whole.end)) for part in parts]
    return [part for part in cut if part.begin < part.end]
