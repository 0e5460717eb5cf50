"""Why a job is not being run: each gate as a sentence, with names and times.

It reads what the claim obeys: state, pause, route, gate, and for a lane the very decision that the claim makes. So a
claim takes the job exactly when there is nothing to say here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from holdfast.durations import show
from holdfast.errors import NotFound
from holdfast.kernel import codec
from holdfast.kernel.broker_rows import WorkerRow
from holdfast.kernel.database import Transaction
from holdfast.kernel.flow_rows import LaneState, WhyJob
from holdfast.kernel.ids import JobId
from holdfast.kernel.lanes import UNKNOWN, admit
from holdfast.kernel.routes import LANE, offers, serves
from holdfast.kernel.rows import Route
from holdfast.kernel.statements import LanesSql, WhySql, WorkersSql
from holdfast.kernel.states import TERMINAL, State
from holdfast.kernel.workers import list_workers

_LINE = 10_000
_SHOWN = 10


class Reason(NamedTuple):
    """One gate: its name, the sentence for people, and when it opens if that is known (microseconds)."""

    gate: str
    sentence: str
    until: int | None = None


async def why(tx: Transaction, id: JobId, *, worker: str | None = None) -> list[Reason]:
    """What keeps this job from being claimed, by the worker of that id or by any live one; empty: nothing does."""
    job = await tx.one(WhySql.why_job, id=id)
    if job is None:
        raise NotFound(f"there is no job {id} in this database.")
    if job.state != State.PENDING:
        return [_not_pending(job)]
    live = [row for row in await list_workers(tx, all=False, limit=10_000) if row.status == "active"]
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


def _not_pending(job: WhyJob) -> Reason:
    if job.state not in set(State):
        return Reason("unknown", f"it is {job.state}, a state that this release does not know")
    match State(job.state):
        case State.SCHEDULED:
            cause = f", after attempt {job.attempts} of {job.max_attempts}" if job.attempts else ""
            cause += f": {said}" if (said := _said_last(job)) else ""
            when = f"{_time(job.due_at)}, {_away(job.due_at, job.now)}"
            return Reason("not_due", f"it is due at {when}{cause}", job.due_at)
        case State.RUNNING:
            asked = "; it has been asked to stop" if job.cancel_requested_at is not None else ""
            where = f"worker {job.holder or 'unknown'}" + (f" on {job.host}" if job.host else "")
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
            children = "1 child" if job.open_children == 1 else f"{job.open_children} children"
            return Reason("children", f"it waits for {children} to end{limit}", job.due_at)
        case state:
            assert state in TERMINAL
            how = "was cancelled" if state is State.CANCELLED else state
            return Reason("ended", f"it {how} at {_time(job.finished_at)}")


def _said_last(job: WhyJob) -> str:
    """What its last attempt that had a reason gave as one."""
    error = json.loads(job.error) if job.error else None
    said = str(error.get("message") or "") if isinstance(error, dict) else ""
    return codec.clip(said.partition("\n")[0], 500)


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
