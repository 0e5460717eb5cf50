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
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, overload

from holdfast import durations
from holdfast.clock import Ports
from holdfast.durations import Duration
from holdfast.errors import LeaseLost, UsageError
from holdfast.kernel import encoding, waiting
from holdfast.kernel.database import Database
from holdfast.kernel.enqueue import enqueue_children
from holdfast.kernel.ids import JobId, derived_id
from holdfast.kernel.records import Lease, NewJob, Route
from holdfast.kernel.states import TERMINAL
from holdfast.outcomes import Park
from holdfast.settings import Settings

if TYPE_CHECKING:
    from holdfast.workers.holdings import Holding

P = ParamSpec("P")
R = TypeVar("R")


class Parking(BaseException):
    """Leaves the handler so that its job can wait without it. Not an Exception: handlers must not swallow it."""

    def __init__(self, park: Park) -> None:
        super().__init__(park)
        self.park = park


class Startable(Protocol):
    """A job function, as far as a parent needs to know it."""

    def new_job(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, id: JobId) -> tuple[NewJob, Route]: ...


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

    def __init__(self, holding: Holding, database: Database, ports: Ports, settings: Settings) -> None:
        self._holding = holding
        self._lease: Lease = holding.lease
        self._database = database
        self._ports = ports
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._steps: dict[str, str] | None = None
        self._started: Counter[str] = Counter()
        self._waits: Counter[str] = Counter()
        self.log = logging.LoggerAdapter(
            logging.getLogger(f"holdfast.job.{self._lease.kind}"),
            {"job": self._lease.id, "kind": self._lease.kind, "attempt": self.attempt, "token": str(self._lease.fence)},
        )

    @property
    def id(self) -> str:
        return self._lease.id

    @property
    def kind(self) -> str:
        return self._lease.kind

    @property
    def queue(self) -> str:
        return self._lease.queue

    @property
    def tenant(self) -> str:
        return self._lease.tenant

    @property
    def attempt(self) -> int:
        """1 for the first; lost leases, snoozes and parking do not count."""
        return self._lease.attempts + 1

    @property
    def token(self) -> str:
        """Rises with every claim: pass it on to a system that can refuse an older one."""
        return str(self._lease.fence)

    @property
    def metadata(self) -> Any:
        return encoding.decode(self._lease.metadata)

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of this job: pass it on to a system that deduplicates."""
        return self._lease.id

    @property
    def cancelled(self) -> bool:
        """True once the attempt should stop: the job was cancelled, its lease lost, or the worker leaves."""
        return self._holding.cancelled.is_set()

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
        steps = await self._stored_steps()
        if name not in steps:
            self._require_lease()
            result = await _call(function, args, kwargs)
            text = encoding.encode(result, what=f"the result of step {name!r}", cap=self._settings.result_cap)
            steps[name] = await self._database.transact(waiting.store_step, self._lease, name, text)
        return encoding.decode(steps[name])

    async def progress(self, value: Any) -> None:
        """Show how far the job is: any small JSON value, for people and for `holdfast jobs show`."""
        text = encoding.encode(value, what="progress", cap=self._settings.progress_cap)
        await self._database.transact(waiting.report_progress, self._lease, text)

    async def start(self, job: Startable, /, *args: Any, step: str = "child", **kwargs: Any) -> str:
        """Enqueue a child of this job and return its id.

        The id comes from this job, `step` and how many were started under that step before, so a handler that
        runs again starts no second set.
        """
        id = derived_id(self._lease.id, step, self._started[step])
        self._started[step] += 1
        child, route = job.new_job(args, kwargs, id=id)
        child = child._replace(tenant=child.tenant or self._lease.tenant)
        await self._database.transact(enqueue_children, self._lease, [child], [route])
        return id

    async def join(self) -> list[Child]:
        """Wait for all children without holding this worker, then return how each ended, in order."""
        rows = await self._database.transact(waiting.list_children, self._lease.seq)
        if any(row.state not in TERMINAL for row in rows):
            raise Parking(Park())
        return [
            Child(row.id, row.kind, row.state, encoding.decode(row.result), encoding.decode(row.error)) for row in rows
        ]

    async def wait(self, channel: str, *, timeout: Duration | None = None) -> Any:
        """The next signal on `channel`, sent before or after this call; None when `timeout` passed first.

        The job waits without holding this worker. Each call takes one signal, once, also across restarts.
        """
        encoding.check_text(channel, what="a channel")
        name = f"wait {channel} {self._waits[channel]}"
        self._waits[channel] += 1
        steps = await self._stored_steps()
        if name in steps:
            return encoding.decode(steps[name])
        taken = await self._database.transact(waiting.take_signal, self._lease, channel, name)
        if taken.payload is not None:
            steps[name] = taken.payload
            return encoding.decode(taken.payload)
        if timeout is None:
            raise Parking(Park(channel))
        until = await self._deadline_of(name, taken.now + durations.microseconds(timeout))
        if taken.now < until:
            raise Parking(Park(channel, durations.duration(f"{until - taken.now}us")))
        steps[name] = await self._database.transact(waiting.store_step, self._lease, name, "null")
        return encoding.decode(steps[name])

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

    async def _stored_steps(self) -> dict[str, str]:
        if self._steps is None:
            rows = await self._database.transact(waiting.list_steps, self._lease.seq)
            self._steps = {row.name: row.result for row in rows}
        return self._steps

    async def _deadline_of(self, name: str, fresh: int) -> int:
        """When this wait times out: decided by the first attempt that waited, kept by the others."""
        steps = await self._stored_steps()
        name = f"{name} until"
        if name not in steps:
            steps[name] = await self._database.transact(waiting.store_step, self._lease, name, str(fresh))
        return int(steps[name])

    def _require_lease(self) -> None:
        if self._ports.clock.monotonic() >= self._holding.fence_at:
            raise LeaseLost(self._lease.id, self._lease.fence)


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
