"""Events of a run: what happened, in the past tense, each as a class to match on.

    async for event in run.stream():
        match event:
            case TextDelta(text=text): print(text, end="")
            case RunEnded(result=result): print(result.usage.cost)

`seq` numbers the events of a run without gap: give the last one you saw to `run.stream(after=…)` to continue from
there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from holdfast.client.results import Result
from holdfast.errors import NotUnderstood
from holdfast.kernel import codec
from holdfast.values import as_json, moment

_BEGINNING = moment(0)


@dataclass(kw_only=True)
class Event:
    """The base class of all events. `at` is when the event was stored, in UTC."""

    run: str = ""
    seq: int = 0
    at: datetime = _BEGINNING


@dataclass(kw_only=True)
class RunCreated(Event):
    """A run was accepted. A run below another has `parent_run_id`, and `depth` is how far below the root it is."""

    session_id: str = ""
    agent_name: str = ""
    agent_id: str = ""
    run_mode: str = "streaming"
    parent_run_id: str | None = None
    depth: int = 0


@dataclass(kw_only=True)
class RunStateChanged(Event):
    """The run has moved from `previous_state` to `state`."""

    state: str = ""
    previous_state: str | None = None
    session_id: str = ""
    agent_name: str = ""
    agent_id: str = ""
    parent_run_id: str | None = None


@dataclass(kw_only=True)
class ModeChosen(Event):
    """How the run, or a turn of it, is asked: "streaming" or "batch", and why."""

    mode: str = ""
    reason: str = ""


@dataclass(kw_only=True)
class TurnStarted(Event):
    """The run is about to ask `model` for its turn."""

    turn: int = 0
    model: str = ""


@dataclass(kw_only=True)
class TurnRestarted(Event):
    """Discard what was streamed of this turn: its worker died or the provider failed, and the turn starts again."""

    turn: int = 0
    attempt: int = 0


@dataclass(kw_only=True)
class TurnFailed(Event):
    """An attempt to ask the model failed. `kind` is that of the `ModelFailure`; the run may try again."""

    turn: int = 0
    attempt: int = 0
    kind: str = ""
    message: str = ""


@dataclass(kw_only=True)
class TextDelta(Event):
    """A piece of the model's text. `index` is the number of the block in the answer."""

    text: str = ""
    turn: int = 0
    index: int = 0


@dataclass(kw_only=True)
class ThinkingDelta(Event):
    """A piece of what the model thinks. `index` is the number of the block in the answer."""

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
    """The run switched to another model, after a final failure or a refusal; its next turn asks that one.

    `cause` is "refused", "lane" if a closed lane was not waited for, or the kind of the `ModelFailure`; `reason` says
    it in words, which name lanes and what the provider said.
    """

    from_model: str = ""
    to_model: str = ""
    cause: str = ""
    reason: str = ""


@dataclass(kw_only=True)
class TurnEnded(Event):
    """The model's answer is stored, with what it used. `cost_nano` is its price in billionths of a USD."""

    turn: int = 0
    stop_reason: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cache_write_tokens: int = 0
    cache_read_tokens: int = 0
    cost_nano: int = 0


@dataclass(kw_only=True)
class AnswerRepaired(Event):
    """Calls of the turn's answer had no id, the id of another call, or no name; each entry says which.

    The answer is kept: such a call has an id of ours (`id`, in the place of `was`), and one without a name is answered
    with an error.
    """

    turn: int = 0
    calls: Any = ()


@dataclass(kw_only=True)
class ResultsRefused(Event):
    """The provider refused what tools had returned, for example a picture it cannot read. The model reads that instead.

    `calls` are the model's ids of those calls (`tool_use_id`), `message` is what the provider said.
    """

    turn: int = 0
    calls: Any = ()
    message: str = ""


@dataclass(kw_only=True)
class MessagesRetired(Event):
    """These messages, by their ids, are kept but never sent again: the provider refused them, or a person did."""

    messages: Any = ()
    reason: str = ""


@dataclass(kw_only=True)
class ToolCalled(Event):
    """The model asks for a tool call. `call` is its id."""

    name: str = ""
    input: Any = None
    call: str = ""
    turn: int = 0


@dataclass(kw_only=True)
class ToolEnded(Event):
    """A tool call has ended; `state` says how."""

    name: str = ""
    call: str = ""
    state: str = ""


@dataclass(kw_only=True)
class ToolsCompleted(Event):
    """Every call of the turn has ended; the run continues."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallView:
    """A call of a tool, as it is shown to a person."""

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
    changed: dict[str, Any] | None = None  # by a person, before it ran: what the model had "asked" for, and "by" whom


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
    """Before its first call: the history leaves too little room, and `model` summarises it now."""

    compaction: str = ""
    tokens_before: int = 0
    model: str = ""


@dataclass(kw_only=True)
class Compacted(Event):
    """A summary replaced `removed` messages, or placeholders replaced `pruned` outputs of tools."""

    compaction: str = ""
    tokens_before: int = 0
    tokens_after: int = 0
    removed: int = 0
    pruned: int = 0
    model: str = ""


@dataclass(kw_only=True)
class EventsPruned(Event):
    """Retention has removed the events `first` to `last`. This event is not stored: a reader gets it in their place."""

    first: int = 0
    last: int = 0


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
    "answer_repaired": AnswerRepaired,
    "results_refused": ResultsRefused,
    "messages_retired": MessagesRetired,
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
    "events_pruned": EventsPruned,
}
TYPES: Mapping[type[Event], str] = {kind: name for name, kind in _CLASSES.items()}


def wire(event: Event) -> tuple[str, dict[str, Any]]:
    """An event as JSON, which streams and `--json` have alike: its type, and its fields."""
    if isinstance(event, UnknownEvent):
        data = event.data if isinstance(event.data, Mapping) else {"data": event.data}
        return event.type, {"run": event.run, "seq": event.seq, "at": as_json(event.at), **data}
    return TYPES[type(event)], as_json(event)


def event_of(run: str, seq: int, at: int, type: str, data: Mapping[str, Any]) -> Event:
    """A stored event as its class; fields that this release does not know are left out."""
    kind = _CLASSES.get(type)
    place: dict[str, Any] = {"run": run, "seq": seq, "at": moment(at)}
    unknown = UnknownEvent(**place, type=type, data=data)
    if kind is None or not isinstance(data, Mapping):
        return unknown
    try:
        return codec.read(kind, {**data, **place}, what=f"event {seq} of run {run}")
    except NotUnderstood:
        return unknown
