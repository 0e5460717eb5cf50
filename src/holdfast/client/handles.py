"""What is in the store, as a program sees it: `hf.jobs`, `hf.queues`, `hf.schedules`, `hf.workers`."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, Literal, ParamSpec, TypedDict, TypeVar, Unpack

from holdfast import durations, validation
from holdfast.client.core import Core
from holdfast.client.jobs import Job
from holdfast.durations import Duration, microseconds, next_tick
from holdfast.errors import HoldfastError, NotFound, UsageError
from holdfast.kernel import codec, enqueue, queries, queues, schedules, watch, workers
from holdfast.kernel.broker_rows import WorkerRow
from holdfast.kernel.cancel import LIVE, CancelFilter, Cancelled, count_wanted
from holdfast.kernel.database import Operation
from holdfast.kernel.failure_groups import FailureKey, likeness, list_failures
from holdfast.kernel.ids import JobId, derived_id, is_id, new_id
from holdfast.kernel.leases import FOREVER
from holdfast.kernel.ownership import cancel_advice
from holdfast.kernel.queries import TROUBLED, count_troubled, list_troubled
from holdfast.kernel.queues import CAP
from holdfast.kernel.states import known_state
from holdfast.kernel.tally import DAY, HOUR, KEPT, SIZES, SeriesQuery, of_tenants, read_series, read_times
from holdfast.kernel.tally_rows import CountedTime, SeriesPoint
from holdfast.kernel.waiting import list_children
from holdfast.observe import changing
from holdfast.values import Bulk, Page, cursor, moment, page_of, part_of, place
from holdfast.values import microseconds as microseconds_of
from holdfast.values.jobs import (
    AttemptRecord,
    FailureRecord,
    JobChange,
    JobRecord,
    RetriedRecord,
    StatRecord,
    Why,
    attempt_of,
    change_of,
    failure_of,
    job_of,
    retried_of,
    stats_of,
    why_of,
)
from holdfast.values.queues import (
    LaneRecord,
    QueueCounts,
    QueueRecord,
    ScheduleRecord,
    counts_of,
    lane_of,
    queue_of,
    schedule_of,
)
from holdfast.values.workers import DutyRecord, WorkerRecord, duty_of, worker_of
from holdfast.workers.context import Child
from holdfast.workers.role import SYSTEM_KIND, SYSTEM_QUEUE

P = ParamSpec("P")
R = TypeVar("R")

_TOGETHER = 1_000  # jobs that one call changes


class View:
    """What is in the store, of one kind."""

    def __init__(self, app: Core) -> None:
        self._app = app

    async def _ask(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        runtime = self._app.runtime()
        await runtime.open()
        return await runtime.database.transact(operation, *args, **kwargs)


class JobFilterOptions(TypedDict, total=False):
    """What `hf.jobs.list` and `hf.jobs.count` select by."""

    state: str | None
    queue: str | None
    kind: str | None
    tenant: str | None
    since: datetime | Duration | None
    key: str | None
    system: bool


class Jobs(View):
    """The jobs in the store: `hf.jobs[id]` is a handle without I/O."""

    def __getitem__(self, id: str) -> Job[Any]:
        if not is_id(id):
            raise UsageError(f"{id!r} is not a job id.")
        return Job(self._app, JobId(id.lower()), None)

    async def get(self, id: str) -> JobRecord:
        return await self[id].refresh()

    async def list(
        self,
        *,
        limit: int = 100,
        after: str | None = None,
        look: int = queries.LOOK,
        **filters: Unpack[JobFilterOptions],
    ) -> Page[JobRecord]:
        """Jobs, the newest first; failed or cancelled ones, the last to end first.

        `kind` may be a pattern: `mail.*`, `*.send`. `since` is when they were created, a time or how long ago ("1h").
        `key` is the idempotency key of a job, of `tenant` if it has one. The runtime's own jobs (`system:…`) are left
        out unless you say `system=True`, or name their queue or their kind.

        One call looks at no more than `look` jobs, 100,000 unless you say otherwise, for those that fit. So a page may
        be short and still have a `next`.
        """
        chosen = self._chosen(filters)
        if chosen.state in TROUBLED and chosen.key is None:
            return await self._troubled(chosen, after, validation.page(limit), look)
        (before,) = (queries.NEWEST,) if after is None else place(after, int)
        rows = await self._ask(queries.list_jobs, chosen, before=before, limit=validation.page(limit), look=look)
        return Page(map(job_of, rows), next=None if rows.before is None else cursor(rows.before))

    def _chosen(self, filters: JobFilterOptions) -> queries.JobFilters:
        validation.option_names(filters, JobFilterOptions, "list")
        given: dict[str, Any] = {**filters}
        named = given.get("queue") == SYSTEM_QUEUE or (given.get("kind") or "").startswith(SYSTEM_KIND)
        hidden = None if given.pop("system", False) or named else SYSTEM_KIND
        since = since_us(given.pop("since", None), self._app.ports.clock.wall_us())
        return queries.JobFilters(**given, since=since, hidden=hidden)

    async def _troubled(self, chosen: queries.JobFilters, after: str | None, limit: int, look: int) -> Page[JobRecord]:
        before = (queries.NEWEST, queries.NEWEST) if after is None else place(after, int, int)
        found = await self._ask(list_troubled, chosen, before=before, limit=limit, look=look)
        further = None if found.place is None else cursor(*found.place)
        return Page(map(job_of, found.rows), next=further, looked=found.looked)

    async def count(self, **filters: Unpack[JobFilterOptions]) -> int:
        """How many jobs `list` would give with these filters, among the 10,000 that it looks at."""
        chosen = self._chosen(filters)
        if chosen.state in TROUBLED and chosen.key is None:
            return await self._ask(count_troubled, chosen)
        return await self._ask(queries.count_jobs, chosen)

    async def attempts(self, id: str) -> Sequence[AttemptRecord]:
        """The attempts of a job that have ended, in their order; the last thousand."""
        row = await self.get(id)
        return [attempt_of(each) for each in await self._ask(queries.list_attempts, row.seq)]

    async def stats(self, *by: Part, tenant: str | None = None, **options: Unpack[StatOptions]) -> Sequence[StatRecord]:
        """How many jobs ended in each step of time, how long they waited and took; kept apart by what you name.

        `source` is the queue. The last three minutes are not counted yet.
        """
        now_us = self._app.ports.clock.wall_us()
        return await stats(self._ask, now_us, "jobs", by=by, tenant=tenant, options=options)

    async def failures(
        self,
        *,
        kind: str | None = None,
        tenant: str | None = None,
        since: datetime | Duration | None = None,
        limit: int = 100,
    ) -> Sequence[FailureRecord]:
        """Failed jobs, those that differ only in numbers and ids as one; what failed last comes first."""
        now_us = self._app.ports.clock.wall_us()
        return await failures(self._ask, now_us, subject="jobs", kind=kind, tenant=tenant, since=since, limit=limit)

    async def retried_most(
        self, *, kind: str | None = None, tenant: str | None = None, since: Duration = "24h", limit: int = 10
    ) -> Sequence[RetriedRecord]:
        """Kinds of jobs by how many attempts failed and were tried again, among the last 5,000 of the newest jobs."""
        first = self._app.ports.clock.wall_us() - microseconds(since)
        wanted = {"kind": kind, "tenant": tenant, "since": first, "limit": validation.page(limit)}
        return [retried_of(each) for each in await self._ask(watch.retried_most, **wanted)]  # type: ignore[arg-type]

    async def children(self, id: str) -> Sequence[Child]:
        """The children of a job, in the order in which it started them, each with its state and how it ended."""
        rows = await self._ask(list_children, (await self.get(id)).seq)
        return [
            Child(row.id, row.kind, known_state(row.state).value, codec.decode(row.result), codec.decode(row.error))
            for row in rows
        ]

    async def why(self, id: str, *, worker: str | None = None) -> Why:
        """Why one worker, or any worker, does not run the job; empty when nothing holds it back."""
        return why_of(await self._app.reasons(self[id].id, worker=worker))

    @changing("jobs cancel")
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
        """Cancel every live job that matches, with its family. Returns how many ended at once, and how many still run.

        It works in transactions of a thousand jobs, and calls `done` after each. You may stop it, repeat it, and run
        several at once. Without any condition you must say `all=True`. Jobs that are enqueued meanwhile stay.
        """
        wanted = self.wanted(queue=queue, kind=kind, tenant=tenant, state=state, all=all)
        ended = asked = 0
        async for part in self._app.runtime().cancel_many(wanted, reason):
            ended, asked = ended + part.ended, asked + part.asked
            if done is not None:
                done(part)
        return Cancelled(ended, asked)

    async def count_cancellable(self, *, cap: int, **conditions: Any) -> int:
        """How many jobs `cancel` would cancel, without their families; the count stops at `cap`."""
        return await self._ask(count_wanted, self.wanted(**conditions), cap=cap)

    def wanted(
        self,
        *,
        queue: str | None = None,
        kind: str | None = None,
        tenant: str | None = None,
        state: str | None = None,
        all: bool = False,
    ) -> CancelFilter:
        """What a bulk cancel selects. It skips the runtime's own jobs that other jobs depend on."""
        if state is not None and state not in LIVE:
            raise UsageError(f"jobs that are {state!r} cannot be cancelled; a state is one of {', '.join(LIVE)}.")
        if not all and (queue, kind, tenant, state) == (None, None, None, None):
            raise UsageError(
                "you did not say which jobs to cancel: give a queue, kind, tenant or state, or say all "
                "(all=True in a program)."
            )
        if kind is not None and "*" in kind:
            raise UsageError(f"jobs are cancelled by one kind at a time, not by a pattern such as {kind!r}.")
        kept = cancel_advice(self._app.registry.layers)
        if kind in kept:
            raise UsageError(f"jobs of kind {kind} cannot be cancelled by hand: {kept[kind]}.")
        return CancelFilter(queue, kind, tenant, LIVE if state is None else (state,), tuple(sorted(kept)))

    @changing("jobs retry")
    async def retry(self, id: str) -> Job[Any]:
        """Enqueue an ended job again, as a new one that names it: same kind, queue, payload, metadata and limits."""
        accepted = await self._ask(enqueue.retry, self[id].id, new_id(self._app.runtime().ports))
        return Job(self._app, accepted.id, None)

    @changing("jobs retry")
    async def retry_once(self, id: str) -> Job[Any] | None:
        """`retry`, unless this call has been made for that job before: then None."""
        accepted = await self._ask(enqueue.retry, self[id].id, derived_id("retry", self[id].id))
        return Job(self._app, accepted.id, None) if accepted.fresh else None

    @changing("jobs retry")
    async def retry_some(  # noqa: PLR0913  filters
        self,
        *,
        state: str | None = None,
        queue: str | None = None,
        kind: str | None = None,
        tenant: str | None = None,
        error: str | None = None,
        message: str | None = None,
        after: str | None = None,
        dry_run: bool = False,
    ) -> Bulk:
        """`retry_once` for a page of ended jobs, failed ones by default; with `dry_run` it only counts them.

        `error` and `message` are those of a group of `failures`: only jobs that failed so.
        """
        chosen = state or "failed"
        if chosen in LIVE:
            raise UsageError(f"a job that is {chosen} has not ended: only ended jobs can be enqueued again.")
        page = await self.list(state=chosen, queue=queue, kind=kind, tenant=tenant, after=after, limit=_TOGETHER)
        failures = [_traits(job) for job in page]
        group = await self._ask(likeness, "jobs", error, message, failures)
        fitting = [job for job, failure in zip(page, failures, strict=True) if group.has(failure)]
        changed, refused = 0, dict[str, str]()
        for job in [] if dry_run else fitting:
            try:
                changed += await self.retry_once(job.id) is not None
            except HoldfastError as problem:
                refused[job.id] = str(problem)
        return Bulk(matched=len(fitting), changed=changed, refused=refused, next=page.next, dry_run=dry_run)

    @changing("jobs cancel")
    async def cancel_some(
        self,
        *,
        state: str | None = None,
        queue: str | None = None,
        kind: str | None = None,
        tenant: str | None = None,
        all: bool = False,
        dry_run: bool = False,
        reason: str = "cancelled by its owner",
    ) -> Bulk:
        """Cancel about a thousand live jobs that match; `next` is "more" when there may be more, so call again.

        What was cancelled is not found again. With `dry_run` it only counts them, up to 10,000.
        """
        conditions: dict[str, Any] = {"state": state, "queue": queue, "kind": kind, "tenant": tenant, "all": all}
        if dry_run:
            matched = await self.count_cancellable(cap=CAP, **conditions)
            return Bulk(matched=matched, changed=0, refused={}, next=None, dry_run=True)
        changed = 0
        async for part in self._app.runtime().cancel_many(self.wanted(**conditions), reason):
            changed += part.ended + part.asked
            if changed >= _TOGETHER:
                return Bulk(matched=changed, changed=changed, refused={}, next="more", dry_run=False)
        return Bulk(matched=changed, changed=changed, refused={}, next=None, dry_run=False)


