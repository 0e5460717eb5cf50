"""The machines that a machine runs or launches, in the store: started once, awaited without a worker, cancelled.

Ids derive from the execution, the checkpoint and the place in the list, so starting a second time starts nothing. What
an execution runs are children of its job; what it launches are jobs of their own, which no cancel of it reaches.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from holdfast.errors import LeaseLost, UsageError
from holdfast.kernel import codec, leases, queries, waiting
from holdfast.kernel.cancel import cancel, cancel_family, cancel_these
from holdfast.kernel.database import Database, Transaction, reading
from holdfast.kernel.enqueue import enqueue, enqueue_children
from holdfast.kernel.ids import JobId, derived_id
from holdfast.kernel.queries import find_job, now
from holdfast.kernel.rows import ChildRow, JobRow, Lease, NewJob, Route, Step
from holdfast.kernel.states import TERMINAL, State
from holdfast.kernel.waiting import list_children, lock_channel, own_channel, park, store_step
from holdfast.machines.layer import children_channel
from holdfast.machines.orders import OWN_QUEUES
from holdfast.machines.stepping import MachineEvent, MachinePlace, StateFailure, StepResult, patch
from holdfast.outcomes import Park
from holdfast.workers.context import JobContext, ParkRequest

# Checkpoints: the events of a machine and where they led, as steps of its job.
#
# Each is numbered and stored once, under the lease. It holds what changed since the one before, so the place of a
# machine
# is what all its checkpoints say together.


_PREFIX = "machine "
_WIDEST = 4  # bytes that one character of a checkpoint can take in a step


def checkpoint_name(number: int, what: str = "") -> str:
    """The step under which a checkpoint is stored, or something that is done before it."""
    return f"{_PREFIX}{number:06d}{' ' if what else ''}{what}"


def in_parts(number: int, text: str, cap: int) -> tuple[list[tuple[str, str]], str]:
    """A checkpoint that is larger than one step may be: the steps to store first, and what then stands in its place.

    Their names say what is in them: a second attempt that has something else to store never mixes with the first.
    """
    if len(text.encode()) <= cap:
        return [], text
    size, digest = cap // _WIDEST, codec.digest(text)[:16]
    pieces = [codec.encode(text[at : at + size], what="a part", cap=cap) for at in range(0, len(text), size)]
    names = [checkpoint_name(number, f"part {digest} {place}") for place in range(len(pieces))]
    return list(zip(names, pieces, strict=True)), codec.encode({"parts": names}, what="a list of parts", cap=cap)


def joined(pieces: Iterable[str]) -> dict[str, Any]:
    """A checkpoint that was stored in parts."""
    made: dict[str, Any] = codec.decode("".join(codec.decode(piece) for piece in pieces))
    return made


class CheckpointEvents(NamedTuple):
    """A checkpoint's number, and the events that it holds."""

    number: int
    events: tuple[MachineEvent, ...]


def record(before: MachinePlace | None, moved: StepResult) -> dict[str, Any]:
    """What is stored of a move."""
    changed, removed = patch({} if before is None else before.context, moved.to.context)
    to = moved.to
    stored: dict[str, Any] = {
        "events": [
            {"name": event.name, "state": event.state, "step": event.step, "detail": event.detail}
            for event in moved.events
        ],
        "state": to.state,
        "step": to.step,
        "part": to.part,
        "set": changed,
    }
    optional = {"unset": removed or None, "output": to.output, "over": to.over or None, "result": to.result}
    stored |= {name: value for name, value in optional.items() if value is not None}
    if to.failure is not None:
        stored["failure"] = {"classes": list(to.failure.classes), "message": to.failure.message}
        stored["failure"] |= {"trace": to.failure.trace} if to.failure.trace else {}
    return stored


