"""Executions of machines as they stand in the store: what commands print and the web answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from holdfast.agents.core import AgentsCore
from holdfast.kernel.ids import JobId
from holdfast.machines.api import ExecutionHandle, stored_order
from holdfast.machines.orders import KIND, LAYER
from holdfast.values.jobs import JobRecord, ReasonRecord
from holdfast.values.rows import Stored


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionRecord:
    """An execution: `state` is that of its job, `at` the state of the machine it is in, `step` how many it has done."""

    id: str
    machine: str
    tenant: str
    state: str
    at: str | None
    step: int | None
    created_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionDetail:
    """One execution with what it was given and has made, and why it does not continue."""

    id: str
    machine: str
    state: str
    at: str | None
    step: int | None
    parent: str | None
    input: Any
    context: Any
    result: Stored
    error: Stored
    why: Sequence[ReasonRecord]


def is_execution(job: JobRecord) -> bool:
    return job.layer == LAYER


async def listed(core: AgentsCore, job: JobRecord) -> ExecutionRecord:
    place = await ExecutionHandle[Any](core, JobId(job.id)).place()
    return ExecutionRecord(
        id=job.id,
        machine=job.kind.removeprefix(KIND),
        tenant=job.tenant,
        state=job.state,
        at=None if place is None else place.state,
        step=None if place is None else place.step,
        created_at=job.created_at,
        finished_at=job.finished_at,
    )


async def detailed(core: AgentsCore, job: JobRecord) -> ExecutionDetail:
    """All of one execution; `UsageError` when the job is something else."""
    execution: ExecutionHandle[Any] = ExecutionHandle(core, JobId(job.id))
    order, _ = await stored_order(core, execution.id)
    place = await execution.place()
    return ExecutionDetail(
        id=job.id,
        machine=order.machine,
        state=job.state,
        at=None if place is None else place.state,
        step=None if place is None else place.step,
        parent=order.parent,
        input=order.input,
        context=None if place is None else place.context,
        result=job.result,
        error=job.error,
        why=await execution.why(),
    )
