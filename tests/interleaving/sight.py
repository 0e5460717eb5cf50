"""What can be seen of a store through its reading operations, and answers, in a form in which two can be compared.

Jobs and workers are named by their ids: their numbers depend on who was first to ask the sequence for one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.queries import list_attempts, list_jobs
from holdfast.kernel.queues import list_lanes, list_queues
from holdfast.kernel.schedules import list_schedules
from holdfast.kernel.states import State
from holdfast.kernel.waiting import list_steps
from holdfast.kernel.why import why
from holdfast.kernel.workers import list_duties, list_workers

Sight = Mapping[str, Any]
More = Callable[[Transaction], Awaitable[dict[str, Any]]]

# Who is held back by a lane is written down when a claim meets it, not before; whether it ever runs is judged apart.
_LAZY = frozenset({"gate", "opens_at", "blocked", "charged_at"})
_NUMBERED_JOB = frozenset({"seq", "parent", "job"})
_NUMBERED_WORKER = frozenset({"worker", "holder"})


class Names:
    """Numbers of jobs and workers, and what to call them."""

    def __init__(self) -> None:
        self.jobs: dict[int, str] = {}
        self.workers: dict[int, str] = {}

    def of(self, field: str, value: Any) -> Any:
        if not isinstance(value, int):
            return value
        if field in _NUMBERED_JOB:
            return self.jobs.get(value, f"job {value}")
        if field in _NUMBERED_WORKER:
            return self.workers.get(value, f"worker {value}")
        return value


@reading
async def look_at(tx: Transaction, names: Names, more: More) -> Sight:
    """All that the kernel tells of its jobs, lanes, queues, schedules, workers and duties."""
    jobs = await list_jobs(tx, limit=1_000)
    workers = await list_workers(tx, all=True, limit=1_000)
    names.jobs |= {job.seq: job.id for job in jobs}
    names.workers |= {worker.seq: worker.id for worker in workers}
    seen = await more(tx)
    for job in jobs:
        about = _row(job, names, leave={"seq"})
        if job.token:  # nobody has run the others
            about["attempts made"] = [_row(row, names, leave={"job"}) for row in await list_attempts(tx, job.seq)]
            about["steps"] = sorted((step.name, step.result) for step in await list_steps(tx, job.seq))
        if job.state == State.PENDING:  # of the others it says no more than is seen
            about["why"] = sorted(reason.gate for reason in await why(tx, job.id))
        seen[f"job {job.id}"] = about
    for worker in workers:
        seen[f"worker {worker.id} {worker.seq if worker.stopped_at else ''}"] = _row(worker, names, leave={"seq"})
    for lane in await list_lanes(tx):
        seen[f"lane {lane.name}"] = _row(lane, names)
    for queue in await list_queues(tx):
        seen[f"queue {queue.name}"] = _row(queue, names)
    for schedule in await list_schedules(tx):
        seen[f"schedule {schedule.name}"] = _row(schedule, names)
    for duty in await list_duties(tx):
        seen[f"duty {duty.name}"] = _row(duty, names)
    return seen


def _row(row: Any, names: Names, leave: Iterable[str] = ()) -> dict[str, Any]:
    left = _LAZY.union(leave)
    return {field: names.of(field, value) for field, value in row._asdict().items() if field not in left}


def plain(answer: Any, names: Names) -> Any:
    """An answer without numbers and without an order that nobody promises."""
    if isinstance(answer, HoldfastError):
        return f"refused: {type(answer).__name__}"
    if hasattr(answer, "_asdict"):
        fields = {f: names.of(f, plain(v, names)) for f, v in answer._asdict().items() if f != "hinted"}
        return {"is": type(answer).__name__, **fields}
    if isinstance(answer, tuple):
        return tuple(plain(part, names) for part in answer)
    if isinstance(answer, list | set | frozenset):
        return sorted((plain(part, names) for part in answer), key=repr)
    return answer


def together(first: Any, second: Any) -> Any:
    """The answers to one call made twice, as one: what the first skipped, the second may have found."""
    if isinstance(first, list) and isinstance(second, list):
        return sorted(first + [part for part in second if part not in first], key=repr)
    if isinstance(first, dict) and isinstance(second, dict) and first.keys() == second.keys():
        return {field: together(first[field], second[field]) for field in first}
    if isinstance(first, tuple) and isinstance(second, tuple) and len(first) == len(second):
        return tuple(together(a, b) for a, b in zip(first, second, strict=True))
    if isinstance(first, bool) and isinstance(second, bool):
        return first or second
    if isinstance(first, int) and isinstance(second, int):
        return first + second
    return first if first == second else (first, second)


def differences(expected: Any, found: Any, where: str = "") -> list[str]:
    """Each place where the two differ, in words."""
    if isinstance(expected, dict) and isinstance(found, dict):
        told: list[str] = []
        for key in sorted(expected.keys() | found.keys(), key=repr):
            told += differences(expected.get(key, "nothing"), found.get(key, "nothing"), f"{where} {key}".strip())
        return told
    return [] if expected == found else [f"{where}: {expected!r} one after the other, {found!r} interleaved"]


def unnamed(sight: Sight) -> Sight:
    """The same without who it was: how many jobs of a kind are in a state, and everything that is not a job."""
    jobs = Counter((about["kind"], about["state"]) for name, about in sight.items() if name.startswith("job "))
    return {**{name: about for name, about in sight.items() if not name.startswith("job ")}, "jobs": dict(jobs)}


def leases_counted(answer: Any) -> Any:
    if isinstance(answer, list) and all(isinstance(part, dict) and part["is"] == "Lease" for part in answer):
        return f"{len(answer)} leases"
    return answer
