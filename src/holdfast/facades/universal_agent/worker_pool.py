"""`universal_agent.durable.worker_pool`: a pool of workers by the document's names, in this process or each in its own.

How many workers there are is the decision of Holdfast's pools, in the store: managers on one database share one pool.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

from holdfast.app import Holdfast, core_of
from holdfast.clock import Ports
from holdfast.errors import HoldfastError, UsageError
from holdfast.facades.universal_agent.default_handler import handle_by_gateway
from holdfast.facades.universal_agent.process_workers import (
    ProcessOrder,
    ProcessWorker,
    handler_address,
    order_of,
    require_a_program,
)
from holdfast.facades.universal_agent.runs import QUEUE
from holdfast.facades.universal_agent.runtime_db import RuntimeDb, connect_runtime_db, defined_agent
from holdfast.facades.universal_agent.state import queue_run
from holdfast.facades.universal_agent.worker import RunHandler, Worker, WorkerConfig
from holdfast.kernel.database import Database
from holdfast.kernel.states import WorkerState
from holdfast.kernel.workers import pool_workers
from holdfast.pools.launchers import Exit, Place, StartedWorker
from holdfast.pools.pool import Pool
from holdfast.pools.size import WorkerPool

__all__ = ["PoolConfig", "RunHandler", "Worker", "WorkerConfig", "WorkerPoolManager", "queue_run"]

POOL = "universal_agent"
_LOOK = 0.02  # seconds between two looks while the pool starts


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """How a pool grows and shrinks, and on which database: a file, any URL that Holdfast takes, or an app."""

    db_path: str | os.PathLike[str] | Holdfast = "runtime.db"
    min_workers: int = 1
    max_workers: int = 4
    scale_up_threshold: int = 5
    scale_down_idle_seconds: float = 300
    subprocesses: bool = False  # each worker in a process of its own, which imports the handler

    def __post_init__(self) -> None:
        self.policy()

    def policy(self) -> WorkerPool:
        """Its workers have one slot; `BadSetting` or `UsageError` when it cannot be."""
        return WorkerPool(
            min=self.min_workers,
            max=self.max_workers,
            scale_up_threshold=self.scale_up_threshold,
            scale_down_idle=f"{self.scale_down_idle_seconds}s",
            slots=1,
            queues=(QUEUE,),
        )


class WorkerPoolManager:
    """A pool of workers, which this process keeps."""

    def __init__(
        self,
        pool_config: PoolConfig | None = None,
        worker_config: WorkerConfig | None = None,
        run_handler: RunHandler | None = None,
    ) -> None:
        if run_handler is not None and not callable(run_handler):
            raise UsageError("run_handler is a function: async (run_id, workspace_dir) -> bool.")
        self.pool_config = pool_config or PoolConfig()
        self._address = handler_address(run_handler) if run_handler and self.pool_config.subprocesses else None
        self.worker_config_template = worker_config or WorkerConfig()
        self.workers: dict[str, Worker | ProcessWorker] = {}
        self._handler = run_handler or self._default_run_handler
        self._conn: RuntimeDb | None = None
        self._pool: Pool | None = None
        self._order: ProcessOrder | None = None  # for a worker in a process of its own
        self._launching: set[str] = set()
        self._failed_starts = 0  # of this manager
        self._gone_completed = self._gone_failed = 0

    @property
    def conn(self) -> RuntimeDb:
        """The pool's connection, once it has been started."""
        if self._conn is None:
            raise UsageError("the pool has no connection before it is started.")
        return self._conn

    async def start(self) -> None:
        """Keep the pool; returns when it has its `min_workers`, or when one could not start and is tried again."""
        if self._pool is not None:
            raise UsageError("the pool has been started already.")
        require_a_program()
        self._conn = connect_runtime_db(self.pool_config.db_path)
        self._failed_starts = 0
        pool = self._pool = Pool(
            core_of(self._conn.queue), POOL, self.pool_config.policy(), _Launcher(self), naming=worker_id
        )
        try:
            self._order = self._processes_order(self._conn) if self.pool_config.subprocesses else None
            await pool.start()
            await self._grown(pool)
        except BaseException:
            await self.stop(drain=False)
            raise

    def _processes_order(self, conn: RuntimeDb) -> ProcessOrder:
        brought = isinstance(self.pool_config.db_path, Holdfast)
        return order_of(conn.app, own=brought, handler=self._address, define=defined_agent())

    async def _grown(self, pool: Pool) -> None:
        """Wait until it has its workers, or says why it cannot."""
        core = core_of(self.conn.queue)
        database = await core.opened()
        while not self._failed_starts:
            if await self._count_present(database) >= (await pool.stats()).min and not self._launching:
                return
            await core.ports.clock.sleep(_LOOK)

    async def _count_present(self, database: Database) -> int:
        """The workers of the pool, without those of processes that are dead though nobody has noticed yet."""
        rows = [row for row in await database.transact(pool_workers, POOL) if row.status != WorkerState.STARTING]
        others = [row.seq for row in rows if row.presence and row.id not in self.workers]
        return len(rows) - (len(await database.presence.absent(others)) if others else 0)

    async def stop(self, drain: bool = True) -> None:
        """Stop every worker of this process: each finishes its run, or without `drain` hands it back."""
        pool, conn = self._pool, self._conn
        self._pool = self._conn = None
        if pool is not None:
            await pool.stop(drain=drain)
        if conn is not None:
            await conn.aclose()

    def get_pool_stats(self) -> dict[str, Any]:
        """The workers of this process. The totals include those that have left."""
        workers = {id: worker.stats() for id, worker in self.workers.items()}
        states = [each["status"] for each in workers.values()]
        return {
            "total_workers": len(workers),
            "idle_workers": states.count("idle"),
            "processing_workers": states.count("processing"),
            "total_completed": self._gone_completed + sum(each["completed"] for each in workers.values()),
            "total_failed": self._gone_failed + sum(each["failed"] for each in workers.values()),
            "workers": workers,
        }

    async def _default_run_handler(self, run_id: str, workspace_dir: str) -> bool:
        """One turn of a gateway: the one at `gateway_url`, or the one in this process."""
        config = self.worker_config_template
        return await handle_by_gateway(run_id, workspace_dir, config.gateway_url, config.gateway_token)

    async def _spawn_worker(self, place: Place | None = None) -> Worker | ProcessWorker | None:
        """Start the worker of a place that the pool has opened. Without one nothing is started: the pool decides."""
        return None if place is None else await self._launch(place)

    async def _launch(self, place: Place) -> Worker | ProcessWorker:
        config = replace(self.worker_config_template, worker_id=place.id)
        if self._order is not None:
            return await self._launch_process(config, place, self._order)
        worker = self.workers[place.id] = Worker(config, self.conn, self._handler)
        self._launching.add(place.id)
        try:
            await worker.start(pool=place.pool)
        except BaseException:
            self._failed_starts += 1
            self._forget(worker)
            raise
        finally:
            self._launching.discard(place.id)
        return worker

    async def _launch_process(self, config: WorkerConfig, place: Place, order: ProcessOrder) -> ProcessWorker:
        clock = core_of(self.conn.queue).ports.clock
        worker = self.workers[place.id] = await ProcessWorker.start(config, place.pool, order, clock)
        return worker

    async def _remove_worker(self, worker_id: str) -> None:
        """Drain a worker; the pool starts another if it needs one."""
        worker = self.workers.get(worker_id)
        if worker is not None:
            await worker.stop(drain=True)

    def _forget(self, worker: Worker | ProcessWorker) -> None:
        if isinstance(worker, ProcessWorker) and not worker.has_started:
            self._failed_starts += 1
        if self.workers.pop(worker.worker_id, None) is not None:
            self._gone_completed += worker.completed
            self._gone_failed += worker.failed


