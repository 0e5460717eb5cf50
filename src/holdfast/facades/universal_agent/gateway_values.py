"""What a gateway takes and gives: sessions, requests, events and results, with the document's names.

A result is a success exactly when its turn had no event of type `error`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, cast

from holdfast.clock import Clock

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
