"""The stage: one database under the lab's clock, and for each app a worker, which is replaced when it was killed."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar, cast

import apsw
import psycopg

from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.clock import Ports
from holdfast.durations import microseconds
from holdfast.kernel.database import Database, Operation
from holdfast.kernel.drivers import connect
from holdfast.testing.clock import LabClock
from holdfast.testing.crashes import Commit, CrashPlan, When, WorkerLife, mortal_tasks
from holdfast.testing.crew import LabLifeline, SeenTraffic, Wire, WireProcesses
from holdfast.workers.isolation.pool import ProcessPool
from holdfast.workers.role import Role
from holdfast.workers.worker import Worker
from tests.agents.fuzz.program import Doom

P = ParamSpec("P")
R = TypeVar("R")

_STEP_US: Final = 30_000_000  # less than a third of a lease
PATIENCE: Final = 300.0  # real seconds in which no worker commits anything before that counts as stuck
_OPEN: Final = """
    select (select count(*) from holdfast.lease), (select count(*) from holdfast.ready),
        (select count(*) from holdfast.later where state <> 'blocked' and due_at <= {now})"""
_DUE: Final = "select min(due_at) from holdfast.later where due_at is not null"


class Stuck(AssertionError):
    """Something does not end, and nothing is left that could make it."""


class Deaths(CrashPlan):
    """Kills a worker around its n-th commit, whichever that is."""

    def __init__(self, doom: Doom | None, begun: Counter[str]) -> None:
        """`begun` counts the starts of tools."""
        super().__init__()
        self._doom = doom
        self._begun, self._before = begun, begun.copy()
        self._at: Commit | None = None

    def reach(self, operation: Callable[..., Any]) -> Commit | None:
        commit = super().reach(operation)
        if self._doom is not None and self._is_reached(self._doom):
            self._at = commit
        return commit

    def _is_reached(self, doom: Doom) -> bool:
        if doom.inside is not None:
            return self._begun[doom.inside] > self._before[doom.inside]
        return len(self.commits) == doom.nth

    def strikes(self, when: When, commit: Commit | None) -> bool:
        if self._doom is None or commit is None or (when, commit) != (self._doom.when, self._at):
            return False
        self._doom = None
        return True


class Time:
    """The lab's clock, moved while no worker asks the store: it and the store's clock move as one."""

    longest_step_us: int | None = None

    def __init__(self, clock: LabClock) -> None:
        self.clock = clock
        self._open, self._empty = asyncio.Event(), asyncio.Event()
        self._open.set()
        self._empty.set()
        self._inside = 0

    async def advance(self, us: int) -> None:
        while us > 0:
            self._open.clear()
            await self._empty.wait()
            await self.clock.advance(f"{min(us, _STEP_US)}us")
            us -= _STEP_US

    async def follow(self, us: int) -> None:
        """The store's clock has moved, too; the hearts of workers beat next."""
        self._open.set()

    async def ask(self, work: Callable[[], Awaitable[R]]) -> R:
        await self._open.wait()
        self._inside += 1
        self._empty.clear()
        try:
            return await work()
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.set()


class Timed:
    """A worker's database, which is not asked while the clock moves."""

    def __init__(self, database: Database, time: Time) -> None:
        self._database, self._time = database, time

    async def transact(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._time.ask(partial(self._database.transact, operation, *args, **kwargs))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)