def replayed(before: MachinePlace | None, stored: Mapping[str, Any]) -> MachinePlace:
    """The place that a checkpoint led to."""
    context = {} if before is None else dict(before.context)
    context |= stored["set"]
    for name in stored.get("unset", ()):
        context.pop(name, None)
    failure = stored.get("failure")
    return MachinePlace(
        state=stored["state"],
        step=stored["step"],
        part=stored["part"],
        context=context,
        output=stored.get("output"),
        result=stored.get("result"),
        failure=None if failure is None else StateFailure(**{**failure, "classes": tuple(failure["classes"])}),
        over=stored.get("over", False),
    )


def read_steps(steps: Iterable[tuple[str, str]]) -> tuple[MachinePlace | None, list[CheckpointEvents]]:
    """Where a machine is, and what happened to it, by the steps of its job."""
    place: MachinePlace | None = None
    recorded: list[CheckpointEvents] = []
    all_steps = dict(steps)
    for name, result in sorted(each for each in all_steps.items() if _is_checkpoint(each[0])):
        stored = codec.decode(result)
        if "parts" in stored:
            stored = joined(all_steps[part] for part in stored["parts"])
        place = replayed(place, stored)
        recorded.append(
            CheckpointEvents(int(name.removeprefix(_PREFIX)), tuple(MachineEvent(**each) for each in stored["events"]))
        )
    return place, recorded


def _is_checkpoint(name: str) -> bool:
    return name.startswith(_PREFIX) and name.removeprefix(_PREFIX).isdigit()


_TOGETHER = 500  # jobs that one transaction takes in
_FAMILY = 200
_SOON_US = 5_000_000  # a process does not exit for a wait that ends so soon
_COUNTED = "machines of the family"
MOST_MACHINES = 1_000_000  # that come of one execution whose machines run or launch themselves


class TooManyMachines(Exception):
    """Machines that run or launch themselves have become too many."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a child ended. `classes` are those of its error, the nearest first, if it is a machine."""

    id: str
    succeeded: bool
    result: Any
    error_type: str = ""
    error: str = ""
    classes: tuple[str, ...] = ()
    trace: str = ""

    @property
    def failure(self) -> StateFailure:
        """Of a child that did not succeed, as on_error sees it."""
        classes = self.classes or (self.error_type,)
        return StateFailure(tuple(dict.fromkeys((*classes, "ChildFailed", "Exception"))), self.error, self.trace)


def child_ids(ctx: JobContext, what: str, count: int) -> list[JobId]:
    return [derived_id(ctx.id, what, number) for number in range(count)]


async def start_children(ctx: JobContext, jobs: Iterable[tuple[NewJob, Route]], root: JobId | None = None) -> None:
    """Insert children of this job, in bounded transactions. With `root`, they are counted there: `TooManyMachines`."""
    for part in _parts(jobs):
        children, routes = [job for job, _ in part], sorted({route for _, route in part})
        await ctx.database.transact(_start, ctx.lease, children, routes, root)


async def _start(
    tx: Transaction, lease: Lease, jobs: Sequence[NewJob], routes: Sequence[Route], root: JobId | None
) -> None:
    await _count(tx, root, await enqueue_children(tx, lease, jobs, routes))


async def launch(ctx: JobContext, jobs: Iterable[tuple[NewJob, Route]], root: JobId | None = None) -> None:
    """Insert jobs that are nobody's children, under the lease of this one; they are counted as children are."""
    for part in _parts(jobs):
        launched, routes = [job for job, _ in part], sorted({route for _, route in part})
        await ctx.database.transact(_launch, ctx.lease, launched, routes, root)


async def _launch(
    tx: Transaction, lease: Lease, jobs: Sequence[NewJob], routes: Sequence[Route], root: JobId | None
) -> None:
    await leases.hold(tx, lease)
    await _count(tx, root, await enqueue(tx, jobs, routes))


