"""Intake: how jobs and signals are taken in, and how callers wait for what becomes of them.

Who takes work in is an `Intake`: the store as one event loop of this process uses it (`Runtime`), or a transaction of
the caller's (`CallersTransaction`). Both do it by `accept` and `accept_many`. Only the plain jobs of the first take
another way: they share their commits (`Grouping`). While somebody listens, the app puts an `AnnouncedIntake` in front.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections import Counter, deque
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from contextvars import Context, copy_context
from typing import NamedTuple, ParamSpec, Protocol, TypeVar

from holdfast.client.queues import Queue
from holdfast.client.results import SlowWaits
from holdfast.clock import Ports
from holdfast.errors import ResultTimeout, StoreUnavailable, Unavailable
from holdfast.kernel import queries, waiting
from holdfast.kernel.cancel import CancelFilter, Cancelled, cancel, cancel_family, cancel_many
from holdfast.kernel.database import Database, Operation, Transaction, Transactor, bounds_now, unbound
from holdfast.kernel.enqueue import AcceptedJob, enqueue, enqueue_batch, submit
from holdfast.kernel.ids import JobId, derived_id, new_id
from holdfast.kernel.queues import set_queue
from holdfast.kernel.rows import Batch, EndedJob, JobRow, NewJob, Route
from holdfast.kernel.why import why
from holdfast.kernel.workers import absent_workers
from holdfast.reasons import Reason
from holdfast.settings import Settings
from holdfast.workers.telemetry import sending, tell_enqueued

P = ParamSpec("P")
R = TypeVar("R")


class Intake(Protocol):
    """Who takes work in: the store as one event loop uses it, or a transaction of the caller's."""

    settings: Settings
    ports: Ports

    async def enqueue(self, job: NewJob, route: Route, *, key: str | None, notify: bool) -> AcceptedJob: ...

    async def enqueue_many(self, batch: Batch, route: Route, notify: bool) -> None: ...

    async def signal(self, channel: str, payload: str, key: str | None) -> None: ...

    async def transact(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run an operation of a layer above, as part of what is taken in here."""


# Taking in: the operation that a job, a batch or a signal needs.


# What one statement of enqueue_many carries. On its way to the server, and in it, a statement takes several times the
# memory of its payloads; more of them at once would be no faster.
_CHUNK = 1_000
_CHUNK_BYTES = 8_388_608


async def accept(
    store: Transactor, job: NewJob, routes: Sequence[Route], *, key: str | None, notify: bool
) -> AcceptedJob:
    """Take one job in by the operation it needs, or find the job that is there in its place."""
    if key is None and job.unique_key is None:
        await store.transact(enqueue, [job], routes, notify=notify)
        return AcceptedJob(job.id, fresh=True)
    return await store.transact(submit, job, routes, key=key, notify=notify)


async def accept_many(store: Transactor, batch: Batch, routes: Sequence[Route], *, notify: bool) -> None:
    """Take a batch in, all of it or nothing: by one statement, or by several in one transaction."""
    parts = _cut(batch.payloads)
    if len(parts) == 1:
        await store.transact(enqueue_batch, batch, routes, notify=notify)
    else:
        await store.transact(_enqueue_parts, batch, parts, routes, notify=notify)


async def _enqueue_parts(
    tx: Transaction, batch: Batch, parts: Sequence[range], routes: Sequence[Route], *, notify: bool = True
) -> int:
    inserted = 0
    for part in parts:
        some = batch.part(part.start, len(part))
        inserted += await enqueue_batch(tx, some, () if part.start else routes, notify=notify)
    return inserted


def _cut(payloads: Sequence[str]) -> list[range]:
    """Which of them go in one statement: so many, or so many bytes; one that is larger goes alone."""
    parts: list[range] = []
    begin = size = 0
    for place, payload in enumerate(payloads):
        more = len(payload) if payload.isascii() else len(payload.encode())
        if place - begin == _CHUNK or (place > begin and size + more > _CHUNK_BYTES):
            parts.append(range(begin, place))
            begin, size = place, 0
        size += more
    return [*parts, range(begin, len(payloads))]


def signal_id(ports: Ports, channel: str, key: str | None) -> JobId:
    return new_id(ports) if key is None else derived_id("signal", channel, key)


# The store as one event loop of this process uses it: opened once, routes remembered, results awaited together.


_ROUTE_SECONDS = 3600.0
_FAMILY_LIMIT = 200
_FIRST_LOOK, _LAST_LOOK = 0.01, 0.5


class Runtime:
    def __init__(self, database: Database, settings: Settings, ports: Ports, queues: Mapping[str, Queue]) -> None:
        self.database = database
        self.settings = settings
        self.ports = ports
        # For tasks that serve every caller: they must not run, or end, in the context of the first.
        with unbound():
            self.context = copy_context()
        self._queues = queues
        self._written: dict[int, float] = {}
        self._introducing: dict[int, asyncio.Event] = {}  # routes that a call is writing
        self._grouping = Grouping(database, ports, settings.store_patience.total_seconds())
        self.starting = asyncio.Lock()  # held by the call that starts this loop's embedded worker
        self._opened = False
        self._opening: asyncio.Event | None = None  # set when the call that opens the store has ended
        self._awaited: dict[JobId, list[asyncio.Future[EndedJob]]] = {}
        self._callers: Counter[JobId] = Counter()  # that wait for a job, by whatever means
        self._looking: asyncio.Task[None] | None = None
        self._new_interest = asyncio.Event()
        self._slow = SlowWaits(ports, "job", self._why)

    async def open(self) -> None:
        """One call opens the store. All that wait for it continue together, so that they can share a commit."""
        while not self._opened:
            if self._opening is not None:
                await self._opening.wait()
                continue
            self._opening = over = asyncio.Event()
            try:
                with unbound():
                    await self._open()
                self._opened = True
            finally:
                self._opening = None
                over.set()

    async def _open(self) -> None:
        await self.database.open()
        for name, queue in self._queues.items():
            await self.database.transact(
                set_queue,
                name,
                on_orphan=queue.on_orphan,
                fair=queue.fair,
                keep_us=queue.keep_us,
                keep_jobs=queue.keep_jobs,
                lost_counts=queue.lost_counts,
            )

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        await self._slow.close()
        self._give_up(StoreUnavailable("the app was closed while you waited for this result."))
        await self._grouping.close()
        await self.database.close()
        self._opened = False

    # What is taken in

    async def enqueue(self, job: NewJob, route: Route, *, key: str | None, notify: bool) -> AcceptedJob:
        if not self._opened:
            await self.open()
        joins = key is None and may_join(job) and bounds_now() is None
        routes = self._unwritten([route])
        if joins and routes and (first := self._introducing.get(route.id)):
            await first.wait()  # of several first calls one writes the route
            routes = self._unwritten([route])
        if joins and not routes:
            await self._grouping.enqueue(job, notify=notify)
            return AcceptedJob(job.id, fresh=True)
        with self._introduction(routes):
            accepted = await accept(self.database, job, routes, key=key, notify=notify)
            self._remember(routes)
        return accepted

    async def enqueue_many(self, batch: Batch, route: Route, notify: bool) -> None:
        await self.open()
        routes = self._unwritten([route])
        await accept_many(self.database, batch, routes, notify=notify)
        self._remember(routes)

    async def signal(self, channel: str, payload: str, key: str | None) -> None:
        await self.open()
        await self.database.transact(waiting.signal, signal_id(self.ports, channel, key), channel, payload)

    async def transact(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run an operation of a layer above, as part of what is taken in here."""
        await self.open()
        return await self.database.transact(operation, *args, **kwargs)

    def _unwritten(self, routes: Collection[Route]) -> list[Route]:
        """Routes this process has not written within the hour; workers learn of routes from the table."""
        now = self.ports.clock.monotonic()
        fresh = [r for r in routes if now - self._written.get(r.id, float("-inf")) > _ROUTE_SECONDS]
        return sorted(fresh)

    @contextlib.contextmanager
    def _introduction(self, routes: Collection[Route]) -> Iterator[None]:
        """Around a call that writes routes, whether it succeeds or not."""
        mine = {route.id: asyncio.Event() for route in routes if route.id not in self._introducing}
        self._introducing.update(mine)
        try:
            yield
        finally:
            for id, over in mine.items():
                del self._introducing[id]
                over.set()

    def _remember(self, routes: Collection[Route]) -> None:
        for route in routes:
            self._written[route.id] = self.ports.clock.monotonic()

    # What is asked and cancelled

    async def find(self, id: JobId) -> JobRow:
        await self.open()
        return await self.database.transact(queries.find_job, id)

    async def absent_workers(self) -> set[int]:
        """Live workers whose presence is gone now, for lists of workers and for `why`."""
        await self.open()
        return await absent_workers(self.database)

    async def cancel(self, id: JobId, reason: str) -> str:
        await self.open()
        state = await self.database.transact(cancel, id, reason=reason)
        while await self.database.transact(cancel_family, limit=_FAMILY_LIMIT):
            pass
        return state

    async def cancel_many(self, wanted: CancelFilter, reason: str) -> AsyncIterator[Cancelled]:
        await self.open()
        async for done in cancel_many(self.database, wanted, reason=reason):
            yield done

    # Waiting for results

    async def expect(self, id: JobId, limit: float | None) -> None:
        """Somebody is about to wait for this job, for so many seconds. Nothing to do here; a lab runs it."""

    def is_awaited(self, id: JobId) -> bool:
        """Whether a caller on this loop waits for the job, and so learns how it ended."""
        return id in self._callers

    @contextlib.contextmanager
    def awaiting(self, id: JobId) -> Iterator[None]:
        """Around a wait for a job, from the first question on."""
        self._callers[id] += 1
        try:
            yield
        finally:
            self._callers[id] -= 1
            if not self._callers[id]:
                del self._callers[id]

    async def wait(self, id: JobId, limit: float | None) -> EndedJob:
        """Until the job has ended. All waits of this process share one query."""
        with self.awaiting(id):
            return await self._wait(id, limit)

    async def _wait(self, id: JobId, limit: float | None) -> EndedJob:
        await self.expect(id, limit)
        await self.find(id)
        waiter: asyncio.Future[EndedJob] = asyncio.get_running_loop().create_future()
        self._awaited.setdefault(id, []).append(waiter)
        self._slow.begin(waiter, id)
        self._new_interest.set()
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(), name="results", context=self.context)
        try:
            async with asyncio.timeout(limit):
                return await waiter
        except TimeoutError:
            raise ResultTimeout(f"job {id} has not ended within {limit} s; it continues, so ask again.") from None
        finally:
            self._slow.end(waiter)
            self._lose_interest(id, waiter)

    async def _look(self) -> None:
        pause = _FIRST_LOOK
        while self._awaited:
            if self._new_interest.is_set():
                self._new_interest.clear()
                pause = _FIRST_LOOK
            try:
                ended = await self.database.transact(queries.find_ended, list(self._awaited))
            except Unavailable as problem:
                self.ports.try_again(problem)
                ended = []
            except Exception as problem:  # noqa: BLE001  the waiting caller must get the error, whatever it is
                self._give_up(problem)
                return
            for job in ended:
                for waiter in self._awaited.pop(job.id, []):
                    if not waiter.done():
                        waiter.set_result(job)
                pause = _FIRST_LOOK
            self._slow.look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._new_interest.wait()
            pause = min(pause * 1.3, _LAST_LOOK)

    async def _why(self, id: str) -> Sequence[Reason]:
        return await self.database.transact(why, JobId(id), absent=await self.absent_workers())

    def _give_up(self, problem: Exception) -> None:
        for waiter in [waiter for waiters in self._awaited.values() for waiter in waiters]:
            if not waiter.done():
                waiter.set_exception(problem)
        self._awaited.clear()

    def _lose_interest(self, id: JobId, waiter: asyncio.Future[EndedJob]) -> None:
        others = [other for other in self._awaited.get(id, []) if other is not waiter]
        if others:
            self._awaited[id] = others
        else:
            self._awaited.pop(id, None)