class Hand:
    """The worker of one app, and the next when it was killed."""

    def __init__(self, app: Holdfast, ports: Ports, time: Time, dooms: Iterator[Doom], begun: Counter[str]) -> None:
        self.app = app
        self._begun = begun
        self.deaths: list[str] = []
        self._ports, self._time, self._dooms = ports, time, dooms
        self._following = ExitStack()
        self._dead: list[WorkerLife] = []
        self._life: WorkerLife | None = None

    @property
    def is_dead(self) -> bool:
        return self._life is not None and self._life.over

    @property
    def progress(self) -> tuple[int, int]:
        return len(self.deaths), self._wire.progress

    def places(self) -> list[str]:
        """Where each task of the worker waits."""
        tasks = [] if self._life is None else [task for task in self._life.tasks if not task.done()]
        dead = "killed" if self.is_dead else "alive"
        return [f"{dead} worker of {self.app.settings.url}: {task.get_name()} at {_place(task)}" for task in tasks]

    async def start(self) -> None:
        settings = self.app.settings
        self._life = life = WorkerLife()
        self._plan = Deaths(next(self._dooms, None), self._begun)
        database = cast(
            Database,
            Timed(connect(self.app.settings.url, settings, self._ports, core_of(self.app).registry.layers), self._time),
        )
        self._wire = wire = Wire(database, life, self._plan, SeenTraffic())
        self._processes = WireProcesses(wire, ProcessPool(settings.concurrency))
        heart = LabLifeline(wire, life, self._ports, settings)
        self._worker = Worker(
            core_of(self.app).registry,
            wire,
            settings,
            self._ports,
            role=Role(name="fuzz"),
            processes=self._processes,
            lifeline=heart,
        )
        self._following.enter_context(self._time.clock.followed_by(heart))
        self._run = life.spawn(self._worker.run(), name="fuzz worker")
        tended = asyncio.ensure_future(self._worker.tended.wait())
        begun: set[asyncio.Future[Any]] = {tended, life.ended, self._run}
        await asyncio.wait(begun, return_when=asyncio.FIRST_COMPLETED)
        tended.cancel()

    async def replace(self) -> None:
        """After its death: its connections go, its leases end, and another worker starts."""
        assert self._life is not None
        self.deaths.append(f"{self._plan.commits[-1].name} {len(self._plan.commits)}")
        self._following.close()
        self._dead.append(self._life)
        await self._processes.close()
        await self._wire.cut()
        await self._time.advance(microseconds(self.app.settings.lease_ttl))
        await self.start()

    def check(self) -> None:
        """A worker does not end by itself."""
        if not self.is_dead and self._run.done():
            self._run.result()
            raise Stuck("a worker left by itself")

    async def stop(self) -> None:
        if self._life is not None and not self._life.over:
            self._worker.hurry()
            self._run.cancel()
            await asyncio.wait({self._run, self._life.ended}, return_when=asyncio.FIRST_COMPLETED)
        if self._life is not None and self._life.over:
            self._dead.append(self._life)
            await self._processes.close()
        self._following.close()
        await self._wire.cut()

    async def bury(self) -> None:
        for life in self._dead:
            await life.bury()


def _place(task: asyncio.Task[Any]) -> str:
    """The last few calls of a task that waits, from the outside in."""
    found: list[str] = []
    step: Any = task.get_coro()
    while frame := getattr(step, "cr_frame", None):
        found.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}")
        step = step.cr_await
    return " > ".join(found[-8:])


class Asking:
    """A connection of the judge's own, past everything."""

    def __init__(self, url: str) -> None:
        self._file: apsw.Connection | None = None
        self._server: psycopg.Connection[Any] | None = None
        if url.startswith("sqlite"):
            self._file = apsw.Connection(url.removeprefix("sqlite:///"))
            self._file.set_busy_timeout(10_000)
        else:
            self._server = psycopg.connect(url, autocommit=True)

    def query(self, text: str) -> list[tuple[Any, ...]]:
        if self._file is not None:
            return list(self._file.execute(text.replace("holdfast.", "")))
        assert self._server is not None
        return list(self._server.execute(text.encode()))

    def close(self) -> None:
        for connection in (self._file, self._server):
            if connection is not None:
                connection.close()