def _traits(job: JobRecord) -> FailureKey:
    its = job.error if isinstance(job.error, dict) else {}
    return FailureKey(job.tenant, job.kind, its.get("type"), its.get("message"))


class StoredWorker:
    """A worker in the store, by its id: a handle without I/O."""

    def __init__(self, workers: Workers, id: str) -> None:
        self._workers = workers
        self.id = id

    async def get(self) -> WorkerRecord:
        """Its last incarnation, alive or not; `NotFound` when there was none."""
        return await self._workers.get(self.id)

    async def held(self) -> Sequence[JobChange]:
        """The jobs it holds a lease on."""
        return await self._workers.held(await self.get())

    async def drain(self) -> None:
        """Ask it to drain and exit."""
        await self._workers.drain(self.id)

    async def forget(self) -> None:
        """Remove it from the lists, when it has left or died."""
        await self._workers.forget(self.id)


class Workers(View):
    """The workers in the store: `hf.workers[id]` is a handle without I/O."""

    def __getitem__(self, id: str) -> StoredWorker:
        return StoredWorker(self, id)

    async def list(self, *, all: bool = False, limit: int = 1_000, after: str | None = None) -> Page[WorkerRecord]:
        """Live workers, the newest first; with `all`, also workers that stopped or were lost recently."""
        (before,) = (FOREVER,) if after is None else place(after, int)
        rows = await self._list(all=all, before=before, limit=validation.page(limit))
        return page_of(rows, limit, worker_of, lambda row: (row.seq,))

    async def get(self, id: str) -> WorkerRecord:
        """The last incarnation of the worker with that id, alive or not."""
        rows = await self._list(all=True, id=id, limit=1)
        if not rows:
            close = validation.did_you_mean(id, [row.id for row in await self.list(all=True)])
            raise NotFound(f"there is no worker {id!r} in this database.{close}")
        return worker_of(rows[0])

    async def _list(
        self, *, all: bool, limit: int, before: int = FOREVER, id: str | None = None
    ) -> Sequence[WorkerRow]:
        """As the store has them, and each with the sign of life that it shows now."""
        absent = await self._app.runtime().absent_workers()
        return await self._ask(workers.list_workers, all=all, limit=limit, before=before, id=id, absent=absent)

    async def held(self, worker: WorkerRecord) -> Sequence[JobChange]:
        """The jobs it holds a lease on."""
        return [change_of(each) for each in await self._ask(watch.held_by, worker.seq)]

    @changing("workers drain")
    async def drain(self, id: str) -> None:
        """Ask a live worker to drain and exit."""
        await self._ask(workers.ask_to_drain, id)

    @changing("workers forget")
    async def forget(self, id: str) -> None:
        """Remove a worker that has left or died from the lists now; later it goes by itself. Refused while it lives."""
        await self._ask(workers.forget, id)

    async def duties(self) -> Sequence[DutyRecord]:
        """The duties, and who holds them."""
        return [duty_of(row) for row in await self._ask(workers.list_duties)]