# Group commit: the plain enqueue calls of one event loop share their commits.
#
# One write is in flight. Calls that are made meanwhile travel together in the next one, by one statement. So a lonely
# caller waits for nothing, and a busy loop needs one commit for many calls, without a timer. Only calls that wait for
# nobody's lock may enter: one that does would hold up all the others.


MOST_CALLS = 200  # in one statement; more gains little, and the first of them waits for the last
MOST_TEXT = 1 << 20  # characters of payload and metadata in one statement, unless a single call has more


class GroupedCall(NamedTuple):
    job: NewJob
    answer: asyncio.Future[None]
    since: float
    context: Context  # of the caller; a group is written in that of its first call

    @property
    def size(self) -> int:
        return len(self.job.payload) + len(self.job.metadata)


def may_join(job: NewJob) -> bool:
    """Whether the job can be inserted without a lane, a turn, a unique key or a parent that others may have locked."""
    return job.lane is None and not job.turn and job.unique_key is None and job.parent is None and job.retry_of is None


class Grouping:
    def __init__(self, database: Database, ports: Ports, patience: float) -> None:
        """`patience`: for how many seconds one call repeats itself while the store is away."""
        self._database = database
        self._ports = ports
        self._patience = patience
        # By whether workers get a hint: a statement announces all its jobs or none.
        self._waiting: dict[bool, deque[GroupedCall]] = {True: deque(), False: deque()}
        self._free = asyncio.Event()  # no write is in flight
        self._free.set()
        self._writer: asyncio.Task[None] | None = None  # asyncio itself keeps no reference

    async def enqueue(self, job: NewJob, *, notify: bool) -> None:
        """Accept a job that `may_join`, on a route that is known. Cancelled, it may have been accepted or not."""
        if not self._free.is_set():
            answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting[notify].append(GroupedCall(job, answer, self._ports.clock.monotonic(), copy_context()))
            await answer
            return
        self._free.clear()
        try:
            await self._database.transact(enqueue, [job], (), notify=notify)
        except Unavailable as problem:
            self._give_up(problem)
            raise
        finally:
            if self._waiting[True] or self._waiting[False]:
                asyncio.get_running_loop().call_soon(self._write_next)
            else:
                self._free.set()

    async def close(self) -> None:
        """Wait until every call has its answer."""
        while not self._free.is_set():
            await self._free.wait()

    def _write_next(self) -> None:
        """Write the next group, or be free. Callers that just got their answer ran before this, and may call again."""
        heads = {notify: calls[0].since for notify, calls in self._waiting.items() if calls}
        notify = min(heads, key=heads.__getitem__, default=True)
        if group := _take(self._waiting[notify]):
            writing = self._write(group, notify=notify)
            self._writer = asyncio.get_running_loop().create_task(writing, context=group[0].context)
        elif heads:
            self._write_next()  # all of those were cancelled
        else:
            self._free.set()

    async def _write(self, group: Sequence[GroupedCall], *, notify: bool) -> None:
        try:
            await self._accept(group, notify=notify)
        except Unavailable as problem:
            _fail(group, problem)
            self._give_up(problem)
        finally:
            for call in group:
                call.answer.cancel()  # nothing, but for those without an answer: the loop is being closed
            asyncio.get_running_loop().call_soon(self._write_next)

    async def _accept(self, group: Sequence[GroupedCall], *, notify: bool) -> None:
        """Insert a group and answer its calls. What the store refuses of one call must not take the others along."""
        try:
            await self._database.transact(enqueue, [call.job for call in group], (), notify=notify)
        except Unavailable:
            raise
        except Exception as problem:  # noqa: BLE001  the waiting caller must get the error, whatever it is
            if len(group) > 1:
                for call in group:
                    if not call.answer.done():
                        await self._accept([call], notify=notify)
            elif not group[0].answer.done():
                group[0].answer.set_exception(problem)
            return
        for call in group:
            if not call.answer.done():
                call.answer.set_result(None)

    def _give_up(self, problem: Unavailable) -> None:
        """The store is away. Callers that have waited as long as a call of their own would get the error too."""
        enough = self._ports.clock.monotonic() - self._patience
        for calls in self._waiting.values():
            _fail((call for call in calls if call.since <= enough), problem)


