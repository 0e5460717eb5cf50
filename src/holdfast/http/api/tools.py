"""Tools, pools and tenants over HTTP: what models may call and who serves it, who is served, and by how many."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from holdfast.agents.overviews import ToolRecord, list_tools, workers_of
from holdfast.agents.retention.ages import Ages
from holdfast.agents.values import CallRecord
from holdfast.app import core_of
from holdfast.errors import NotFound
from holdfast.http.api.routes import MOST, Count, Paged, Routes
from holdfast.http.api.seen import RequestScope
from holdfast.pools.stats import PoolStats
from holdfast.values import Page, as_json, part_of

tools = Routes("tools")
pools = Routes("pools")
tenants = Routes("tenants")


@tools.get("/tools", first=MOST)
async def list_offered_tools(seen: RequestScope, page: Paged, tenant: str | None = None) -> Page[ToolRecord]:
    """List the tools of stored agents by name, with their schemas and the agents that offer them."""
    found = await core_of(seen.hf).runtime().transact(list_tools, seen.chosen(tenant))
    return part_of(found, page.limit, page.after, lambda tool: tool.name)


@tools.get("/tools/{name}")
async def show_tool(seen: RequestScope, name: str) -> dict[str, Any]:
    """Show one tool, and the live workers that can run it."""
    runtime = core_of(seen.hf).runtime()
    found = {each.name: each for each in await runtime.transact(list_tools, seen.tenant)}.get(name)
    if found is None:
        raise NotFound(f"no stored agent has a tool {name[:80]}.")
    workers = await runtime.transact(workers_of, found, await runtime.absent_workers())
    serving: dict[str, Any] = {"workers": workers} if seen.sees_fleet else {"served": bool(workers)}
    return {**as_json(found), **serving}


@pools.get("/pools", first=MOST)
async def list_pools(seen: RequestScope, page: Paged, all: bool = False) -> Page[PoolStats]:
    """List pools by name: those that somebody keeps or that have workers; `all`: those of the past too."""
    return await seen.hf.pools.list(all=all, **page.place)


@pools.get("/pools/{name}")
async def show_pool(seen: RequestScope, name: str) -> PoolStats:
    """Show one pool with its workers, how many it should have, and why it cannot start them."""
    return await seen.hf.pools.get(name)


@tenants.get("/tenants")
async def list_tenants(seen: RequestScope, page: Paged) -> Page[dict[str, Any]]:
    """List the tenants that have sessions, by name."""
    return await seen.hf.sessions.tenants(**page.place)


@tenants.get("/tenants/{id}")
async def show_tenant(seen: RequestScope, id: str) -> dict[str, Any]:
    """Show how long the data of a tenant is kept, and what it spent in the last thirty days."""
    tenant = seen.hf.tenant(id)
    ages: Ages = await tenant.retention()
    return {"id": tenant.id, "retention": as_json(ages), "used": as_json(list(await tenant.used()))}


# Tool calls over HTTP.


routes = Routes("calls")


@routes.get("/calls")
async def list_tool_calls(
    seen: RequestScope,
    page: Paged,
    name: str | None = None,
    state: str | None = None,
    since: datetime | None = None,
    tenant: str | None = None,
    count: Count = False,
) -> Page[CallRecord]:
    """List tool calls that have ended, the last first; with `state` pending or running, open ones."""
    whose = seen.chosen(tenant)
    found = await seen.runs.calls(name=name, state=state, since=since, tenant=whose, **page.place)
    if count:
        found.total = await seen.runs.count_calls(name=name, state=state, since=since, tenant=whose)
    return found


@routes.get("/calls/{id}")
async def show_call(seen: RequestScope, id: str) -> CallRecord:
    """Show one tool call."""
    call = await seen.runs.call(id)
    if seen.pinned and not await seen.shows((await seen.runs.get(call.run)).session):
        raise NotFound(f"there is no tool call {id} in this database.")
    return call
