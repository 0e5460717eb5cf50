"""A gateway whose changes are written into the audit: what a WebSocket asks for is a change as any other."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from datetime import timedelta
from typing import Annotated, Any, TypeVar, cast

from fastapi import Depends, FastAPI
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from holdfast.access.audit import Audit
from holdfast.access.principals import Principal
from holdfast.app import core_of
from holdfast.errors import HoldfastError, UsageError
from holdfast.facades.universal_agent import protocol
from holdfast.facades.universal_agent.conversation import converse
from holdfast.facades.universal_agent.in_process import InProcessGateway
from holdfast.facades.universal_agent.protocol import AgentEvent, CloseCode, GatewayRequest, GatewaySession
from holdfast.http.api.answers import json_response
from holdfast.http.api.problems import status_of
from holdfast.http.api.routes import Endpoint, Routes
from holdfast.http.api.seen import PrincipalScope
from holdfast.http.live.responses import SLOWEST_SEND, WatchedStream
from holdfast.http.security.checks import RequestDenied
from holdfast.http.security.gate import Gate
from holdfast.http.security.roles import TABLE
from holdfast.kernel.database import Bounds, bound
from holdfast.observe import without_audit
from holdfast.text import shown

T = TypeVar("T")


class RecordedGateway:
    def __init__(self, gateway: InProcessGateway, audit: Audit, by: Principal, path: str) -> None:
        self._gateway = gateway
        self._audit = audit
        self._by = by
        self._path = path

    async def resume_session(self, session_id: str) -> GatewaySession:
        return await self._gateway.resume_session(session_id)

    async def execute(
        self, session: GatewaySession, request: GatewayRequest, *, repeated_within: timedelta | None = None
    ) -> AsyncIterator[AgentEvent]:
        """The turn; its outcome in the audit is whether it was admitted."""
        said = hashlib.sha256(request.user_input.encode(errors="replace")).hexdigest()
        turn = self._gateway.execute(session, request, repeated_within=repeated_within)
        async with aclosing(cast(Any, turn)) as events:

            async def begin() -> AgentEvent:
                return cast(AgentEvent, await anext(events))

            yield await self._recorded("execute", begin, {"sha256": said, "client_turn_id": request.turn_id})
            async for event in events:
                yield event

    async def cancel(self, session_id: str) -> int:
        return await self._recorded("cancel", lambda: self._gateway.cancel(session_id), {})

    async def resolve_input(self, session_id: str, input_id: str, response: str) -> bool:
        def resolve() -> Awaitable[bool]:
            return self._gateway.resolve_input(session_id, input_id, response)

        return await self._recorded("input_response", resolve, {"input_id": input_id})

    async def _recorded(self, message: str, change: Callable[[], Awaitable[T]], detail: Mapping[str, Any]) -> T:
        action = f"WS {message}"
        intent = await self._audit.add(self._by, action, self._path, phase="intent", detail=detail)
        status = 500
        try:
            with without_audit():
                result = await change()
            status = 200
        except HoldfastError as problem:
            status = status_of(problem)
            raise
        finally:
            await self._audit.add(self._by, action, self._path, phase="outcome", about=intent, status=status)
        return result


# Sessions and runs of the gateway over HTTP, in the words of its protocol. Turns go over a WebSocket: `streams`.


ROOT = "/gateway/api/v1"
routes = Routes("gateway", ROOT)


class NewGatewaySession(BaseModel):
    """Whose session, where its files are, and its id; without an id the gateway chooses one."""

    user_id: str
    workspace_dir: str | None = None
    session_id: str | None = None


class ResumeBody(BaseModel):
    """A person's answer to what a turn asked; without `input_id`, to the one thing that it asks."""

    input_id: str | None = None
    response: str = "approve"


def narrowed(gateway: InProcessGateway, seen: PrincipalScope) -> InProcessGateway:
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
async def resume_gateway_turn(gateway: Served, id: str, said: ResumeBody) -> dict[str, Any]:
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


# Turns over a WebSocket: who may speak is decided here, what is said is the facade's conversation.
#
# A socket is accepted before it is refused, so that its client reads the code that says why. A turn continues when
# its
# socket is gone.


log = logging.getLogger("holdfast.http")

NOT_A_TEXT, LATER = 1003, 1013  # of the WebSocket standard: data of the wrong kind, try again later


