"""Runs, for async code: `conn.runs` of a runtime database. The functions of `state` are these, without a loop.

Each call is one transaction. Durations are seconds, as the document has them.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar

from holdfast import validation
from holdfast.app import Holdfast, core_of
from holdfast.distribution import VERSION
from holdfast.durations import microseconds
from holdfast.errors import BadSetting, IdempotencyConflict, NotFound, UsageError
from holdfast.facades.universal_agent import held_run, workspaces
from holdfast.facades.universal_agent import run_operations as operations
from holdfast.facades.universal_agent.operator_queries import Cursor, run_query
from holdfast.facades.universal_agent.run_words import SeenRun
from holdfast.facades.universal_agent.seconds import is_seconds
from holdfast.jobs import JobFunction
from holdfast.kernel import codec
from holdfast.kernel.brokers import LostAnswers
from holdfast.kernel.complete import RELEASED, error_json
from holdfast.kernel.database import Operation
from holdfast.kernel.drivers.ad_hoc import Parameters
from holdfast.kernel.ids import new_id
from holdfast.kernel.rows import Ending, NewJob, Route
from holdfast.kernel.states import State
from holdfast.kernel.workers import Registration
from holdfast.queues import Queue
from holdfast.workers.context import JobContext

SHORTEST_LEASE = 0.001  # seconds
KIND = "universal_agent.run"
QUEUE = "universal_agent"
HANDLER_FAILED, HANDLER_RAISED = "run_handler_failed", "worker_exception"

P = ParamSpec("P")
R = TypeVar("R")

Play = Callable[..., Awaitable[object]]


def declare(app: Holdfast, play: Play) -> JobFunction[Any, Any]:
    """Let an app know runs: their queue, in which a lost lease is an attempt, and what plays them."""
    app.queue(QUEUE, Queue(lost_counts=True))
    made: JobFunction[Any, Any] = app.job(name=KIND, queue=QUEUE)(play)
    return made


async def unplayed(
    ctx: JobContext, run_id: str, prompt: str, workspace_dir: str | None, max_iterations: int | None
) -> None:
    """What a run is given. Here nobody plays it: workers declare it with their own handler."""
    raise UsageError(f"run {run_id} is played by a worker of its pool, not by {ctx.kind} itself.")


class Runs:
    """The runs of a database."""

    def __init__(self, app: Holdfast) -> None:
        self._core = core_of(app)
        self._function = declare(app, unplayed)
        self._lost_answers = LostAnswers()

    async def queue(
        self, run_id: str, prompt: str, workspace_dir: str | None = None, max_iterations: int | None = None
    ) -> dict[str, Any]:
        """Queue a run, or find the one that was queued under this id with the same request; returns it.

        `IdempotencyConflict` when the id stands for another request. A run that has ended is never started again:
        `requeue` does that.
        """
        workspaces.check_name(run_id, "run_id")
        validation.instance(prompt, "prompt", str, "a text")
        if not prompt:
            raise UsageError("a run needs a prompt that is not empty.")
        if max_iterations is not None:
            validation.whole(max_iterations, "max_iterations", least=1)
        job, route, digest = self._new(run_id, prompt, workspaces.check_workspace(workspace_dir), max_iterations)
        alias = await self._transact(operations.queue, run_id, job, [route], digest)
        if alias.digest != digest:
            raise IdempotencyConflict(run_id, alias.job)
        return (await self._known(run_id)).as_dict()

    async def requeue(self, run_id: str) -> bool:
        """Start a run that has ended again, as a new job under the same id; False when it has not ended."""
        seen = await self._known(run_id)
        if seen.job is None:
            raise NotFound(f"what run {run_id} was asked has been pruned: queue it under a new id.")
        asked = codec.decode(seen.job.payload)
        job, route, digest = self._new(run_id, asked["prompt"], asked["workspace_dir"], asked["max_iterations"])
        return await self._transact(operations.queue_again, run_id, job, [route], digest)

    def _new(
        self, run_id: str, prompt: str, workspace_dir: str | None, max_iterations: int | None
    ) -> tuple[NewJob, Route, str]:
        asked = {"prompt": prompt, "workspace_dir": workspace_dir, "max_iterations": max_iterations}
        id, settings = new_id(self._core.ports), self._core.settings
        job, route = self._function.new_job((), {"run_id": run_id, **asked}, id=id, settings=settings)
        return job, route, codec.digest(codec.encode(asked, what="a run", cap=settings.payload_cap))

    async def get(self, run_id: str) -> dict[str, Any] | None:
        """A run; None when nobody has queued it."""
        seen = await self.look(run_id)
        return None if seen is None else seen.as_dict()

    async def look(self, run_id: str) -> SeenRun | None:
        return await self._transact(operations.look, run_id) if workspaces.is_name(run_id) else None

    async def attempts(self, run_id: str) -> list[dict[str, Any]]:
        """The attempts of a run that have ended, the first first."""
        return await self._transact(operations.attempts, run_id) if workspaces.is_name(run_id) else []

    async def acquire(self, run_id: str, lease_owner: str, lease_ttl_seconds: float) -> bool:
        """Take a run that is queued, or whose lease has run out; False when it cannot be had."""
        ttl_us, who = self._ttl(lease_ttl_seconds), self._owner(lease_owner)
        if not workspaces.is_name(run_id):
            return False
        await self._lost_answers.give_back(self._core.runtime())
        with self._lost_answers.claiming() as notes:
            taken = await self._transact(operations.acquire, run_id, who, ttl_us, notes)
            notes.answered(lease.held for lease in notes.taken if taken)
        return taken

    async def heartbeat(self, run_id: str, lease_owner: str, lease_ttl_seconds: float) -> bool:
        """Extend a lease; False when it is lost: stop the work, and drop its result."""
        ttl_us, ceiling_us = self._ttl(lease_ttl_seconds), microseconds(self._core.settings.lease_ceiling)
        return workspaces.is_name(run_id) and await self._transact(
            operations.heartbeat, run_id, _text(lease_owner), ttl_us, ceiling_us=ceiling_us
        )

    async def release(self, run_id: str, lease_owner: str) -> bool:
        """Hand a run back: it is queued again, and costs no attempt. False when the owner does not hold it."""
        return await self._end(run_id, lease_owner, RELEASED, State.PENDING, counted=0)

    async def complete(self, run_id: str, lease_owner: str, result: object = None) -> bool:
        """End a run well; False when the owner does not hold it any more, and nothing is changed."""
        text = codec.encode(result, what="the result of a run", cap=self._core.settings.result_cap)
        return await self._end(run_id, lease_owner, "succeeded", State.SUCCEEDED, result=text)

    async def fail(self, run_id: str, lease_owner: str, reason: str, failure_class: str = HANDLER_FAILED) -> bool:
        """End a run as failed; False when the owner does not hold it any more, and nothing is changed."""
        error = error_json(failure_class, reason, cap=self._core.settings.error_cap)
        return await self._end(run_id, lease_owner, "failed", State.FAILED, error=error)

    async def request_cancel(self, run_id: str, reason: str | None = None) -> bool:
        """Cancel a run that is queued, ask the owner of one that runs; False when it has ended or is not known."""
        seen = await self.look(run_id)
        if seen is None or seen.ended:
            return False
        await self._core.runtime().cancel(seen.alias.job, reason or "cancelled by its owner")
        return True

    async def is_cancel_requested(self, run_id: str) -> bool:
        seen = await self.look(run_id)
        return seen is not None and seen.status in ("cancel_requested", "cancelled")

    async def mark_cancelled(self, run_id: str, lease_owner: str | None = None) -> bool:
        """Acknowledge a cancel: the run ends as cancelled. Without an owner, for the one who holds it."""
        seen = await self.look(run_id)
        owner = lease_owner if lease_owner is not None or seen is None else seen.owner
        if owner is None:
            return False
        error = error_json("cancelled", "its owner acknowledged the cancel")
        return await self._end(run_id, owner, "cancelled", State.CANCELLED, error=error, asked=True)

    async def save_checkpoint(self, run_id: str, checkpoint: dict[str, Any], lease_owner: str | None = None) -> str:
        """Store a checkpoint under an owner's lease, and return its id; `UsageError` when it does not hold the run.

        A worker's handler names no owner: the lease is that of its own attempt, and `LeaseLost` is raised when another
        has the run by then.
        """
        workspaces.check_name(run_id, "run_id")
        holder = held_run.lease_of(run_id) if lease_owner is None else _text(lease_owner)
        if holder is None:
            raise UsageError(f"who holds run {run_id}? Give lease_owner to save a checkpoint outside of its handler.")
        id = new_id(self._core.ports)
        text = codec.encode(checkpoint, what="a checkpoint", cap=self._core.settings.result_cap)
        if not await self._transact(operations.save_checkpoint, run_id, holder, id, text):
            raise UsageError(f"{lease_owner} does not hold run {run_id}, so it saves no checkpoint of it.")
        return id

    async def checkpoints(self, run_id: str) -> list[dict[str, Any]]:
        """The checkpoints of a run, the first first, those before a requeue included."""
        return await self._transact(operations.checkpoints, run_id) if workspaces.is_name(run_id) else []

    async def last_checkpoint(self, run_id: str) -> dict[str, Any] | None:
        """The newest checkpoint of a run; None when it has none."""
        return await self._transact(operations.last_checkpoint, run_id) if workspaces.is_name(run_id) else None

    async def execute(self, sql: str, parameters: Parameters = ()) -> Cursor:
        """Ask the views `runs` and `run_attempts`, or any table, with one statement that reads.

        `UsageError` when it would change something, is wrong, or has more than 10,000 rows; `QueryTooLong` after the
        setting `web_patience`.
        """
        return await run_query(self._core, sql, parameters)

    async def _end(  # noqa: PLR0913  how an attempt ends
        self,
        run_id: str,
        lease_owner: str,
        outcome: str,
        state: State,
        *,
        counted: int = 1,
        result: str | None = None,
        error: str | None = None,
        asked: bool = False,
    ) -> bool:
        ending = Ending(0, 0, 0, 0, outcome, state, 0, counted, result, error)
        owner = _text(lease_owner)
        return workspaces.is_name(run_id) and await self._transact(operations.end, run_id, owner, ending, asked=asked)

    async def _known(self, run_id: str) -> SeenRun:
        seen = await self.look(run_id)
        if seen is None:
            raise NotFound(f"there is no run {run_id!r:.80} in this database.")
        return seen

    async def _transact(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._core.runtime().transact(operation, *args, **kwargs)

    def _ttl(self, seconds: float) -> int:
        ceiling = self._core.settings.lease_ceiling.total_seconds()
        if not is_seconds(seconds, least=SHORTEST_LEASE, most=ceiling):
            raise BadSetting(
                f"a lease lasts {SHORTEST_LEASE:g} to {ceiling:g} seconds (the setting lease_ceiling), not "
                f"{validation.shown(seconds)}."
            )
        return round(seconds * 1e6)

    def _owner(self, lease_owner: str) -> Registration:
        owner = _text(lease_owner)
        return Registration(
            incarnation=new_id(self._core.ports),
            id=operations.owner_id(owner),
            name=owner,
            hostname=socket.gethostname(),
            pid=os.getpid(),
            version=VERSION,
            capabilities=(),
            queues=(QUEUE,),
            slots=1,
            principal=operations.SCOPE,
        )


def _text(lease_owner: str) -> str:
    return workspaces.check_text(lease_owner, "lease_owner")