def worker_id(ports: Ports) -> str:
    """A name as the document's workers have it."""
    return f"worker_{ports.random.getrandbits(32):08x}"


class _Launcher:
    """Workers as tasks of this process, or as processes, each with its own connection."""

    def __init__(self, manager: WorkerPoolManager) -> None:
        self._manager = manager

    async def launch(self, place: Place) -> StartedWorker:
        worker = await self._manager._launch(place)
        if isinstance(worker, ProcessWorker):
            return _StartedProcess(self._manager, worker)
        return _PoolWorker(self._manager, worker)


class _PoolWorker:
    """A worker as its pool sees it."""

    def __init__(self, manager: WorkerPoolManager, worker: Worker) -> None:
        self._manager = manager
        self._worker = worker
        self._asked = 0

    @property
    def pid(self) -> int | None:
        return None

    def stop(self) -> None:
        self._asked += 1
        self._worker.ask_to_stop(drain=self._asked == 1)

    def kill(self) -> None:
        self._worker.ask_to_stop(drain=False)

    async def ended(self) -> Exit:
        try:
            await self._worker.ended()
        except HoldfastError as problem:
            return Exit(str(problem))
        except Exception as problem:  # noqa: BLE001  whatever ended it, the pool is told
            return Exit(f"{type(problem).__name__}: {problem}")
        finally:
            self._manager._forget(self._worker)
        return Exit()


class _StartedProcess:
    """A worker in a process, as its pool sees it."""

    def __init__(self, manager: WorkerPoolManager, worker: ProcessWorker) -> None:
        self._manager = manager
        self._worker = worker

    def stop(self) -> None:
        self._worker.ask_to_stop(drain=True)

    def kill(self) -> None:
        self._worker.kill()

    def is_frozen(self) -> bool:
        return self._worker.is_frozen()

    async def ended(self) -> Exit:
        try:
            return await self._worker.ended()
        finally:
            self._manager._forget(self._worker)
