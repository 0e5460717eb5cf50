"""What models and tools are told and answer, in the form of the conventions, without secrets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.redaction import Redactor

Block = Mapping[str, Any]


def instructions(system: Iterable[Block]) -> str:
    return _text([_part(block) for block in system])


def said(messages: Iterable[Block]) -> str:
    """Messages as they are sent: each has a role, and content that is a text or blocks."""
    return _text([{"role": str(each.get("role")), "parts": _parts(each.get("content"))} for each in messages])


def answered(blocks: Iterable[Block], stop_reason: str | None) -> str:
    return _text([{"role": "assistant", "parts": [_part(each) for each in blocks], "finish_reason": stop_reason or ""}])


def arguments(payload: str) -> str:
    """The arguments of a call, as its job stores them."""
    return Redactor().json(payload, "arguments")


def result(value: object) -> str:
    return _text(value)


def _parts(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "content": content}]
    return [_part(block) for block in content or ()]


def _part(block: Block) -> dict[str, Any]:
    match block.get("type"):
        case "text":
            return {"type": "text", "content": block.get("text", "")}
        case "thinking":
            return {"type": "reasoning", "content": block.get("thinking", "")}
        case "tool_use" | "server_tool_use":
            about = {"id": block.get("id"), "name": block.get("name"), "arguments": block.get("input")}
            return {"type": "tool_call", **about}
        case "tool_result":
            return {"type": "tool_call_response", "id": block.get("tool_use_id"), "response": block.get("content")}
        case other:  # an image or a document: that there is one, not its bytes
            return {"type": str(other)}


def _text(value: object) -> str:
    return json.dumps(Redactor().value(value, "arguments"), ensure_ascii=False, separators=(",", ":"), default=str)
