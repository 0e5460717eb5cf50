"""Conversations: messages of the provider's making as what people read, each tool call with what came of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from holdfast.agents.values.runs import CallRecord
from holdfast.agents.values.sessions import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationPart:
    """One thing that was said or done. `data` is what was said; a tool has `input` and `output`, and its `call`."""

    kind: Literal["user", "assistant", "thinking", "tool", "other"]
    message: str
    run: str
    turn: int
    at: datetime
    data: Any = ""
    name: str = ""
    input: Any = None
    output: Any = None
    answered: bool = False
    is_error: bool = False
    call: CallRecord | None = None
    live: bool = True
    preserved: bool = False
    retired: bool = False
    depth: int = 0


def parts_of(messages: Sequence[Message], calls: Iterable[CallRecord] = ()) -> list[ConversationPart]:
    """What was said, in its order. Results of tools stand with their calls."""
    records = {call.tool_use_id: call for call in calls}
    results = {
        str(block.get("tool_use_id")): block
        for message in messages
        for block in message.blocks
        if block.get("type") == "tool_result"
    }
    return [part for message in messages for part in _parts(message, records, results)]


def flattened(
    parts: Iterable[ConversationPart], below: Mapping[str, Sequence[ConversationPart]]
) -> list[ConversationPart]:
    """With what was said in the runs that calls started, each behind its call."""
    found: list[ConversationPart] = []
    for part in parts:
        child = None if part.call is None else part.call.child
        found += [part, *(replace(each, depth=part.depth + 1) for each in below.get(child or "", ()))]
    return found


def _parts(message: Message, records: dict[str, CallRecord], results: dict[str, Any]) -> Iterator[ConversationPart]:
    for block in message.blocks:
        match block.get("type"):
            case "text":
                if str(block.get("text", "")).strip():
                    yield _part(message, "assistant" if message.role == "assistant" else "user", data=block["text"])
            case "thinking":
                yield _part(message, "thinking", data=block.get("thinking", ""))
            case "tool_use":
                yield _tool(message, block, records, results)
            case "tool_result":
                continue  # it stands with its call
            case _:
                yield _part(message, "other", data=block)


def _tool(message: Message, block: Any, records: dict[str, CallRecord], results: dict[str, Any]) -> ConversationPart:
    id = str(block.get("id"))
    result, call = results.get(id), records.get(id)
    output = None if result is None else told(result.get("content"))
    if output is None and call is not None:
        output = call.output
    return _part(
        message,
        "tool",
        name=str(block.get("name", "")),
        input=block.get("input"),
        output=output,
        answered=output is not None,
        is_error=bool(result and result.get("is_error")) or bool(call and call.is_error),
        call=call,
    )


def told(content: Any) -> Any:
    """What a tool returned: text where it is text."""
    if isinstance(content, list) and all(isinstance(each, dict) and each.get("type") == "text" for each in content):
        return "\n".join(str(each.get("text", "")) for each in content)
    return content


def _part(message: Message, kind: Any, **fields: Any) -> ConversationPart:
    return ConversationPart(
        kind=kind,
        message=message.id,
        run=message.run_id,
        turn=message.turn,
        at=message.created_at,
        live=message.live,
        preserved=message.preserved,
        retired=message.retired,
        **fields,
    )
