"""The gateway elsewhere: a client of the protocol, over HTTP for sessions and a WebSocket for each turn.

A turn has ended only when the server says so. A connection that ends before raises `GatewayUnavailable`: the turn may
still run, and the same `client_turn_id` asks for it again without running it twice.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast.clock import Ports
from holdfast.errors import GatewayUnavailable, MissingExtra, SessionBusy, UsageError
from holdfast.facades.universal_agent import protocol
from holdfast.facades.universal_agent.protocol import (
    AgentEvent,
    BadName,
    CloseCode,
    Data,
    EventCallback,
    GatewayRequest,
    GatewayResult,
    GatewaySession,
    GatewaySessionSummary,
    UnknownSession,
    collected,
)
from holdfast.kernel import codec

if TYPE_CHECKING:
    import httpx2
    from websockets.asyncio.client import ClientConnection

TOKEN_VARIABLE = "HOLDFAST_GATEWAY_TOKEN"
_REFUSED = {
    CloseCode.DENIED: "does not allow this session to you",
    CloseCode.UNAUTHENTICATED: "does not accept the token: give ExternalGateway(base_url=…, token=…) or "
    f"WorkerConfig(gateway_token=…), or set {TOKEN_VARIABLE}",
    CloseCode.DISABLED: "has its streams switched off",
}


class ExternalGateway:
    """A client of a gateway. `base_url` is its address, `token` what it wants to be shown; without one, that of the
    environment, HOLDFAST_GATEWAY_TOKEN.

    `timeout` limits one answer over HTTP and the opening of a stream, not a turn.
    """

    def __init__(self, base_url: str, token: str | None = None, *, timeout: float = 30.0) -> None:
        if not str(base_url).startswith(("http://", "https://")):
            raise UsageError("base_url begins with http:// or https://.")
        self._base_url = base_url.rstrip("/")
        self._headers = protocol.token_headers(token or os.environ.get(TOKEN_VARIABLE))
        self._timeout = timeout
        self._ports = Ports()

    async def create_session(
        self, user_id: str, workspace_dir: str | None = None, session_id: str | None = None
    ) -> GatewaySession:
        asked = {"user_id": user_id, "workspace_dir": workspace_dir, "session_id": session_id}
        body = {name: value for name, value in asked.items() if value is not None}
        return protocol.read_session(await self._ask("POST", protocol.SESSIONS, body))

    async def resume_session(self, session_id: str) -> GatewaySession:
        """A session that is there; `UnknownSession`, a `ValueError`, when there is none."""
        return protocol.read_session(await self._ask("GET", protocol.session_path(session_id), unknown=session_id))

    async def close_session(self, session_id: str) -> None:
        await self._ask("DELETE", protocol.session_path(session_id), unknown=session_id)

    async def list_sessions_async(self) -> list[GatewaySessionSummary]:
        return _summaries(await self._ask("GET", protocol.SESSIONS))

    def list_sessions(self) -> list[GatewaySessionSummary]:
        """`list_sessions_async`, for code that cannot await it."""
        httpx2 = _http()
        with httpx2.Client(**self._client_options()) as client:
            try:
                return _summaries(self._answered(client.get(protocol.SESSIONS)))
            except httpx2.TransportError as problem:
                raise self._unreached(problem) from problem

    async def execute(self, session: GatewaySession, request: GatewayRequest) -> AsyncIterator[AgentEvent]:
        """The events of one turn. An event of type `error` is the last one, and so is `query_complete`.

        A request without an id gets one here: each call is a turn of its own, also with the same words.
        """
        if request.turn_id is None:
            named = {**request.metadata, "client_turn_id": f"{self._ports.random.getrandbits(128):032x}"}
            request = replace(request, metadata=named)
        asked = protocol.execute(request)
        async with await self._open(session.session_id) as stream:
            await self._send(stream, session.session_id, asked)
            while True:
                said = await self._receive(stream, session.session_id)
                if said.type == protocol.QUERY_COMPLETE:
                    return
                yield protocol.event_of(said)
                if said.type == protocol.ERROR:
                    return

    async def run_query(
        self, session: GatewaySession, request: GatewayRequest, event_callback: EventCallback | None = None
    ) -> GatewayResult:
        return await collected(self.execute(session, request), self._ports.clock, event_callback)

    async def resolve_input(self, session_id: str, input_id: str, response: str) -> bool:
        """Give a person's answer to what a turn asked, over a stream of its own."""
        answer = protocol.input_response(input_id, response)
        async with await self._open(session_id) as stream:
            await self._send(stream, session_id, answer)
            while True:
                said = await self._receive(stream, session_id)
                if said.type == "input_response" and said.data.get("input_id") == input_id:
                    return bool(said.data.get("accepted"))

    async def cancel(self, session_id: str) -> int:
        """Cancel every turn of a session that has not ended; how many they were."""
        async with await self._open(session_id) as stream:
            await self._send(stream, session_id, protocol.message("cancel"))
            while True:
                said = await self._receive(stream, session_id)
                if said.data.get("status") == "cancelling":
                    return int(said.data.get("turns", 0))

    async def close(self) -> None:
        """Nothing stays open between calls."""

    async def _open(self, session_id: str) -> ClientConnection:
        websockets = _websockets()
        url = "ws" + self._base_url.removeprefix("http") + protocol.stream_path(session_id)
        try:
            stream: ClientConnection = await websockets.asyncio.client.connect(
                url, additional_headers=self._headers, open_timeout=self._timeout, max_size=None
            )
        except websockets.exceptions.InvalidStatus as refused:
            self._refuse(refused.response.status_code, session_id)
        except (OSError, TimeoutError, websockets.exceptions.WebSocketException) as problem:
            raise self._unreached(problem) from problem
        try:
            said = await self._receive(stream, session_id)
            if said.type != protocol.CONNECTED:
                raise GatewayUnavailable(f"gateway {self._base_url} began a stream with {said.type!r}.")
        except BaseException:
            await stream.close()
            raise
        return stream

    async def _send(self, stream: ClientConnection, session_id: str, text: str) -> None:
        try:
            await stream.send(text)
        except _websockets().exceptions.ConnectionClosed as closed:
            self._cut(closed, session_id)

    async def _receive(self, stream: ClientConnection, session_id: str) -> protocol.ServerMessage:
        try:
            text = await stream.recv()
        except _websockets().exceptions.ConnectionClosed as closed:
            self._cut(closed, session_id)
        said = protocol.read_server(text)
        if said.type == protocol.STATUS:
            self._heed(said.data, session_id)
        return said

    def _heed(self, status: Data, session_id: str) -> None:
        """Raise what says that nothing more comes of our message."""
        if status.get("status") == protocol.BAD_MESSAGE:
            raise UsageError(f"gateway {self._base_url} did not understand us: {str(status.get('message'))[:500]}")
        if status.get("status") == protocol.BUSY:
            raise SessionBusy(f"gateway {self._base_url} has another turn of session {session_id}: ask later.")

    def _cut(self, closed: Any, session_id: str) -> NoReturn:
        """A stream ended before its turn: say by what."""
        code, reason = (closed.rcvd.code, closed.rcvd.reason) if closed.rcvd is not None else (1006, "")
        if code == CloseCode.UNKNOWN:
            raise UnknownSession(session_id) from None
        if code == CloseCode.BAD_ID:
            raise UsageError(f"gateway {self._base_url} does not take {session_id[:80]!r} for a session id.") from None
        if code in _REFUSED:
            raise UsageError(f"gateway {self._base_url} {_REFUSED[CloseCode(code)]}.") from None
        raise GatewayUnavailable(
            f"gateway {self._base_url} closed the stream of session {session_id} before the turn had ended (code {code}"
            f"{f', {reason}' if reason else ''}). The turn may still run: ask again with its client_turn_id."
        ) from None

    def _refuse(self, status: int, session_id: str) -> NoReturn:
        if status == 404:
            raise UnknownSession(session_id) from None
        if status in (401, 403):
            raise UsageError(f"gateway {self._base_url} {_REFUSED[CloseCode.UNAUTHENTICATED]}.") from None
        raise GatewayUnavailable(f"gateway {self._base_url} answered {status} to the opening of a stream.") from None

    async def _ask(self, method: str, path: str, body: Data | None = None, *, unknown: str | None = None) -> Data:
        httpx2 = _http()
        async with httpx2.AsyncClient(**self._client_options()) as client:
            try:
                return self._answered(await client.request(method, path, json=body), unknown)
            except httpx2.TransportError as problem:
                raise self._unreached(problem) from problem

    def _client_options(self) -> dict[str, Any]:
        return {"base_url": self._base_url, "timeout": self._timeout, "headers": self._headers}

    def _answered(self, answer: httpx2.Response, unknown: str | None = None) -> Data:
        status = answer.status_code
        if status == 404 and unknown is not None:
            raise UnknownSession(unknown)
        if status in (401, 403):
            raise UsageError(f"gateway {self._base_url} {_REFUSED[CloseCode.UNAUTHENTICATED]}.")
        if status >= 500:
            raise GatewayUnavailable(f"gateway {self._base_url} answered {status}: {answer.text[:500]}")
        try:
            given = codec.loads_utf8(answer.content) if answer.content else {}
        except (ValueError, RecursionError):
            given = None
        if status >= 400:
            named = isinstance(given, dict) and given.get("error") == BadName.__name__
            refused = BadName if named else UsageError
            raise refused(f"gateway {self._base_url} refused the call ({status}): {answer.text[:500]}")
        if not isinstance(given, dict):
            raise GatewayUnavailable(f"gateway {self._base_url} answered {status} with something else than JSON.")
        return given

    def _unreached(self, problem: Exception) -> GatewayUnavailable:
        return GatewayUnavailable(
            f"gateway {self._base_url} cannot be reached: {str(problem) or type(problem).__name__}."
        )


def _summaries(body: Data) -> list[GatewaySessionSummary]:
    return [protocol.read_summary(each) for each in body.get("sessions", [])]


def _http() -> Any:
    try:
        import httpx2
    except ImportError:
        raise MissingExtra("gateway", "a gateway elsewhere") from None
    return httpx2


def _websockets() -> Any:
    try:
        import websockets.asyncio.client
        import websockets.exceptions
    except ImportError:
        raise MissingExtra("gateway", "a gateway elsewhere") from None
    return websockets
