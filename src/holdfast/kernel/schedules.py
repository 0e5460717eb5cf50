"""Schedules: jobs that the clock enqueues.

A tick is fired by a compare-and-set on the schedule's row, in the transaction that enqueues its job, whose id is made
of the schedule and the tick. So it cannot fire twice, whoever tries; the duty only saves the others the trouble.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from holdfast.errors import NotFound, UsageError
from holdfast.kernel import encoding
from holdfast.kernel.database import Transaction, reading, single
from holdfast.kernel.duties import hold
from holdfast.kernel.enqueue import submit
from holdfast.kernel.ids import JobId, derived_id
from holdfast.kernel.reading import now
from holdfast.kernel.records import NewJob, Route, Term
from holdfast.kernel.records_flow import ScheduleRow
from holdfast.kernel.statements import Schedules

MOST_CAUGHT_UP = 1_000
LATE_US = 60_000_000  # a schedule that catches nothing up still fires a tick that is no later than this
RETRY_US = 60_000_000  # after which one that could not be fired is tried again
LAST_RETRY_US = 3_600_000_000
_ERROR_CAP = 2_000
N = TypeVar("N", bound=tuple[Any, ...])
NextTick = Callable[[str, str, int], int]  # cron, time zone, after


class NewSchedule(NamedTuple):
    """A schedule as it was declared; the id of its job is filled in at each tick."""

    name: str
    cron: str
    timezone: str
    catch_up: str
    job: NewJob
    route: Route


async def put_schedule(tx: Transaction, schedule: NewSchedule, next_tick: NextTick) -> None:
    """Write it down, or renew it."""
    await tx.run(
        Schedules.put_schedule,
        name=schedule.name,
        kind=schedule.job.kind,
        queue=schedule.job.queue,
        cron=schedule.cron,
        timezone=schedule.timezone,
        catch_up=schedule.catch_up,
        job=json.dumps({"job": schedule.job._asdict(), "route": schedule.route._asdict()}),
        next_at=next_tick(schedule.cron, schedule.timezone, await now(tx)),
    )


@reading
async def due_schedules(tx: Transaction, *, limit: int) -> list[ScheduleRow]:
    return await tx.many(Schedules.due_schedules, limit=limit)


@reading
async def list_schedules(tx: Transaction) -> list[ScheduleRow]:
    return await tx.many(Schedules.list_schedules)


async def find_schedule(tx: Transaction, name: str) -> ScheduleRow:
    row = await tx.one(Schedules.find_schedule, name=name)
    if row is None:
        known = [schedule.name for schedule in await tx.many(Schedules.list_schedules)]
        raise NotFound(f"there is no schedule {name!r}; there are {', '.join(known) or 'none'}.")
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
    moved = await tx.one(Schedules.advance_schedule, name=row.name, seen=row.next_at, next_at=following, job=last)
    if moved is None:
        return []
    for id in jobs:
        await _enqueue(tx, row, id)
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
    said = encoding.clip(str(problem) or type(problem).__name__, _ERROR_CAP)
    noted = await tx.one(Schedules.postpone_schedule, name=row.name, seen=row.next_at, error=said, delay_us=delay_us)
    return noted is not None


async def run_now(tx: Transaction, name: str, id: JobId) -> JobId:
    """Enqueue a schedule's job once, beside its rhythm."""
    return await _enqueue(tx, await find_schedule(tx, name), id)


async def pause_schedule(tx: Transaction, name: str) -> None:
    await find_schedule(tx, name)
    await tx.one(Schedules.pause_schedule, name=name)


async def resume_schedule(tx: Transaction, name: str, next_tick: NextTick) -> int:
    """Go on with the next tick; returns when that is."""
    row = await find_schedule(tx, name)
    if row.paused_at is None:
        return row.next_at
    following = next_tick(row.cron, row.timezone, row.now)
    await tx.one(Schedules.resume_schedule, name=name, next_at=following)
    return following


@single
async def remove_schedule(tx: Transaction, name: str) -> bool:
    return await tx.one(Schedules.remove_schedule, name=name) is not None


async def _enqueue(tx: Transaction, row: ScheduleRow, id: JobId) -> JobId:
    job, route = _stored(row)
    return (await submit(tx, job._replace(id=id), [route])).id


def _stored(row: ScheduleRow) -> tuple[NewJob, Route]:
    """What a schedule enqueues. Fields that only a newer release knows are left out."""
    try:
        stored = json.loads(row.job)
        return _known(NewJob, stored["job"]), _known(Route, stored["route"])
    except (ValueError, TypeError, KeyError, AttributeError) as problem:
        raise UsageError(
            f"the job of schedule {row.name!r} cannot be read ({type(problem).__name__}: {problem}). "
            f"Start a worker that declares it, or remove it with `holdfast schedules rm {row.name}`."
        ) from problem


def _known(record: type[N], fields: Mapping[str, Any]) -> N:
    known: frozenset[str] = frozenset(record._fields)  # type: ignore[attr-defined]
    return record(**{name: value for name, value in fields.items() if name in known})


def _ticks(row: ScheduleRow, next_tick: NextTick) -> tuple[list[int], int]:
    """Which ticks to fire now, and the one after them. What was missed is caught up as the schedule says."""
    missed = [row.next_at]
    while (following := next_tick(row.cron, row.timezone, missed[-1])) <= row.now and len(missed) < MOST_CAUGHT_UP:
        missed.append(following)
    if row.catch_up == "all":
        return missed, following
    following = next_tick(row.cron, row.timezone, row.now)
    if row.catch_up == "none" and row.now - missed[-1] > LATE_US:
        return [], following
    return missed[-1:], following
