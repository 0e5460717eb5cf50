"""Schedules: jobs that the clock enqueues.

A tick is fired by a compare-and-set on the schedule's row, in the transaction that enqueues its job, whose id is made
of the schedule and the tick. So it cannot fire twice, even if two workers try; the duty only saves the others the work.
The job's metadata says which tick it was made for.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from holdfast.errors import NotFound, NotUnderstood, UsageError
from holdfast.kernel import codec
from holdfast.kernel.codec import read
from holdfast.kernel.database import Transaction, reading, single
from holdfast.kernel.duties import hold
from holdfast.kernel.enqueue import submit
from holdfast.kernel.flow_rows import ScheduleRow
from holdfast.kernel.ids import JobId, derived_id
from holdfast.kernel.queries import now
from holdfast.kernel.rows import NewJob, Route, Term
from holdfast.kernel.statements import SchedulesSql
from holdfast.text import shell_word
from holdfast.validation import did_you_mean, named

MOST_CAUGHT_UP = 1_000
LATE_US = 60_000_000  # a schedule that catches nothing up still fires a tick that is no later than this
RETRY_US = 60_000_000  # after which one that could not be fired is tried again
LAST_RETRY_US = 3_600_000_000
TICK = "scheduled_for"  # among the arguments of a job that takes one of this name
SCHEDULED_FOR = "holdfast.scheduled_for"  # in a job's metadata, where no caller can write it
_ERROR_CAP = 2_000
_TICK_CAP = 1 << 30  # what the tick is added to has been measured already
NextTick = Callable[[str, str, int], int]  # cron, time zone, after


class NewSchedule(NamedTuple):
    """A schedule as it was declared; the id of its job is filled in at each tick."""

    name: str
    cron: str
    timezone: str
    catch_up: str
    job: NewJob
    route: Route
    takes_tick: bool = False  # the job has an argument `scheduled_for`, which is filled in at each tick


async def put_schedule(tx: Transaction, schedule: NewSchedule, next_tick: NextTick) -> None:
    """Write it down, or renew it."""
    await tx.run(
        SchedulesSql.put_schedule,
        name=schedule.name,
        kind=schedule.job.kind,
        queue=schedule.job.queue,
        cron=schedule.cron,
        timezone=schedule.timezone,
        catch_up=schedule.catch_up,
        job=json.dumps(
            {"job": schedule.job._asdict(), "route": schedule.route._asdict(), "takes_tick": schedule.takes_tick}
        ),
        next_at=next_tick(schedule.cron, schedule.timezone, await now(tx)),
    )


@reading
async def due_schedules(tx: Transaction, *, limit: int) -> list[ScheduleRow]:
    return await tx.many(SchedulesSql.due_schedules, limit=limit)


@reading
async def list_schedules(tx: Transaction) -> list[ScheduleRow]:
    return await tx.many(SchedulesSql.list_schedules)


async def find_schedule(tx: Transaction, name: str) -> ScheduleRow:
    row = await tx.one(SchedulesSql.find_schedule, name=name)
    if row is None:
        known = [schedule.name for schedule in await tx.many(SchedulesSql.list_schedules)]
        raise NotFound(f"there is no schedule {name!r}; {named('schedule', known)}.{did_you_mean(name, known)}")
    return row


async def fire(
    tx: Transaction, row: ScheduleRow, next_tick: NextTick, *, under: tuple[Term, int] | None = None
) -> list[JobId]:
    """Enqueue what is due of one schedule, and move it on. Empty: someone else did, or it was not to be caught up."""
    if under is not None:
        await hold(tx, *under)
    ticks, following = _ticks(row, next_tick)
    jobs = [derived_id("schedule", row.name, tick) for tick in ticks]
    last = jobs[-1] if jobs else row.last_job
    moved = await tx.one(SchedulesSql.advance_schedule, name=row.name, seen=row.next_at, next_at=following, job=last)
    if moved is None:
        return []
    for id, tick in zip(jobs, ticks, strict=True):
        await _enqueue(tx, row, id, tick)
    return jobs


async def postpone(
    tx: Transaction, row: ScheduleRow, problem: Exception, *, under: tuple[Term, int] | None = None
) -> bool:
    """Note why a schedule could not be fired, and try it later: after a minute, and then twice as late each time.

    False when someone else has fired, changed or paused it meanwhile.
    """
    if under is not None:
        await hold(tx, *under)
    late = 0 if row.retry_at is None else row.now - row.next_at
    delay_us = min(max(late, RETRY_US), LAST_RETRY_US)
    said = codec.clip(str(problem) or type(problem).__name__, _ERROR_CAP)
    noted = await tx.one(SchedulesSql.postpone_schedule, name=row.name, seen=row.next_at, error=said, delay_us=delay_us)
    return noted is not None


async def run_now(tx: Transaction, name: str, id: JobId) -> JobId:
    """Enqueue a schedule's job once, beside its rhythm: this moment is its tick."""
    row = await find_schedule(tx, name)
    return await _enqueue(tx, row, id, row.now)