class StoredQueue:
    """A queue in the store, by its name: a handle without I/O."""

    def __init__(self, queues: Queues, name: str) -> None:
        self._queues = queues
        self.name = name

    async def get(self) -> QueueCounts:
        """The queue with its counts; `NotFound` when nobody has used it yet."""
        return await self._queues.get(self.name)

    async def load(self) -> int:
        """How many of its jobs wait for a worker or are run by one."""
        return await self._queues.load(self.name)

    async def lanes(self, *, limit: int = 1_000, after: str | None = None) -> Page[LaneRecord]:
        """The lanes that its jobs are in, by name."""
        return await self._queues.lanes(queue=self.name, limit=limit, after=after)

    async def pause(self, *, reason: str = "") -> None:
        """No worker claims its jobs any more; running jobs continue."""
        await self._queues.pause(self.name, reason=reason)

    async def resume(self) -> bool:
        """Let workers claim its jobs again; False when it was not paused."""
        return await self._queues.resume(self.name)


class Queues(View):
    """The queues in the store: `hf.queues[name]` is a handle without I/O."""

    def __getitem__(self, name: str) -> StoredQueue:
        return StoredQueue(self, name)

    async def list(self, *, limit: int = 1_000, after: str | None = None) -> Page[QueueRecord]:
        """Queues by name."""
        rows = await self._ask(queues.list_queues)
        return part_of([queue_of(row) for row in rows], limit, after, lambda row: row.name)

    async def get(self, name: str) -> QueueCounts:
        """One queue with its counts; `NotFound` when there is none of that name."""
        found = await self.stats()
        for each in found:
            if each.name == name:
                return each
        raise NotFound(queues.absent_queue(name, [each.name for each in found]))

    async def load(self, name: str) -> int:
        """How many jobs of the queue wait for a worker or are run by one; 0 for a queue that nobody has used yet."""
        found = [each for each in await self.stats() if each.name == name]
        return sum(each.pending + each.running for each in found)

    async def stats(self) -> Sequence[QueueCounts]:
        """Every queue with its counts. Each count stops at 10,000; finished jobs are those of the last minute."""
        return [counts_of(each) for each in await self._ask(queues.queue_stats)]

    async def lanes(
        self, *, queue: str | None = None, limit: int = 1_000, after: str | None = None
    ) -> Page[LaneRecord]:
        """Lanes by name: all of them, or those that the jobs of one queue are in."""
        (last,) = ("",) if after is None else place(after, str)
        rows = await self._ask(queues.list_lanes, queue=queue, after=last, limit=validation.page(limit))
        return page_of(rows, limit, lane_of, lambda row: (row.name,))

    @changing("queues pause")
    async def pause(self, name: str, *, reason: str = "") -> None:
        """Pause the queue: no worker claims its jobs any more; running jobs continue."""
        await self._ask(queues.pause_queue, name, reason=reason)

    @changing("queues resume")
    async def resume(self, name: str) -> bool:
        """Resume the queue; False when it was not paused."""
        return await self._ask(queues.resume_queue, name)


