"""Schedules as pages: when each fires next, why it did not, and firing one by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from holdfast.crons import next_tick
from holdfast.errors import HoldfastError
from holdfast.http.api.fleet import (
    delete_schedule,
    list_schedules,
    pause_schedule,
    resume_schedule,
    run_schedule,
    show_schedule,
)
from holdfast.http.api.paging import Paged
from holdfast.http.api.seen import Sight
from holdfast.http.pages.routes import Go, Pages
from holdfast.values import Page
from holdfast.values.schedules import ScheduleRecord
from holdfast.values.times import moment

pages = Pages()

_NEXT = 5  # ticks that are foretold


@dataclass(frozen=True, slots=True)
class SchedulesView:
    schedules: Page[ScheduleRecord]


@dataclass(frozen=True, slots=True)
class ScheduleView:
    schedule: ScheduleRecord
    ticks: Sequence[datetime]


@pages.page("/schedules", "schedules.html")
async def show_schedules(seen: Sight, page: Paged) -> SchedulesView:
    return SchedulesView(await list_schedules(seen, page))


@pages.page("/schedules/{name}", "schedule.html")
async def show_one_schedule(seen: Sight, name: str) -> ScheduleView:
    found = await show_schedule(seen, name)
    return ScheduleView(found, _ticks(found))


def _ticks(schedule: ScheduleRecord) -> list[datetime]:
    """The next times at which it fires; none while it is paused."""
    if schedule.paused:
        return []
    found = [schedule.next_at]
    try:
        while len(found) < _NEXT:
            last = round(found[-1].timestamp() * 1_000_000)
            found.append(moment(next_tick(schedule.cron, schedule.timezone, last)))
    except HoldfastError:  # this machine does not know its time zone
        pass
    return found


@pages.action("/schedules/{name}/run")
async def run_one_schedule(seen: Sight, name: str) -> Go:
    return Go("/jobs", (await run_schedule(seen, name)).id)


@pages.action("/schedules/{name}/pause")
async def pause_one_schedule(seen: Sight, name: str) -> Go:
    await pause_schedule(seen, name)
    return Go("/schedules", name)


@pages.action("/schedules/{name}/resume")
async def resume_one_schedule(seen: Sight, name: str) -> Go:
    await resume_schedule(seen, name)
    return Go("/schedules", name)


@pages.action("/schedules/{name}/delete", like="DELETE /schedules/{name}")
async def delete_one_schedule(seen: Sight, name: str) -> Go:
    await delete_schedule(seen, name)
    return Go("/schedules")
