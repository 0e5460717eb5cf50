"""The fleet over HTTP: queues, lanes, workers, schedules, batches. None of it belongs to a tenant."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from starlette.responses import Response

from holdfast.agents.values import BatchRecord, ClosedLaneRecord, RequestRecord
from holdfast.http.api.routes import MOST, Paged, Routes
from holdfast.http.api.runs import Body
from holdfast.http.api.seen import RequestScope
from holdfast.values import Page
from holdfast.values.jobs import JobChange, JobRecord
from holdfast.values.queues import LaneRecord, QueueCounts, QueueRecord, ScheduleRecord
from holdfast.values.workers import DutyRecord, WorkerRecord

queues = Routes("queues")
lanes = Routes("lanes")
workers = Routes("workers")
schedules = Routes("schedules")
batches = Routes("batches")
scale = Routes("scale")


class Pause(Body):
    reason: Annotated[str, Field(max_length=2_000)] = ""


@queues.get("/queues", first=MOST)
async def list_queues(seen: RequestScope, page: Paged) -> Page[QueueRecord]:
    """List queues by name."""
    return await seen.hf.queues.list(**page.place)


@queues.get("/queues/{name}")
async def show_queue(seen: RequestScope, name: str) -> QueueCounts:
    """Show one queue with its counts; each stops at 10,000."""
    return await seen.hf.queues.get(name)


@queues.post("/queues/{name}/pause")
async def pause_queue(seen: RequestScope, name: str, why: Pause | None = None) -> QueueCounts:
    """Pause a queue: no worker claims its jobs any more; running jobs continue."""
    await seen.hf.queues.get(name)
    await seen.hf.queues.pause(name, reason=(why or Pause()).reason)
    return await seen.hf.queues.get(name)


@queues.post("/queues/{name}/resume")
async def resume_queue(seen: RequestScope, name: str) -> QueueCounts:
    """Resume a queue."""
    await seen.hf.queues.resume(name)
    return await seen.hf.queues.get(name)


@scale.get("/scale/{queue}")
async def show_scale(seen: RequestScope, queue: str) -> dict[str, Any]:
    """Show how many jobs of a queue wait or run, for what scales workers; right also while there is no worker."""
    counts = await seen.hf.queues.load(queue)
    return {"queue": queue, "value": counts}


@lanes.get("/lanes")
async def list_lanes(seen: RequestScope, page: Paged, queue: str | None = None) -> Page[LaneRecord]:
    """List the lanes that jobs share, by name."""
    return await seen.hf.queues.lanes(queue=queue, **page.place)


@lanes.get("/lanes/closed", first=MOST)
async def list_closed_lanes(seen: RequestScope, page: Paged) -> Page[ClosedLaneRecord]:
    """List the lanes to model providers that are closed now."""
    return await seen.hf.lanes.list(**page.place)


@lanes.post("/lanes/{name}/open")
async def open_lane(seen: RequestScope, name: str) -> dict[str, Any]:
    """Open a lane to a provider for everybody."""
    return {"name": name, "woken": await seen.hf.lanes.open(name)}


@workers.get("/workers")
async def list_workers(seen: RequestScope, page: Paged, all: bool = False) -> Page[WorkerRecord]:
    """List live workers, newest first; `all`: also those that stopped or were lost recently."""
    return await seen.hf.workers.list(all=all, **page.place)


@workers.get("/workers/duties")
async def list_duties(seen: RequestScope) -> list[DutyRecord]:
    """List the duties, and who holds them."""
    return list(await seen.hf.workers.duties())


@workers.get("/workers/{id}")
async def show_worker(seen: RequestScope, id: str) -> WorkerRecord:
    """Show one worker, alive or not."""
    return await seen.hf.workers.get(id)


@workers.get("/workers/{id}/jobs")
async def list_held_jobs(seen: RequestScope, id: str) -> list[JobChange]:
    """List the jobs that a worker holds a lease on."""
    return list(await seen.hf.workers.held(await seen.hf.workers.get(id)))


@workers.post("/workers/{id}/drain")
async def drain_worker(seen: RequestScope, id: str) -> WorkerRecord:
    """Ask a live worker to drain and exit."""
    await seen.hf.workers.get(id)
    await seen.hf.workers.drain(id)
    return await seen.hf.workers.get(id)


@schedules.get("/schedules", first=MOST)
async def list_schedules(seen: RequestScope, page: Paged) -> Page[ScheduleRecord]:
    """List schedules by name."""
    return await seen.hf.schedules.list(**page.place)


@schedules.get("/schedules/{name}")
async def show_schedule(seen: RequestScope, name: str) -> ScheduleRecord:
    """Show one schedule."""
    return await seen.hf.schedules.get(name)


@schedules.post("/schedules/{name}/pause")
async def pause_schedule(seen: RequestScope, name: str) -> ScheduleRecord:
    """Pause a schedule."""
    await seen.hf.schedules.pause(name)
    return await seen.hf.schedules.get(name)


@schedules.post("/schedules/{name}/resume")
async def resume_schedule(seen: RequestScope, name: str) -> ScheduleRecord:
    """Resume a schedule with its next tick."""
    await seen.hf.schedules.resume(name)
    return await seen.hf.schedules.get(name)


@schedules.post("/schedules/{name}/run", creates=True)
async def run_schedule(seen: RequestScope, name: str) -> JobRecord:
    """Enqueue its job once, now, in addition to its ticks."""
    return await (await seen.hf.schedules.run(name)).refresh()


@schedules.delete("/schedules/{name}")
async def delete_schedule(seen: RequestScope, name: str) -> Response:
    """Delete a schedule. A worker whose program still declares it writes it again when it starts."""
    await seen.hf.schedules.delete(name)
    return Response(status_code=204)


@batches.get("/batches")
async def list_batches(seen: RequestScope, page: Paged, state: str | None = None) -> Page[BatchRecord]:
    """List batches, newest first."""
    return await seen.hf.batches.list(state=state, **page.place)


@batches.get("/batches/{id}")
async def show_batch(seen: RequestScope, id: str) -> BatchRecord:
    """Show one batch."""
    return await seen.hf.batches.get(id)


@batches.get("/batches/{id}/requests")
async def list_requests(seen: RequestScope, id: str, page: Paged) -> Page[RequestRecord]:
    """List the turns in a batch, and what became of each."""
    return await seen.hf.batches.requests(id, **page.place)
