"""Launchers: what starts the workers of a pool, somewhere, and says how each of them ended.

A pool opens a place in the store before it calls its launcher, and a worker that was started takes that place. So a
launcher decides nothing and may fail, hang or lose what it started: the place is given up, and the pool continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

from holdfast.errors import HoldfastError
from holdfast.kernel.database import Database
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
