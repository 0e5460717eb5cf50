"""Turns over a WebSocket: who may speak is decided here, what is said is the facade's conversation.

A socket is accepted before it is refused, so that its client reads the code that says why. A turn continues when its
socket is gone.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from holdfast.access.principals import Principal
from holdfast.app import core_of
from holdfast.errors import HoldfastError
from holdfast.facades.universal_agent.conversation import converse
from holdfast.facades.universal_agent.in_process import InProcessGateway
from holdfast.facades.universal_agent.protocol import CloseCode
from holdfast.http.api.answers import json_response
from holdfast.http.api.routes import Endpoint
from holdfast.http.gateway.recorded import RecordedGateway
from holdfast.http.gateway.routes import ROOT, narrowed
from holdfast.http.live.responses import SLOWEST_SEND
from holdfast.http.live.vigil import WatchedStream
from holdfast.http.security.denials import Denied
from holdfast.http.security.gate import Gate
from holdfast.http.security.roles import TABLE
from holdfast.kernel.bounds import Bounds, bound
from holdfast.shown_text import shown

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
        except Denied as problem:
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
    except Denied as problem:
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


def _code(problem: Denied, gate: Gate) -> int:
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
