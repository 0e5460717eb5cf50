"""Steps: what a scripted model says, as values, and as they are written in JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.models.protocol import Wire


@dataclass(frozen=True, slots=True)
class Think:
    text: str


@dataclass(frozen=True, slots=True)
class Say:
    text: str


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    input: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Raw:
    body: Wire


Inside = Think | Say | Call | Raw


@dataclass(frozen=True, slots=True)
class Turn:
    """One whole answer: its parts in order, why it stops, and what it used; without `usage`, something plausible."""

    parts: tuple[Inside, ...]
    stop_reason: str = "end_turn"
    category: str | None = None
    usage: Wire | None = None


Part = Inside | Turn


def say(text: str) -> Say:
    """Answer with a text."""
    return Say(text)


def call(name: str, /, **input: Any) -> Call:
    """Ask for a tool call."""
    return Call(name, input)


def calls(*parts: Inside) -> Turn:
    """Several tool calls in one turn; texts may stand before them."""
    return Turn(parts, stop_of(parts))


def block(type: str, /, **body: Any) -> Raw:
    """A block as the provider writes it: a server tool's use or result, or one that nobody knows."""
    return Raw({"type": type, **body})


def ends(stop_reason: str, *parts: Inside) -> Turn:
    """A turn that stops for this reason: `pause_turn`, `model_context_window_exceeded` …"""
    return Turn(parts, stop_reason)


def think(text: str) -> Think:
    """Think before the next step, in the same turn."""
    return Think(text)


def refuse(category: str | None = None) -> Turn:
    """Decline: an answer like any other to HTTP, with `stop_reason: refusal`."""
    return Turn((), "refusal", category)


def truncate(text: str) -> Turn:
    """Be cut off by max_tokens after this text."""
    return Turn((Say(text),), "max_tokens")


def whole(part: Part) -> Turn:
    """A part as the turn that it makes alone."""
    return part if isinstance(part, Turn) else Turn((part,), stop_of((part,)))


def stop_of(parts: Sequence[Part]) -> str:
    return "tool_use" if any(isinstance(part, Call) for part in parts) else "end_turn"


def read_step(step: dict[str, Any]) -> Part:
    """One step as it is written in JSON; `ValueError` when it is none."""
    ((verb, value),) = step.items()
    match verb:
        case "say":
            return Say(value)
        case "think":
            return Think(value)
        case "call":
            name, *given = value
            return Call(name, given[0] if given else {})
        case "calls":
            return calls(*map(read_inside, value))
        case "block":
            return Raw(value)
        case "ends":
            reason, *parts = value
            return ends(reason, *map(read_inside, parts))
        case "refuse":
            return refuse(value)
        case "truncate":
            return truncate(value)
        case _:
            raise ValueError(f"there is no step {verb!r}")


def read_inside(step: dict[str, Any]) -> Inside:
    part = read_step(step)
    if isinstance(part, Turn):
        raise ValueError(f"{step} is a turn of its own")
    return part


def write_inside(part: Inside) -> dict[str, Any]:
    """What `read_inside` reads."""
    match part:
        case Think(text):
            return {"think": text}
        case Say(text):
            return {"say": text}
        case Call(name, given):
            return {"call": [name, given]}
        case Raw(body):
            return {"block": body}
