"""The core of an app: what it declares, where it works, and how work is taken in there.

Every part and every handle of an app holds its core. Where it works is one object, the binding: a test puts another in
its place, and nothing that was open before is touched.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from typing import Any, Protocol, TypeVar

from holdfast.asgi import running_servers
from holdfast.client.intake import AnnouncedIntake, CallersTransaction, Intake, Runtime
from holdfast.client.queues import Queue
from holdfast.clock import Ports
from holdfast.errors import StoreUnavailable, UsageError
from holdfast.kernel import codec
from holdfast.kernel.database import Database, unbound
from holdfast.kernel.drivers import connect
from holdfast.kernel.drivers.lent import lend
from holdfast.kernel.ids import JobId
from holdfast.kernel.waiting import check_channel
from holdfast.kernel.why import why
from holdfast.observe import Recorder
from holdfast.reasons import Reason
from holdfast.settings import Settings
from holdfast.text import plural
from holdfast.threads import LoopThread, StopNotice, jobs_awaited, refuse_on_a_loop
from holdfast.workers.definitions import Registry, require_outside
from holdfast.workers.isolation.pool import ProcessPool
from holdfast.workers.role import Role
from holdfast.workers.worker import Worker, first_of

log = logging.getLogger("holdfast.worker")

_UNTOLD = 1.0  # seconds that a drain may take without a word
_LOOK = 0.1  # seconds between looks at a web server that stops
_FIRST_PAUSE, _LAST_PAUSE = 0.05, 1.0  # between looks for a store that is not there yet

R = TypeVar("R")

MakeRuntime = Callable[[Database, Settings, Ports, Mapping[str, Queue]], Runtime]


class RefreshedHandle(Protocol):
    """A handle whose state a lab keeps fresh."""

    id: str
    state: Any  # by the names of its layer, None before it is known


class LoopState:
    """What one event loop has open. A layer keeps what it opens beside it in a `WeakKeyDictionary` of these."""

    def __init__(self) -> None:
        self.runtime: Runtime | None = None
        self.worker: Worker | None = None  # the embedded one
        self.hurrying: Callable[[], None] | None = None  # makes a drain that is under way hurry
        self.hurried_by: str | None = None  # what a person does who is in a hurry then, if this loop hears of it


class Binding:
    """Where an app works: one database, with its settings and ports, and what each event loop has open there."""

    def __init__(
        self,
        settings: Settings,
        ports: Ports,
        *,
        embedded: bool = True,
        make_runtime: MakeRuntime = Runtime,
        watched: weakref.WeakSet[Any] | None = None,
    ) -> None:
        """`settings.url` is the database. `embedded`: `run` may start a worker here. `watched` is for a lab."""
        self.settings = settings
        self.ports = ports
        self.embedded = embedded
        self.make_runtime = make_runtime
        self.watched: weakref.WeakSet[RefreshedHandle] | None = watched
        self.thread: LoopThread | None = None
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopState] = weakref.WeakKeyDictionary()

    def of(self, loop: asyncio.AbstractEventLoop) -> LoopState:
        if loop not in self._loops:
            self._loops[loop] = LoopState()
        return self._loops[loop]

    @property
    def runtimes(self) -> list[Runtime]:
        """Those that are open, of all event loops."""
        return [state.runtime for state in self._loops.values() if state.runtime is not None]


class Core:
    """What the parts of an app share. It knows nothing of agents."""

    def __init__(self, settings: Settings, ports: Ports, *, embedded: bool = True) -> None:
        self.registry = Registry()
        self.policies: dict[str, Queue] = {}
        self.warnings: list[str] = []  # about what the program declares, until a worker tells them
        self.closing: list[Callable[[], Awaitable[None]]] = []  # what layers have open on the running loop
        self.recorder: Recorder | None = None  # the audit, which is above this
        self._own = self.binding = Binding(settings, ports, embedded=embedded)
        self._threading = threading.Lock()  # callers without a loop may come on several threads

    def recording(self, action: str, subject: str, by: str) -> AbstractAsyncContextManager[None]:
        """Around a change of this program: it is written into the audit, if this app has one."""
        return nullcontext() if self.recorder is None else self.recorder(action, subject, by)

    @property
    def settings(self) -> Settings:
        return self.binding.settings

    @settings.setter
    def settings(self, settings: Settings) -> None:
        self.binding.settings = settings

    @property
    def ports(self) -> Ports:
        return self.binding.ports

    @property
    def watched(self) -> weakref.WeakSet[RefreshedHandle] | None:
        return self.binding.watched

    def here(self) -> LoopState:
        """What the running event loop has open."""
        return self.binding.of(asyncio.get_running_loop())

    def runtime(self) -> Runtime:
        """The store as the running event loop uses it."""
        require_outside()
        state = self.here()
        if state.runtime is None:
            database = connect(self.settings.url, self.settings, self.ports, self.registry.layers)
            state.runtime = self.binding.make_runtime(database, self.settings, self.ports, self.policies)
        return state.runtime

    async def opened(self) -> Database:
        """The database, once the running event loop has it open."""
        runtime = self.runtime()
        await runtime.open()
        return runtime.database

    async def awaited_store(self) -> Database:
        """As `opened`, for a process that serves: if it starts before the store does, it waits for `store_patience`.
        The log says so."""
        clock, pause = self.ports.clock, _FIRST_PAUSE
        until = clock.monotonic() + self.settings.store_patience.total_seconds()
        while True:
            try:
                return await self.opened()
            except StoreUnavailable as problem:
                if clock.monotonic() >= until:
                    raise
                self.ports.try_again(problem)
            await clock.sleep(pause)
            pause = min(2 * pause, _LAST_PAUSE)

    def intake(self, tx: object | None, *, sync: bool = False) -> Intake:
        """Who takes work in: the store as the running event loop uses it, or a transaction of the caller's.

        With the latter the app needs no loop and opens nothing. `sync`: the call is not awaited.
        """
        if tx is None:
            return self._observed(self.runtime(), committed=True)
        require_outside()
        lent = lend(tx, self.settings.url, self.settings, self.ports, sync=sync)
        return self._observed(CallersTransaction(lent, self.settings, self.ports), committed=False)

    def _observed(self, intake: Intake, *, committed: bool) -> Intake:
        return AnnouncedIntake(intake, committed=committed) if self.ports.events.heard else intake

    async def signal(self, channel: str, payload: Any, key: str | None, intake: Intake | None = None) -> None:
        """Send a durable signal. `intake` is a caller's transaction, if it is part of one."""
        check_channel(channel)
        text = codec.encode(payload, what="a signal", cap=self.settings.result_cap)
        await (intake or self.intake(None)).signal(channel, text, key)

    async def reasons(self, id: str, *, worker: str | None = None) -> list[Reason]:
        """What keeps a job from one worker, or from any; empty when nothing does."""
        runtime = self.runtime()
        return await runtime.transact(why, JobId(id), worker=worker, absent=await runtime.absent_workers())

    def make_worker(self, role: Role | None = None) -> Worker:
        """A worker for this app on the running loop, not yet started."""
        runtime, processes = self.runtime(), ProcessPool(self.settings.concurrency)
        worker = Worker(self.registry, runtime.database, self.settings, self.ports, role=role, processes=processes)
        worker.awaited = runtime.is_awaited
        return worker

    async def ensure_worker(self, *, adopting: bool = False) -> None:
        """Start the embedded worker of this loop, once, if this app may have one and declares something for it.

        `adopting`: also if it declares nothing, for definitions that are in the store alone.
        """
        if not self.binding.embedded or not (self.registry.definitions or adopting):
            return
        state = self.here()
        async with self.runtime().starting:
            if state.worker is None:
                await self.awaited_store()
                with unbound():  # it works for all
                    worker = self.make_worker()
                    await worker.start()
                self.log_warnings()
                state.worker = worker

    def log_warnings(self) -> None:
        """Log once what looks wrong in what the program declares. Only workers do it: lists would repeat it."""
        while self.warnings:
            log.warning("%s", self.warnings.pop(0))

    async def close(self) -> None:
        """Drain the embedded worker of this loop and close its connections."""
        await self._drain()
        state = self.here()
        for close in self.closing:
            await close()
        runtime, state.runtime = state.runtime, None
        if runtime is not None:
            await runtime.close()

    async def _drain(self) -> None:
        state = self.here()
        worker, state.worker = state.worker, None
        if worker is not None:
            async with self._told(worker):
                await worker.stop()

    async def close_with_server(self) -> None:
        """`close` in a web server that stops: when that is told to stop at once, so is the worker."""
        hurried = [server.is_hurried for server in running_servers() if server.is_hurried is not None]
        watching = asyncio.create_task(self._hurry_with(hurried), name="hurries with its server")
        if hurried:
            self.here().hurried_by = "press Ctrl-C again"
        try:
            await self.close()
        finally:
            watching.cancel()

    async def _hurry_with(self, hurried: list[Callable[[], bool]]) -> None:
        while hurried:
            await asyncio.sleep(_LOOK)
            if self.here().hurrying is not None and any(is_hurried() for is_hurried in hurried):
                self.hurry()
                return

    def hurry(self) -> None:
        """If a worker of this loop drains, it hands back at once what it runs."""
        hurrying = self.here().hurrying
        if hurrying is not None:
            hurrying()

    async def work(self, role: Role | None = None) -> None:
        """Be a worker until cancelled, or until the role's end is reached."""
        worker = self.make_worker(role)
        async with self._told(worker):
            await worker.run()

    @asynccontextmanager
    async def _told(self, worker: Worker) -> AsyncIterator[None]:
        """While a worker of a program stops, which may look as if it hung: say what it waits for."""
        telling = asyncio.create_task(self._tell_stop(worker), name=f"what the stop of {worker.id} waits for")
        try:
            yield
        finally:
            telling.cancel()
            if hung := worker.hung:
                which = plural(hung, "handler still runs", "handlers still run")
                log.warning("%s on a thread, which nothing can interrupt; Python waits for it before it exits", which)

    async def _tell_stop(self, worker: Worker) -> None:
        await worker.leaving.wait()
        state = self.here()
        notice = StopNotice(lambda: jobs_awaited(worker.running()), say=log.warning)

        def hurry() -> None:
            notice.hurry()
            worker.hurry()

        state.hurrying = hurry
        try:
            await first_of(worker.hurried, within=_UNTOLD)
            left = worker.grace - _UNTOLD
            if left > 0 and not worker.hurried.is_set():
                notice.begin(state.hurried_by, left)
            await asyncio.Event().wait()  # until it has stopped
        finally:
            state.hurrying = None
            notice.end()

    def call(self, coroutine: Coroutine[Any, Any, R], name: str | None = None, instead: str | None = None) -> R:
        """Run one call for code without a loop, on the app's own thread.

        Code with a loop is refused; for `name` and `instead` see `refuse_on_a_loop`. Without a name it is a facade's
        call, which imitates one that blocks and may be made anywhere.
        """
        if name is not None:
            try:
                refuse_on_a_loop(name, instead)
            except UsageError:
                coroutine.close()
                raise
        with self._threading:
            if self.binding.thread is None:
                self.binding.thread = LoopThread(self.close, draining=self._drain_at_exit, hurry=self.hurry)
            thread = self.binding.thread
        return thread.run(coroutine)

    async def _drain_at_exit(self) -> None:
        self.here().hurried_by = "press Ctrl-C"
        await self._drain()

    def close_sync(self) -> None:
        """Drain the worker and close the connections that calls without a loop have opened."""
        with self._threading:
            thread, self.binding.thread = self.binding.thread, None
        if thread is not None:
            thread.stop()

    @contextmanager
    def bound_to(self, binding: Binding) -> Iterator[None]:
        """For tests: work elsewhere until the block ends, then as before.

        What was open before stays open, and is in use again afterwards. What is opened inside must be closed inside.
        """
        if self.binding is not self._own:
            raise UsageError(f"this app is bound to {self.settings.url} by a test already; one lab at a time.")
        self.binding = binding
        try:
            yield
        finally:
            self.binding = self._own
