"""Steps: what a scripted model says, as values, and as they are written in JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.errors import UsageError
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
class ScriptedTurn:
    """One whole answer: its parts in order, why it stops, and what it used; without `usage`, something plausible."""

    parts: tuple[Inside, ...]
    stop_reason: str = "end_turn"
    category: str | None = None
    usage: Wire | None = None


@dataclass(frozen=True, slots=True)
class Reject:
    """No answer: the provider does not take the request, and says why."""

    message: str


Part = Inside | ScriptedTurn | Reject


class Rejected(UsageError):
    """A script does not take a request, as a provider answers with status 400."""


def say(text: str) -> Say:
    """Answer with a text."""
    return Say(text)


def call(name: str, /, **input: Any) -> Call:
    """Ask for a tool call."""
    return Call(name, input)


def calls(*parts: Inside) -> ScriptedTurn:
    """Several tool calls in one turn; texts may stand before them."""
    return ScriptedTurn(parts, stop_of(parts))


def block(type: str, /, **body: Any) -> Raw:
    """A block as the provider writes it: a server tool's use or result, or one of an unknown type."""
    return Raw({"type": type, **body})


def ends(stop_reason: str, *parts: Inside) -> ScriptedTurn:
    """A turn that stops for this reason: `pause_turn`, `model_context_window_exceeded` …"""
    return ScriptedTurn(parts, stop_reason)


def think(text: str) -> Think:
    """Think before the next step, in the same turn."""
    return Think(text)


def refuse(category: str | None = None) -> ScriptedTurn:
    """Decline: an answer like any other to HTTP, with `stop_reason: refusal`."""
    return ScriptedTurn((), "refusal", category)


def reject(message: str) -> Reject:
    """Do not take the request: status 400 with this message, and nothing is bought. `refuse()` is an answer, not this.

    For example, a function of the messages may do so if one of them has a picture.
    """
    return Reject(message)


def truncate(text: str) -> ScriptedTurn:
    """Be cut off by max_tokens after this text."""
    return ScriptedTurn((Say(text),), "max_tokens")


_WITH_TEXT: Mapping[str, Callable[[Any], Part]] = {"refuse": refuse, "reject": reject, "truncate": truncate}


def whole(part: Part) -> ScriptedTurn:
    """A part as the turn that it makes alone; `Rejected` when it is none."""
    if isinstance(part, Reject):
        raise Rejected(part.message)
    return part if isinstance(part, ScriptedTurn) else ScriptedTurn((part,), stop_of((part,)))


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
        case "refuse" | "reject" | "truncate":
            return _WITH_TEXT[verb](value)
        case _:
            raise ValueError(f"there is no step {verb!r}")


def read_inside(step: dict[str, Any]) -> Inside:
    part = read_step(step)
    if isinstance(part, ScriptedTurn | Reject):
        raise ValueError(f"{step} is a separate turn")
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
