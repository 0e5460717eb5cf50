"""Machines and their executions over HTTP: which there are, where each is, start, cancel and resume."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from holdfast.app import core_of, machines_of
from holdfast.errors import NotFound
from holdfast.http.api.routes import Paged, Routes
from holdfast.http.api.runs import Body, ReasonBody
from holdfast.http.api.seen import PrincipalScope, RequestScope
from holdfast.kernel.ids import JobId, is_id
from holdfast.machines import api
from holdfast.machines.api import ExecutionDetail, ExecutionHandle, ExecutionRecord, execution_job, resume_execution
from holdfast.machines.layer import KIND
from holdfast.machines.stepping import MachineEvent
from holdfast.values import Page
from holdfast.values.jobs import JobRecord

machines = Routes("machines")
routes = Routes("executions")

_LOOK = 10_000


class NewExecution(Body):
    """An execution to start. `execution_id` names it: the same id and input is the same execution."""

    machine: str
    input: dict[str, Any] = Field(default_factory=dict)
    execution_id: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    priority: int = 100
    metadata: dict[str, Any] | None = None


@machines.get("/machines")
async def list_machines(seen: RequestScope) -> list[dict[str, Any]]:
    """List the machines of the program that serves this, with their states."""
    found = machines_of(seen.hf).declared
    return [{"name": name, "states": list(each.graph.states)} for name, each in sorted(found.items())]


@routes.get("/executions")
async def list_executions(
    seen: RequestScope, page: Paged, machine: str | None = None, state: str | None = None, tenant: str | None = None
) -> Page[ExecutionRecord]:
    """List executions, newest first. A page may be short and still have a `next`."""
    kind = None if machine is None else f"{KIND}{machine}"
    whose = seen.chosen(tenant)
    found = await seen.hf.jobs.list(state=state, kind=kind, tenant=whose, **page.place, look=_LOOK)
    core = core_of(seen.hf)
    shown = [await api.listed(core, job) for job in found if api.is_execution(job)]
    return Page(shown, next=found.next, looked=found.looked)


@routes.post("/executions", creates=True)
async def start_execution(seen: RequestScope, new: NewExecution) -> ExecutionDetail:
    """Start an execution of a machine of this program."""
    machine = machines_of(seen.hf).named(new.machine)
    named = None if new.execution_id is None else _own(seen, new.execution_id)
    made = await machine.enqueue(
        new.input, execution_id=named, tenant=seen.tenant or "", priority=new.priority, metadata=new.metadata
    )
    return await _detailed(seen, await made.refresh())


def _own(seen: PrincipalScope, name: str) -> str:
    """What an execution is called in the store: a tenant's name for one is no other's."""
    return name if seen.tenant is None else f"{seen.tenant}/{name}"


async def _find(seen: PrincipalScope, id: str) -> JobRecord:
    """By its id, or by the name that it was started with."""
    job = execution_job(id if is_id(id) else _own(seen, id))
    try:
        found = await (seen.hf.jobs if seen.part is None else seen.part.jobs).get(job)
    except NotFound:
        found = None
    if found is None or not api.is_execution(found):
        raise NotFound(f"there is no execution {id[:80]} in this database.")
    return found


async def _detailed(seen: PrincipalScope, job: JobRecord) -> ExecutionDetail:
    """All of an execution, as this principal may know it."""
    found = await api.detailed(core_of(seen.hf), job)
    if seen.sees_fleet:
        return found
    return replace(found, why=await seen.why(job.id))


@routes.get("/executions/{id}")
async def show_execution(seen: RequestScope, id: str) -> ExecutionDetail:
    """Show one execution: where it is, its context, its result, and why it does not continue."""
    return await _detailed(seen, await _find(seen, id))


@routes.get("/executions/{id}/events")
async def list_execution_events(seen: RequestScope, id: str) -> list[MachineEvent]:
    """List what has happened to an execution so far."""
    found = await _execution(seen, id)
    return await found.history()


@routes.post("/executions/{id}/cancel")
async def cancel_execution(seen: RequestScope, id: str, why: ReasonBody | None = None) -> ExecutionDetail:
    """Cancel an execution and what it runs."""
    found = await _execution(seen, id)
    await found.cancel((why or ReasonBody()).reason)
    return await _detailed(seen, await found.refresh())


@routes.post("/executions/{id}/resume", creates=True)
async def continue_execution(seen: RequestScope, id: str) -> ExecutionDetail:
    """Continue an execution that failed or was cancelled, as a new one that begins where it was."""
    core, job = core_of(seen.hf), await _find(seen, id)
    again = await resume_execution(core, JobId(job.id), None, job.queue)
    return await _detailed(seen, await again.refresh())


async def _execution(seen: PrincipalScope, id: str) -> ExecutionHandle[Any]:
    return ExecutionHandle(core_of(seen.hf), JobId((await _find(seen, id)).id))