class Socket:
    """A WebSocket as a conversation needs it. Who takes more than five seconds for a message is let go."""

    def __init__(self, socket: WebSocket, gate: Gate, name: str) -> None:
        self._socket = socket
        self._gate = gate
        self._name = name

    async def accept(self) -> None:
        """It is open already."""

    async def receive(self) -> str | None:
        try:
            text = await self._socket.receive_text()
            self._gate.rate.take(self._name)
        except (WebSocketDisconnect, RuntimeError):  # gone, or closed by us
            return None
        except KeyError:
            await self.close(NOT_A_TEXT, "messages are texts")
            return None
        except RequestDenied as problem:
            await self.close(LATER, str(problem))
            return None
        return text

    async def send(self, text: str) -> None:
        try:
            async with asyncio.timeout(SLOWEST_SEND):
                await self._socket.send_text(text)
        except (WebSocketDisconnect, RuntimeError, TimeoutError):
            await self.close(LATER, "too slow")
            raise ConnectionResetError("the reader is gone, or too slow") from None

    async def close(self, code: int, reason: str) -> None:
        await _close(self._socket, code, reason)


async def stream_turns(socket: WebSocket, gate: Gate, gateway: InProcessGateway) -> None:
    """Say something in a session, and hear what comes of it. A turn that is under way is heard on by its id."""
    await socket.accept()
    try:
        principal = await _admitted(socket, gate)
        part = narrowed(gateway, gate.seen(principal))
        recorded = RecordedGateway(part, gate.hf.access.audit, principal, socket.url.path)
        await _watched(socket, gate, principal, recorded)
    except RequestDenied as problem:
        await _close(socket, _code(problem, gate), str(problem))
    except HoldfastError as problem:
        log.warning("a stream ended: %s", shown(problem))
        await _close(socket, CloseCode.INTERNAL, "internal error")
    except Exception:  # the edge of a connection
        log.exception("a stream of %s broke", shown(socket.url.path))
        await _close(socket, CloseCode.INTERNAL, "internal error")


STREAM = Endpoint("gateway", "WS", "/sessions/{id}/stream", stream_turns, root=ROOT)


async def _admitted(socket: WebSocket, gate: Gate) -> Principal:
    principal = await gate.admit(socket, TABLE[STREAM.name])
    gate.check_change(socket)
    return principal


def _code(problem: RequestDenied, gate: Gate) -> int:
    """The close code for a status; what is switched off for everybody has its own."""
    if problem.status == 403 and gate.options.read_only:
        return CloseCode.DISABLED
    return {401: CloseCode.UNAUTHENTICATED, 404: CloseCode.UNKNOWN, 429: LATER}.get(problem.status, CloseCode.DENIED)


async def _watched(socket: WebSocket, gate: Gate, principal: Principal, part: RecordedGateway) -> None:
    """Converse until the client leaves, or may no longer be here."""
    clock, id = core_of(gate.hf).ports.clock, str(socket.path_params["id"])
    tenant = gate.tenant_of(principal)
    bounds = None if tenant is None else Bounds(reads=False, tenant=tenant)
    watched: WatchedStream = socket.state.watched
    with gate.live.counts.one(watched.name), gate.live.watch(watched) as dismissed:
        with bound(bounds):
            talking = asyncio.create_task(converse(part, id, Socket(socket, gate, watched.name), clock))
        over: asyncio.Future[Any] = asyncio.ensure_future(dismissed.wait())
        try:
            await asyncio.wait({talking, over}, return_when=asyncio.FIRST_COMPLETED)
            if talking.done():
                talking.result()
            else:
                await _close(socket, CloseCode.UNAUTHENTICATED, "no longer allowed")
        finally:
            for each in (talking, over):
                each.cancel()
            await asyncio.gather(talking, over, return_exceptions=True)


async def _close(socket: WebSocket, code: int, reason: str) -> None:
    if WebSocketState.DISCONNECTED in (socket.application_state, socket.client_state):
        return
    try:
        async with asyncio.timeout(SLOWEST_SEND):
            await socket.close(code, reason.encode()[:120].decode(errors="ignore"))
    except (WebSocketDisconnect, RuntimeError, OSError):
        log.debug("a client had left before its socket was closed")


def add_gateway(app: FastAPI, gate: Gate, gateway: InProcessGateway) -> None:
    async def stream(socket: WebSocket) -> None:
        await stream_turns(socket, gate, gateway)

    async def healthy(_: Request) -> Response:
        """As /readyz: whether the database answers, for everybody."""
        if await gate.readiness.is_ready():
            return json_response({"status": "healthy"})
        return json_response({"status": "unhealthy"}, 503)

    app.router.add_websocket_route(f"{ROOT}/sessions/{{id:path}}/stream", stream)
    app.router.add_route(f"{ROOT}/health", healthy, methods=["GET"], include_in_schema=False)
