"""The protocol between a gateway and its clients: paths, JSON bodies, WebSocket messages and close codes.

Both sides use it, and neither does any I/O here. A stream of one turn ends with `query_complete`, with an `error`, or
with a close code: a client that sees the connection end before must not take the turn for ended.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple
from urllib.parse import quote

from holdfast.agents.people.inquiry import Inquiry
from holdfast.errors import BadPayload, UsageError
from holdfast.facades.universal_agent.gateway_values import (
    AgentEvent,
    Data,
    EventType,
    GatewayRequest,
    GatewaySession,
    GatewaySessionSummary,
)
from holdfast.kernel import codec

SESSIONS = "/api/v1/sessions"
CONNECTED, QUERY_COMPLETE, PONG, ERROR, STATUS = "connected", "query_complete", "pong", "error", "status"
BAD_MESSAGE, BUSY = "bad_message", "busy"
_EVENTS = {each.value: each for each in EventType}
LARGEST = 4_194_304  # characters of one message; a prompt with its metadata is far smaller


class CloseCode(IntEnum):
    """Why the server closed a stream."""

    BAD_ID = 4000
    DENIED = 4003
    UNKNOWN = 4004
    UNAUTHENTICATED = 4401
    DISABLED = 4403
    INTERNAL = 1011


def session_path(session_id: str) -> str:
    return f"{SESSIONS}/{quote(session_id, safe='')}"


def stream_path(session_id: str) -> str:
    return f"{session_path(session_id)}/stream"


def token_headers(token: str | None) -> dict[str, str]:
    """A token as clients send it, in the three headers that servers of this protocol know."""
    if not token:
        return {}
    return {"authorization": f"Bearer {token}", "x-ua-internal-token": token, "x-ua-ops-token": token}


class BadMessage(UsageError):
    """A message that is not of this protocol."""


class BadRequest(BadMessage):
    """A message that would begin a turn, and does not say which."""


@dataclass(frozen=True, slots=True)
class Execute:
    """Begin a turn."""

    request: GatewayRequest


@dataclass(frozen=True, slots=True)
class CancelTurn:
    """End the turn that is under way."""


@dataclass(frozen=True, slots=True)
class InputResponse:
    """A person's answer to what a turn asked."""

    input_id: str
    response: str


@dataclass(frozen=True, slots=True)
class Ping:
    """Is anybody there?"""


ClientMessage = Execute | CancelTurn | InputResponse | Ping


class ServerMessage(NamedTuple):
    type: str
    data: Data


def read_client(text: str) -> ClientMessage:
    """A client's message, or `BadMessage`."""
    message = _object(text)
    if message.get("type") in ("execute", "query"):
        try:
            return Execute(_request(_mapping(message.get("data"), "data")))
        except BadMessage as problem:
            raise BadRequest(str(problem)) from None
    data = _mapping(message.get("data"), "data")
    match message.get("type"):
        case "cancel":
            return CancelTurn()
        case "input_response":
            response = data.get("response", data.get("value", ""))
            return InputResponse(
                str(data.get("input_id", "")), response if isinstance(response, str) else str(response)
            )
        case "ping":
            return Ping()
        case other:
            raise BadMessage(f"messages are execute, query, cancel, input_response and ping, not {str(other)[:80]!r}.")


def execute(request: GatewayRequest) -> str:
    """The message that begins a turn."""
    data: Data = {
        "user_input": request.user_input,
        "force_complex": request.force_complex,
        "metadata": request.metadata,
    }
    if request.turn_id is not None:
        data["client_turn_id"] = request.turn_id
    return checked(message("execute", data))


def checked(text: str) -> str:
    """A message that is about to be sent, or `BadMessage` when nobody would read it."""
    if len(text) > LARGEST:
        raise BadMessage(f"a message has at most {LARGEST:,} characters, not {len(text):,}.")
    return text


def input_response(input_id: str, response: str) -> str:
    return checked(message("input_response", {"input_id": input_id, "response": response}))


def message(type: str, data: Mapping[str, Any] | None = None) -> str:
    """Any message, as it goes over the wire."""
    return json.dumps({"type": type, "data": dict(data or {})}, ensure_ascii=False, separators=(",", ":"), default=str)


def read_server(text: str | bytes) -> ServerMessage:
    """A server's message, or `BadMessage`."""
    given = _object(text)
    type = given.get("type")
    if not isinstance(type, str):
        raise BadMessage("a message of the gateway has no type.")
    data = given.get("data")
    return ServerMessage(type, data if isinstance(data, dict) else {})


def event_of(said: ServerMessage) -> AgentEvent:
    return AgentEvent(_EVENTS.get(said.type, EventType.STATUS), said.data)


def session_body(session: GatewaySession) -> Data:
    return {
        "session_id": session.session_id,
        "user_id": session.user_id,
        "workspace_dir": session.workspace_dir,
        "metadata": session.metadata,
    }


def read_session(body: Mapping[str, Any]) -> GatewaySession:
    return GatewaySession(
        _text(body, "session_id"),
        str(body.get("user_id", "")),
        str(body.get("workspace_dir", "")),
        _mapping(body.get("metadata"), "metadata"),
    )


def summary_body(summary: GatewaySessionSummary) -> Data:
    return {
        "session_id": summary.session_id,
        "workspace_dir": summary.workspace_dir,
        "status": summary.status,
        "metadata": summary.metadata,
    }


def read_summary(body: Mapping[str, Any]) -> GatewaySessionSummary:
    return GatewaySessionSummary(
        _text(body, "session_id"),
        str(body.get("workspace_dir", "")),
        str(body.get("status", "unknown")),
        _mapping(body.get("metadata"), "metadata"),
    )


def pending_body(inquiry: Inquiry) -> Data:
    """What a person is asked, as it is listed."""
    call = None if inquiry.call is None else {"name": inquiry.call.name, "input": inquiry.call.input}
    return {
        "input_id": inquiry.id,
        "category": inquiry.kind,
        "run_id": inquiry.run_id,
        "question": inquiry.data.get("question") or inquiry.data.get("reason") or "",
        "call": call,
        "digest": inquiry.digest,
        "asked_at": inquiry.asked_at.isoformat(),
    }


def _request(data: Mapping[str, Any]) -> GatewayRequest:
    metadata = _mapping(data.get("metadata"), "metadata")
    if data.get("client_turn_id") is not None:
        metadata["client_turn_id"] = _text(data, "client_turn_id")
    said = data.get("user_input", data.get("text"))
    if not isinstance(said, str):
        raise BadMessage("execute needs user_input, a text.")
    return GatewayRequest(said, bool(data.get("force_complex", False)), metadata)


def _object(text: str | bytes) -> dict[str, Any]:
    if len(text) > LARGEST:
        raise BadMessage(f"a message has at most {LARGEST:,} characters.")
    try:
        given = codec.decode_foreign(text, what="a message")
    except BadPayload as problem:
        raise BadMessage(str(problem)) from None
    if not isinstance(given, dict):
        raise BadMessage("a message is a JSON object.")
    return given


def _text(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str) or not value:
        raise BadMessage(f"{name} is a text that is not empty.")
    return value


def _mapping(value: object, name: str) -> Data:
    if value is not None and not isinstance(value, Mapping):
        raise BadMessage(f"{name} is an object.")
    return dict(value or {})
