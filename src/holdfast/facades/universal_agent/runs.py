"""Runs, for async code: `conn.runs` of a runtime database. The functions of `state` are these, without a loop.

Each call is one transaction. Durations are seconds, as the document has them.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple, ParamSpec, SupportsIndex, TypeVar, overload

from holdfast import validation
from holdfast.app import Holdfast, core_of
from holdfast.client.core import Core
from holdfast.client.jobs import JobFunction
from holdfast.client.queues import Queue
from holdfast.durations import microseconds
from holdfast.errors import VERSION, BadSetting, IdempotencyConflict, NotFound, UsageError
from holdfast.facades.universal_agent import workspaces
from holdfast.kernel import brokers, codec, leases, queries, waiting
from holdfast.kernel.broker_rows import Alias, OwnedLease, OwnerBeat, Renewal
from holdfast.kernel.brokers import LostAnswers
from holdfast.kernel.complete import RELEASED, complete_and_settle, error_json
from holdfast.kernel.database import READS, Operation, Transaction, bound, reading
from holdfast.kernel.drivers.ad_hoc import Parameters, answer, read_query
from holdfast.kernel.enqueue import enqueue
from holdfast.kernel.ids import JobId, new_id
from holdfast.kernel.owners import register_owner
from holdfast.kernel.rows import AttemptRow, Ending, JobRow, LastStep, Lease, NewJob, Route
from holdfast.kernel.states import State
from holdfast.kernel.workers import Registration, list_workers
from holdfast.values import moment
from holdfast.workers.context import JobContext

# Durations as this interface has them: numbers of seconds.


def is_seconds(value: object, *, least: float, most: float) -> bool:
    """Whether a caller gave a number, and between these. Text, None, NaN and True are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


# The words of a run: which state of a job is which status, and what a run looks like as a dict.


RunStatus = Literal[
    "queued", "running", "completed", "failed", "cancel_requested", "cancelled", "needs_review", "pruned"
]
POISONED = "rescue_failed"  # the type of error of a job that lost its lease too often

OUTCOMES = {"succeeded": "completed", "failed": "failed", "cancelled": "cancelled", "lost": "lost"}


class RunSnapshot(NamedTuple):
    """A run as it stands; without a job when retention has removed it."""

    alias: Alias
    job: JobRow | None
    owner: str | None
    attempts: int

    @property
    def status(self) -> RunStatus:
        return "pruned" if self.job is None else status_of(self.job)

    @property
    def ended(self) -> bool:
        return self.job is None or self.job.finished_at is not None

    def as_dict(self) -> dict[str, Any]:
        asked = {} if self.job is None else codec.decode(self.job.payload)
        until = None if self.job is None else self.job.lease_until
        return {
            "run_id": self.alias.name,
            "status": self.status,
            "last_job_prompt": asked.get("prompt"),
            "workspace_dir": asked.get("workspace_dir"),
            "lease_owner": self.owner,
            "lease_expires_at": None if until is None else readable(until),
            "attempts": self.attempts,
        }


def status_of(job: JobRow) -> RunStatus:
    match job.state:
        case State.SUCCEEDED:
            return "completed"
        case State.FAILED:
            return "needs_review" if error_of(job.error).get("type") == POISONED else "failed"
        case State.CANCELLED:
            return "cancelled"
        case State.RUNNING:
            return "running" if job.cancel_requested_at is None else "cancel_requested"
        case _:
            return "queued"


def attempt_dict(number: int, row: AttemptRow, owner: str | None) -> dict[str, Any]:
    error = error_of(row.error)
    return {
        "attempt_number": number,
        "status": OUTCOMES.get(row.outcome, row.outcome),
        "lease_owner": owner,
        "failure_class": error.get("type"),
        "failure_reason": error.get("message"),
        "started_at": readable(row.started_at),
        "ended_at": readable(row.ended_at),
    }


def error_of(stored: str | None) -> dict[str, Any]:
    error = codec.decode(stored) if stored is not None else None
    return error if isinstance(error, dict) else {}


def readable(us: int) -> str:
    """A time as the views show it: UTC, to the second."""
    return moment(us).strftime("%Y-%m-%d %H:%M:%S")


# Under which lease the code that runs now handles a run.
#
# A worker sets it around its handler. What the handler writes is written under the lease of its own attempt, never
# under
# one that the run has by then.