class Schedules(View):
    """The schedules in the store."""

    async def list(self, *, limit: int = 1_000, after: str | None = None) -> Page[ScheduleRecord]:
        """Schedules by name."""
        rows = await self._ask(schedules.list_schedules)
        return part_of([schedule_of(row) for row in rows], limit, after, lambda row: row.name)

    async def get(self, name: str) -> ScheduleRecord:
        return schedule_of(await self._ask(schedules.find_schedule, name))

    @changing("schedules pause")
    async def pause(self, name: str) -> None:
        await self._ask(schedules.pause_schedule, name)

    @changing("schedules resume")
    async def resume(self, name: str) -> datetime:
        """Resume with the next tick, without the ticks missed during the pause. Returns the time of that tick."""
        return moment(await self._ask(schedules.resume_schedule, name, next_tick))

    @changing("schedules run")
    async def run(self, name: str) -> Job[Any]:
        """Enqueue its job once, now, in addition to its ticks."""
        id = await self._ask(schedules.run_now, name, new_id(self._app.runtime().ports))
        return Job(self._app, id, None)

    @changing("schedules delete")
    async def delete(self, name: str) -> None:
        """Delete a schedule. A worker whose program still declares it writes it again when it starts."""
        if not await self._ask(schedules.delete_schedule, name):
            await self._ask(schedules.find_schedule, name)  # which says that there is none, and which there are


# Questions to the tally, as `hf.jobs` and `hf.runs` ask them: what ended in each step of time, and what failed.


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
        raise UsageError(validation.expected(f"{what}=", "a datetime", given))
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