async def _count(tx: Transaction, root: JobId | None, started: int) -> None:
    """Those that were there before are not counted again, so nothing is counted twice after a crash."""
    if root is None or not started:
        return
    count = await waiting.raise_count(tx, root, _COUNTED, started)
    if count is not None and count > MOST_MACHINES:
        raise TooManyMachines(
            f"more than {MOST_MACHINES:,} machines have come of execution {root}. A machine that runs or launches "
            "itself must end at some time: give the state that does so a condition."
        )


def _parts(jobs: Iterable[tuple[NewJob, Route]]) -> Iterator[list[tuple[NewJob, Route]]]:
    """So many at a time: a hundred thousand jobs are never in memory together."""
    left = iter(jobs)
    while part := list(itertools.islice(left, _TOGETHER)):
        yield part


async def outcomes(ctx: JobContext, ids: Sequence[JobId]) -> list[Outcome | None]:
    """How each of these children ended, in order; None: it has not."""
    rows = {row.id: row for row in await ctx.database.transact(list_children, ctx.lease.seq)}
    return [_outcome(rows.get(id)) for id in ids]


def _outcome(row: ChildRow | None) -> Outcome | None:
    if row is None or row.state not in TERMINAL:
        return None
    if row.state == State.SUCCEEDED:
        return Outcome(row.id, True, codec.decode(row.result))
    error = codec.decode(row.error) or {}
    kind = str(error.get("type", "")) if row.state == State.FAILED else "Cancelled"
    message, trace = str(error.get("message", row.state)), str(error.get("trace") or "")
    return Outcome(row.id, False, None, kind or "Error", message, trace=trace)


async def with_classes(database: Database, outcome: Outcome) -> Outcome:
    """The outcome of a child that failed, with all classes of its error, as its last checkpoint has them."""
    steps = await database.transact(_steps_of, JobId(outcome.id))
    place, _ = read_steps((step.name, step.result) for step in steps)
    return outcome if place is None or place.failure is None else replace(outcome, classes=place.failure.classes)


@reading
async def _steps_of(tx: Transaction, id: JobId) -> list[Step]:
    return await waiting.list_steps(tx, (await find_job(tx, id)).seq)


async def wait_for_first(ctx: JobContext, ids: Sequence[JobId], timeout_us: int | None) -> bool:
    """Park until a child of these ends; False: one has ended.

    It is looked for, and the job parked, in one transaction, so none is missed.
    """
    try:
        return await ctx.database.transact(_park_unless_ended, ctx.lease, ids, timeout_us)
    except LeaseLost:  # or a cancel was accepted: the worker finds out which
        raise ParkRequest(Park(children_channel(ctx.lease.seq), "1us")) from None


async def _park_unless_ended(tx: Transaction, lease: Lease, ids: Sequence[JobId], timeout_us: int | None) -> bool:
    channel = children_channel(lease.seq)
    await waiting.lock_channel(tx, channel)
    wanted = set(ids)
    rows = await list_children(tx, lease.seq)
    if any(row.id in wanted and row.state in TERMINAL for row in rows):
        return False
    await park(tx, lease, channel=channel, timeout_us=timeout_us)
    return True


async def waits_for_others(tx: Transaction, id: JobId) -> bool:
    """Whether a job waits for what no worker does soon: a signal, or children that all wait so too."""
    row = await find_job(tx, id)
    if row.state != State.WAITING:
        return False
    if row.due_at is not None and row.due_at - await now(tx) <= _SOON_US:
        return False
    if not row.open_children:
        return row.channel is not None and not row.channel.startswith(own_channel(""))
    still_open = [child for child in await list_children(tx, row.seq) if child.state not in TERMINAL]
    if any(child.state != State.WAITING for child in still_open):
        return False
    for child in still_open:
        if not await waits_for_others(tx, child.id):
            return False
    return True


async def cancel_children(database: Database, ids: Sequence[JobId], reason: str) -> None:
    """Cancel children whose results nobody wants any more, with all that they run."""
    for id in ids:
        await database.transact(cancel, id, reason=reason)
    while ids:
        if not await database.transact(cancel_family, limit=_FAMILY):
            break