_current: ContextVar[tuple[str, Lease] | None] = ContextVar("holdfast_universal_agent_held_run", default=None)


def lease_of(run_id: str) -> Lease | None:
    """The lease of this run if it is handled here, else None."""
    held = _current.get()
    return held[1] if held is not None and held[0] == run_id else None


@contextmanager
def holding(run_id: str, lease: Lease) -> Iterator[None]:
    """Around a handler."""
    before = _current.set((run_id, lease))
    try:
        yield
    finally:
        _current.reset(before)


# The queries of operators: read-only SQL on a runtime database, answered as `sqlite3` answers it.


class Row(tuple[Any, ...]):
    """A row: its values by number, as of a tuple, or by the name of their column."""

    _columns: Sequence[str]

    @classmethod
    def of(cls, columns: Sequence[str], values: Sequence[Any]) -> Row:
        made = cls(values)
        made._columns = columns
        return made

    def keys(self) -> list[str]:
        return list(self._columns)

    @overload
    def __getitem__(self, key: str | SupportsIndex) -> Any: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[Any, ...]: ...
    def __getitem__(self, key: str | SupportsIndex | slice) -> Any:
        """`IndexError` when there is no such column, as `sqlite3.Row` has it."""
        if not isinstance(key, str):
            return super().__getitem__(key)
        for name, value in zip(self._columns, self, strict=True):
            if name.lower() == key.lower():
                return value
        raise IndexError(f"there is no column {key!r:.80} among {', '.join(self._columns)}.")


class Cursor:
    """The answer to a query, from its first row on."""

    def __init__(self, columns: Sequence[str], rows: Sequence[Row]) -> None:
        self.description = tuple((name, None, None, None, None, None, None) for name in columns)
        self._rows = iter(rows)

    def __iter__(self) -> Iterator[Row]:
        return self._rows

    def fetchone(self) -> Row | None:
        """The next row; None after the last one."""
        return next(self._rows, None)

    def fetchall(self) -> list[Row]:
        """The rows that are left."""
        return list(self._rows)


async def run_query(core: Core, sql: str, parameters: Parameters) -> Cursor:
    """Ask within the bounds of reads: nothing can be changed, and it takes `web_patience` at most."""
    validation.instance(sql, "sql", str, "a text")
    database = await core.opened()
    query = read_query(sql, parameters, database.dialect)
    with bound(READS):
        found = await core.runtime().transact(answer, query, core.settings.schema)
    return Cursor(found.columns, [Row.of(found.columns, row) for row in found.rows])


# What happens to a run in one transaction: the kernel's operations on the job that its id stands for now.
#
# A run id is an alias, so it outlives its jobs and is never given to another run. Who may hold, extend or end a lease
# is
# the kernel's to say; here it is only found by the owner's name. An owner is a string that anybody may choose, so it
# is
# stored apart from workers, which may have the same name.


SCOPE = "universal_agent"
_CHECKPOINT = "checkpoint "


async def queue(tx: Transaction, run_id: str, job: NewJob, routes: Sequence[Route], digest: str) -> Alias:
    """Enqueue a job under this id, unless it stands for one already."""
    alias = await brokers.name_job(tx, SCOPE, run_id, job.id, digest=digest)
    if alias.job == job.id:
        await enqueue(tx, [job], routes, notify=True)
    return alias


async def queue_again(tx: Transaction, run_id: str, job: NewJob, routes: Sequence[Route], digest: str) -> bool:
    """Let a new job continue a run that has ended; False when it has not."""
    seen = await look(tx, run_id)
    if seen is None or not seen.ended:
        return False
    if await brokers.follow(tx, seen.alias, job.id, digest=digest, attempts=seen.attempts) is None:
        return False
    await enqueue(tx, [job], routes, notify=True)
    return True


@reading
async def look(tx: Transaction, run_id: str) -> RunSnapshot | None:
    """The run as it stands; None when nobody has queued it."""
    alias = await brokers.find_alias(tx, SCOPE, run_id)
    if alias is None:
        return None
    job = await _job(tx, alias.job)
    if job is None:
        return RunSnapshot(alias, None, None, alias.attempts)
    ended = await queries.count_attempts(tx, job.seq)
    held = job.state == State.RUNNING
    return RunSnapshot(alias, job, await _name(tx, job.worker) if held else None, alias.attempts + ended + held)


