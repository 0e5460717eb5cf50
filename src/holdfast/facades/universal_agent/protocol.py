"""The protocol between a gateway and its clients: paths, JSON bodies, WebSocket messages and close codes.

Both sides use it, and neither does any I/O here. A stream of one turn ends with `query_complete`, with an `error`, or
with a close code: a client that sees the connection end before must not take the turn for ended.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple, Protocol, cast
from urllib.parse import quote

from holdfast.agents.values import Inquiry
from holdfast.clock import Clock
from holdfast.errors import BadPayload, NotFound, UsageError
from holdfast.kernel import codec

# What this interface refuses, as errors that are Python's own `ValueError` too: its callers catch that one.


class UnknownSession(NotFound, ValueError):
    """No session has this id. Nothing is created in its place."""

    remedy = "Look at the list of sessions; create_session makes one."

    def __init__(self, session_id: str) -> None:
        super().__init__(f"Unknown session_id: {session_id}. create_session makes one.")


class BadName(UsageError, ValueError):
    """An id, an owner or a path that cannot be used as it is written."""


# What a gateway takes and gives: sessions, requests, events and results, with the document's names.
#
# A result is a success exactly when its turn had no event of type `error`.


Data = dict[str, Any]


class EventType(StrEnum):
    """What an event is about. One that this release does not know is read as a `status`."""

    TEXT = "text"
    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"
    THINKING = "thinking"
    STATUS = "status"
    HEARTBEAT = "heartbeat"
    AUTH_REQUIRED = "auth_required"
    ERROR = "error"
    SESSION_INFO = "session_info"
    ITERATION_END = "iteration_end"
    WORK_PRODUCT = "work_product"
    INPUT_REQUIRED = "input_required"
    INPUT_RESPONSE = "input_response"


@dataclass(frozen=True, slots=True)
class AgentEvent:
    """One thing that happened in a turn."""

    type: EventType
    data: Data = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GatewaySession:
    """A conversation of one user, and the folder in which its files are."""

    session_id: str
    user_id: str
    workspace_dir: str
    metadata: Data = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GatewaySessionSummary:
    """A session in a list; `status` is "active" or "closed"."""

    session_id: str
    workspace_dir: str
    status: str
    metadata: Data = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GatewayRequest:
    """What a user says.

    Of the metadata, `client_turn_id` (or `idempotency_key`) makes a repeated request one turn, `max_turns` limits how
    often the model is called for it, and `turn_timeout_seconds` how long it may take. `force_complex` is taken for the
    document's sake: every turn here is of the full kind.
    """

    user_input: str
    force_complex: bool = False
    metadata: Data = field(default_factory=dict)

    @property
    def turn_id(self) -> str | None:
        given = self.metadata.get("client_turn_id") or self.metadata.get("idempotency_key")
        return None if given is None else str(given)


@dataclass(frozen=True, slots=True)
class GatewayResult:
    """What a turn said, and how it went: `metadata["errors"]` are the messages of its errors."""

    response_text: str
    tool_calls: int = 0
    execution_time: float = 0.0
    code_execution_used: bool = False
    trace_id: str | None = None
    metadata: Data = field(default_factory=dict)

    @property
    def success(self) -> bool:
        """Whether the turn had no error."""
        return not self.metadata.get("errors")

    @property
    def execution_time_seconds(self) -> float:
        return self.execution_time


EventCallback = Callable[[AgentEvent], Awaitable[None]]


class Gateway(Protocol):
    """What both gateways can do."""

    async def create_session(
        self, user_id: str, workspace_dir: str | None = None, session_id: str | None = None
    ) -> GatewaySession: ...

    async def resume_session(self, session_id: str) -> GatewaySession: ...

    def execute(self, session: GatewaySession, request: GatewayRequest) -> AsyncIterator[AgentEvent]: ...

    async def run_query(
        self, session: GatewaySession, request: GatewayRequest, event_callback: EventCallback | None = None
    ) -> GatewayResult: ...

    async def list_sessions_async(self) -> list[GatewaySessionSummary]: ...

    async def resolve_input(self, session_id: str, input_id: str, response: str) -> bool: ...

    async def close_session(self, session_id: str) -> None: ...


async def collected(
    events: AsyncIterator[AgentEvent], clock: Clock, event_callback: EventCallback | None
) -> GatewayResult:
    """The result of a turn, made of its events. The text that the turn ended with counts, not the pieces before it:
    a turn that began again has pieces which are void."""
    began, pieces, tool_calls, errors = clock.monotonic(), "", 0, list[str]()
    end: Data = {}
    async with aclosing(cast(Any, events)):
        async for event in events:
            if event_callback is not None:
                await event_callback(event)
            match event.type:
                case EventType.TEXT:
                    pieces += str(event.data.get("text", ""))
                case EventType.TOOL_CALL:
                    tool_calls += 1
                case EventType.ERROR:
                    errors.append(str(event.data.get("message") or event.data.get("error") or "unknown error"))
                    end = event.data
                case EventType.ITERATION_END:
                    end = event.data
                case _:
                    pass
    return GatewayResult(
        response_text=str(end.get("response_text", pieces)),
        tool_calls=tool_calls,
        execution_time=clock.monotonic() - began,
        trace_id=end.get("run_id"),
        metadata={**end, "errors": errors},
    )


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
