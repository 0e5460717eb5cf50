"""Why a job is not being run: each gate that is closed, as a typed reason.

It reads what the claim obeys: state, pause, route, gate, and for a lane the very decision that the claim makes. So a
claim takes the job exactly when there is nothing to say here.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.durations import show
from holdfast.errors import NotFound
from holdfast.kernel import codec
from holdfast.kernel.broker_rows import WorkerRow
from holdfast.kernel.database import Transaction
from holdfast.kernel.flow_rows import LaneState, WhyJob
from holdfast.kernel.ids import JobId
from holdfast.kernel.lanes import UNKNOWN, admit
from holdfast.kernel.ownership import retry_advice
from holdfast.kernel.routes import LANE, offers, serves
from holdfast.kernel.rows import Route
from holdfast.kernel.statements import LanesSql, WhySql, WorkersSql
from holdfast.kernel.states import TERMINAL, State, WorkerState
from holdfast.kernel.workers import list_workers
from holdfast.reasons import Gate, Reason, error_for_tenant, time_text
from holdfast.text import plural

_LINE = 10_000
_SHOWN = 10
_CLIP = 500
_ENDS = {"succeeded": "succeeded", "completed": "completed", "failed": "failed", "cancelled": "was cancelled"}
_LIBRARIES = ("/lib/python", "/site-packages/")  # whose lines say less than those of the program


@dataclass(frozen=True, slots=True, kw_only=True)
class HasEnded(Reason):
    """It has ended. `outcome` is that of a run, in place of the attempts that it took."""

    gate = Gate.ENDED

    state: str
    at: int | None
    outcome: str | None = None
    attempts: int = 0
    max_attempts: int = 0
    message: str = ""
    error_type: str | None = None

    @property
    def sentence(self) -> str:
        words = _ENDS.get(self.state, f"ended as {self.state}")
        after = f", {self.outcome}" if self.outcome else _after(self.attempts, self.max_attempts)
        kind = f" ({self.error_type})" if self.state == State.FAILED and self.error_type else ""
        cause = _cause(self.message)
        return f"it {words} at {time_text(self.at)}{after}{cause and cause + kind}"

    @property
    def sentence_for_tenant(self) -> str:
        return replace(self, message=error_for_tenant(self.error_type, self.message)).sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class RaisedAt(Reason):
    """Where the error was raised that it failed with: a line of its own code, if the traceback names one."""

    gate = Gate.RAISED

    place: str

    @property
    def sentence(self) -> str:
        return f"it was raised here: {self.place}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy(Reason):
    """What one can do about a failure."""

    gate = Gate.REMEDY

    advice: str

    @property
    def sentence(self) -> str:
        return self.advice


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownState(Reason):
    gate = Gate.UNKNOWN

    state: str

    @property
    def sentence(self) -> str:
        return f"it is {self.state}, a state that this release does not know"


@dataclass(frozen=True, slots=True, kw_only=True)
class NotDue(Reason):
    """Its time has not come; `message` is the error of the attempt before, if there was one."""

    gate = Gate.NOT_DUE

    now: int
    attempts: int
    max_attempts: int
    message: str

    @property
    def sentence(self) -> str:
        left = max(0, (self.until or self.now) - self.now)
        away = f"in {show(left // 1_000_000 * 1_000_000)}" if left >= 1_000_000 else "any moment now"
        cause = _after(self.attempts, self.max_attempts) + _cause(self.message)
        return f"it is due at {time_text(self.until)}, {away}{cause}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leased(Reason):
    """A worker runs it, until the lease ends."""

    gate = Gate.LEASED

    worker: str | None
    host: str | None
    since: int | None
    cancel_requested: bool

    @property
    def sentence(self) -> str:
        return (
            f"{_holder(self.worker, self.host)} has been running it since {time_text(self.since)}, "
            f"with a lease until {time_text(self.until)}{_asked(self.cancel_requested)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseEnded(Reason):
    """Nobody runs it any more: its worker's presence is `gone`, or the lease ended at `ended_at`."""

    gate = Gate.LEASE_ENDED

    worker: str | None
    host: str | None
    ended_at: int | None
    gone: bool
    cancel_requested: bool

    @property
    def sentence(self) -> str:
        holder, asked = _holder(self.worker, self.host), _asked(self.cancel_requested)
        over = f"{holder} is gone" if self.gone else f"the lease of {holder} ended at {time_text(self.ended_at)}"
        return f"{over}: the next worker that looks takes it over{asked}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitsSignal(Reason):
    gate = Gate.SIGNAL

    channel: str

    @property
    def sentence(self) -> str:
        return f"it waits for a signal on channel {self.channel!r}{_at_the_latest(self.until)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitsChildren(Reason):
    gate = Gate.CHILDREN

    number: int

    @property
    def sentence(self) -> str:
        return f"it waits for {plural(self.number, 'child', 'children')} to end{_at_the_latest(self.until)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePaused(Reason):
    gate = Gate.PAUSED

    queue: str
    since: int
    reason: str | None

    @property
    def sentence(self) -> str:
        because = f": {self.reason}" if self.reason else ""
        return f"queue {self.queue!r} was paused at {time_text(self.since)}{because}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoRoute(Reason):
    gate = Gate.NO_ROUTE

    @property
    def sentence(self) -> str:
        return "no worker knows its route yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unserved(Reason):
    """None of the `live` workers serves the queue with all that is needed; `missing` is what none of them has.

    `worker` is the one that was asked about, if it was one.
    """

    gate = Gate.NO_WORKER

    queue: str
    needs: Sequence[str]
    missing: Sequence[str]
    live: int
    worker: str | None = None

    @property
    def sentence(self) -> str:
        more = len(self.needs) - _SHOWN
        needed = ", ".join(self.needs[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
        if self.live and len(self.needs) > 1 and self.missing:
            needed += f"; {'it lacks' if self.worker else 'no worker has'} {', '.join(self.missing[:_SHOWN])}"
        if self.worker is not None:
            return f"worker {self.worker!r} does not serve queue {self.queue!r} with {needed}"
        crowd = f"none of the {self.live} live workers serves"
        nobody = "there is no live worker; the job needs one that serves"
        return f"{crowd if self.live else nobody} queue {self.queue!r} with {needed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerGone(Reason):
    """The worker that was asked about takes no jobs."""

    gate = Gate.NO_WORKER

    worker: str

    @property
    def sentence(self) -> str:
        return f"there is no live worker {self.worker!r} that takes jobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneFull(Reason):
    gate = Gate.LANE

    lane: str
    running: int
    concurrency: int

    @property
    def sentence(self) -> str:
        return f"lane {self.lane!r} is full: {self.running} of {self.concurrency} running"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneTooFast(Reason):
    """The lane's rate lets nothing more through until its time."""

    gate = Gate.LANE

    lane: str
    interval_us: int

    @property
    def sentence(self) -> str:
        pace = f"one every {show(self.interval_us)}"
        return f"lane {self.lane!r} is closed until {time_text(self.until)} by its rate, {pace}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NextInLane(Reason):
    gate = Gate.LANE

    lane: str

    @property
    def sentence(self) -> str:
        return f"lane {self.lane!r} has room for it, and lets it through at the next check"


@dataclass(frozen=True, slots=True, kw_only=True)
class BehindInLane(Reason):
    gate = Gate.LANE

    lane: str

    @property
    def sentence(self) -> str:
        return f"other jobs come first in lane {self.lane!r}, which has no room for all of them"


async def why(tx: Transaction, id: JobId, *, worker: str | None = None, absent: Collection[int] = ()) -> list[Reason]:
    """What keeps this job from being claimed, by the worker of that id or by any live one; empty: nothing does.

    `absent`: the workers whose presence is gone, from `absent_workers`.
    """
    job = await tx.one(WhySql.why_job, id=id)
    if job is None:
        raise NotFound(f"there is no job {id} in this database.")
    if job.state in TERMINAL:
        advice = retry_command("job", id) if job.layer is None else retry_advice(job.layer, tx.layers)
        error = _error_of(job)
        ended = HasEnded(
            state=job.state,
            at=job.finished_at,
            attempts=job.attempts,
            max_attempts=job.max_attempts,
            message=str(error.get("message") or ""),
            error_type=error.get("type"),
        )
        return _explained(ended, error, advice)
    if job.state != State.PENDING:
        return [_not_pending(job, absent)]
    there = await list_workers(tx, all=False, limit=10_000, absent=absent)
    live = [row for row in there if row.status == WorkerState.ACTIVE and not row.absent]
    if worker is None:  # one that is silent for too long takes nothing, and nobody may have declared it lost yet
        live = [row for row in live if not row.silent]
    else:
        live = [row for row in live if row.id == worker]
        if not live:
            return [WorkerGone(worker=worker)]
    reasons = [*_paused(job), *_unserved(job, live, worker)]
    if job.lane is not None and not reasons:
        reasons += await _held_back(tx, job, live)
    return reasons


async def why_ended(tx: Transaction, id: JobId, ended: HasEnded, advice: str) -> list[Reason]:
    """How something ended that a job stands for, in the same words as a job; `advice` is for one that failed.

    Retention may have removed its job, with the attempts and the traceback.
    """
    job = await tx.one(WhySql.why_job, id=id)
    if job is None:
        return _explained(ended, {}, advice)
    return _explained(replace(ended, attempts=job.attempts, max_attempts=job.max_attempts), _error_of(job), advice)


def _explained(ended: HasEnded, error: Mapping[str, Any], advice: str) -> list[Reason]:
    """In one order: when and with what error, where that was raised, and how to do it again."""
    if ended.state != State.FAILED:
        return [ended]
    place = _raised_at(str(error.get("trace") or ""))
    return [ended, *([RaisedAt(place=place)] if place else []), Remedy(advice=advice)]


def retry_command(noun: str, id: str) -> str:
    """What one can do about a job or a run that failed."""
    return f"`holdfast {noun}s retry {id}` enqueues it again, as a new {noun}"


def _raised_at(trace: str) -> str:
    """The last line of the traceback that names a file, best of the program, with the code that is there."""
    lines = [line.strip() for line in trace.splitlines()]
    frames = [number for number, line in enumerate(lines) if line.startswith('File "')]
    own = [number for number in frames if not any(place in lines[number] for place in _LIBRARIES)]
    last = (own or frames)[-1:]
    return codec.clip(": ".join(lines[last[0] : last[0] + 2]), _CLIP) if last else ""


def _not_pending(job: WhyJob, absent: Collection[int]) -> Reason:
    if job.state not in set(State):
        return UnknownState(state=job.state)
    match State(job.state):
        case State.SCHEDULED:
            message = str(_error_of(job).get("message") or "")
            return NotDue(
                until=job.due_at, now=job.now, attempts=job.attempts, max_attempts=job.max_attempts, message=message
            )
        case State.RUNNING:
            gone, until, asked = job.process in absent, job.lease_until, job.cancel_requested_at is not None
            if gone or (until or 0) <= job.now:
                return LeaseEnded(worker=job.holder, host=job.host, ended_at=until, gone=gone, cancel_requested=asked)
            return Leased(worker=job.holder, host=job.host, since=job.claimed_at, until=until, cancel_requested=asked)
        case State.WAITING:
            if job.channel is not None:
                return AwaitsSignal(channel=job.channel, until=job.due_at)
            return AwaitsChildren(number=job.open_children, until=job.due_at)
        case state:
            raise AssertionError(f"a job that is {state} is explained elsewhere")


def _after(attempts: int, most: int) -> str:
    return f", after attempt {attempts} of {most}" if attempts else ""


def _cause(message: str) -> str:
    said = codec.clip(message.partition("\n")[0], _CLIP)
    return f": {said}" if said else ""


def _holder(worker: str | None, host: str | None) -> str:
    return f"worker {worker or 'unknown'}" + (f" on {host}" if host else "")


def _asked(cancel_requested: bool) -> str:
    return "; it has been asked to stop" if cancel_requested else ""


def _at_the_latest(until: int | None) -> str:
    return f", until {time_text(until)} at the latest" if until is not None else ""


def _error_of(job: WhyJob) -> dict[str, Any]:
    """What its last attempt that had a reason gave as one."""
    error = json.loads(job.error) if job.error else None
    return error if isinstance(error, dict) else {}


def _paused(job: WhyJob) -> list[Reason]:
    return [] if job.paused_at is None else [QueuePaused(queue=job.queue, since=job.paused_at, reason=job.pause_reason)]


def _unserved(job: WhyJob, live: Sequence[WorkerRow], worker: str | None) -> list[Reason]:
    if job.capabilities is None:
        return [NoRoute()]
    route = Route(job.route, job.queue, job.capabilities)
    if any(_can(row, route) for row in live):
        return []
    needs = [c for c in json.loads(job.capabilities) if c != LANE]
    missing = [each for each in needs if not any(offers(json.loads(row.capabilities), each) for row in live)]
    return [Unserved(queue=job.queue, needs=needs, missing=missing, live=len(live), worker=worker)]


async def _held_back(tx: Transaction, job: WhyJob, live: Sequence[WorkerRow]) -> list[Reason]:
    assert job.lane is not None
    lane = await _lane(tx, job.lane)
    paused = {row.route for row in await tx.many(WhySql.paused_routes)}
    routes = await tx.many(WorkersSql.list_routes, since=0)
    served = [route.id for route in routes if route.id not in paused and any(_can(row, route) for row in live)]
    line = await tx.many(WhySql.lane_line, lane=job.lane, routes=served, **job.place._asdict(), limit=_LINE)
    if job.gate is None and job.seq in admit(line, [lane], _LINE).taken:
        return []
    return [_full(lane) or _too_soon(job, lane) or _next(job, lane) or BehindInLane(lane=lane.name)]


async def _lane(tx: Transaction, name: str) -> LaneState:
    """As the next claim finds it; one whose row is missing, as that claim will restore it."""
    for lane in await tx.many(LanesSql.lane_states, names=[name]):
        return lane
    crowd = await tx.one(WhySql.lane_crowd, lane=name)
    assert crowd is not None
    return LaneState(name=name, free_at=0, **UNKNOWN, **crowd._asdict())


def _full(lane: LaneState) -> Reason | None:
    if lane.concurrency is None or lane.running < lane.concurrency:
        return None
    return LaneFull(lane=lane.name, running=lane.running, concurrency=lane.concurrency)


def _too_soon(job: WhyJob, lane: LaneState) -> Reason | None:
    if lane.interval_us is None:
        return None
    opens = max(lane.free_at, lane.now) + (job.cost - max(lane.burst, job.cost)) * lane.interval_us
    return None if opens <= lane.now else LaneTooFast(lane=lane.name, until=opens, interval_us=lane.interval_us)


def _next(job: WhyJob, lane: LaneState) -> Reason | None:
    return None if job.gate is None or lane.first != job.place else NextInLane(lane=lane.name)


def _can(row: WorkerRow, route: Route) -> bool:
    return serves(route, json.loads(row.queues), frozenset(json.loads(row.capabilities)))
