"""Agents over HTTP: those that are stored, their versions, and new ones from plain values."""

from __future__ import annotations

import json
from typing import Any

from pydantic import Field
from starlette.responses import Response

from holdfast.agents.values import AgentRecord, VersionRecord
from holdfast.errors import UsageError
from holdfast.http.api.routes import MOST_COUNTED, Count, Paged, Routes
from holdfast.http.api.runs import Body
from holdfast.http.api.seen import RequestScope
from holdfast.values import Page

routes = Routes("agents")


class NewAgent(Body):
    """An agent of plain values: `fields` are those of `hf.agents.create`, its tools are names."""

    name: str
    model: str
    description: str = ""
    metadata: dict[str, Any] | None = None
    fields: dict[str, Any] = Field(default_factory=dict)


class ChangedAgent(Body):
    description: str | None = None
    fields: dict[str, Any] = Field(default_factory=dict)


@routes.get("/agents")
async def list_agents(
    seen: RequestScope,
    page: Paged,
    name: str | None = None,
    metadata: str | None = None,
    tenant: str | None = None,
    count: Count = False,
) -> Page[AgentRecord]:
    """List agents by name. `metadata` is a JSON object that theirs contain."""
    try:
        wanted = json.loads(metadata or "{}")
    except (ValueError, RecursionError):
        raise UsageError("metadata is a JSON object.") from None
    whose = seen.chosen(tenant)
    found = await seen.agents.list(name=name, metadata=wanted, tenant=whose, **page.place)
    if count:
        found.total = await seen.agents.count(name=name, metadata=wanted, tenant=whose, cap=MOST_COUNTED)
    return found


@routes.post("/agents", creates=True)
async def create_agent(seen: RequestScope, new: NewAgent) -> AgentRecord:
    """Write an agent; whichever worker has the code of its tools serves it."""
    fields: Any = {**_checked(new.fields, NewAgent), "model": new.model}
    return await seen.agents.create(new.name, metadata=new.metadata, description=new.description, **fields)


@routes.get("/agents/{id}")
async def show_agent(seen: RequestScope, id: str) -> AgentRecord:
    """Show one agent, by its id or its name."""
    return await seen.agents.get(id)


@routes.patch("/agents/{id}")
async def update_agent(seen: RequestScope, id: str, change: ChangedAgent) -> AgentRecord:
    """Write a new version of an agent; runs that have begun keep theirs."""
    fields: Any = _checked(change.fields, ChangedAgent)
    return await seen.agents.update(id, description=change.description, **fields)


def _checked(fields: dict[str, Any], body: type[Body]) -> dict[str, Any]:
    """What stands beside the fields is none of them."""
    if beside := sorted(fields.keys() & (body.model_fields.keys() | {"self", "id"})):
        raise UsageError(f"{beside[0]} is not one of the fields of an agent: it stands beside them.")
    return fields


@routes.delete("/agents/{id}")
async def delete_agent(seen: RequestScope, id: str) -> Response:
    """Remove an agent that no run has used."""
    await seen.agents.delete(id)
    return Response(status_code=204)


@routes.get("/agents/{id}/versions")
async def list_versions(seen: RequestScope, id: str, page: Paged) -> Page[VersionRecord]:
    """List the versions of an agent, newest first."""
    return await seen.agents.versions(id, **page.place)
