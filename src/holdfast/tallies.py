"""Questions to the tally, as `hf.jobs` and `hf.runs` ask them: what ended in each step of time, and what failed."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, Literal, TypedDict

from holdfast import durations, validation
from holdfast.durations import Duration
from holdfast.errors import UsageError
from holdfast.kernel.failure_groups import list_failures
from holdfast.kernel.tally import DAY, HOUR, KEPT, SIZES
from holdfast.kernel.tally_rows import CountedTime, SeriesPoint
from holdfast.kernel.tally_series import SeriesQuery, of_tenants, read_series, read_times
from holdfast.values.tallies import FailureRecord, StatRecord, failure_of, stats_of
from holdfast.values.times import microseconds as microseconds_of

Ask = Callable[..., Awaitable[Any]]
Part = Literal["source", "kind", "mode", "state", "tenant"]
Step = Literal["minute", "hour", "day", "all"]
Subject = Literal["jobs", "runs", "turns", "calls"]

PARTS: Sequence[Part] = ("source", "kind", "mode", "state", "tenant")
STEPS: Sequence[Step] = ("minute", "hour", "day", "all")
SUBJECTS: Sequence[Subject] = ("jobs", "runs", "turns", "calls")
_MOST = 100_000
_ALL = 2**62  # longer than any time: one step


class StatOptions(TypedDict, total=False):
    """Which part of the tally.

    `since` and `until` are times, or how long ago: "24h". `step` is "minute", "hour" or "day", or "all" for one record;
    without it, as the time asked for suggests. Minutes are kept for two days and are not known by tenant; hours are
    kept for 90 days.
    """

    since: datetime | Duration | None
    until: datetime | Duration | None
    step: Step | None
    source: str | None
    kind: str | None
    state: str | None
    limit: int


async def stats(
    ask: Ask, now_us: int, subject: Subject, *, by: Sequence[Part], tenant: str | None, options: StatOptions
) -> Sequence[StatRecord]:
    """What has ended, kept apart by these parts, the newest first."""
    for part in by:
        validation.one_of(part, "by", PARTS)
    validation.one_of(subject, "of", SUBJECTS)
    validation.option_names(options, StatOptions, "stats")
    asked = _asked(now_us, SeriesQuery(subject, "", 0, 0, 0, by, tenant), options)
    limit = validation.page(options.get("limit", _MOST))
    rows: list[SeriesPoint] = await ask(read_series, asked, limit=limit)
    times: list[CountedTime] = await ask(read_times, asked) if rows else []
    if asked.step == _ALL:
        rows, times = [row._replace(at=asked.since) for row in rows], [row._replace(at=asked.since) for row in times]
    return stats_of(rows, times)


def _asked(now_us: int, part: SeriesQuery, options: StatOptions) -> SeriesQuery:
    since = _moment(options.get("since"), now_us, "since", now_us - DAY)
    until = _moment(options.get("until"), now_us, "until", now_us)
    own = of_tenants(part)
    step = options.get("step") or _step(now_us, since, until, own=own)
    validation.one_of(step, "step", STEPS)
    if step == "minute" and own:
        raise UsageError('minutes are not known by tenant: ask for step="hour" or longer.')
    grain = step if step != "all" else "hour" if since >= now_us - KEPT["hour"] else "day"
    size = SIZES[grain]
    return part._replace(
        grain=grain,
        since=since // size * size,
        until=until,
        step=_ALL if step == "all" else size,
        source=options.get("source"),
        kind=options.get("kind"),
        state=options.get("state"),
    )


def _step(now_us: int, since: int, until: int, *, own: bool) -> Step:
    """The finest that makes about two hundred steps, of those that are kept."""
    if not own and until - since <= 4 * HOUR and since >= now_us - KEPT["minute"]:
        return "minute"
    return "hour" if until - since <= 8 * DAY and since >= now_us - KEPT["hour"] else "day"


def _moment(given: datetime | Duration | None, now_us: int, what: str, otherwise: int) -> int:
    """A time, as such or in ISO 8601, or how long ago."""
    if given is None:
        return otherwise
    if isinstance(given, str):
        with contextlib.suppress(ValueError):
            given = datetime.fromisoformat(given)
    return moment_us(given, what) if isinstance(given, datetime) else now_us - durations.microseconds(given)


def since_us(given: datetime | Duration | None, now_us: int) -> int:
    """A time, or how long ago; 0 when none is given."""
    return _moment(given, now_us, "since", 0)


def moment_us(given: datetime, what: str) -> int:
    if not isinstance(given, datetime):
        raise UsageError(f"{what}= is a datetime, not {validation.shown(given)}.")
    if given.tzinfo is None:
        raise UsageError(f"{what}= needs a time zone, as in datetime(…, tzinfo=UTC).")
    return microseconds_of(given)


async def failures(
    ask: Ask,
    now_us: int,
    *,
    subject: str | None,
    kind: str | None,
    tenant: str | None,
    since: datetime | Duration | None,
    limit: int,
) -> Sequence[FailureRecord]:
    """Groups of failures, those that came last first."""
    validation.one_of(subject, "of", ("jobs", "runs", "calls"))
    first = since_us(since, now_us)
    wanted = {"subject": subject, "kind": kind, "tenant": tenant, "since": first}
    return [failure_of(row) for row in await ask(list_failures, **wanted, limit=validation.page(limit))]
