"""A small ASGI app that serves a gateway: routing and transport alone, all else is the protocol's."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import unquote

from holdfast.errors import UsageError
from holdfast.facades.universal_agent import protocol
from holdfast.facades.universal_agent.conversation import converse
from holdfast.facades.universal_agent.in_process import InProcessGateway
from holdfast.facades.universal_agent.protocol import CloseCode
from holdfast.facades.universal_agent.refusals import UnknownSession

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Socket:
    """A WebSocket of ASGI as a channel. `leave_after` cuts it after so many messages of the server."""

    def __init__(self, receive: Receive, send: Send, leave_after: int | None) -> None:
        self._receive = receive
        self._send = send
        self._left = leave_after

    async def accept(self) -> None:
        await self._receive()
        await self._send({"type": "websocket.accept"})

    async def receive(self) -> str | None:
        message = await self._receive()
        return message.get("text") if message["type"] == "websocket.receive" else None

    async def send(self, text: str) -> None:
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                await self.close(1012, "restarting")
                raise ConnectionResetError("cut by the test")
        await self._send({"type": "websocket.send", "text": text})

    async def close(self, code: int, reason: str) -> None:
        await self._send({"type": "websocket.close", "code": code, "reason": reason})


class GatewayApp:
    """`token`: what every caller must bring. `leave_after`: after how many messages streams are cut off."""

    def __init__(self, gateway: InProcessGateway, *, token: str | None = None) -> None:
        self._gateway = gateway
        self._token = token
        self.leave_after: int | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
        allowed = self._token is None or headers.get("authorization") == f"Bearer {self._token}"
        path = scope["raw_path"].decode().partition("?")[0]
        if scope["type"] == "websocket":
            await self._stream(path, Socket(receive, send, self.leave_after), allowed=allowed)
            return
        status, body = (401, {"error": "unauthenticated"}) if not allowed else await self._answer(scope, path, receive)
        text = json.dumps(body, default=str).encode()
        await send(
            {"type": "http.response.start", "status": status, "headers": [(b"content-type", b"application/json")]}
        )
        await send({"type": "http.response.body", "body": text})

    async def _stream(self, path: str, socket: Socket, *, allowed: bool) -> None:
        session_id = unquote(path.removeprefix(protocol.SESSIONS + "/").removesuffix("/stream"))
        if allowed:
            await converse(self._gateway, session_id, socket)
        else:
            await socket.accept()
            await socket.close(CloseCode.UNAUTHENTICATED, "no token")

    async def _answer(self, scope: Scope, path: str, receive: Receive) -> tuple[int, Any]:
        try:
            return 200, await self._called(scope["method"], path, await _body(receive))
        except UnknownSession as problem:
            return 404, {"error": str(problem)}
        except UsageError as problem:
            return 400, {"error": str(problem)}

    async def _called(self, method: str, path: str, body: bytes) -> Any:
        session_id = unquote(path.removeprefix(protocol.SESSIONS).removeprefix("/"))
        match method, session_id:
            case "POST", "":
                user, workspace, id = protocol.new_session(body)
                return protocol.session_body(await self._gateway.create_session(user, workspace, id))
            case "GET", "":
                found = await self._gateway.list_sessions_async()
                return {"sessions": [protocol.summary_body(each) for each in found]}
            case "DELETE", _:
                await self._gateway.close_session(session_id)
                return {}
            case _:
                return protocol.session_body(await self._gateway.resume_session(session_id))


async def _body(receive: Receive) -> bytes:
    body: bytes = b""
    while True:
        message = await receive()
        body += bytes(message.get("body", b""))
        if not message.get("more_body"):
            return body
