"""Admission: how many of the machines that a state launches may start.

Hooks with `on_launch` say how many may be alive at once. Who is alive is counted, and who is admitted is written, in
one transaction, so two launchers at once admit no more than one would. Who is refused is dropped, never queued.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.kernel import leases, queries
from holdfast.kernel.database import Transaction
from holdfast.kernel.enqueue import enqueue
from holdfast.kernel.rows import Lease, NewJob, Route
from holdfast.kernel.states import TERMINAL, State
from holdfast.kernel.waiting import lock_channel, own_channel, store_step

_LIVE = [state for state in State if state not in TERMINAL]


@dataclass(frozen=True, slots=True)
class Admission:
    """What `on_launch` returns: `most` machines may be alive in `queue`, with those that live `beside` it."""

    queue: str
    most: int
    beside: tuple[str, ...] = ()  # the ids of executions that may be in no queue


async def admit(
    tx: Transaction, lease: Lease, asked: Admission, jobs: Sequence[tuple[NewJob, Route]], step: str
) -> str:
    """Enqueue as many of these as may start; returns their ids, as JSON, and stores them as a step."""
    await lock_channel(tx, own_channel(f"launch {asked.queue}"))
    await leases.hold(tx, lease)
    alive = set(asked.beside) | set(await launched(tx, asked.queue))
    let_in = jobs[: max(0, asked.most - len(alive))]
    if let_in:
        await enqueue(tx, [job for job, _ in let_in], sorted({route for _, route in let_in}))
    return await store_step(tx, lease, step, json.dumps([job.id for job, _ in let_in]))


async def launched(tx: Transaction, queue: str) -> list[str]:
    """The executions that were launched into a queue and have not ended."""
    found: list[str] = []
    for state in _LIVE:
        rows = await queries.list_jobs(tx, state=state, queue=queue, limit=10_000)
        found += [str(row.id) for row in rows if row.parent is None]
    return found
