"""From the chunks of a chat completions stream to the stream events that the rest of Holdfast reads. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.models.failures import ModelFailure
from holdfast.models.protocol import Wire

_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}


class ChunkFold:
    """Chunks in, events out: one block is open at a time, the text first, then each call."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._begun = False
        self._open: int | None = None  # the number of the open block
        self._next = 0
        self._text = False  # whether the open block is text
        self._calls: dict[int, int] = {}  # their call's number -> the block's
        self._reason: str | None = None
        self._usage: Wire = {}

    @property
    def complete(self) -> bool:
        """Whether the provider has said why it stopped. Without that, an answer is cut."""
        return self._reason is not None

    def feed(self, chunk: Wire) -> Iterator[Wire]:
        if not self._begun:
            self._begun = True
            yield self._start(chunk)
        if isinstance(usage := chunk.get("usage"), dict):
            self._usage = _usage(usage)
        for choice in chunk.get("choices") or []:
            delta = choice.get("delta") or {}
            yield from self._say(delta.get("content") or delta.get("refusal"))
            for call in delta.get("tool_calls") or []:
                yield from self._call(call)
            if choice.get("finish_reason") is not None:
                self._reason = str(choice["finish_reason"])

    def end(self) -> Iterator[Wire]:
        """The last events, once the stream has ended."""
        yield from self._close()
        reason = _REASONS.get(self._reason or "", self._reason)
        if reason == "end_turn" and self._calls:
            reason = "tool_use"  # some servers say "stop" after calls
        yield {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": self._usage}
        yield {"type": "message_stop"}

    def _start(self, chunk: Wire) -> Wire:
        message: Wire = {
            "id": str(chunk.get("id") or "chat"),
            "type": "message",
            "role": "assistant",
            "model": str(chunk.get("model") or self._model),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 0, "output_tokens": 0},
        }
        return {"type": "message_start", "message": message}

    def _say(self, text: Any) -> Iterator[Wire]:
        if not text:
            return
        if not self._text:
            yield from self._begin({"type": "text", "text": ""})
            self._text = True
        yield {"type": "content_block_delta", "index": self._open, "delta": {"type": "text_delta", "text": str(text)}}

    def _call(self, call: Wire) -> Iterator[Wire]:
        number, function = int(call.get("index", 0)), call.get("function") or {}
        if number not in self._calls:
            if not call.get("id") or not function.get("name"):
                raise ModelFailure("malformed", "a tool call began without its id or its name.")
            use = {"type": "tool_use", "id": str(call["id"]), "name": str(function["name"]), "input": {}}
            yield from self._begin(use)
            assert self._open is not None
            self._calls[number] = self._open
        if piece := function.get("arguments"):
            if self._calls[number] != self._open:
                raise ModelFailure("malformed", "two tool calls were written at the same time.")
            delta = {"type": "input_json_delta", "partial_json": str(piece)}
            yield {"type": "content_block_delta", "index": self._open, "delta": delta}

    def _begin(self, block: Wire) -> Iterator[Wire]:
        yield from self._close()
        self._open, self._next = self._next, self._next + 1
        yield {"type": "content_block_start", "index": self._open, "content_block": block}

    def _close(self) -> Iterator[Wire]:
        if self._open is not None:
            yield {"type": "content_block_stop", "index": self._open}
        self._open, self._text = None, False


def _usage(said: Wire) -> Wire:
    """In the words of the rest of Holdfast; what the provider said stays beside them."""
    cached = (said.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return {
        "input_tokens": int(said.get("prompt_tokens") or 0) - int(cached),
        "cache_read_input_tokens": int(cached),
        "cache_creation_input_tokens": 0,
        "output_tokens": int(said.get("completion_tokens") or 0),
        "provider_usage": said,
    }
