"""Events of a run: what happened, in the past tense, each as a class to match on.

    async for event in run.stream():
        match event:
            case TextDelta(text=text): print(text, end="")
            case RunEnded(result=result): print(result.usage.cost)

`seq` numbers the events of a run without gap: give the last one you saw to `run.stream(after=…)` to go on from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from holdfast.results import Result


@dataclass(kw_only=True)
class Event:
    """The root of all. `at` is when it was stored, in microseconds UTC."""

    run: str = ""
    seq: int = 0
    at: int = 0


@dataclass(kw_only=True)
class RunCreated(Event):
    session_id: str = ""
    agent_name: str = ""
    run_mode: str = "streaming"
    parent_run_id: str | None = None
    depth: int = 0


@dataclass(kw_only=True)
class RunStateChanged(Event):
    state: str = ""
    previous_state: str | None = None
    session_id: str = ""
    agent_name: str = ""
    parent_run_id: str | None = None


@dataclass(kw_only=True)
class TurnStarted(Event):
    turn: int = 0
    model: str = ""


@dataclass(kw_only=True)
class TurnRestarted(Event):
    """Whatever was streamed of this turn is void: its worker died or the provider failed, and it starts again."""

    turn: int = 0
    attempt: int = 0


@dataclass(kw_only=True)
class TurnFailed(Event):
    turn: int = 0
    attempt: int = 0
    kind: str = ""
    message: str = ""


@dataclass(kw_only=True)
class TextDelta(Event):
    text: str = ""
    turn: int = 0
    index: int = 0


@dataclass(kw_only=True)
class ThinkingDelta(Event):
    text: str = ""
    turn: int = 0
    index: int = 0


@dataclass(kw_only=True)
class InputDelta(Event):
    """A piece of the JSON that the model is writing as a tool's arguments."""

    text: str = ""
    turn: int = 0
    index: int = 0


@dataclass(kw_only=True)
class TurnEnded(Event):
    turn: int = 0
    stop_reason: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cache_write_tokens: int = 0
    cache_read_tokens: int = 0
    cost_nano: int = 0


@dataclass(kw_only=True)
class ToolCalled(Event):
    name: str = ""
    input: Any = None
    call: str = ""
    turn: int = 0


@dataclass(kw_only=True)
class ToolEnded(Event):
    name: str = ""
    call: str = ""
    state: str = ""


@dataclass(kw_only=True)
class ToolsCompleted(Event):
    """Every call of the turn has ended; the run goes on."""


@dataclass(kw_only=True)
class RunEnded(Event):
    """The last event of a run. Streamed, it has the `result` of a completed run, and the `error` of any other."""

    state: str = ""
    result: Result[Any] | None = None
    error: str = ""
    error_type: str = ""


@dataclass(kw_only=True)
class UnknownEvent(Event):
    """Written by a newer release than this one."""

    type: str = ""
    data: Any = None


_CLASSES: Mapping[str, type[Event]] = {
    "run_created": RunCreated,
    "run_state": RunStateChanged,
    "turn_started": TurnStarted,
    "turn_restarted": TurnRestarted,
    "turn_failed": TurnFailed,
    "text_delta": TextDelta,
    "thinking_delta": ThinkingDelta,
    "input_delta": InputDelta,
    "turn_ended": TurnEnded,
    "tool_called": ToolCalled,
    "tool_ended": ToolEnded,
    "tools_complete": ToolsCompleted,
    "run_ended": RunEnded,
}
TYPES: Mapping[type[Event], str] = {kind: name for name, kind in _CLASSES.items()}


def wire(event: Event) -> tuple[str, dict[str, Any]]:
    """An event as it goes over a wire: its type, and its fields as JSON can have them."""
    if isinstance(event, UnknownEvent):
        return event.type, {"run": event.run, "seq": event.seq, "at": event.at, **dict(event.data or {})}
    data = {field.name: getattr(event, field.name) for field in fields(event)}
    if isinstance(event, RunEnded):
        data["result"] = None if event.result is None else event.result.as_json()
    return TYPES[type(event)], data


def event_of(run: str, seq: int, at: int, type: str, data: Mapping[str, Any]) -> Event:
    """A stored event as its class; fields that this release does not know are left out."""
    kind = _CLASSES.get(type)
    if kind is None:
        return UnknownEvent(run=run, seq=seq, at=at, type=type, data=data)
    known = {field.name for field in fields(kind)} - {"run", "seq", "at"}
    return kind(run=run, seq=seq, at=at, **{name: value for name, value in data.items() if name in known})