def _take(calls: deque[GroupedCall]) -> list[GroupedCall]:
    """The longest waiting, and as many after it as one statement may have."""
    group: list[GroupedCall] = []
    left = MOST_TEXT
    while calls and len(group) < MOST_CALLS and (not group or calls[0].size <= left):
        call = calls.popleft()
        if not call.answer.done():  # else its caller was cancelled, or has been told
            group.append(call)
            left -= call.size
    return group


def _fail(calls: Iterable[GroupedCall], problem: Unavailable) -> None:
    for call in calls:
        if not call.answer.done():
            mine = copy.copy(problem)  # each raises its own, with its own trace
            mine.__cause__ = problem
            call.answer.set_exception(mine)


# The caller's own transaction: jobs and signals that are there once it commits, and never were if it does not.
#
# Routes are written every time and never remembered: a rollback takes them away again.


class CallersTransaction:
    """An `Intake` that reaches for nothing but the connection it was given."""

    def __init__(self, lent: Transactor, settings: Settings, ports: Ports) -> None:
        self.settings = settings
        self.ports = ports
        self._lent = lent

    async def enqueue(self, job: NewJob, route: Route, *, key: str | None, notify: bool) -> AcceptedJob:
        return await accept(self._lent, job, [route], key=key, notify=notify)

    async def enqueue_many(self, batch: Batch, route: Route, notify: bool) -> None:
        await accept_many(self._lent, batch, [route], notify=notify)

    async def transact(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._lent.transact(operation, *args, **kwargs)

    async def signal(self, channel: str, payload: str, key: str | None) -> None:
        await self._lent.transact(waiting.signal, signal_id(self.ports, channel, key), channel, payload)


# Reports of what is taken in, for listeners. The app asks for them only while there are any.


class AnnouncedIntake:
    """An `Intake` in front of another."""

    def __init__(self, intake: Intake, *, committed: bool) -> None:
        """`committed`: whether what it has taken in is there for everyone, or only once the caller commits."""
        self.settings = intake.settings
        self.ports = intake.ports
        self._intake = intake
        self._committed = committed

    async def enqueue(self, job: NewJob, route: Route, *, key: str | None, notify: bool) -> AcceptedJob:
        with sending(self.ports, job, [job.id]) as carrying:
            accepted = await self._intake.enqueue(carrying, route, key=key, notify=notify)
        if accepted.id == job.id:
            tell_enqueued(self.ports, job, committed=self._committed)
        return accepted

    async def enqueue_many(self, batch: Batch, route: Route, notify: bool) -> None:
        with sending(self.ports, batch.job, batch.ids) as carrying:
            await self._intake.enqueue_many(batch._replace(job=carrying), route, notify)
        for id in batch.ids:
            tell_enqueued(self.ports, batch.job._replace(id=id), committed=self._committed)

    async def transact(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._intake.transact(operation, *args, **kwargs)

    async def signal(self, channel: str, payload: str, key: str | None) -> None:
        await self._intake.signal(channel, payload, key)
