"""The app: one object that holds the definitions and joins the layers. It decides nothing.

Constructing it and decorating functions touches neither network nor database.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import os
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar, overload

from holdfast import durations
from holdfast.clock import Ports
from holdfast.durations import Duration
from holdfast.errors import BadSetting, UsageError
from holdfast.jobs import Job, JobFunction
from holdfast.kernel import encoding, migrate, reading, workers
from holdfast.kernel.drivers import connect
from holdfast.kernel.ids import JobId, is_id
from holdfast.kernel.records import AttemptRow, DutyRow, JobRow, WorkerRow
from holdfast.kernel.retry import RetryPolicy
from holdfast.queues import Queue
from holdfast.runtime import Runtime
from holdfast.settings import Settings
from holdfast.workers.addresses import SCRIPT
from holdfast.workers.context import JobContext
from holdfast.workers.definitions import Definition, Isolation, Registry
from holdfast.workers.isolation import ProcessPool, require_outside
from holdfast.workers.role import Role
from holdfast.workers.signatures import Signature
from holdfast.workers.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")


class Holdfast:
    """Durable jobs on one database. `url` decides which; without it, `HOLDFAST_URL` or a file in `.holdfast/`."""

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
        self.queues: dict[str, Queue] = {}
        self.jobs = Jobs(self)
        self.workers = Workers(self)
        self._embedded = embedded
        self._ports = ports or Ports()
        self._runtimes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Runtime] = weakref.WeakKeyDictionary()
        self._workers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Worker] = weakref.WeakKeyDictionary()
        self._thread: LoopThread | None = None
        self._threading = threading.Lock()  # callers without a loop may come on several threads

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
    ) -> JobDecorator: ...

    def job(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Make a function a job: `@hf.job`, or `@hf.job(queue="images", timeout="2m", retry=Retry(attempts=5))`.

        `name` is its kind in the store (default: module.function). `timeout` limits one attempt, `deadline` all
        of them together. A lower `priority` runs first. `requires` names capabilities its worker must have.
        `isolate="process"` runs it where a timeout or a cancel can kill it.
        """
        if function is not None:
            return self._declare(function)
        return lambda decorated: self._declare(decorated, **options)

    def queue(self, name: str, policy: Queue) -> None:
        """Declare a queue's policy; jobs declared for that queue follow it. Declare it before them."""
        encoding.check_text(name, what="a queue name")
        self.queues[name] = policy

    async def signal(self, channel: str, payload: Any = None, *, key: str | None = None) -> None:
        """Send a durable signal; the job that waits on the channel takes it, now or whenever it comes to wait.

        Sent again with the same `key` it is the same signal, also after a job has taken it.
        """
        encoding.check_text(channel, what="a channel")
        text = encoding.encode(payload, what="a signal", cap=self.settings.result_cap)
        await self.runtime().signal(channel, text, key)

    async def migrate(self) -> list[str]:
        """Bring the database's tables to this version; returns what was done."""
        database = connect(self.url, self.settings, self._ports)
        await database.connect()
        try:
            return await migrate.migrate(database, self.settings.schema)
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

    async def ensure_worker(self) -> None:
        """Start the embedded worker of this loop, once, if this app may have one."""
        loop = asyncio.get_running_loop()
        if not self._embedded or not self.registry.definitions:
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
        runtime = self._runtimes.pop(loop, None)
        if runtime is not None:
            await runtime.close()

    @asynccontextmanager
    async def lifespan(self, _app: object = None) -> AsyncIterator[None]:
        """For `FastAPI(lifespan=hf.lifespan)`."""
        async with self:
            yield

    def runtime(self) -> Runtime:
        """The store as the running event loop uses it."""
        require_outside()
        loop = asyncio.get_running_loop()
        if loop not in self._runtimes:
            database = connect(self.url, self.settings, self._ports)
            self._runtimes[loop] = Runtime(database, self.settings, self._ports, self.queues)
        return self._runtimes[loop]

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
    ) -> JobFunction[Any, Any]:
        policy = self.queues.get(queue, Queue())
        limit = policy.timeout if timeout is None else timeout
        kind = encoding.check_text(name or kind_of(function), what="a job's name")
        if isolate not in (None, "process"):
            raise BadSetting(f'isolate is "process" or nothing, not {isolate!r}.')
        definition = Definition(
            kind=kind,
            function=function,
            signature=Signature(kind, function),
            queue=encoding.check_text(queue, what="a queue name"),
            requires=frozenset(requires),
            retry=retry or policy.retry or RetryPolicy(),
            timeout_us=None if limit is None else durations.microseconds(limit),
            deadline_us=None if deadline is None else durations.microseconds(deadline),
            priority=priority,
            isolate=isolate,
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


class Jobs:
    """The jobs in the store: `hf.jobs[id]` is a handle without I/O."""

    def __init__(self, app: Holdfast) -> None:
        self._app = app

    def __getitem__(self, id: str) -> Job[Any]:
        if not is_id(id):
            raise UsageError(f"{id!r} is not a job id.")
        return Job(self._app, JobId(id.lower()), None)

    async def get(self, id: str) -> JobRow:
        return await self[id].refresh()

    async def list(self, **filters: Any) -> Sequence[JobRow]:
        """Newest first; filter by state, queue, kind, tenant; `before` and `limit` page."""
        runtime = self._app.runtime()
        await runtime.open()
        return await runtime.database.transact(reading.list_jobs, **filters)

    async def attempts(self, id: str) -> Sequence[AttemptRow]:
        row = await self.get(id)
        return await self._app.runtime().database.transact(reading.list_attempts, row.seq)


class Workers:
    """The workers in the store."""

    def __init__(self, app: Holdfast) -> None:
        self._app = app

    async def list(self, *, all: bool = False, limit: int = 1_000) -> Sequence[WorkerRow]:
        """Live workers; with `all`, also those that stopped or were lost lately."""
        runtime = self._app.runtime()
        await runtime.open()
        return await runtime.database.transact(workers.list_workers, all=all, limit=limit)

    async def duties(self) -> Sequence[DutyRow]:
        runtime = self._app.runtime()
        await runtime.open()
        return await runtime.database.transact(workers.list_duties)


class LoopThread:
    """An event loop on a background thread, for callers that have none."""

    def __init__(self, closing: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._closing = closing
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="holdfast-sync", daemon=True)
        self._thread.start()
        self._process = os.getpid()
        atexit.register(self.stop)  # a script that ends leaves no worker behind that others must find dead

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise UsageError("this code already runs on the app's event loop: await the call without _sync.")
        if os.getpid() != self._process:
            coroutine.close()
            raise UsageError("this process was forked off one that had used the app: make the app after the fork.")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def stop(self) -> None:
        atexit.unregister(self.stop)
        if os.getpid() != self._process:
            return  # a fork has the object, but not its thread
        self.run(self._closing())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def kind_of(function: Callable[..., Any]) -> str:
    """`module.function`; a script run directly is named as the module a worker would import."""
    module = function.__module__
    if module in ("__main__", SCRIPT):
        main = sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)
        file = inspect.getfile(main) if hasattr(main, "__file__") else "main"
        module = spec.name if spec else Path(file).stem
    return f"{module}.{function.__qualname__}"
