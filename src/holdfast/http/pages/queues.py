"""Queues and lanes as pages: where work stands, what is paused and why, which provider is closed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from holdfast.agents.states import BatchState
from holdfast.agents.values import BatchRecord, ClosedLaneRecord, RequestRecord
from holdfast.durations import next_tick
from holdfast.errors import HoldfastError
from holdfast.http.api.fleet import (
    Pause,
    delete_schedule,
    list_batches,
    list_closed_lanes,
    list_lanes,
    list_requests,
    list_schedules,
    open_lane,
    pause_queue,
    pause_schedule,
    resume_queue,
    resume_schedule,
    run_schedule,
    show_batch,
    show_queue,
    show_schedule,
)
from holdfast.http.api.routes import Paged, Paging
from holdfast.http.api.seen import RequestScope
from holdfast.http.pages.filters import Tab
from holdfast.http.pages.forms import Filled
from holdfast.http.pages.routes import Pages, Redirect
from holdfast.values import Page, moment
from holdfast.values.jobs import JobRecord
from holdfast.values.queues import LaneRecord, QueueCounts, ScheduleRecord

pages = Pages()

_SOME = Paging(None, 100)
_FEW = 10


@dataclass(frozen=True, slots=True)
class QueuesView:
    queues: list[QueueCounts]
    lanes: Page[LaneRecord]
    closed: Page[ClosedLaneRecord]


@dataclass(frozen=True, slots=True)
class QueueView:
    queue: QueueCounts
    lanes: Page[LaneRecord]
    waiting: Page[JobRecord]
    running: Page[JobRecord]
    failed: Page[JobRecord]


@pages.page("/queues", "queues.html")
async def show_queues(seen: RequestScope, page: Paged) -> QueuesView:
    counts = list(await seen.hf.queues.stats())
    return QueuesView(counts, await list_lanes(seen, page), await list_closed_lanes(seen, _SOME))


@pages.page("/queues/{name}", "queue.html")
async def show_one_queue(seen: RequestScope, name: str) -> QueueView:
    found = await show_queue(seen, name)
    jobs = seen.hf.jobs
    return QueueView(
        found,
        await list_lanes(seen, _SOME, queue=name),
        await jobs.list(queue=name, state="pending", limit=_FEW, look=1_000),
        await jobs.list(queue=name, state="running", limit=_FEW, look=1_000),
        await jobs.list(queue=name, state="failed", limit=_FEW, look=1_000),
    )


@pages.action("/queues/{name}/pause")
async def pause_one_queue(seen: RequestScope, name: str, form: Filled) -> Redirect:
    await pause_queue(seen, name, Pause(reason=form.text("reason") or ""))
    return Redirect("/queues", name)


@pages.action("/queues/{name}/resume")
async def resume_one_queue(seen: RequestScope, name: str) -> Redirect:
    await resume_queue(seen, name)
    return Redirect("/queues", name)


@pages.action("/lanes/{name}/open")
async def open_one_lane(seen: RequestScope, name: str) -> Redirect:
    await open_lane(seen, name)
    return Redirect("/queues")


# Schedules as pages: when each fires next, why it did not, and firing one by hand.


_NEXT = 5  # ticks that are foretold


@dataclass(frozen=True, slots=True)
class SchedulesView:
    schedules: Page[ScheduleRecord]


@dataclass(frozen=True, slots=True)
class ScheduleView:
    schedule: ScheduleRecord
    ticks: Sequence[datetime]


@pages.page("/schedules", "schedules.html")
async def show_schedules(seen: RequestScope, page: Paged) -> SchedulesView:
    return SchedulesView(await list_schedules(seen, page))


@pages.page("/schedules/{name}", "schedule.html")
async def show_one_schedule(seen: RequestScope, name: str) -> ScheduleView:
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
async def run_one_schedule(seen: RequestScope, name: str) -> Redirect:
    return Redirect("/jobs", (await run_schedule(seen, name)).id)


@pages.action("/schedules/{name}/pause")
async def pause_one_schedule(seen: RequestScope, name: str) -> Redirect:
    await pause_schedule(seen, name)
    return Redirect("/schedules", name)


@pages.action("/schedules/{name}/resume")
async def resume_one_schedule(seen: RequestScope, name: str) -> Redirect:
    await resume_schedule(seen, name)
    return Redirect("/schedules", name)


@pages.action("/schedules/{name}/delete", like="DELETE /schedules/{name}")
async def delete_one_schedule(seen: RequestScope, name: str) -> Redirect:
    await delete_schedule(seen, name)
    return Redirect("/schedules")


# Batches as pages: what went to the provider together, what it says, and what became of each turn.


TABS = (Tab("", "All"), *(Tab(each.value, each.value.capitalize()) for each in BatchState))


@dataclass(frozen=True, slots=True)
class BatchesView:
    batches: Page[BatchRecord]
    tab_items: tuple[Tab, ...]
    state: str


@dataclass(frozen=True, slots=True)
class BatchView:
    batch: BatchRecord
    requests: Page[RequestRecord]


@pages.page("/batches", "batches.html")
async def show_batches(seen: RequestScope, page: Paged, state: str | None = None) -> BatchesView:
    return BatchesView(await list_batches(seen, page, state=state or None), TABS, state or "")


@pages.page("/batches/{id}", "batch.html")
async def show_one_batch(seen: RequestScope, id: str, page: Paged) -> BatchView:
    return BatchView(await show_batch(seen, id), await list_requests(seen, id, page))
