"""Queues and lanes as pages: where work stands, what is paused and why, which provider is closed."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.agents.values.lanes import ClosedLaneRecord
from holdfast.http.api.fleet import (
    Pause,
    list_closed_lanes,
    list_lanes,
    open_lane,
    pause_queue,
    resume_queue,
    show_queue,
)
from holdfast.http.api.paging import Paged, Paging
from holdfast.http.api.seen import Sight
from holdfast.http.pages.forms import Filled
from holdfast.http.pages.routes import Go, Pages
from holdfast.values import Page
from holdfast.values.jobs import JobRecord
from holdfast.values.queues import LaneRecord, QueueCounts

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
async def show_queues(seen: Sight, page: Paged) -> QueuesView:
    counts = list(await seen.hf.queues.stats())
    return QueuesView(counts, await list_lanes(seen, page), await list_closed_lanes(seen, _SOME))


@pages.page("/queues/{name}", "queue.html")
async def show_one_queue(seen: Sight, name: str) -> QueueView:
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
async def pause_one_queue(seen: Sight, name: str, form: Filled) -> Go:
    await pause_queue(seen, name, Pause(reason=form.text("reason") or ""))
    return Go("/queues", name)


@pages.action("/queues/{name}/resume")
async def resume_one_queue(seen: Sight, name: str) -> Go:
    await resume_queue(seen, name)
    return Go("/queues", name)


@pages.action("/lanes/{name}/open")
async def open_one_lane(seen: Sight, name: str) -> Go:
    await open_lane(seen, name)
    return Go("/queues")
