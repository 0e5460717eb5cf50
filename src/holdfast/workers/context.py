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
from datetime import datetime
from functools import cached_property
from typing import Any, Generic, ParamSpec, Protocol, Self, TypeVar, cast, overload

from holdfast import durations
from holdfast.durations import Duration
from holdfast.errors import UsageError
from holdfast.kernel import codec
from holdfast.kernel.database import Database, drive
from holdfast.kernel.ids import JobId, derived_id
from holdfast.kernel.rows import Lease, NewJob, Route
from holdfast.kernel.schedules import SCHEDULED_FOR, tick_of
from holdfast.kernel.states import TERMINAL, State, StateName, known_state
from holdfast.kernel.waiting import check_channel
from holdfast.observe import TRACE
from holdfast.outcomes import Park
from holdfast.settings import Settings
from holdfast.threads import refuse_on_a_loop
from holdfast.workers.definitions import Definition
from holdfast.workers.ledger import Ledger, Steps, StoreLedger
from holdfast.workers.telemetry import about

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class ParkRequest(BaseException):
    """Leaves the handler so that its job can wait without it. Not an Exception: handlers must not swallow it."""

    def __init__(self, park: Park) -> None:
        super().__init__(park)
        self.park = park


class Startable(Protocol[P, R_co]):
    """A job function, as far as a parent needs to know it."""

    @property
    def definition(self) -> Definition: ...

    def new_job(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, id: JobId, settings: Settings, tenant: str = ""
    ) -> tuple[NewJob, Route]: ...

    async def run(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


@dataclass(frozen=True, slots=True)
class Child:
    """How a child ended. `result` is its JSON; `error` has a `type` and a `message`."""

    id: str
    kind: str
    state: StateName
    result: Any
    error: Any


class StartedChild(str, Generic[R]):
    """A child that `ctx.start` gave: it is its id, and after `ctx.join()` it says how it ended.

    Before that, `state`, `result` and `error` raise `UsageError`. `result` is of the type that its job returns, and
    None if it did not succeed. `error` has a `type` and a `message`.
    """

    _definition: Definition
    _ended: Child | None

    def __new__(cls, id: str, definition: Definition) -> Self:
        child = super().__new__(cls, id)
        child._definition, child._ended = definition, None
        return child

    def __repr__(self) -> str:
        return f"StartedChild({self}, state={self._ended and self._ended.state})"

    @property
    def id(self) -> str:
        return str(self)

    @property
    def kind(self) -> str:
        return self._definition.kind

    @property
    def state(self) -> StateName:
        """The state in which it ended."""
        return self._end().state

    @property
    def result(self) -> R:
        """What it returned."""
        ended = self._end()
        if ended.state != State.SUCCEEDED.value:
            return cast(R, ended.result)
        return cast(R, self._definition.signature.decode_result(ended.result))

    @property
    def error(self) -> Any:
        """Why it failed, if it did."""
        return self._end().error

    def _end(self) -> Child:
        if self._ended is None:
            raise UsageError(f"child {self} may not have ended yet: await ctx.join() first, which waits for all.")
        return self._ended


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
        self._children: dict[str, StartedChild[Any]] = {}

    @cached_property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """The logger `holdfast.job.<kind>`, whose records name the job and the attempt."""
        return logging.LoggerAdapter(logging.getLogger(f"holdfast.job.{self.lease.kind}"), about(self.lease))

    @property
    def database(self) -> Database:
        """For layers that write in the same transaction as the job, under its token."""
        database = getattr(self.ledger, "database", None)
        if database is None:
            raise UsageError("this job runs in a process of its own, which has no database.")
        return cast(Database, database)

    def require_lease(self) -> None:
        """For layers that do what cannot be undone: raise `LeaseLost` when this process may no longer act.

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
        """The metadata that the job was enqueued with, without its trace and its tick."""
        stored = codec.decode(self.lease.metadata)
        if isinstance(stored, dict):
            stored.pop(TRACE, None)
            stored.pop(SCHEDULED_FOR, None)
        return stored

    @property
    def scheduled_for(self) -> datetime | None:
        """The tick of the schedule that made this job, in the time zone of the schedule; None: no schedule made it.

        It stays the same when the job starts late, is retried or was caught up.
        """
        return tick_of(codec.decode(self.lease.metadata))

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of this job: pass it on to a system that deduplicates."""
        return self.lease.id

    @property
    def cancelled(self) -> bool:
        """True once the attempt should stop: it timed out, was cancelled or lost, or the worker stops."""
        return self.ledger.cancelled

    @overload
    async def step(
        self, name: str, function: Callable[..., Coroutine[Any, Any, R]], /, *args: Any, tx: object, **kwargs: Any
    ) -> R: ...

    @overload
    async def step(self, name: str, function: Callable[..., R], /, *args: Any, tx: object, **kwargs: Any) -> R: ...

    @overload
    async def step(
        self, name: str, function: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...

    @overload
    async def step(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    async def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run `function` once per job and store its JSON result under `name`; later attempts get what was stored.

        A crash between the effect and its storing runs it again: give the effect `idempotency_key`. Or let both be one:
        with `tx`, your connection with an open transaction, the result is stored when you commit, together with what
        `function` wrote there. A function with a parameter `tx` is given the connection.
        """
        steps = self.ledger if kwargs.get("tx") is None else self.ledger.lent(kwargs["tx"], sync=False)
        return await self._step(steps, name, lambda: _call(function, args, _asked_for(function, kwargs)))

    async def _step(self, steps: Steps, name: str, effect: Callable[[], Awaitable[Any]]) -> Any:
        codec.check_text(name, what="a step name")
        stored = await steps.find_step(name)
        if stored is None:
            text = codec.encode(await effect(), what=f"the result of step {name!r}", cap=self.settings.result_cap)
            stored = await steps.store_step(name, text)
        return codec.decode(stored)

    async def progress(self, value: Any) -> None:
        """Report progress: any small JSON value, which `holdfast jobs show` prints."""
        text = codec.encode(value, what="progress", cap=self.settings.progress_cap)
        await self.ledger.report_progress(text)

    @overload
    async def start(self, job: Startable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> StartedChild[R]: ...

    @overload
    async def start(self, job: Startable[..., R], /, *args: Any, step: str, **kwargs: Any) -> StartedChild[R]: ...

    async def start(self, job: Startable[..., Any], /, *args: Any, **kwargs: Any) -> StartedChild[Any]:
        """Enqueue a child of this job and return it; after `ctx.join()` it has a result.

        Its id comes from this job, `step` and how many were started under that step before, so a handler that
        runs again starts no second set.
        """
        step = kwargs.pop("step", "child")
        id = derived_id(self.lease.id, step, self._started[step])
        self._started[step] += 1
        child, route = job.new_job(args, kwargs, id=id, settings=self.settings, tenant=self.lease.tenant)
        await self.ledger.start_child(child, route)
        started: StartedChild[Any] = StartedChild(id, job.definition)
        self._children[id] = started
        return started

    async def join(self) -> list[Child]:
        """Wait for all children without holding this worker, then return how each ended, in order."""
        rows = await self.ledger.list_children()
        if any(row.state not in TERMINAL for row in rows):
            raise ParkRequest(Park())
        ended = [
            Child(row.id, row.kind, known_state(row.state).value, codec.decode(row.result), codec.decode(row.error))
            for row in rows
        ]
        for child in ended:
            if child.id in self._children:
                self._children[child.id]._ended = child
        return ended

    async def wait(self, channel: str, *, timeout: Duration | None = None) -> Any:
        """The next signal on `channel`, sent before or after this call; None when `timeout` passed first.

        The job waits without holding this worker. Each call takes one signal, once, also across restarts.
        """
        check_channel(channel)
        name = f"wait {channel} {self._waits[channel]}"
        self._waits[channel] += 1
        stored = await self.ledger.find_step(name)
        if stored is not None:
            return codec.decode(stored)
        taken = await self.ledger.take_signal(channel, name)
        if taken.payload is not None:
            return codec.decode(taken.payload)
        if timeout is None:
            raise ParkRequest(Park(channel))
        until = await self._deadline_of(name, taken.now + durations.microseconds(timeout))
        if taken.now < until:
            raise ParkRequest(Park(channel, durations.duration(f"{until - taken.now}us")))
        return codec.decode(await self.ledger.store_step(name, "null"))

    @overload
    def step_sync(self, name: str, function: Callable[..., R], /, *args: Any, tx: object, **kwargs: Any) -> R: ...

    @overload
    def step_sync(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    def step_sync(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """`step` for a handler that is not async. With `tx`, a connection that blocks, everything is done on this
        thread."""
        if kwargs.get("tx") is None:
            return self._from_thread(self.step(name, function, *args, **kwargs), "step")
        steps = self.ledger.lent(kwargs["tx"], sync=True)
        return drive(self._step(steps, name, lambda: _call_here(function, args, _asked_for(function, kwargs))))

    def progress_sync(self, value: Any) -> None:
        self._from_thread(self.progress(value), "progress")

    @overload
    def start_sync(self, job: Startable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> StartedChild[R]: ...

    @overload
    def start_sync(self, job: Startable[..., R], /, *args: Any, step: str, **kwargs: Any) -> StartedChild[R]: ...

    def start_sync(self, job: Startable[..., Any], /, *args: Any, **kwargs: Any) -> StartedChild[Any]:
        return self._from_thread(self.start(job, *args, **kwargs), "start")

    def join_sync(self) -> list[Child]:
        return self._from_thread(self.join(), "join")

    def wait_sync(self, channel: str, *, timeout: Duration | None = None) -> Any:
        return self._from_thread(self.wait(channel, timeout=timeout), "wait")

    def _from_thread(self, call: Coroutine[Any, Any, R], name: str) -> R:
        try:
            refuse_on_a_loop(f"ctx.{name}_sync")
        except UsageError:
            call.close()
            raise
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
class _CarriedOutcome:
    """A result or exception on its way to another thread; futures refuse to carry a BaseException quietly."""

    value: Any = None
    problem: BaseException | None = None


async def _carry(call: Awaitable[Any]) -> _CarriedOutcome:
    try:
        return _CarriedOutcome(value=await call)
    except (Exception, ParkRequest) as problem:  # noqa: BLE001  raised again on the caller's thread
        return _CarriedOutcome(problem=problem)


def _asked_for(function: Callable[..., Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments of a step's function. `tx` is among them only if the function takes it."""
    if "tx" not in kwargs or _takes_tx(function):
        return kwargs
    return {name: value for name, value in kwargs.items() if name != "tx"}


def _takes_tx(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # of some built-in functions
        return False
    return any(each.name == "tx" or each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)


async def _call_here(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call a function that blocks on the thread of the handler, whose connection it may use."""
    if inspect.iscoroutinefunction(function):
        raise UsageError(f"{function.__name__} is async, and step_sync with tx calls functions that are not.")
    return function(*args, **kwargs)


async def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    result = await asyncio.to_thread(function, *args, **kwargs)
    return await result if inspect.isawaitable(result) else result
