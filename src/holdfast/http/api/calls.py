"""Tool calls over HTTP."""

from __future__ import annotations

from datetime import datetime

from holdfast.agents.values.runs import CallRecord
from holdfast.errors import NotFound
from holdfast.http.api.paging import Count, Paged
from holdfast.http.api.routes import Routes
from holdfast.http.api.seen import Sight
from holdfast.values import Page

routes = Routes("calls")


@routes.get("/calls")
async def list_tool_calls(
    seen: Sight,
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
async def show_call(seen: Sight, id: str) -> CallRecord:
    """Show one tool call."""
    call = await seen.runs.call(id)
    if seen.pinned and not await seen.shows((await seen.runs.get(call.run)).session):
        raise NotFound(f"there is no tool call {id} in this database.")
    return call
