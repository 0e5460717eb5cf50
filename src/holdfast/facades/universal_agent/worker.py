"""A worker of runs: Holdfast's own, with one slot, that hands each run to a handler.

Leases, heartbeats, fencing and draining are the built-in worker's. What a handler's answer means is said here: False
and an exception, whichever it is, end the run as failed, and only a lost lease gives it to another worker.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from holdfast import validation
from holdfast.app import Holdfast, core_of
from holdfast.errors import BadSetting, UsageError
from holdfast.facades.universal_agent import handlers, runs, workspaces
from holdfast.facades.universal_agent.handlers import HandlerAttempt
from holdfast.facades.universal_agent.runs import HANDLER_FAILED, HANDLER_RAISED, KIND, QUEUE, declare, is_seconds
from holdfast.facades.universal_agent.runtime_db import RuntimeDb, require
from holdfast.observe import Event
from holdfast.outcomes import Done, Fail
from holdfast.settings import Settings
from holdfast.workers.context import JobContext
from holdfast.workers.role import Role
from holdfast.workers.worker import Worker as RuntimeWorker

log = logging.getLogger("holdfast.universal_agent")

RunHandler = Callable[[str, str], Awaitable[bool]]
WorkerStatus = Literal["idle", "processing", "draining", "stopped"]

SHORTEST_POLL = 0.01  # seconds; a poll interval of 0 means this one
_LEAST, _MOST = 0.001, 1e9


def _new_worker_id() -> str:
    return f"worker_{secrets.token_hex(4)}"


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """How a worker polls and holds its leases. A heartbeat comes at least twice in the life of a lease."""

    worker_id: str = field(default_factory=_new_worker_id)
    lease_ttl_seconds: float = 60
    heartbeat_interval_seconds: float = 15
    poll_interval_seconds: float = 5
    gateway_url: str | None = None
    gateway_token: str | None = field(default=None, repr=False)  # else HOLDFAST_GATEWAY_TOKEN of the environment

    def __post_init__(self) -> None:
        workspaces.check_name(self.worker_id, "worker_id")
        self.settings(Settings())

    def settings(self, base: Settings) -> Settings:
        """Those of the built-in worker; `BadSetting` when they cannot be kept."""
        ttl, heartbeat, poll = (
            _seconds(value, name)
            for value, name in (
                (self.lease_ttl_seconds, "lease_ttl_seconds"),
                (self.heartbeat_interval_seconds, "heartbeat_interval_seconds"),
                (
                    SHORTEST_POLL if self.poll_interval_seconds == 0 else self.poll_interval_seconds,
                    "poll_interval_seconds",
                ),
            )
        )
        if heartbeat * 2 > ttl:
            raise BadSetting(
                "heartbeat_interval_seconds is at most half of lease_ttl_seconds, or one that is late loses the lease."
            )
        if ttl > base.lease_ceiling:
            raise BadSetting(f"lease_ttl_seconds is at most {base.lease_ceiling.total_seconds():g} (lease_ceiling).")
        return replace(
            base,
            lease_ttl=ttl,
            worker_ttl=ttl,
            heartbeat=heartbeat,
            poll_interval=max(poll, timedelta(seconds=SHORTEST_POLL)),
            fence_margin=min(base.fence_margin, (ttl - heartbeat) / 4),
            tick=min(base.tick, heartbeat / 2),
            concurrency=1,
            prefetch=0,
        )


def _seconds(value: float, name: str) -> timedelta:
    if not is_seconds(value, least=_LEAST, most=_MOST):
        raise BadSetting(validation.expected(f"{name}", f"a number of seconds from {_LEAST:g} on", value))
    return timedelta(seconds=value)


def _is_stopped() -> bool:
    """Whether somebody else cancels what runs here; a handler may raise `CancelledError` by itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def role_of(worker_id: str, pool: str) -> Role:
    """Runs alone, and the runtime's own jobs."""
    role = Role(id=worker_id, name=worker_id, queues=(QUEUE,))
    return replace(role, pool=pool) if pool else role


