"""Admission: how many of the machines that a state launches may start.

Hooks with `on_launch` say how many may be alive at once. Who is alive is counted, and who is admitted is written, in
one transaction, so two launchers at once admit no more than one would. Who is refused is dropped, never queued. An
execution whose worker has ended or was given up takes no place, and is cancelled: nobody waits for what it would say.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from holdfast.errors import UsageError
from holdfast.kernel import leases, queries
from holdfast.kernel.cancel import cancel_these
from holdfast.kernel.database import Transaction
from holdfast.kernel.enqueue import enqueue
from holdfast.kernel.rows import JobRow, Lease, NewJob, Route
from holdfast.kernel.states import TERMINAL, State
from holdfast.kernel.waiting import lock_channel, own_channel, store_step
from holdfast.machines.orders import OWN_QUEUES

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
            raise UsageError(f"machines are launched into a queue {OWN_QUEUES}…, not {self.queue!r}.")


async def admit(
    tx: Transaction, lease: Lease, asked: LaunchLimit, jobs: Sequence[tuple[NewJob, Route]], step: str
) -> str:
    """Enqueue as many of these as may start; returns their ids, as JSON, and stores them as a step."""
    await _lock(tx, asked)
    await leases.hold(tx, lease)
    return await store_step(tx, lease, step, json.dumps(await _enqueue_some(tx, asked, jobs)))


async def let_in(tx: Transaction, asked: LaunchLimit, jobs: Sequence[tuple[NewJob, Route]]) -> list[str]:
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