async def pause_schedule(tx: Transaction, name: str) -> None:
    await find_schedule(tx, name)
    await tx.one(SchedulesSql.pause_schedule, name=name)


async def resume_schedule(tx: Transaction, name: str, next_tick: NextTick) -> int:
    """Continue with the next tick; returns when that is."""
    row = await find_schedule(tx, name)
    if row.paused_at is None:
        return row.next_at
    following = next_tick(row.cron, row.timezone, row.now)
    await tx.one(SchedulesSql.resume_schedule, name=name, next_at=following)
    return following


@single
async def delete_schedule(tx: Transaction, name: str) -> bool:
    return await tx.one(SchedulesSql.delete_schedule, name=name) is not None


async def _enqueue(tx: Transaction, row: ScheduleRow, id: JobId, tick: int) -> JobId:
    job, route, takes_tick = _stored(row)
    at = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=tick)).astimezone(ZoneInfo(row.timezone))
    job = job._replace(id=id, metadata=_with_tick(job.metadata, SCHEDULED_FOR, at))
    if takes_tick:
        job = job._replace(payload=_with_tick(job.payload, TICK, at))
    return (await submit(tx, job, [route])).id


def _with_tick(stored: str, name: str, at: datetime) -> str:
    return codec.encode({**(codec.decode(stored) or {}), name: at.isoformat()}, what="a tick", cap=_TICK_CAP)


def tick_of(metadata: Any) -> datetime | None:
    """The tick that a job with this metadata was made for, in the time zone of its schedule; None: no schedule's."""
    stored = metadata.get(SCHEDULED_FOR) if isinstance(metadata, dict) else None
    return None if stored is None else datetime.fromisoformat(stored)


def _stored(row: ScheduleRow) -> tuple[NewJob, Route, bool]:
    """What a schedule enqueues. Fields that only a newer release knows are left out."""
    try:
        stored = json.loads(row.job)
        job = read(NewJob, stored["job"], what=f"the job of schedule {row.name!r}")
        route = read(Route, stored["route"], what=f"the route of schedule {row.name!r}")
        return job, route, stored.get("takes_tick") is True
    except (ValueError, TypeError, KeyError, AttributeError, NotUnderstood) as problem:
        raise UsageError(
            f"the job of schedule {row.name!r} cannot be read ({type(problem).__name__}: {problem}). "
            f"Start a worker that declares it, or delete it with `holdfast schedules delete {shell_word(row.name)}`."
        ) from problem


def _ticks(row: ScheduleRow, next_tick: NextTick) -> tuple[list[int], int]:
    """Which ticks to fire now, and the one after them. What was missed is caught up as the schedule says."""
    if row.catch_up == "all":
        missed = [row.next_at]
        while (following := next_tick(row.cron, row.timezone, missed[-1])) <= row.now and len(missed) < MOST_CAUGHT_UP:
            missed.append(following)
        return missed, following
    last = last_tick(row.cron, row.timezone, row.next_at, row.now, next_tick)
    skipped = row.catch_up == "none" and row.now - last > LATE_US
    return [] if skipped else [last], next_tick(row.cron, row.timezone, row.now)


def last_tick(cron: str, timezone: str, first: int, until: int, next_tick: NextTick) -> int:
    """The last tick no later than a moment, of which `first` is one. Each look halves the time that it may lie in."""
    last, end = first, until  # no tick lies between `end` and the moment
    while (following := next_tick(cron, timezone, last)) <= end:
        middle = (following + end) // 2
        found = next_tick(cron, timezone, middle)
        last, end = (found, end) if found <= end else (following, middle)
    return last