class Worker:
    """A worker that polls for runs and handles one at a time."""

    def __init__(self, config: WorkerConfig, db_connection: RuntimeDb, run_handler: RunHandler) -> None:
        if not callable(run_handler):
            raise UsageError("run_handler is a function: async (run_id, workspace_dir) -> bool.")
        self.config = config
        self.worker_id = config.worker_id
        self.current_run: str | None = None
        self.completed = self.failed = self.lost = 0
        self._runtime = require(db_connection)
        self._handler = run_handler
        self._base = Path(workspaces.DEFAULT_BASE).resolve()  # now: a tool may put a link there later
        self._draining = False
        self._worker: RuntimeWorker | None = None
        self._life: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._idle_since = 0.0

    def __repr__(self) -> str:
        return f"Worker({self.worker_id!r}, {self.status})"

    @property
    def status(self) -> WorkerStatus:
        if self._worker is None:
            return "stopped"
        if self._draining:
            return "draining"
        return "idle" if self.current_run is None else "processing"

    def is_idle(self) -> bool:
        return self.status == "idle"

    @property
    def idle_duration(self) -> float:
        """For how many seconds it has been idle; 0 while it is not."""
        return self._now() - self._idle_since if self.is_idle() else 0.0

    def stats(self) -> dict[str, Any]:
        return {
            "status": self.status,
            "current_run": self.current_run,
            "completed": self.completed,
            "failed": self.failed,
        }

    async def start(self, *, pool: str = "") -> None:
        """Poll for runs from now on. `pool`: whose place this worker takes."""
        if self._life is not None and not self._life.done():
            raise UsageError(f"worker {self.worker_id} has been started already.")
        settings = self.config.settings(self._runtime.queue.settings)
        app = Holdfast(settings.url, settings=settings, embedded=False)
        declare(app, self._play)
        app.events("job.ended", "job.lost", to=self._hear)
        core = core_of(app)
        await core.opened()
        worker = core.make_worker(role_of(self.worker_id, pool))
        started = asyncio.Event()
        self._draining, self._idle_since, self._worker = False, self._now(), worker
        self._life = asyncio.create_task(self._live(worker, app, started), name=f"worker {self.worker_id}")
        waiting = asyncio.create_task(started.wait())
        try:
            await asyncio.wait({self._life, waiting}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:  # nobody wants it any more
            self._life.cancel()
            await asyncio.gather(self._life, return_exceptions=True)
            raise
        finally:
            waiting.cancel()
        if self._life.done():
            await self._life

    async def _live(self, worker: RuntimeWorker, app: Holdfast, started: asyncio.Event) -> None:
        """From its start until it has left."""
        try:
            await worker.run(started.set)
        finally:
            self._worker = None
            await app.close()

    async def stop(self, drain: bool = True) -> None:
        """Claim nothing more, and leave when the current run has ended; without `drain` hand it back at once.

        A run that takes longer than the setting `drain_grace` is handed back too.
        """
        self.ask_to_stop(drain=drain)
        await self.ended()

    def ask_to_stop(self, *, drain: bool) -> None:
        """Begin to stop; `ended` says when it is over."""
        worker = self._worker
        if worker is None:
            return
        self._draining = True
        if not drain:
            worker.hurry()
        self._stopping = asyncio.create_task(worker.stop(), name=f"stop of {self.worker_id}")

    async def ended(self) -> None:
        """Wait until it has left; raises what it broke with."""
        if self._life is not None:
            await asyncio.shield(self._life)

    async def _play(
        self, ctx: JobContext, run_id: str, prompt: str, workspace_dir: str | None, max_iterations: int | None
    ) -> Done | Fail:
        self.current_run = run_id
        try:
            return await self._handled(ctx, run_id, workspace_dir, max_iterations)
        finally:
            self.current_run, self._idle_since = None, self._now()

    async def _handled(
        self, ctx: JobContext, run_id: str, workspace_dir: str | None, max_iterations: int | None
    ) -> Done | Fail:
        attempt = await self._attempt(run_id)
        with handlers.handled(HandlerAttempt(self._runtime, ctx.id, max_iterations)), runs.holding(run_id, ctx.lease):
            try:
                succeeded = await self._handler(run_id, await self._prepared(run_id, workspace_dir, attempt))
            except (Exception, asyncio.CancelledError, SystemExit, BaseExceptionGroup) as problem:
                # The edge of an attempt: a handler may raise anything. Under a lease that is lost the end is refused.
                if isinstance(problem, asyncio.CancelledError) and _is_stopped():
                    raise
                log.exception("run %s: its handler raised", run_id, extra={"run": run_id, "worker": self.worker_id})
                return Fail(f"{type(problem).__name__}: {problem}", HANDLER_RAISED)
        return Done() if succeeded else Fail("the handler returned False", HANDLER_FAILED)

    async def _attempt(self, run_id: str) -> int:
        """Which attempt of the run this is, over all its jobs."""
        seen = await self._runtime.runs.look(run_id)
        return 1 if seen is None else seen.attempts

    async def _prepared(self, run_id: str, given: str | None, attempt: int) -> str:
        """The folder of the run, made if it is not there."""
        path = await asyncio.to_thread(workspaces.place, self._base, given, run_id)
        facts = {"run_id": run_id, "worker_id": self.worker_id}

        def prepare() -> None:
            workspaces.prepare(path, {"run_id": run_id, "workspace_dir": str(path)})
            workspaces.write_attempt(path, attempt, {**facts, "attempt": attempt})

        await asyncio.to_thread(prepare)
        return str(path)

    def _hear(self, event: Event) -> None:
        if event.metadata.get("kind") != KIND:
            return
        if event.name == "job.lost":
            self.lost += 1
        elif event.metadata.get("state") == "succeeded":
            self.completed += 1
        elif event.metadata.get("state") == "failed":
            self.failed += 1

    def _now(self) -> float:
        return core_of(self._runtime.queue).ports.clock.monotonic()
