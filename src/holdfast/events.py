"""Events of a run: what happened, in the past tense, each as a class to match on.

    async for event in run.stream():
        match event:
            case TextDelta(text=text): print(text, end="")
            case RunEnded(result=result): print(result.usage.cost)

`seq` numbers the events of a run without gap: give the last one you saw to `run.stream(after=…)` to go on from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
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
class ModeChosen(Event):
    """How the run, or a turn of it, is asked: "streaming" or "batch", and why."""

    mode: str = ""
    reason: str = ""


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
class ModelChanged(Event):
    """The run gave its model up, for a failure that was final or for a refusal; its next turn asks another."""

    from_model: str = ""
    to_model: str = ""
    reason: str = ""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class CallView:
    """A call of a tool as a person is shown it."""

    name: str
    input: Any
    id: str = ""
    turn: int = 0


@dataclass(kw_only=True)
class ApprovalRequested(Event):
    """A call waits for a person: to be approved before it runs, or reviewed because it may have (`kind`).

    Approve it with `hf.approve(event.call.id, digest=event.digest)`.
    """

    call: CallView = CallView(name="", input=None)
    digest: str = ""
    inquiry: str = ""
    kind: str = "approval"
    reason: str = ""


@dataclass(kw_only=True)
class QuestionAsked(Event):
    """The model asks a person; `hf.answer(event.inquiry, "…")`."""

    question: str = ""
    choices: list[str] | None = None
    inquiry: str = ""
    digest: str = ""


@dataclass(kw_only=True)
class InputRequested(Event):
    """The run waits for a person as a whole: it was cut off ("continuation"), or has reached a limit."""

    kind: str = ""
    reason: str = ""
    inquiry: str = ""


@dataclass(kw_only=True)
class InputGiven(Event):
    """Somebody has decided; `verdict` is "approved", "denied", "answered" or "expired"."""

    inquiry: str = ""
    kind: str = ""
    verdict: str = ""
    by: str = ""


@dataclass(kw_only=True)
class RunEnded(Event):
    """The last event of a run. Streamed, it has the `result` of a completed run, and the `error` of any other."""

    state: str = ""
    result: Result[Any] | None = None
    error: str = ""
    error_type: str = ""


@dataclass(kw_only=True)
class CompactionStarted(Event):
    """Before its first call: what was said so far would not leave room, and is being summarised by `model`."""

    compaction: str = ""
    tokens_before: int = 0
    model: str = ""


@dataclass(kw_only=True)
class Compacted(Event):
    """`removed` messages have made room for a summary, or `pruned` outputs of tools for placeholders."""

    compaction: str = ""
    tokens_before: int = 0
    tokens_after: int = 0
    removed: int = 0
    pruned: int = 0
    model: str = ""


@dataclass(kw_only=True)
class UnknownEvent(Event):
    """Written by a newer release than this one."""

    type: str = ""
    data: Any = None


_CLASSES: Mapping[str, type[Event]] = {
    "run_created": RunCreated,
    "run_state": RunStateChanged,
    "mode_chosen": ModeChosen,
    "turn_started": TurnStarted,
    "turn_restarted": TurnRestarted,
    "turn_failed": TurnFailed,
    "model_changed": ModelChanged,
    "text_delta": TextDelta,
    "thinking_delta": ThinkingDelta,
    "input_delta": InputDelta,
    "turn_ended": TurnEnded,
    "tool_called": ToolCalled,
    "tool_ended": ToolEnded,
    "tools_complete": ToolsCompleted,
    "approval_requested": ApprovalRequested,
    "question_asked": QuestionAsked,
    "input_requested": InputRequested,
    "input_given": InputGiven,
    "run_ended": RunEnded,
    "compaction_started": CompactionStarted,
    "compacted": Compacted,
}
TYPES: Mapping[type[Event], str] = {kind: name for name, kind in _CLASSES.items()}


def wire(event: Event) -> tuple[str, dict[str, Any]]:
    """An event as it goes over a wire: its type, and its fields as JSON can have them."""
    if isinstance(event, UnknownEvent):
        return event.type, {"run": event.run, "seq": event.seq, "at": event.at, **dict(event.data or {})}
    data = {field.name: getattr(event, field.name) for field in fields(event)}
    if isinstance(event, ApprovalRequested):
        data["call"] = asdict(event.call)
    if isinstance(event, RunEnded):
        data["result"] = None if event.result is None else event.result.as_json()
    return TYPES[type(event)], data


def event_of(run: str, seq: int, at: int, type: str, data: Mapping[str, Any]) -> Event:
    """A stored event as its class; fields that this release does not know are left out."""
    kind = _CLASSES.get(type)
    if kind is None:
        return UnknownEvent(run=run, seq=seq, at=at, type=type, data=data)
    known = {field.name for field in fields(kind)} - {"run", "seq", "at"}
    given = {name: value for name, value in data.items() if name in known}
    if kind is ApprovalRequested:
        given["call"] = CallView(**given["call"])
    return kind(run=run, seq=seq, at=at, **given)
