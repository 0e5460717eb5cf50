"""What is in the store, as a program sees it: `hf.jobs`, `hf.queues`, `hf.schedules`, `hf.workers`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

from holdfast.crons import next_tick
from holdfast.errors import NotFound, UsageError
from holdfast.jobs import App, Job
from holdfast.kernel import again, queues, reading, schedules, watch, workers
from holdfast.kernel.cancel import Cancelled
from holdfast.kernel.cancel_many import LIVE, Wanted, count_wanted
from holdfast.kernel.database import Operation
from holdfast.kernel.ids import JobId, derived_id, is_id, new_id
from holdfast.kernel.queues import QueueStats
from holdfast.kernel.reading import Page
from holdfast.kernel.records import AttemptRow, DutyRow, JobRow, WorkerRow
from holdfast.kernel.records_flow import LaneRow, QueueRow, ScheduleRow
from holdfast.kernel.sightings import Change
from holdfast.kernel.why import Reason, why

P = ParamSpec("P")
R = TypeVar("R")


class View:
    """What is in the store, of one kind."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def _ask(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        runtime = self._app.runtime()
        await runtime.open()
        return await runtime.database.transact(operation, *args, **kwargs)


class Jobs(View):
    """The jobs in the store: `hf.jobs[id]` is a handle without I/O."""

    def __getitem__(self, id: str) -> Job[Any]:
        if not is_id(id):
            raise UsageError(f"{id!r} is not a job id.")
        return Job(self._app, JobId(id.lower()), None)

    async def get(self, id: str) -> JobRow:
        return await self[id].refresh()

    async def list(self, **filters: Any) -> Page:
        """Newest first; filter by state, queue, kind, tenant; `before` and `limit` page.

        One call looks at no more than `look` jobs, 100,000 unless you say otherwise, for those that fit. The page's
        own `before` is where to go on, and None when there is nothing older.
        """
        return await self._ask(reading.list_jobs, **filters)

    async def attempts(self, id: str) -> Sequence[AttemptRow]:
        row = await self.get(id)
        return await self._ask(reading.list_attempts, row.seq)

    async def why(self, id: str, *, worker: str | None = None) -> Sequence[Reason]:
        """What keeps a job from being run, by one worker or by any; empty when nothing does."""
        return await self._ask(why, self[id].id, worker=worker)

    async def cancel(
        self,
        *,
        queue: str | None = None,
        kind: str | None = None,
        tenant: str | None = None,
        state: str | None = None,
        all: bool = False,
        reason: str = "cancelled by its owner",
        done: Callable[[Cancelled], None] | None = None,
    ) -> Cancelled:
        """Cancel every live job that fits, and its family: how many ended at once, how many run and were asked.

        It works in transactions of a thousand jobs, each told to `done`; it may be stopped, repeated, and run beside
        others. Without any condition it wants `all=True`. Jobs that are enqueued meanwhile stay.
        """
        wanted = self.wanted(queue=queue, kind=kind, tenant=tenant, state=state, all=all)
        ended = asked = 0
        async for part in self._app.runtime().cancel_many(wanted, reason):
            ended, asked = ended + part.ended, asked + part.asked
            if done is not None:
                done(part)
        return Cancelled(ended, asked)

    async def count_cancellable(self, *, cap: int, **conditions: Any) -> int:
        """How many jobs `cancel` would cancel, their families aside; the count stops at `cap`."""
        return await self._ask(count_wanted, self.wanted(**conditions), cap=cap)

    def wanted(
        self,
        *,
        queue: str | None = None,
        kind: str | None = None,
        tenant: str | None = None,
        state: str | None = None,
        all: bool = False,
    ) -> Wanted:
        """What a bulk cancel means. Jobs of the runtime's own that others depend on are left alone."""
        if state is not None and state not in LIVE:
            raise UsageError(f"jobs that are {state!r} cannot be cancelled; a state is one of {', '.join(LIVE)}.")
        if not all and (queue, kind, tenant, state) == (None, None, None, None):
            raise UsageError("nothing says which jobs to cancel: name a queue, kind, tenant or state, or say all=True.")
        kept = self._app.registry.kept
        if kind in kept:
            raise UsageError(f"jobs of kind {kind} are not cancelled by hand: {kept[kind]}.")
        return Wanted(queue, kind, tenant, LIVE if state is None else (state,), tuple(sorted(kept)))

    async def retry(self, id: str) -> Job[Any]:
        """Enqueue an ended job again, as a new one that names it: same kind, queue, payload, metadata and limits."""
        accepted = await self._ask(again.retry, self[id].id, new_id(self._app.runtime().ports))
        return Job(self._app, accepted.id, None)

    async def retry_once(self, id: str) -> Job[Any] | None:
        """`retry`, unless this call has been made for that job before: then None."""
        accepted = await self._ask(again.retry, self[id].id, derived_id("retry", self[id].id))
        return Job(self._app, accepted.id, None) if accepted.fresh else None


