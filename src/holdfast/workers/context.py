"""What a running job can ask of the runtime: steps, progress, children, signals.

Every write goes to the store under the job's token, so an attempt that lost its lease can change nothing. A
handler may be run again from its beginning at any time; what it did inside `step` is not repeated.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ParamSpec, Protocol, TypeVar, cast, overload

from holdfast import durations
from holdfast.durations import Duration
from holdfast.errors import UsageError
from holdfast.kernel import encoding
from holdfast.kernel.database import Database
from holdfast.kernel.ids import JobId, derived_id
from holdfast.kernel.records import Lease, NewJob, Route
from holdfast.kernel.states import TERMINAL
from holdfast.kernel.waiting import check_channel
from holdfast.observe import TRACE
from holdfast.outcomes import Park
from holdfast.settings import Settings
from holdfast.workers.ledger import Ledger, StoreLedger
from holdfast.workers.telling import about

P = ParamSpec("P")
R = TypeVar("R")


class Parking(BaseException):
    """Leaves the handler so that its job can wait without it. Not an Exception: handlers must not swallow it."""

    def __init__(self, park: Park) -> None:
        super().__init__(park)
        self.park = park


class Startable(Protocol):
    """A job function, as far as a parent needs to know it."""

    def new_job(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, id: JobId, settings: Settings
    ) -> tuple[NewJob, Route]: ...


@dataclass(frozen=True, slots=True)
class Child:
    """How a child ended. `result` is its JSON; `error` has a `type` and a `message`."""

    id: str
    kind: str
    state: str
    result: Any
    error: Any


class JobContext:
    """Given to a handler whose first parameter is annotated `JobContext`."""

    def __init__(self, lease: Lease, ledger: Ledger, settings: Settings) -> None:
        # For the runtime; a handler needs none of the three.
        self.lease = lease
        self.ledger = ledger
        self.settings = settings
        self._loop = asyncio.get_running_loop()
        self._started: Counter[str] = Counter()
        self._waits: Counter[str] = Counter()

    @cached_property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """The logger `holdfast.job.<kind>`, whose records name the job and the attempt."""
        return logging.LoggerAdapter(logging.getLogger(f"holdfast.job.{self.lease.kind}"), about(self.lease))

    @property
    def database(self) -> Database:
        """For layers that write beside the job, under its token."""
        database = getattr(self.ledger, "database", None)
        if database is None:
            raise UsageError("this job runs in a process of its own, which has no database.")
        return cast(Database, database)

    def require_lease(self) -> None:
        """For layers that do what cannot be taken back: raise `LeaseLost` when this process may no longer act.

        The store's last answer may be old: a process can be stopped for a minute between hearing it and acting on it.
        """
        if isinstance(self.ledger, StoreLedger):
            self.ledger.require_lease()

    @property
    def id(self) -> str:
        return self.lease.id

    @property
    def kind(self) -> str:
        return self.lease.kind

    @property
    def queue(self) -> str:
        return self.lease.queue

    @property
    def tenant(self) -> str:
        return self.lease.tenant

    @property
    def attempt(self) -> int:
        """1 for the first; lost leases, snoozes and parking do not count."""
        return self.lease.attempts + 1

    @property
    def token(self) -> str:
        """Rises with every claim: pass it on to a system that can refuse an older one."""
        return str(self.lease.fence)

    @property
    def metadata(self) -> Any:
        """What the job was enqueued with; the trace that may travel beside it is not shown."""
        stored = encoding.decode(self.lease.metadata)
        if isinstance(stored, dict):
            stored.pop(TRACE, None)
        return stored

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of this job: pass it on to a system that deduplicates."""
        return self.lease.id

    @property
    def cancelled(self) -> bool:
        """True once the attempt should stop: its time is over, it was cancelled or lost, or the worker leaves."""
        return self.ledger.cancelled

    @overload
    async def step(
        self, name: str, function: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...

    @overload
    async def step(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    async def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run `function` once per job and store its JSON result under `name`; later attempts get what was stored.

        A crash between the effect and its storing runs it again: give the effect `idempotency_key`.
        """
        encoding.check_text(name, what="a step name")
        stored = await self.ledger.find_step(name)
        if stored is None:
            result = await _call(function, args, kwargs)
            text = encoding.encode(result, what=f"the result of step {name!r}", cap=self.settings.result_cap)
            stored = await self.ledger.store_step(name, text)
        return encoding.decode(stored)

    async def progress(self, value: Any) -> None:
        """Show how far the job is: any small JSON value, for people and for `holdfast jobs show`."""
        text = encoding.encode(value, what="progress", cap=self.settings.progress_cap)
        await self.ledger.report_progress(text)

    async def start(self, job: Startable, /, *args: Any, step: str = "child", **kwargs: Any) -> str:
        """Enqueue a child of this job and return its id.

        The id comes from this job, `step` and how many were started under that step before, so a handler that
        runs again starts no second set.
        """
        id = derived_id(self.lease.id, step, self._started[step])
        self._started[step] += 1
        child, route = job.new_job(args, kwargs, id=id, settings=self.settings)
        child = child._replace(tenant=child.tenant or self.lease.tenant)
        await self.ledger.start_child(child, route)
        return id

    async def join(self) -> list[Child]:
        """Wait for all children without holding this worker, then return how each ended, in order."""
        rows = await self.ledger.list_children()
        if any(row.state not in TERMINAL for row in rows):
            raise Parking(Park())
        return [
            Child(row.id, row.kind, row.state, encoding.decode(row.result), encoding.decode(row.error)) for row in rows
        ]

    async def wait(self, channel: str, *, timeout: Duration | None = None) -> Any:
        """The next signal on `channel`, sent before or after this call; None when `timeout` passed first.

        The job waits without holding this worker. Each call takes one signal, once, also across restarts.
        """
        check_channel(channel)
        name = f"wait {channel} {self._waits[channel]}"
        self._waits[channel] += 1
        stored = await self.ledger.find_step(name)
        if stored is not None:
            return encoding.decode(stored)
        taken = await self.ledger.take_signal(channel, name)
        if taken.payload is not None:
            return encoding.decode(taken.payload)
        if timeout is None:
            raise Parking(Park(channel))
        until = await self._deadline_of(name, taken.now + durations.microseconds(timeout))
        if taken.now < until:
            raise Parking(Park(channel, durations.duration(f"{until - taken.now}us")))
        return encoding.decode(await self.ledger.store_step(name, "null"))

    def step_sync(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """`step` for a handler that is not async."""
        return self._from_thread(self.step(name, function, *args, **kwargs))

    def progress_sync(self, value: Any) -> None:
        self._from_thread(self.progress(value))

    def start_sync(self, job: Startable, /, *args: Any, step: str = "child", **kwargs: Any) -> str:
        return self._from_thread(self.start(job, *args, step=step, **kwargs))

    def join_sync(self) -> list[Child]:
        return self._from_thread(self.join())

    def wait_sync(self, channel: str, *, timeout: Duration | None = None) -> Any:
        return self._from_thread(self.wait(channel, timeout=timeout))

    def _from_thread(self, call: Coroutine[Any, Any, R]) -> R:
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._loop:
            call.close()
            raise UsageError("this handler is async: await the call without _sync.")
        carried = asyncio.run_coroutine_threadsafe(_carry(call), self._loop).result()
        if carried.problem is not None:
            raise carried.problem
        value: R = carried.value
        return value

    async def _deadline_of(self, name: str, fresh: int) -> int:
        """When this wait times out: decided by the first attempt that waited, kept by the others."""
        name = f"{name} until"
        stored = await self.ledger.find_step(name)
        return int(stored or await self.ledger.store_step(name, str(fresh)))


@dataclass(frozen=True, slots=True)
class _Carried:
    """A result or exception on its way to another thread; futures refuse to carry a BaseException quietly."""

    value: Any = None
    problem: BaseException | None = None


async def _carry(call: Awaitable[Any]) -> _Carried:
    try:
        return _Carried(value=await call)
    except (Exception, Parking) as problem:  # noqa: BLE001  raised again on the caller's thread
        return _Carried(problem=problem)


async def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    result = await asyncio.to_thread(function, *args, **kwargs)
    return await result if inspect.isawaitable(result) else result