class Stage:
    def __init__(self, url: str, time: Time, hands: list[Hand]) -> None:
        self.time = time
        self.hands = hands
        self._asking = Asking(url)

    @property
    def now(self) -> int:
        return self.time.clock.wall_us()

    async def rest(self) -> None:
        """Until nothing is held, nothing can be claimed, and nothing is due."""
        quiet = 0
        async with _patience(self) as moved:
            while quiet < 2:
                await self.replace_dead()
                quiet = quiet + 1 if await self._is_quiet() else 0
                await asyncio.sleep(0.005)  # the answer is in a database, which sets no event
                moved()

    @property
    def progress(self) -> list[int]:
        """Changes whenever a worker has moved a job, or died."""
        return [each for hand in self.hands for each in hand.progress]

    async def replace_dead(self) -> None:
        for hand in self.hands:
            if hand.is_dead:
                await hand.replace()
            hand.check()

    async def next_due(self) -> int | None:
        """When something becomes due by itself."""
        ((due,),) = await self.query(_DUE)
        return None if due is None else int(due)

    async def advance_to(self, us: int) -> None:
        await self.time.advance(max(1, us - self.now))

    async def query(self, text: str) -> list[tuple[Any, ...]]:
        """SQL past everything."""
        return await asyncio.to_thread(self._asking.query, text)

    def close(self) -> None:
        self._asking.close()

    async def _is_quiet(self) -> bool:
        ((leases, ready, due),) = await self.query(_OPEN.format(now=self.now))
        return not (leases or ready or due)

    async def describe(self) -> str:
        """What is open, who holds it, and where the workers' tasks wait."""
        rows = await self.query("select seq, kind, state from holdfast.job_now where finished_at is null order by seq")
        leases = await self.query("select seq, worker, lease_until from holdfast.lease order by seq")
        workers = await self.query("select seq, status, presence, heartbeat_at from holdfast.worker order by seq")
        lines = [f"job {seq} {kind}: {state}" for seq, kind, state in rows[:30]]
        lines += [
            f"job {seq} is leased to worker {worker} for {until - self.now:,} us" for seq, worker, until in leases
        ]
        lines += [
            f"worker {seq} is {status}, presence {presence}, and has beaten {self.now - beat:,} us ago"
            for seq, status, presence, beat in workers
        ]
        lines += [place for hand in self.hands for place in hand.places()]
        return "\n".join(f"  {line}" for line in lines)


@asynccontextmanager
async def _patience(stage: Stage) -> AsyncIterator[Callable[[], None]]:
    """Give up when no worker has moved a job for long. What is given is to be called now and then."""
    loop = asyncio.get_running_loop()
    seen = stage.progress

    def moved() -> None:
        nonlocal seen
        if stage.progress != seen:
            seen = stage.progress
            timer.reschedule(loop.time() + PATIENCE)

    try:
        async with asyncio.timeout(PATIENCE) as timer:
            yield moved
    except TimeoutError:
        raise Stuck(f"nothing comes to rest:\n{await stage.describe()}") from None


@asynccontextmanager
async def staged(url: str, time: Time, hands: list[Hand]) -> AsyncIterator[Stage]:
    """Workers at work until the block ends."""
    stage = Stage(url, time, hands)
    with mortal_tasks():
        try:
            for hand in hands:
                await hand.start()
            yield stage
        finally:
            stage.close()
            for hand in hands:
                await hand.stop()
            with _unheard():
                for hand in hands:
                    await hand.bury()
                for transport in _left_open():
                    transport.abort()
                await asyncio.sleep(0)  # an aborted transport closes its socket at the loop's next step
                gc.collect()


def _left_open() -> list[asyncio.Transport]:
    """Connections over HTTP. A worker that was killed while it opened one has left it to nobody."""
    transports = [each for each in gc.get_objects() if issubclass(type(each), asyncio.Transport)]
    return [each for each in transports if type(each.get_protocol()).__module__.startswith("anyio.")]


@contextlib.contextmanager
def _unheard() -> Iterator[None]:
    """What the dead complain of when they are buried, in the middle of a call over HTTP, is of no interest."""
    hook, loop = sys.unraisablehook, asyncio.get_running_loop()
    handler = loop.get_exception_handler()
    sys.unraisablehook = lambda _: None
    loop.set_exception_handler(lambda _loop, _context: None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.unraisablehook = hook
        loop.set_exception_handler(handler)
