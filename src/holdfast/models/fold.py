"""Raw stream events, folded into the reply that the provider would have returned whole.

Blocks stay the provider's JSON: known deltas are merged as the provider defines them, unknown ones by the type of
their values, so that what we do not know yet survives. Usage is cumulative: a later counter replaces an earlier one.
"""

from __future__ import annotations

import copy
import json
import math
from dataclasses import dataclass, field
from typing import Any

from holdfast.models.failures import ModelFailure
from holdfast.models.protocol import Wire
from holdfast.validation import repeated


@dataclass(frozen=True, slots=True)
class TextPiece:
    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ThinkingPiece:
    index: int
    text: str


@dataclass(frozen=True, slots=True)
class InputPiece:
    index: int
    partial_json: str


Delta = TextPiece | ThinkingPiece | InputPiece


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A whole answer of a model."""

    id: str
    model: str
    blocks: list[Wire]
    stop_reason: str | None
    stop_sequence: str | None = None
    stop_details: Wire | None = None
    """Why it stopped, where the provider says more: `category` and `explanation` of a refusal."""
    usage: Wire = field(default_factory=dict)
    container: Wire | None = None
    extra: Wire = field(default_factory=dict)
    """Every other field of the message: `context_management`, `diagnostics` …"""
    bad_inputs: dict[str, str] = field(default_factory=dict)
    """Tool use id -> what came in place of a JSON object. Its block has `input: {}`; answer it with an error result."""
    duplicates: tuple[str, ...] = ()
    """Tool use ids that occur more than once: such a reply cannot be sent back as it is."""
    bad_places: frozenset[int] = frozenset()
    """The places among the blocks of those in `bad_inputs`: ids may be missing, or the same."""
    nameless: frozenset[str] = frozenset()
    """Tool use ids of calls that named no tool; answer each with an error result."""

    @property
    def text(self) -> str:
        return "".join(block.get("text", "") for block in self.blocks if block.get("type") == "text")

    @property
    def tool_uses(self) -> list[Wire]:
        """The client tool calls it asks for, in order."""
        return [block for block in self.blocks if block.get("type") == "tool_use"]


class ReplyFold:
    """Feed it each event; ask for the `reply` when `complete`. Events out of order are a `ModelFailure`, malformed."""

    def __init__(self) -> None:
        self.complete = False
        self._message: Wire | None = None
        self._blocks: dict[int, Wire] = {}
        self._parts: dict[tuple[int, str], list[str]] = {}  # joined when the block closes: texts have many deltas
        self._closed: set[int] = set()
        self._bad: dict[int, str] = {}

    def feed(self, event: Wire) -> Delta | None:
        """Take one event in; what it adds that a reader may want to see at once."""
        try:
            return self._feed(event)
        except (KeyError, TypeError, AttributeError) as problem:
            raise ModelFailure("malformed", f"event {event!r:.200} cannot be read: {problem!r}.") from problem

    def _feed(self, event: Wire) -> Delta | None:
        kind = event["type"]
        if kind == "message_start":
            self._expect(self._message is None and not self.complete, event)
            self._message = copy.deepcopy(event["message"])
        elif kind == "content_block_start":
            self._expect(self._message is not None and event["index"] not in self._blocks, event)
            self._blocks[event["index"]] = copy.deepcopy(event["content_block"])
        elif kind == "content_block_delta":
            self._expect(event["index"] in self._blocks and event["index"] not in self._closed, event)
            return self._merge(event["index"], event["delta"])
        elif kind == "content_block_stop":
            self._expect(event["index"] in self._blocks, event)
            self._close(event["index"])
        elif kind == "message_delta":
            self._expect(self._message is not None and not self.complete, event)
            self._update(event)
        elif kind == "message_stop":
            self._expect(self._message is not None and not self.complete, event)
            for index in self._blocks:
                self._close(index)
            self.complete = True
        return None

    def _expect(self, in_order: bool, event: Wire) -> None:
        if not in_order or (self.complete and event["type"] != "message_start"):
            raise ModelFailure("malformed", f"event {event!r:.200} is out of order.")

    def _merge(self, index: int, delta: Wire) -> Delta | None:
        block = self._blocks[index]
        match delta["type"]:
            case "text_delta":
                self._grow(index, "text", delta["text"])
                return TextPiece(index, delta["text"])
            case "thinking_delta":
                self._grow(index, "thinking", delta["thinking"])
                return ThinkingPiece(index, delta["thinking"])
            case "signature_delta":
                block["signature"] = delta["signature"]
            case "input_json_delta":
                self._grow(index, "input", delta["partial_json"])
                return InputPiece(index, delta["partial_json"])
            case "citations_delta":
                block["citations"] = [*(block.get("citations") or ()), delta["citation"]]
            case _:
                for key, value in delta.items():
                    if key != "type":
                        block[key] = _added(block.get(key), value)
        return None

    def _grow(self, index: int, key: str, text: str) -> None:
        if not isinstance(text, str):
            raise TypeError(f"{key} is not text")
        self._parts.setdefault((index, key), []).append(text)

    def _close(self, index: int) -> None:
        if index in self._closed:
            return
        self._closed.add(index)
        block = self._blocks[index]
        for key in ("text", "thinking"):
            if parts := self._parts.pop((index, key), None):
                block[key] = block.get(key, "") + "".join(parts)
        if text := "".join(self._parts.pop((index, "input"), ())):
            self._read_input(index, text)

    def _read_input(self, index: int, text: str) -> None:
        """Read the arguments of a tool use, now that they are all here."""
        try:
            value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            self._bad[index] = text
        self._blocks[index]["input"] = value if isinstance(value, dict) else {}

    def _update(self, event: Wire) -> None:
        assert self._message is not None
        for key, value in event.items():
            if key == "delta":
                self._message.update(copy.deepcopy(value))
            elif key == "usage":
                counted = {name: count for name, count in value.items() if count is not None}
                self._message["usage"] = {**(self._message.get("usage") or {}), **copy.deepcopy(counted)}
            elif key != "type":
                self._message[key] = copy.deepcopy(value)

    @property
    def usage(self) -> Wire:
        """What the provider has counted so far; of a stream that was cut this is all that will be known."""
        return dict((self._message or {}).get("usage") or {})

    def so_far(self, stop_reason: str) -> Reply:
        """What can be kept of an answer that is stopped here: its text, and what is closed, but no calls."""
        message = self._message or {}
        blocks = []
        for index in sorted(self._blocks):
            block = copy.deepcopy(self._blocks[index])
            if block.get("type") == "text" and index not in self._closed:
                block["text"] = block.get("text", "") + "".join(self._parts.get((index, "text"), ()))
            elif index not in self._closed or block.get("type") == "tool_use":
                continue
            if block.get("type") == "thinking" and not block.get("signature"):
                continue
            blocks.append(block)
        return Reply(
            id=message.get("id", ""),
            model=message.get("model", ""),
            blocks=blocks,
            stop_reason=stop_reason,
            usage=self.usage,
            container=message.get("container"),
        )

    def reply(self) -> Reply:
        """The whole answer; `ModelFailure("cut")` if its last event has not come."""
        if not self.complete or self._message is None:
            raise ModelFailure("cut", "the stream ended before its last event.")
        known = {"id", "type", "role", "content", "model", "stop_reason", "stop_sequence", "stop_details", "usage"}
        message, order = self._message, sorted(self._blocks)
        blocks = [self._blocks[index] for index in order]
        ids = [block["id"] for block in blocks if block.get("type") == "tool_use" and "id" in block]
        return Reply(
            id=message.get("id", ""),
            model=message.get("model", ""),
            blocks=blocks,
            stop_reason=message.get("stop_reason"),
            stop_sequence=message.get("stop_sequence"),
            stop_details=message.get("stop_details"),
            usage=message.get("usage") or {},
            container=message.get("container"),
            extra={key: value for key, value in message.items() if key not in known | {"container"}},
            bad_inputs={str(self._blocks[index].get("id", index)): text for index, text in self._bad.items()},
            bad_places=frozenset(order.index(index) for index in self._bad),
            duplicates=tuple(sorted(repeated(ids))),
        )


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is too large")
    return number


def _added(old: Any, new: Any) -> Any:
    """A value of an unknown delta, merged by its type: text and lists grow, objects are updated, others replaced."""
    match old, new:
        case str(), str():
            return old + new
        case list(), list():
            return old + new
        case dict(), dict():
            return old | new
        case _:
            return copy.deepcopy(new)