class Workers(View):
    """The workers in the store."""

    async def list(self, *, all: bool = False, limit: int = 1_000) -> Sequence[WorkerRow]:
        """Live workers; with `all`, also those that stopped or were lost lately."""
        return await self._ask(workers.list_workers, all=all, limit=limit)

    async def get(self, id: str) -> WorkerRow:
        """The last incarnation of that id, alive or not."""
        for row in await self.list(all=True, limit=10_000):
            if row.id == id:
                return row
        raise NotFound(f"there is no worker {id!r} in this database.")

    async def held(self, worker: WorkerRow) -> Sequence[Change]:
        """The jobs it holds a lease on."""
        return await self._ask(watch.held_by, worker.seq)

    async def drain(self, id: str) -> None:
        """Ask a live worker to drain and leave."""
        await self._ask(workers.ask_to_drain, id)

    async def duties(self) -> Sequence[DutyRow]:
        return await self._ask(workers.list_duties)


class Queues(View):
    """The queues in the store: list them, count what is in them, pause and resume them."""

    async def list(self) -> Sequence[QueueRow]:
        return await self._ask(queues.list_queues)

    async def stats(self) -> Sequence[QueueStats]:
        """Every queue with its counts, each of which stops at 10,000; what finished is of the last minute."""
        return await self._ask(queues.queue_stats)

    async def lanes(self, *, queue: str | None = None, limit: int = 1_000) -> Sequence[LaneRow]:
        """All lanes, or those that the jobs of one queue are in."""
        lanes = await self._ask(queues.list_lanes, limit=limit)
        return lanes if queue is None else watch.lanes_of(queue, lanes, await self._ask(watch.backlogs))

    async def pause(self, name: str, *, reason: str = "") -> None:
        """From now on nothing of this queue is claimed, on any worker; what runs goes on."""
        await self._ask(queues.pause_queue, name, reason=reason)

    async def resume(self, name: str) -> bool:
        """Let it be claimed again; False when it was not paused."""
        return await self._ask(queues.resume_queue, name)


class Schedules(View):
    """The schedules in the store."""

    async def list(self) -> Sequence[ScheduleRow]:
        return await self._ask(schedules.list_schedules)

    async def pause(self, name: str) -> None:
        await self._ask(schedules.pause_schedule, name)

    async def resume(self, name: str) -> int:
        """Go on with the next tick; what the pause swallowed is not caught up. Returns when that tick is."""
        return await self._ask(schedules.resume_schedule, name, next_tick)

    async def run(self, name: str) -> Job[Any]:
        """Enqueue its job once, now, beside its rhythm."""
        id = await self._ask(schedules.run_now, name, new_id(self._app.runtime().ports))
        return Job(self._app, id, None)

    async def remove(self, name: str) -> bool:
        return await self._ask(schedules.remove_schedule, name)