@reading
async def attempts(tx: Transaction, run_id: str) -> list[dict[str, Any]]:
    """Every attempt that is still known, numbered from the first one on; the canonical one is the last success."""
    found: list[dict[str, Any]] = []
    for alias in await brokers.list_aliases(tx, SCOPE, run_id):
        job = await _job(tx, alias.job)
        rows = [] if job is None else await queries.list_attempts(tx, job.seq)
        for number, row in enumerate(rows, alias.attempts + 1):
            found.append(attempt_dict(number, row, await _name(tx, row.worker)))
    best = max((each["attempt_number"] for each in found if each["status"] == "completed"), default=None)
    return [{**each, "canonical": each["attempt_number"] == best} for each in found]


async def acquire(
    tx: Transaction, run_id: str, owner: Registration, ttl_us: int, notes: brokers.ClaimNotes | None = None
) -> bool:
    """Take the run for an owner, if it can be had now. What cannot be had is not touched."""
    seen = await look(tx, run_id)
    if seen is None or seen.job is None or seen.ended:
        return False
    job = seen.job
    if job.state == State.RUNNING and (job.lease_until or 0) > await queries.now(tx):
        return False
    who = await register_owner(tx, owner, ttl_us=ttl_us)
    return await brokers.take(tx, who.seq, job.id, ttl_us, notes=notes) is not None


async def heartbeat(tx: Transaction, run_id: str, owner: str, ttl_us: int, *, ceiling_us: int) -> bool:
    """Extend the lease that an owner holds; False when it is lost."""
    held = await _lease(tx, run_id, owner)
    if held is None or await leases.try_hold(tx, held.lease) is None:  # a renewal alone skips what others have locked
        return False
    await leases.beat_many(tx, [OwnerBeat(held.worker, 1)])
    return await leases.renew_one(tx, Renewal(*held.lease.held, ttl_us), ceiling_us=ceiling_us) is not None


async def end(tx: Transaction, run_id: str, owner: str, ending: Ending, *, asked: bool = False) -> bool:
    """End an owner's attempt; False when its lease is lost. `asked`: only if a cancel was requested.

    `ending` names no lease yet: it is this one's.
    """
    held = await _lease(tx, run_id, owner)
    if held is None or (asked and held.cancel_requested_at is None):
        return False
    seq, worker, epoch, token = held.lease.held
    own = ending._replace(seq=seq, worker=worker, epoch=epoch, token=token)
    return bool(await complete_and_settle(tx, [own], [] if held.parent is None else [held.parent]))


async def save_checkpoint(tx: Transaction, run_id: str, holder: Lease | str, id: str, text: str) -> bool:
    """Store a checkpoint under a lease, or the one of an owner; False when that owner does not hold the run."""
    if isinstance(holder, str):
        held = await _lease(tx, run_id, holder)
        if held is None:
            return False
        holder = held.lease
    await waiting.store_step(tx, holder, f"{_CHECKPOINT}{id}", text)
    return True


@reading
async def checkpoints(tx: Transaction, run_id: str) -> list[dict[str, Any]]:
    """The checkpoints of all jobs that the run has had, numbered from the first one on."""
    found: list[dict[str, Any]] = []
    for alias in await brokers.list_aliases(tx, SCOPE, run_id):
        job = await _job(tx, alias.job)
        steps = [] if job is None else await waiting.list_steps(tx, job.seq)
        for step in (step for step in steps if step.name.startswith(_CHECKPOINT)):
            found.append(_checkpoint(step.name, step.result, len(found) + 1))
    return found


@reading
async def last_checkpoint(tx: Transaction, run_id: str) -> dict[str, Any] | None:
    """The newest of `checkpoints`, with its number; None when there is none."""
    newest: LastStep | None = None
    number = 0
    for alias in await brokers.list_aliases(tx, SCOPE, run_id):
        job = await _job(tx, alias.job)
        found = None if job is None else await waiting.last_step(tx, job.seq, _CHECKPOINT)
        if found is not None:
            newest, number = found, number + found.number
    return None if newest is None else _checkpoint(newest.name, newest.result, number)


