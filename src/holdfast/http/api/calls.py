"""Tool calls over HTTP."""

from __future__ import annotations

from holdfast.agents.values.runs import CallRecord
from holdfast.http.api.routes import Routes
from holdfast.http.api.seen import Sight

routes = Routes("calls")


@routes.get("/calls/{id}")
async def show_call(seen: Sight, id: str) -> CallRecord:
    """Show one tool call."""
    call = await seen.runs.call(id)
    await seen.run(call.run)
    return call
