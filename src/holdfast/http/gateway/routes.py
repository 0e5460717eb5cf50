"""Sessions and runs of the gateway over HTTP, in the words of its protocol. Turns go over a WebSocket: `streams`."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends
from pydantic import BaseModel
from starlette.requests import Request

from holdfast.errors import UsageError
from holdfast.facades.universal_agent import protocol
from holdfast.facades.universal_agent.in_process import InProcessGateway
from holdfast.http.api.routes import Routes
from holdfast.http.api.seen import Seen

ROOT = "/gateway/api/v1"
routes = Routes("gateway", ROOT)


class NewGatewaySession(BaseModel):
    """Whose session, where its files are, and its id; without an id the gateway chooses one."""

    user_id: str
    workspace_dir: str | None = None
    session_id: str | None = None


class Resuming(BaseModel):
    """A person's answer to what a turn asked; without `input_id`, to the one thing that it asks."""

    input_id: str | None = None
    response: str = "approve"


def narrowed(gateway: InProcessGateway, seen: Seen) -> InProcessGateway:
    """The gateway as this principal sees it."""
    return gateway.within(seen.tenant, seen.pinned, seen.principal.name)


async def gateway_of(request: Request) -> InProcessGateway:
    return narrowed(request.state.gateway, request.state.seen)


Served = Annotated[InProcessGateway, Depends(gateway_of)]


@routes.get("/sessions")
async def list_gateway_sessions(gateway: Served) -> dict[str, Any]:
    """List the newest sessions of the gateway."""
    return {"sessions": [protocol.summary_body(each) for each in await gateway.list_sessions_async()]}


@routes.post("/sessions", creates=True)
async def create_gateway_session(gateway: Served, new: NewGatewaySession) -> dict[str, Any]:
    """Make a session, or find the one that this user has in this workspace."""
    made = await gateway.create_session(new.user_id, new.workspace_dir or None, new.session_id or None)
    return protocol.session_body(made)


@routes.get("/sessions/{id}")
async def show_gateway_session(gateway: Served, id: str) -> dict[str, Any]:
    """Find a session in order to continue it. It changes nothing, and makes none."""
    return protocol.session_body(await gateway.resume_session(id))


@routes.delete("/sessions/{id}")
async def close_gateway_session(gateway: Served, id: str) -> dict[str, Any]:
    """Mark a session as closed. Its conversation stays, and its next turn opens it again."""
    await gateway.close_session(id)
    return {"session_id": id, "status": "closed"}


@routes.get("/sessions/{id}/pending")
async def list_gateway_pending(gateway: Served, id: str) -> dict[str, Any]:
    """List what the turns of a session ask people now."""
    return {"session_id": id, "pending": [protocol.pending_body(each) for each in await gateway.pending(id)]}


@routes.post("/sessions/{id}/resume")
async def resume_gateway_turn(gateway: Served, id: str, said: Resuming) -> dict[str, Any]:
    """Let a turn continue that waits for a person: "approve" approves, any other text denies or answers."""
    input_id = said.input_id
    if input_id is None:
        asked = await gateway.pending(id)
        if len(asked) != 1:
            raise UsageError(f"session {id} asks {len(asked)} things: say which with input_id.")
        input_id = asked[0].id
    return {"input_id": input_id, "accepted": await gateway.resolve_input(id, input_id, said.response)}


@routes.get("/runs/{id}")
async def show_gateway_run(gateway: Served, id: str) -> dict[str, Any]:
    """Show a turn, or a run that was queued for a pool, by its id."""
    return await gateway.runs.get(id)


@routes.get("/runs/{id}/attempts")
async def list_gateway_attempts(gateway: Served, id: str) -> dict[str, Any]:
    """List the attempts of a turn or a queued run that have ended."""
    return {"run_id": id, "attempts": await gateway.runs.attempts(id)}
