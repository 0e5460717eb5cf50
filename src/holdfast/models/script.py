"""Scripts: what a model says without a model, for tests, demos and the provider simulator.

A script keeps no state. The step to play follows from the messages alone (how many assistant turns have come since the
last real user message), so any worker, after any crash, plays the right one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.errors import UsageError
from holdfast.models.examples import example
from holdfast.models.protocol import Wire
from holdfast.models.signing import blocks_of


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
    """One whole answer: its parts in order, and why it stops."""

    parts: tuple[Inside, ...]
    stop_reason: str = "end_turn"
    category: str | None = None


Part = Inside | Turn
Step = Part | Callable[[list[Wire]], Part]


def say(text: str) -> Say:
    """Answer with a text."""
    return Say(text)


def call(name: str, **input: Any) -> Call:
    """Ask for a tool call."""
    return Call(name, input)


def calls(*parts: Inside) -> Turn:
    """Several tool calls in one turn; texts may stand before them."""
    return Turn(parts, _stop(parts))


def block(type: str, **body: Any) -> Raw:
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


class Script:
    """The answers to one user message, in order. Asked for more than it has, it raises `UsageError`."""

    def __init__(self, *steps: Step) -> None:
        self._turns: list[tuple[tuple[Think, ...], Step]] = []
        thoughts: tuple[Think, ...] = ()
        for step in steps:
            if isinstance(step, Think):
                thoughts = (*thoughts, step)
            else:
                self._turns.append((thoughts, step))
                thoughts = ()
        if thoughts:
            raise UsageError("a script cannot end with think(): it belongs to the step after it.")

    @classmethod
    def default(cls) -> Script:
        """Call the first tool once, with arguments made from its schema, and answer with what it returned; or echo."""
        return _Default()

    @classmethod
    def cassette(cls, path: str | Path) -> Script:
        """Read a script from JSON: a list of `{"say": text}`, `{"call": [name, input]}`, `{"calls": [...]}` …"""
        try:
            return cls(*map(_read, json.loads(Path(path).read_text())))
        except (ValueError, TypeError, KeyError) as problem:
            raise UsageError(f"{path} is not a script: {problem}.") from problem

    def turn(self, body: Wire) -> Turn:
        """What to answer to this request."""
        number = turns_since_user(body["messages"])
        if number >= len(self._turns):
            raise UsageError(
                f"the script has {len(self._turns)} steps and is asked for step {number + 1}: "
                f"give it one step for each model call that follows a user message."
            )
        thoughts, step = self._turns[number]
        part = step if isinstance(step, Inside | Turn) else step(list(body["messages"]))
        turn = part if isinstance(part, Turn) else Turn((part,), _stop((part,)))
        return Turn((*thoughts, *turn.parts), turn.stop_reason, turn.category)


class _Default(Script):
    def turn(self, body: Wire) -> Turn:
        messages, tools = body["messages"], [tool for tool in body.get("tools") or [] if "input_schema" in tool]
        text = last_user_text(messages)
        if tools and turns_since_user(messages) == 0:
            return calls(Call(tools[0]["name"], example(tools[0]["input_schema"], text)))
        wanted = (body.get("output_config") or {}).get("format")
        if wanted:
            return Turn((Say(json.dumps(example(wanted["schema"], text), ensure_ascii=False)),))
        return Turn((Say(_returned(messages[-1]["content"]) or text or "(nothing)"),))


def turns_since_user(messages: Sequence[Wire]) -> int:
    """Assistant messages after the last user message that holds more than answers to tool calls.

    What a user says next may share a message with results: messages of one role in a row are sent as one.
    """
    count = 0
    for message in reversed(messages):
        if message["role"] == "assistant":
            count += 1
        elif any(block.get("type") != "tool_result" for block in blocks_of(message["content"])):
            break
    return count


def last_user_text(messages: Sequence[Wire]) -> str:
    for message in reversed(messages):
        texts = [block["text"] for block in blocks_of(message["content"]) if block.get("type") == "text"]
        if message["role"] == "user" and texts:
            return str(texts[-1])
    return ""


def _returned(content: Any) -> str:
    """The text of the tool results in a message."""
    results = [block.get("content") or "" for block in blocks_of(content) if block.get("type") == "tool_result"]
    texts = [block.get("text", "") for result in results for block in blocks_of(result)]
    return "\n".join(text for text in texts if text)


def _stop(parts: Sequence[Part]) -> str:
    return "tool_use" if any(isinstance(part, Call) for part in parts) else "end_turn"


def _read(step: dict[str, Any]) -> Part:
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
            return calls(*map(_inside, value))
        case "block":
            return Raw(value)
        case "ends":
            reason, *parts = value
            return ends(reason, *map(_inside, parts))
        case "refuse":
            return refuse(value)
        case "truncate":
            return truncate(value)
        case _:
            raise ValueError(f"there is no step {verb!r}")


def _inside(step: dict[str, Any]) -> Inside:
    part = _read(step)
    if isinstance(part, Turn):
        raise ValueError(f"{step} is a turn of its own")
    return part
