"""Launchers: what starts the workers of a pool, somewhere, and says how each of them ended.

A pool opens a place in the store before it calls its launcher, and a worker that was started takes that place. So a
launcher decides nothing and may fail, hang or lose what it started: the place is given up, and the pool continues.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from holdfast.errors import HoldfastError
from holdfast.kernel.database import Database
from holdfast.pools.leash import Leash
from holdfast.settings import environment_with
from holdfast.workers.role import Role
from holdfast.workers.worker import Worker


class Place(NamedTuple):
    """A place in a pool, to be taken by a worker of this id."""

    pool: str
    id: str
    slots: int
    queues: tuple[str, ...] | None = None
    capabilities: tuple[str, ...] = ()

    @property
    def role(self) -> Role:
        """What a worker in this place is."""
        return Role(name=self.pool, id=self.id, queues=self.queues, capabilities=self.capabilities, pool=self.pool)


class Exit(NamedTuple):
    """How a worker ended. `why` is empty if it left because it was asked to."""

    why: str = ""


class StartedWorker(Protocol):
    """A worker as its pool sees it."""

    def stop(self) -> None:
        """Ask it to drain; asked again, to hand back at once what it runs. Returns at once."""

    def kill(self) -> None:
        """End it now, whatever it does. Returns at once."""

    async def ended(self) -> Exit:
        """Wait until nothing of it is left."""


@runtime_checkable
class Freezable(Protocol):
    """A worker that can be stopped from outside, and of which its pool can see it without the store."""

    def is_frozen(self) -> bool:
        """Whether somebody has stopped it, as SIGSTOP does. Returns at once."""


class Launcher(Protocol):
    async def launch(self, place: Place) -> StartedWorker:
        """Start a worker for this place. What this raises is shown to who asks why the pool does not grow. A call that
        takes longer than the pool's `boot` is cancelled."""


class InProcess:
    """Workers as tasks of this process, each with its own connections. For tests, and for work that only waits."""

    def __init__(self, make: Callable[[Place], tuple[Worker, Database]]) -> None:
        """`make` gives a worker, and the database that it alone uses."""
        self._make = make

    async def launch(self, place: Place) -> StartedWorker:
        return WorkerTask(*self._make(place))


class WorkerTask:
    """A worker that is a task."""

    def __init__(self, worker: Worker, database: Database) -> None:
        self._worker = worker
        self._database = database
        self._asked = 0
        self._task = asyncio.create_task(self._run(), name=f"pool worker {worker.id}")

    def stop(self) -> None:
        self._asked += 1
        if self._asked == 1:
            if not self._worker.press():
                self._task.cancel()
        else:
            self._worker.hurry()

    def kill(self) -> None:
        self.stop()
        self._worker.hurry()

    async def ended(self) -> Exit:
        await asyncio.wait([self._task])
        if self._task.cancelled() or (problem := self._task.exception()) is None:
            return Exit()
        return Exit(str(problem) if isinstance(problem, HoldfastError) else f"{type(problem).__name__}: {problem}")

    async def _run(self) -> None:
        try:
            await self._worker.run()
        finally:
            await self._database.close()


# Worker processes of this machine: started afresh, never forked, each on a leash.
#
# `ChildProcess` is one of them. `supervise` keeps a fixed number of them running, for `holdfast worker --processes
# N`;
# `Subprocesses` starts them for a pool, which decides itself how many there are.


log = logging.getLogger("holdfast.processes")

_FIRST_PAUSE, _LAST_PAUSE = 1.0, 30.0
_STEADY = 60.0


