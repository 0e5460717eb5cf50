"""The events of a run on a terminal, as they come."""

from __future__ import annotations

from typing import Any

import click

from holdfast.events import (
    ApprovalRequested,
    Event,
    InputGiven,
    InputRequested,
    ModeChosen,
    QuestionAsked,
    RunEnded,
    TextDelta,
    ThinkingDelta,
    ToolCalled,
    ToolEnded,
    TurnFailed,
    TurnRestarted,
    wire,
)
from holdfast.kernel import codec
from holdfast.shown_text import escaped, escaped_lines


class Speaker:
    """Writes text as it is said, and one line for everything else that a person wants to know."""

    def __init__(self, *, thinking: bool = False, where: str = "", here: bool = False) -> None:
        """`where` is part of the commands that it names. `here`: who listens is asked what people are asked."""
        self._thinking = thinking
        self._where = where
        self._here = here
        self._in_line = False

    def hear(self, event: Event) -> None:
        match event:
            case TextDelta(text=text):
                click.echo(self._lines(text), nl=False)
                self._in_line = not text.endswith("\n")
            case ThinkingDelta(text=text) if self._thinking:
                click.echo(click.style(self._lines(text), dim=True), nl=False)
                self._in_line = True
            case ToolCalled(name=name, input=given):
                shown = codec.encode(given, what="an input", cap=1 << 28)
                self._line(f"[{name} {shown if len(shown) < 120 else shown[:117] + '...'}]")
            case ToolEnded(name=name, state=state) if state != "completed":
                self._line(f"[{name} {state}]")
            case TurnRestarted(turn=turn):
                self._line(f"(turn {turn} starts again, because its worker died or the provider failed)")
            case TurnFailed(message=message):
                self._line(f"(the provider failed: {message})")
            case RunEnded(state=state, result=result):
                if result is None:
                    self._line(f"({state})")
                elif result.outcome != "answered":
                    self._line(f"({result.outcome}{f': {result.limit}' if result.limit else ''})")
                self.end_line()
            case _:
                asked = isinstance(event, ApprovalRequested | QuestionAsked | InputRequested)
                if not (asked and self._here) and (note := _about_people(event, self._where)) is not None:
                    self._line(note)

    def end_line(self) -> None:
        if self._in_line:
            click.echo()
            self._in_line = False

    def _line(self, text: str) -> None:
        self.end_line()
        click.secho(escaped(text), dim=True)

    @staticmethod
    def _lines(text: str) -> str:
        return escaped_lines(text)


def _about_people(event: Event, where: str) -> str | None:
    match event:
        case ApprovalRequested(call=call, inquiry=inquiry, kind=kind):
            shown = codec.encode(call.input, what="an input", cap=1 << 28)
            return f"(waits for a person: {kind} of {call.name} {shown}; holdfast runs approve {inquiry}{where})"
        case QuestionAsked(question=question, inquiry=inquiry):
            return f"(asks a person: {question}; holdfast runs answer {inquiry} TEXT{where})"
        case InputRequested(reason=reason, inquiry=inquiry):
            return f"(waits for a person: {reason}; holdfast runs approve {inquiry}{where})"
        case InputGiven(verdict=verdict, by=by):
            return f"({verdict}{f' by {by}' if by else ''})"
        case ModeChosen(mode=mode, reason=reason):
            return f"({mode}: {reason})"
        case _:
            return None


def event_dict(event: Event) -> dict[str, Any]:
    """An event for programs."""
    type, data = wire(event)
    return {"type": type, **data}
