"""A pool of workers as a program has it: started, looked at, stopped.

The process that keeps a pool is a worker without handlers itself: it sweeps and fires schedules. So a pool without
workers still notices what is due, and what a dead worker left.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypedDict

from holdfast import validation
from holdfast.client.core import Core
from holdfast.clock import Ports
from holdfast.durations import Duration
from holdfast.errors import NotFound, UsageError
from holdfast.kernel import pools
from holdfast.kernel.database import Database
from holdfast.kernel.drivers import connect, dialect_of, sqlite_path
from holdfast.kernel.ids import new_id
from holdfast.pools.keeper import Keeper, KeptPool
from holdfast.pools.launchers import InProcess, Launcher, Place
from holdfast.pools.size import WorkerPool
from holdfast.pools.stats import PoolStats, served_by, settings_json, stats_of
from holdfast.workers.definitions import Registry
from holdfast.workers.isolation.pool import ProcessPool
from holdfast.workers.role import Role
from holdfast.workers.worker import Worker

_LONGEST_NAME = 100


def _is_in_memory(url: str) -> bool:
    return dialect_of(url) == "sqlite" and sqlite_path(url) == ":memory:"


class PoolOptions(TypedDict, total=False):
    """The options of `hf.pool`: those of `WorkerPool`, and what starts its workers."""

    min: int
    max: int
    scale_up_threshold: int
    scale_down_idle: Duration
    slots: int | None
    queues: Sequence[str] | None
    capabilities: Sequence[str]
    boot: Duration
    launcher: Launcher | None


def policy_from(options: Mapping[str, Any]) -> WorkerPool:
    """The policy that options of a call say."""
    validation.option_names(options, PoolOptions, "pool")
    return WorkerPool(**options)


class Pool:
    """A pool of workers: `async with hf.pool("render", min=0, max=8): ...`."""

    def __init__(
        self,
        core: Core,
        name: str,
        policy: WorkerPool,
        launcher: Launcher | None = None,
        *,
        naming: Callable[[Ports], str] | None = None,
    ) -> None:
        """`naming` makes the ids of its workers."""
        validation.instance(name, "a pool's name", str)
        if not name.strip() or len(name) > _LONGEST_NAME or not name.isprintable():
            raise UsageError(f"a pool's name must be 1 to {_LONGEST_NAME} printable characters; got {name!r:.120}.")
        self._core = core
        self.name = name
        self._given = policy
        self._launcher = launcher or InProcess(self._make_worker)
        self._naming = naming or new_id
        self._attendant: Worker | None = None
        self._keeper: Keeper | None = None
        self._keeping: asyncio.Task[None] | None = None

    @property
    def policy(self) -> WorkerPool:
        """With the slots that its workers have."""
        return self._given.with_slots(self._core.settings.concurrency)

    async def start(self) -> None:
        """Keep the pool from now on. It starts `min` workers; others may keep the same pool elsewhere."""
        if self._keeping is not None:
            raise UsageError(f"pool {self.name!r} is kept by this object already.")
        if _is_in_memory(self._core.settings.url):
            raise UsageError("workers of a pool share a database: use a file or PostgreSQL, not sqlite:///:memory:.")
        database = await self._core.opened()
        self._core.log_warnings()
        await database.transact(pools.put_pool, self.name, settings_json(self.policy, self._offers()))
        settings, ports = self._core.settings, self._core.ports
        attendant = Worker(
            self._idle_registry(),
            database,
            replace(settings, concurrency=1),
            ports,
            role=Role(name=f"pool {self.name}", queues=()),
        )
        await attendant.start()
        self._attendant = attendant
        kept = KeptPool(self.name, self.policy, lambda policy: served_by(policy, self._offers()), self._naming)
        self._keeper = Keeper(kept, database, settings, ports, self._launcher)
        self._keeping = asyncio.create_task(self._keeper.run(), name=f"keeper of pool {self.name}")

    async def stop(self, *, drain: bool = True) -> None:
        """Stop the workers that this process started: they finish what they run. With `drain=False` they hand it back
        at once, for others to claim."""
        keeping, self._keeping = self._keeping, None
        if keeping is not None and self._keeper is not None:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await self._keeper.stop(drain=drain)
        attendant, self._attendant = self._attendant, None
        if attendant is not None:
            await attendant.stop()

    @property
    def size(self) -> int:
        """How many workers this process has started that still live."""
        return 0 if self._keeper is None else len(self._keeper.crew.members)

    def hurry(self) -> None:
        """While it stops: what still runs is handed back now."""
        if self._keeper is not None:
            self._keeper.crew.hurry()

    async def run(self, started: Callable[[], None] | None = None) -> None:
        """Keep the pool until cancelled, then drain it. `started` is called when it is kept."""
        try:
            await self.start()
            if started is not None:
                started()
            await asyncio.Event().wait()
        finally:
            with contextlib.suppress(asyncio.CancelledError):
                await self.stop()

    async def stats(self) -> PoolStats:
        """What it has and does now, also if other processes keep it; `NotFound` if nobody ever did."""
        database = await self._core.opened()
        rows = await database.transact(pools.list_pools, self.name)
        if not rows:
            raise NotFound(f"pool {self.name!r} was never started; `holdfast pool` starts one.")
        return await stats_of(database, rows[0])

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _offers(self) -> tuple[str, ...]:
        return self._core.registry.capabilities(self._given.capabilities)

    def _idle_registry(self) -> Registry:
        """What the program declares, without anything to run."""
        own = self._core.registry
        return Registry(schedules=own.schedules, layers=own.layers, adopts=own.adopts)

    def _make_worker(self, place: Place) -> tuple[Worker, Database]:
        core = self._core
        settings = replace(core.settings, concurrency=place.slots)
        database = connect(settings.url, settings, core.ports, core.registry.layers)
        processes = ProcessPool(place.slots)
        return Worker(core.registry, database, settings, core.ports, role=place.role, processes=processes), database