def _checkpoint(name: str, result: str, number: int) -> dict[str, Any]:
    return {"checkpoint_id": name.removeprefix(_CHECKPOINT), "number": number, **codec.decode(result)}


def owner_id(owner: str) -> str:
    """Under which id an owner is stored. No worker of runs can have it: theirs has no slash."""
    return f"{SCOPE}/{owner}"


async def _lease(tx: Transaction, run_id: str, owner: str) -> OwnedLease | None:
    """What an owner of this name holds, or else a worker."""
    alias = await brokers.find_alias(tx, SCOPE, run_id)
    if alias is None:
        return None
    held = await brokers.find_lease(tx, alias.job, owner_id(owner))
    return held or await brokers.find_lease(tx, alias.job, owner)


async def _job(tx: Transaction, id: JobId) -> JobRow | None:
    try:
        return await queries.find_job(tx, id)
    except NotFound:  # retention has removed it
        return None


async def _name(tx: Transaction, worker: int | None) -> str | None:
    """How its callers call a worker or an owner, by its number."""
    if worker is None:
        return None
    rows = await list_workers(tx, all=True, limit=1, before=worker + 1)
    if not rows or rows[0].seq != worker:
        return None
    return rows[0].name if rows[0].principal == SCOPE else rows[0].id


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
        alias = await self._transact(queue, run_id, job, [route], digest)
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
        return await self._transact(queue_again, run_id, job, [route], digest)

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

    async def look(self, run_id: str) -> RunSnapshot | None:
        return await self._transact(look, run_id) if workspaces.is_name(run_id) else None

    async def attempts(self, run_id: str) -> list[dict[str, Any]]:
        """The attempts of a run that have ended, the first first."""
        return await self._transact(attempts, run_id) if workspaces.is_name(run_id) else []

    async def acquire(self, run_id: str, lease_owner: str, lease_ttl_seconds: float) -> bool:
        """Take a run that is queued, or whose lease has run out; False when it cannot be had."""
        ttl_us, who = self._ttl(lease_ttl_seconds), self._owner(lease_owner)
        if not workspaces.is_name(run_id):
            return False
        await self._lost_answers.give_back(self._core.runtime())
        with self._lost_answers.claiming() as notes:
            taken = await self._transact(acquire, run_id, who, ttl_us, notes)
            notes.answered(lease.held for lease in notes.taken if taken)
        return taken

    async def heartbeat(self, run_id: str, lease_owner: str, lease_ttl_seconds: float) -> bool:
        """Extend a lease; False when it is lost: stop the work, and drop its result."""
        ttl_us, ceiling_us = self._ttl(lease_ttl_seconds), microseconds(self._core.settings.lease_ceiling)
        return workspaces.is_name(run_id) and await self._transact(
            heartbeat, run_id, _text(lease_owner), ttl_us, ceiling_us=ceiling_us
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
        holder = lease_of(run_id) if lease_owner is None else _text(lease_owner)
        if holder is None:
            raise UsageError(f"who holds run {run_id}? Give lease_owner to save a checkpoint outside of its handler.")
        id = new_id(self._core.ports)
        text = codec.encode(checkpoint, what="a checkpoint", cap=self._core.settings.result_cap)
        if not await self._transact(save_checkpoint, run_id, holder, id, text):
            raise UsageError(f"{lease_owner} does not hold run {run_id}, so it saves no checkpoint of it.")
        return id

    async def checkpoints(self, run_id: str) -> list[dict[str, Any]]:
        """The checkpoints of a run, the first first, those before a requeue included."""
        return await self._transact(checkpoints, run_id) if workspaces.is_name(run_id) else []

    async def last_checkpoint(self, run_id: str) -> dict[str, Any] | None:
        """The newest checkpoint of a run; None when it has none."""
        return await self._transact(last_checkpoint, run_id) if workspaces.is_name(run_id) else None

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
        return workspaces.is_name(run_id) and await self._transact(end, run_id, owner, ending, asked=asked)

    async def _known(self, run_id: str) -> RunSnapshot:
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
            id=owner_id(owner),
            name=owner,
            hostname=socket.gethostname(),
            pid=os.getpid(),
            version=VERSION,
            capabilities=(),
            queues=(QUEUE,),
            slots=1,
            principal=SCOPE,
        )


def _text(lease_owner: str) -> str:
    return workspaces.check_text(lease_owner, "lease_owner")
