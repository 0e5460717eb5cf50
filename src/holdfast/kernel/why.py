"""Why a job is not being run: each gate as a sentence, with names and times.

It reads what the claim obeys: state, pause, route, gate, and for a lane the very decision that the claim makes. So a
claim takes the job exactly when there is nothing to say here.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

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
from holdfast.kernel.states import TERMINAL, State
from holdfast.kernel.workers import list_workers
from holdfast.shown_text import plural

_LINE = 10_000
_SHOWN = 10
_CLIP = 500
_ENDS = {"succeeded": "succeeded", "completed": "completed", "failed": "failed", "cancelled": "was cancelled"}
_LIBRARIES = ("/lib/python", "/site-packages/")  # whose lines say less than those of the program


class Reason(NamedTuple):
    """One gate: its name, the sentence for people, and when it opens if that is known (microseconds)."""

    gate: str
    sentence: str
    until: int | None = None


async def why(tx: Transaction, id: JobId, *, worker: str | None = None, absent: Collection[int] = ()) -> list[Reason]:
    """What keeps this job from being claimed, by the worker of that id or by any live one; empty: nothing does.

    `absent`: the workers whose presence is gone, from `absent_workers`.
    """
    job = await tx.one(WhySql.why_job, id=id)
    if job is None:
        raise NotFound(f"there is no job {id} in this database.")
    if job.state in TERMINAL:
        again = retry_command("job", id) if job.layer is None else retry_advice(job.layer, tx.layers)
        return _ended(job.state, job.finished_at, _error_of(job), after=_after(job), again=again)
    if job.state != State.PENDING:
        return [_not_pending(job, absent)]
    there = await list_workers(tx, all=False, limit=10_000, absent=absent)
    live = [row for row in there if row.status == "active" and not row.absent]
    if worker is None:  # one that is silent for too long takes nothing, and nobody may have declared it lost yet
        live = [row for row in live if not row.silent]
    else:
        live = [row for row in live if row.id == worker]
        if not live:
            return [Reason("no_worker", f"there is no live worker {worker!r} that takes jobs")]
    reasons = [*_paused(job), *_unserved(job, live, worker)]
    if job.lane is not None and not reasons:
        reasons += await _held_back(tx, job, live)
    return reasons


class RecordedEnd(NamedTuple):
    """How something ended that a job stands for, as its own record says; `again` is the advice for one that failed."""

    state: str
    at: int | None
    outcome: str | None
    error_type: str | None
    message: str | None
    again: str


async def why_ended(tx: Transaction, id: JobId, its: RecordedEnd) -> list[Reason]:
    """How it ended, in the same words as a job. Retention may have removed its job with the attempts and traceback."""
    job = await tx.one(WhySql.why_job, id=id)
    after = f", {its.outcome}" if its.outcome else _after(job) if job is not None else ""
    error = {**(_error_of(job) if job is not None else {}), "message": its.message, "type": its.error_type}
    return _ended(its.state, its.at, error, after=after, again=its.again)


def _ended(state: str, at: int | None, error: Mapping[str, Any], *, after: str, again: str) -> list[Reason]:
    """In one order: when and with what error, where that was raised, and how to do it again."""
    words = _ENDS.get(state, f"ended as {state}")
    said = _first_line(error.get("message"))
    kind = error.get("type") if state == State.FAILED else None
    cause = (f": {said}" if said else "") + (f" ({kind})" if said and kind else "")
    reasons = [Reason("ended", f"it {words} at {_time(at)}{after}{cause}")]
    if state != State.FAILED:
        return reasons
    if place := _raised_at(str(error.get("trace") or "")):
        reasons.append(Reason("raised", f"it was raised here: {place}"))
    return [*reasons, Reason("ended", again)]


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
        return Reason("unknown", f"it is {job.state}, a state that this release does not know")
    match State(job.state):
        case State.SCHEDULED:
            said = _first_line(_error_of(job).get("message"))
            cause = _after(job) + (f": {said}" if said else "")
            when = f"{_time(job.due_at)}, {_away(job.due_at, job.now)}"
            return Reason("not_due", f"it is due at {when}{cause}", job.due_at)
        case State.RUNNING:
            asked = "; it has been asked to stop" if job.cancel_requested_at is not None else ""
            where = f"worker {job.holder or 'unknown'}" + (f" on {job.host}" if job.host else "")
            if job.process in absent:
                return Reason("lease_ended", f"{where} is gone: the next worker that looks takes it over{asked}")
            if (job.lease_until or 0) <= job.now:
                said = (
                    f"the lease of {where} ended at {_time(job.lease_until)}: the next worker that looks takes it over"
                )
                return Reason("lease_ended", said + asked)
            return Reason(
                "leased",
                f"{where} has been running it since {_time(job.claimed_at)}, "
                f"with a lease until {_time(job.lease_until)}{asked}",
                job.lease_until,
            )
        case State.WAITING:
            limit = f", until {_time(job.due_at)} at the latest" if job.due_at is not None else ""
            if job.channel is not None:
                return Reason("signal", f"it waits for a signal on channel {job.channel!r}{limit}", job.due_at)
            children = plural(job.open_children, "child", "children")
            return Reason("children", f"it waits for {children} to end{limit}", job.due_at)
        case state:
            raise AssertionError(f"a job that is {state} is explained elsewhere")


def _after(job: WhyJob) -> str:
    return f", after attempt {job.attempts} of {job.max_attempts}" if job.attempts else ""


def _error_of(job: WhyJob) -> dict[str, Any]:
    """What its last attempt that had a reason gave as one."""
    error = json.loads(job.error) if job.error else None
    return error if isinstance(error, dict) else {}


def _first_line(message: object) -> str:
    return codec.clip(str(message or "").partition("\n")[0], _CLIP)


def _paused(job: WhyJob) -> list[Reason]:
    if job.paused_at is None:
        return []
    reason = f": {job.pause_reason}" if job.pause_reason else ""
    return [Reason("paused", f"queue {job.queue!r} was paused at {_time(job.paused_at)}{reason}")]


def _unserved(job: WhyJob, live: Sequence[WorkerRow], worker: str | None) -> list[Reason]:
    if job.capabilities is None:
        return [Reason("no_route", "no worker knows its route yet")]
    route = Route(job.route, job.queue, job.capabilities)
    if any(_can(row, route) for row in live):
        return []
    needs = [c for c in json.loads(job.capabilities) if c != LANE]
    needed = ", ".join(needs[:_SHOWN]) + (f" and {len(needs) - _SHOWN} more" if len(needs) > _SHOWN else "")
    missing = [each for each in needs if not any(offers(json.loads(row.capabilities), each) for row in live)]
    if live and len(needs) > 1 and missing:
        needed += f"; {'it lacks' if worker is not None else 'no worker has'} {', '.join(missing[:_SHOWN])}"
    if worker is not None:
        return [Reason("no_worker", f"worker {worker!r} does not serve queue {job.queue!r} with {needed}")]
    crowd = (
        f"none of the {len(live)} live workers serves"
        if live
        else "there is no live worker; the job needs one that serves"
    )
    return [Reason("no_worker", f"{crowd} queue {job.queue!r} with {needed}")]


async def _held_back(tx: Transaction, job: WhyJob, live: Sequence[WorkerRow]) -> list[Reason]:
    assert job.lane is not None
    lane = await _lane(tx, job.lane)
    paused = {row.route for row in await tx.many(WhySql.paused_routes)}
    routes = await tx.many(WorkersSql.list_routes, since=0)
    served = [route.id for route in routes if route.id not in paused and any(_can(row, route) for row in live)]
    line = await tx.many(WhySql.lane_line, lane=job.lane, routes=served, **job.place._asdict(), limit=_LINE)
    if job.gate is None and job.seq in admit(line, [lane], _LINE).taken:
        return []
    return [_full(job, lane) or _too_soon(job, lane) or _next(job, lane) or _behind(job, lane)]


async def _lane(tx: Transaction, name: str) -> LaneState:
    """As the next claim finds it; one whose row is missing, as that claim will restore it."""
    for lane in await tx.many(LanesSql.lane_states, names=[name]):
        return lane
    crowd = await tx.one(WhySql.lane_crowd, lane=name)
    assert crowd is not None
    return LaneState(name=name, free_at=0, **UNKNOWN, **crowd._asdict())


def _full(job: WhyJob, lane: LaneState) -> Reason | None:
    if lane.concurrency is None or lane.running < lane.concurrency:
        return None
    return Reason("lane", f"lane {job.lane!r} is full: {lane.running} of {lane.concurrency} running")


def _too_soon(job: WhyJob, lane: LaneState) -> Reason | None:
    if lane.interval_us is None:
        return None
    opens = max(lane.free_at, lane.now) + (job.cost - max(lane.burst, job.cost)) * lane.interval_us
    if opens <= lane.now:
        return None
    pace = f"one every {show(lane.interval_us)}"
    return Reason("lane", f"lane {job.lane!r} is closed until {_time(opens)} by its rate, {pace}", opens)


def _next(job: WhyJob, lane: LaneState) -> Reason | None:
    if job.gate is None or lane.first != job.place:
        return None
    return Reason("lane", f"lane {lane.name!r} has room for it, and lets it through at the next check")


def _behind(job: WhyJob, lane: LaneState) -> Reason:
    return Reason("lane", f"other jobs come first in lane {lane.name!r}, which has no room for all of them")


def _can(row: WorkerRow, route: Route) -> bool:
    return serves(route, json.loads(row.queues), frozenset(json.loads(row.capabilities)))


def _time(us: int | None) -> str:
    if us is None:
        return "an unknown time"
    try:
        return datetime.fromtimestamp(us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError):
        return "a time after the year 9999"


def _away(us: int | None, now: int) -> str:
    left = max(0, (us or now) - now)
    return f"in {show(left // 1_000_000 * 1_000_000)}" if left >= 1_000_000 else "any moment now"