class WorkerProcess:
    """One `holdfast worker` process."""

    def __init__(self, process: asyncio.subprocess.Process, leash: Leash) -> None:
        self._process = process
        self._leash = leash
        self._asked = False

    @classmethod
    async def start(cls, command: Sequence[str], *, passed: Sequence[int] = ()) -> WorkerProcess:
        """`passed`: file descriptors that it has too."""
        leash = Leash()
        shown, url = without_url(command)
        try:
            process = await asyncio.create_subprocess_exec(
                *shown, stdin=leash.end, start_new_session=True, env=environment_with(url), pass_fds=passed
            )
        except BaseException:
            leash.last_words()
            raise
        leash.given()
        return cls(process, leash)

    def stop(self) -> None:
        """The second signal is another one: two of a kind that a process has not seen yet are one to it."""
        self._send(signal.SIGINT if self._asked else signal.SIGTERM)
        self._asked = True

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def is_frozen(self) -> bool:
        return self._process.returncode is None and is_stopped(self._process.pid)

    async def code(self) -> int:
        """Wait for its end: its exit code, negative for the signal that killed it."""
        return await self._process.wait()

    async def ended(self) -> Exit:
        code = await self.code()
        words = self._leash.last_words()
        if code == 0:
            return Exit()
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return Exit(f"{how}: {words}" if words else how)


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal; False as well where the system has no /proc that could say it."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[:1] == ["T"]


def without_url(command: Sequence[str]) -> tuple[list[str], str | None]:
    """A command without its `--url`, and that URL, which its process is told by `environment_with`."""
    kept: list[str] = []
    url: str | None = None
    words = iter(command)
    for word in words:
        if word == "--url":
            url = next(words, None)
        elif word.startswith("--url="):
            url = word.removeprefix("--url=")
        else:
            kept.append(word)
    return kept, url


class Subprocesses:
    """Starts a `holdfast worker` process for each place of a pool."""

    def __init__(self, target: str | None, options: Sequence[str] = ()) -> None:
        """`target` is MODULE:APP; None: as the environment or the project says. `options` are of `holdfast worker`."""
        self._target = () if target is None else (target,)
        self._options = tuple(options)

    async def launch(self, place: Place) -> StartedWorker:
        return await WorkerProcess.start(self.command(place))

    def command(self, place: Place) -> list[str]:
        """The command line of the worker in this place."""
        named = ["--pool", place.pool, "--id", place.id, "--name", place.pool, "--concurrency", str(place.slots)]
        if place.queues is not None:
            named += ["--queues", ",".join(place.queues)]
        if place.capabilities:
            named += ["--capabilities", ",".join(place.capabilities)]
        return [sys.executable, "-m", "holdfast", "worker", *self._target, "--leash", *named, *self._options]


async def supervise(crew: Sequence[KeptProcess], heard: Callable[[int], None]) -> int:
    """Run each process until it leaves of its own will or is stopped; one that crashes is started again.

    0 when all left of their own will. `heard` is called with each signal, before the processes get it.
    """

    def stop(number: int) -> None:
        heard(number)
        for child in crew:
            child.stop()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    codes = await asyncio.gather(*(child.keep() for child in crew))
    return max(codes)


class KeptProcess:
    """A process that is there until it is stopped."""

    def __init__(self, number: int, command: Sequence[str]) -> None:
        self._command = command
        self._number = number
        self._process: WorkerProcess | None = None
        self._stopping = asyncio.Event()
        self.is_running = False

    def stop(self) -> None:
        self._stopping.set()
        if self._process is not None:
            self._process.stop()

    async def keep(self) -> int:
        """Run the child; start it again when it crashes, later each time."""
        loop = asyncio.get_running_loop()
        pause = _FIRST_PAUSE
        while not self._stopping.is_set():
            begun = loop.time()
            code = await self._run()
            if code == 0 or self._stopping.is_set():
                return max(code, 0)
            if loop.time() - begun > _STEADY:
                pause = _FIRST_PAUSE
            log.warning("worker process %d ended with %d; it restarts in %.0f s", self._number, code, pause)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
            pause = min(pause * 2, _LAST_PAUSE)
        return 0

    async def _run(self) -> int:
        self._process = await WorkerProcess.start(self._command)
        if self._stopping.is_set():  # the signal came while it was being started
            self._process.stop()
        self.is_running = True
        code = await self._process.code()
        self.is_running = False
        await self._process.ended()
        return code
