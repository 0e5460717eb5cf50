"""The app: one object that holds the definitions and joins the layers. It decides nothing.

Constructing it and decorating functions touches neither network nor database.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Protocol, Self, TypeVar, overload

from holdfast import checking, durations
from holdfast.agents.face import AgentFace
from holdfast.agents.topics import TopicEvent, topics
from holdfast.agents.why import why
from holdfast.clock import Ports
from holdfast.crons import next_tick
from holdfast.durations import Duration
from holdfast.errors import BadSetting, MissingExtra, UsageError
from holdfast.handles import Jobs, Queues, Schedules, Workers
from holdfast.jobs import JobFunction, OnDuplicate, unique_rule
from holdfast.kernel import encoding, migrate
from holdfast.kernel.database import Database, drive
from holdfast.kernel.drivers import connect
from holdfast.kernel.ids import derived_id
from holdfast.kernel.retry import RetryPolicy
from holdfast.kernel.schedules import NewSchedule
from holdfast.kernel.waiting import check_channel
from holdfast.observe import Callback, EventStream, Listening
from holdfast.queues import Queue, check_limits
from holdfast.rates import rate
from holdfast.runtime import Runtime
from holdfast.sending import ToldIntake
from holdfast.settings import Settings
from holdfast.threads import LoopThread
from holdfast.transactions import CallersTransaction, Intake, lend
from holdfast.workers.addresses import SCRIPT
from holdfast.workers.context import JobContext
from holdfast.workers.definitions import Definition, Isolation, Limits, Registry
from holdfast.workers.isolation import ProcessPool, require_outside
from holdfast.workers.role import Role
from holdfast.workers.signatures import Signature
from holdfast.workers.worker import Worker

if TYPE_CHECKING:
    from holdfast.telemetry import Meters, Tracers

P = ParamSpec("P")
R = TypeVar("R")

CatchUp = Literal["one", "all", "none"]


class Holdfast(AgentFace):
    """Durable agents and jobs on one database: `url` says which, else `HOLDFAST_URL`, else a file in `.holdfast/`."""

    def __init__(
        self,
        url: str | None = None,
        *,
        settings: Settings | None = None,
        embedded: bool = True,
        ports: Ports | None = None,
    ) -> None:
        self.settings = settings or Settings.from_environment()
        self.url = url or self.settings.url
        self.registry = Registry()
        self._policies: dict[str, Queue] = {}
        self.jobs = Jobs(self)
        self.workers = Workers(self)
        self.queues = Queues(self)
        self.schedules = Schedules(self)
        self._embedded = embedded
        self._ports = self.followed(ports or Ports())
        self._runtimes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Runtime] = weakref.WeakKeyDictionary()
        self._workers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Worker] = weakref.WeakKeyDictionary()
        self._thread: LoopThread | None = None
        self._threading = threading.Lock()  # callers without a loop may come on several threads
        self._make_runtime: Callable[..., Runtime] = Runtime
        self._bound = False  # to another database than its own, by `bound_to`
        self._open_agents()

    def followed(self, ports: Ports) -> Ports:
        """The same ports, through which agents follow their jobs to the end."""
        return replace(ports, followers=(self._following(),))

    @overload
    def job(self, function: Callable[Concatenate[JobContext, P], Coroutine[Any, Any, R]], /) -> JobFunction[P, R]: ...

    @overload
    def job(self, function: Callable[Concatenate[JobContext, P], R], /) -> JobFunction[P, R]: ...

    @overload
    def job(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> JobFunction[P, R]: ...

    @overload
    def job(self, function: Callable[P, R], /) -> JobFunction[P, R]: ...

    @overload
    def job(
        self,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        retry: RetryPolicy | None = None,
        timeout: Duration | None = None,
        deadline: Duration | None = None,
        priority: int = 100,
        requires: Iterable[str] = (),
        isolate: Isolation | None = None,
        concurrency: int | None = None,
        rate: str | None = None,
        unique: str | None = None,
        on_duplicate: OnDuplicate | None = None,
        debounce: Duration | None = None,
    ) -> JobDecorator: ...

    def job(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Make a function a job: `@hf.job`, or `@hf.job(queue="images", timeout="2m", retry=Retry(attempts=5))`.

        `name` is its kind in the store (default: module.function). `timeout` limits one attempt, `deadline` all
        of them together. A lower `priority` runs first. `requires` names capabilities its worker must have.
        `isolate="process"` runs it where a timeout or a cancel can kill it.

        `concurrency` and `rate` ("100/min") limit it across all workers, each `lane=` of a call for itself. `unique`
        keeps a second one away while the first is "pending" or "live", or within a window such as "10m";
        `on_duplicate="replace"` lets the newer call change what nobody has started. `debounce="5s"` starts one job
        when the calls have been quiet for so long.
        """
        if function is not None:
            return self._declare(function)
        return lambda decorated: self._declare(decorated, **options)

    def schedule(
        self,
        cron: str,
        *,
        timezone: str = "UTC",
        catch_up: CatchUp = "one",
        name: str | None = None,
        args: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> ScheduleDecorator:
        """Make a function a job that the clock enqueues: `@hf.schedule("0 3 * * *", timezone="Europe/Athens")`.

        `cron` may also be "@daily" or "every 5m". After an outage `catch_up` enqueues one job for all that was missed
        ("one"), one for each ("all"), or none that is more than a minute late ("none"). A tick is enqueued once,
        whatever happens. `args` are the function's arguments; the other options are those of `@hf.job`.
        """
        next_tick(cron, timezone, 0)
        if catch_up not in ("one", "all", "none"):
            raise BadSetting(f'catch_up is "one", "all" or "none", not {catch_up!r}.')

        def decorate(function: Any) -> JobFunction[Any, Any]:
            job = function if isinstance(function, JobFunction) else self._declare(function, **options)
            title = encoding.check_text(name or job.definition.kind, what="a schedule's name")
            id = derived_id("schedule", title)
            planned, route = job.new_job((), args or {}, id=id, settings=self.settings)
            self.registry.schedules.append(NewSchedule(title, cron, timezone, catch_up, planned, route))
            return job

        return decorate

    def queue(self, name: str, policy: Queue) -> None:
        """Declare a queue's policy; jobs declared for that queue follow it. Declare it before them."""
        encoding.check_text(name, what="a queue name")
        late = [job.kind for job in self.registry.definitions.values() if job.queue == name]
        if late and policy != self._policies.get(name):
            raise UsageError(
                f"job {late[0]!r} was declared for queue {name!r} before its policy: declare the queue first."
            )
        self._policies[name] = policy

    async def signal(
        self, channel: str, payload: Any = None, *, key: str | None = None, tx: object | None = None
    ) -> None:
        """Send a durable signal; the job that waits on the channel takes it, now or whenever it comes to wait.

        Sent again with the same `key` it is the same signal, also after a job has taken it. With `tx`, a connection
        of the caller's, it is sent when that transaction commits.
        """
        await self._signal(self.intake(tx), channel, payload, key)

    def signal_sync(
        self, channel: str, payload: Any = None, *, key: str | None = None, tx: object | None = None
    ) -> None:
        """`signal` for code without an event loop; with `tx` it uses that connection, on this thread."""
        if tx is None:
            self.call(self.signal(channel, payload, key=key))
        else:
            drive(self._signal(self.intake(tx, sync=True), channel, payload, key))

    async def _signal(self, intake: Intake, channel: str, payload: Any, key: str | None) -> None:
        check_channel(channel)
        text = encoding.encode(payload, what="a signal", cap=self.settings.result_cap)
        await intake.signal(channel, text, key)

    @overload
    def events(self, *names: str, buffer: int = 1_000) -> EventStream: ...

    @overload
    def events(self, *names: str, after: str) -> AsyncIterator[TopicEvent]: ...

    def events(self, *names: str, buffer: int = 1_000, after: str | None = None) -> Any:
        """What this app does in this process, as it happens: `async for event in hf.events("job.ended"): ...`.

        Without names, every event. A reader that falls more than `buffer` events behind loses its oldest ones.

        With `after`, what happens to all runs in the store, whoever does it: the five public topics, from a cursor on
        ("" is the beginning), and nothing is lost.
        """
        if after is not None:
            return topics(self._opened, self._ports, after, names)
        return EventStream(self._ports.events, names, buffer=buffer)

    async def _opened(self) -> Database:
        runtime = self.runtime()
        await runtime.open()
        return runtime.database

    def on_event(self, callback: Callback, *names: str) -> Listening:
        """Call `callback` with each event, on the spot: it must be quick. Stop with `.stop()` or a `with` block."""
        return self._ports.events.listen(callback, names)

    def instrument(self, *, tracer_provider: Tracers | None = None, meter_provider: Meters | None = None) -> None:
        """Trace and measure this app's jobs with OpenTelemetry, by these providers or by those of the process.

        Call it once, in every process that enqueues or works. It needs `pip install 'holdfast[otel]'`.
        """
        try:
            from holdfast.telemetry import instrument
        except ModuleNotFoundError as missing:
            raise MissingExtra("otel", "instrument()") from missing
        if self._ports.events.spans is not None:
            raise UsageError("this app is instrumented already; once is enough.")
        instrument(self._ports.events, tracer_provider, meter_provider)

    async def why(self, id: str) -> str:
        """What keeps a job or a run from getting on, in words; empty when nothing does."""
        return "; ".join(reason.sentence for reason in await self.runtime().transact(why, id))

    async def migrate(self, *, force: bool = False) -> list[str]:
        """Bring the tables to this version; returns what was done. Refused beside live workers it leaves behind."""
        database = connect(self.url, self.settings, self._ports)
        await database.connect()
        try:
            return await migrate.migrate(database, self.settings.schema, force=force)
        finally:
            await database.close()

    async def work(self, role: Role | None = None) -> None:
        """Be a worker until cancelled, or until the role's end is reached."""
        await self.runtime().open()
        await self.make_worker(role).run()

    def work_sync(self, role: Role | None = None) -> None:
        """`work` for a program without an event loop; Ctrl-C drains."""

        async def work_and_close() -> None:
            try:
                await self.work(role)
            finally:
                await self.close()

        asyncio.run(work_and_close())

    def make_worker(self, role: Role | None = None) -> Worker:
        """A worker for this app on the running loop, not yet started."""
        runtime = self.runtime()
        return Worker(
            self.registry,
            runtime.database,
            self.settings,
            self._ports,
            role=role,
            processes=ProcessPool(self.settings.concurrency),
        )

    async def ensure_worker(self, *, adopting: bool = False) -> None:
        """Start the embedded worker of this loop, once, if this app may have one and declares something for it.

        `adopting`: also if it declares nothing, for agents that are in the store alone.
        """
        loop = asyncio.get_running_loop()
        if not self._embedded or not (self.registry.definitions or adopting):
            return
        async with self.runtime().starting:
            if loop not in self._workers:
                await self.runtime().open()
                worker = self.make_worker()
                await worker.start()
                self._workers[loop] = worker

    async def __aenter__(self) -> Self:
        await self.runtime().open()
        await self.ensure_worker()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Drain the embedded worker of this loop and close its connections."""
        loop = asyncio.get_running_loop()
        worker = self._workers.pop(loop, None)
        if worker is not None:
            await worker.stop()
        streams = self._streams.pop(loop, None)
        if streams is not None:
            await streams.close()
        await self._loop.close()
        await self._mcp.close()
        await self.book.close()
        runtime = self._runtimes.pop(loop, None)
        if runtime is not None:
            await runtime.close()

    @asynccontextmanager
    async def lifespan(self, _app: object = None) -> AsyncIterator[None]:
        """For `FastAPI(lifespan=hf.lifespan)`."""
        async with self:
            yield

    def intake(self, tx: object | None, *, sync: bool = False) -> Intake:
        """Who takes work in: the store as the running event loop uses it, or a transaction of the caller's.

        With the latter the app needs no loop and opens nothing. `sync`: the call is not awaited.
        """
        if tx is None:
            return self._told(self.runtime(), committed=True)
        require_outside()
        lent = lend(tx, self.url, self.settings, self._ports, sync=sync)
        return self._told(CallersTransaction(lent, self.settings, self._ports), committed=False)

    def _told(self, intake: Intake, *, committed: bool) -> Intake:
        return ToldIntake(intake, committed=committed) if self._ports.events.heard else intake

    def runtime(self) -> Runtime:
        """The store as the running event loop uses it."""
        require_outside()
        loop = asyncio.get_running_loop()
        if loop not in self._runtimes:
            database = connect(self.url, self.settings, self._ports)
            self._runtimes[loop] = self._make_runtime(database, self.settings, self._ports, self._policies)
        return self._runtimes[loop]

    @contextmanager
    def bound_to(
        self, url: str, settings: Settings, ports: Ports, make_runtime: Callable[..., Runtime] = Runtime
    ) -> Iterator[None]:
        """For tests: be on another database until the block ends, with no embedded worker; then as before.

        What was open before stays open, and is in use again afterwards. What is opened inside must be closed inside.
        """
        if self._bound:
            raise UsageError(f"this app is bound to {self.url} by a test already; one lab at a time.")
        inside: dict[str, Any] = {
            "url": url,
            "settings": settings,
            "_ports": self.followed(ports),
            "_embedded": False,
            "_make_runtime": make_runtime,
            "_runtimes": weakref.WeakKeyDictionary(),
            "_workers": weakref.WeakKeyDictionary(),
            "_thread": None,
            "_streams": weakref.WeakKeyDictionary(),
            "watched": weakref.WeakSet(),
            "_bound": True,
        }
        before = {name: vars(self)[name] for name in inside}
        vars(self).update(inside)
        try:
            yield
        finally:
            vars(self).update(before)

    def call(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run one call for code without a loop, on the app's own thread."""
        with self._threading:
            if self._thread is None:
                self._thread = LoopThread(self.close)
            thread = self._thread
        return thread.run(coroutine)

    def close_sync(self) -> None:
        """Drain the worker and close the connections that calls without a loop have opened."""
        with self._threading:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()

    def _declare(  # noqa: PLR0913  the options of the decorator
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        queue: str = "default",
        retry: RetryPolicy | None = None,
        timeout: Duration | None = None,
        deadline: Duration | None = None,
        priority: int = 100,
        requires: Iterable[str] = (),
        isolate: Isolation | None = None,
        concurrency: int | None = None,
        rate: str | None = None,
        unique: str | None = None,
        on_duplicate: OnDuplicate | None = None,
        debounce: Duration | None = None,
    ) -> JobFunction[Any, Any]:
        policy = self._policies.get(queue, Queue())
        limit = policy.timeout if timeout is None else timeout
        kind = encoding.check_text(name or kind_of(function), what="a job's name")
        definition = Definition(
            kind=kind,
            function=function,
            signature=Signature(kind, function),
            queue=encoding.check_text(queue, what="a queue name"),
            requires=checking.capabilities(requires),
            retry=retry or policy.retry or RetryPolicy(),
            timeout_us=None if limit is None else durations.microseconds(limit),
            deadline_us=None if deadline is None else durations.microseconds(deadline),
            priority=priority,
            isolate=isolate,
            limits=limits_of(f"job:{kind}", concurrency, rate, own=True)
            or limits_of(f"queue:{queue}", policy.concurrency, policy.rate, own=False),
            fair=policy.fair,
            unique=unique_rule(unique, on_duplicate, debounce),
        )
        self.registry.add(definition)
        return JobFunction(self, definition, function)


class JobDecorator(Protocol):
    """`@hf.job(...)`: keeps the function's parameters, but for the context, which the runtime supplies."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[JobContext, P], Coroutine[Any, Any, R]], /
    ) -> JobFunction[P, R]: ...

    @overload
    def __call__(self, function: Callable[Concatenate[JobContext, P], R], /) -> JobFunction[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> JobFunction[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> JobFunction[P, R]: ...


class ScheduleDecorator(Protocol):
    """`@hf.schedule(...)`: what it decorates can also be enqueued by hand."""

    @overload
    def __call__(self, function: JobFunction[P, R], /) -> JobFunction[P, R]: ...

    @overload
    def __call__(
        self, function: Callable[Concatenate[JobContext, P], Coroutine[Any, Any, R]], /
    ) -> JobFunction[P, R]: ...

    @overload
    def __call__(self, function: Callable[Concatenate[JobContext, P], R], /) -> JobFunction[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> JobFunction[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> JobFunction[P, R]: ...


def limits_of(lane: str, concurrency: int | None, starts: str | None, *, own: bool) -> Limits | None:
    check_limits(concurrency, starts)
    if concurrency is None and starts is None:
        return None
    pace = rate(starts) if starts is not None else None
    return Limits(lane, own, concurrency, pace.interval_us if pace else None, pace.burst if pace else 1)


def kind_of(function: Callable[..., Any]) -> str:
    """`module.function`; a script run directly is named as the module a worker would import."""
    module = function.__module__
    if module in ("__main__", SCRIPT):
        main = sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)
        file = inspect.getfile(main) if hasattr(main, "__file__") else "main"
        module = spec.name if spec else Path(file).stem
    return f"{module}.{function.__qualname__}"