async def cancel_started(ctx: JobContext, ids: Sequence[JobId], reason: str) -> None:
    """Cancel those of these children that were started; perhaps not all were."""
    meant = set(ids)
    there = await ctx.database.transact(list_children, ctx.lease.seq) if ids else []
    await cancel_children(ctx.database, [row.id for row in there if row.id in meant], reason)


# Admission: how many of the machines that a state launches may start.
#
# Hooks with `on_launch` say how many may be alive at once. Who is alive is counted, and who is admitted is written,
# in
# one transaction, so two launchers at once admit no more than one would. Who is refused is dropped, never queued. An
# execution whose worker has ended or was given up takes no place, and is cancelled: nobody waits for what it would
# say.


_LIVE = [state for state in State if state not in TERMINAL]
_IDLE = [state for state in _LIVE if state != State.RUNNING]


@dataclass(frozen=True, slots=True)
class LaunchLimit:
    """What `on_launch` returns: `most` machines may be alive in `queue`, with those that live `beside` it.

    The queue begins with `OWN_QUEUES`: only a process that is started for it takes what is in it.
    """

    queue: str
    most: int
    beside: tuple[str, ...] = ()  # the ids of executions that may be in no queue
    gone: Callable[[Sequence[str]], Collection[str]] | None = None  # which of these executions nobody plays any more

    def __post_init__(self) -> None:
        if not self.queue.startswith(OWN_QUEUES):
            raise UsageError(f"machines must be launched into a queue named {OWN_QUEUES}…; got {self.queue!r}.")


async def admit(
    tx: Transaction, lease: Lease, asked: LaunchLimit, jobs: Sequence[tuple[NewJob, Route]], step: str
) -> str:
    """Enqueue as many of these as may start; returns their ids, as JSON, and stores them as a step."""
    await _lock(tx, asked)
    await leases.hold(tx, lease)
    return await store_step(tx, lease, step, json.dumps(await _enqueue_some(tx, asked, jobs)))


async def enqueue_within_limit(tx: Transaction, asked: LaunchLimit, jobs: Sequence[tuple[NewJob, Route]]) -> list[str]:
    """Enqueue as many of these as may start, for somebody who has no lease; returns their ids."""
    await _lock(tx, asked)
    return await _enqueue_some(tx, asked, jobs)


async def _lock(tx: Transaction, asked: LaunchLimit) -> None:
    await lock_channel(tx, own_channel(f"launch {asked.queue}"))


async def _enqueue_some(tx: Transaction, asked: LaunchLimit, jobs: Sequence[tuple[NewJob, Route]]) -> list[str]:
    there = await launched(tx, asked.queue)
    silent = [str(row.id) for row in there if row.id not in asked.beside]
    gone = set() if asked.gone is None else set(asked.gone(silent))  # few, and read elsewhere: nothing waits for this
    alive = set(asked.beside) | {str(row.id) for row in there} - gone
    some = jobs[: max(0, asked.most - len(alive))]
    if some:
        await enqueue(tx, [job for job, _ in some], sorted({route for _, route in some}))
    await give_up(tx, [row for row in there if row.id in gone])
    return [job.id for job, _ in some]


async def give_up(tx: Transaction, rows: Sequence[JobRow]) -> None:
    """Cancel executions whose workers are gone. One that a process still plays is about to end by itself."""
    if rows:
        await cancel_these(tx, [row.seq for row in rows], _IDLE, reason="its worker has ended, or was given up")


async def launched(tx: Transaction, queue: str) -> list[JobRow]:
    """The executions that were launched into a queue and have not ended."""
    found: list[JobRow] = []
    for state in _LIVE:
        rows = await queries.list_jobs(tx, queries.JobFilters(state=state, queue=queue), limit=10_000)
        found += [row for row in rows if row.parent is None]
    return found
