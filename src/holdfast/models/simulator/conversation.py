"""The shape of a conversation, as strict as the provider: who speaks, what a block is, which result answers what."""

from __future__ import annotations

import re
from typing import Any

from holdfast.models.facts import Facts
from holdfast.models.protocol import Wire
from holdfast.models.simulator.refusal import RequestRefused, need
from holdfast.models.thinking_signature import blocks_of

_ID = re.compile(r"[a-zA-Z0-9_-]+")
_ASSISTANT_ONLY = frozenset(("tool_use", "server_tool_use", "tool_search_tool_result", "thinking", "redacted_thinking"))
_USER_ONLY = frozenset(("tool_result", "image"))


def check_conversation(body: Wire, facts: Facts) -> None:
    messages = body["messages"]
    need(isinstance(messages, list), "messages: Input should be a valid list")
    need(bool(messages), "messages: at least one message is required")
    for number, message in enumerate(messages):
        _check_message(number, message)
    need(messages[0]["role"] == "user", 'messages: first message must use the "user" role')
    turns = _turns(messages)
    _check_pairs(turns)
    _check_server_pairs(turns)
    if (body.get("thinking") or {}).get("type") == "enabled":
        _check_thinks_first(turns)
    if turns[-1][1] == "assistant":
        _check_end(turns[-1][2], facts)


def _check_message(number: int, message: Any) -> None:
    place = f"messages.{number}"
    need(isinstance(message, dict), f"{place}: Input should be a valid dictionary")
    for name in message:
        need(name in ("role", "content"), f"{place}.{name}: Extra inputs are not permitted")
    role: Any = message.get("role")
    content: Any = message.get("content")
    need(role in ("user", "assistant"), f"{place}.role: Input should be 'user' or 'assistant'")
    need(isinstance(content, str | list), f"{place}.content: Input should be a valid string or list")
    need(bool(content), f"{place}: a message of role {role} must have non-empty content")
    blocks: list[Any] = list(blocks_of(content))
    for at, block in enumerate(blocks):
        need(
            isinstance(block, dict) and isinstance(block.get("type"), str), f"{place}.content.{at}.type: Field required"
        )
        _check_block(f"{place}.content.{at}", role, block)


def _check_block(place: str, role: str, block: Wire) -> None:
    kind = block["type"]
    if kind in _ASSISTANT_ONLY | _USER_ONLY:
        right = "user" if kind in _USER_ONLY else "assistant"
        need(role == right, f"{place}: `{kind}` blocks can only be in `{right}` messages")
    match kind:
        case "text":
            text = block.get("text")
            need(isinstance(text, str), f"{place}.text.text: Field required")
            need(bool(text), "messages: text content blocks must be non-empty")
            need(bool(str(text).strip()), "messages: text content blocks must contain non-whitespace text")
        case "tool_use":
            need(isinstance(block.get("input"), dict), f"{place}.tool_use.input: Input should be a valid dictionary")
            need(bool(block.get("name")), f"{place}.tool_use.name: Field required")
            pattern = f"{place}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
            need(bool(_ID.fullmatch(str(block.get("id", "")))), pattern)
        case "tool_result":
            need(bool(block.get("tool_use_id")), f"{place}.tool_result.tool_use_id: Field required")
        case "thinking":
            need("thinking" in block and "signature" in block, f"{place}.thinking.signature: Field required")


def _turns(messages: list[Wire]) -> list[tuple[int, str, list[Wire]]]:
    """Messages of one role in a row are one turn: (number of its first message, role, blocks)."""
    turns: list[tuple[int, str, list[Wire]]] = []
    for number, message in enumerate(messages):
        if turns and turns[-1][1] == message["role"]:
            turns[-1][2].extend(blocks_of(message["content"]))
        else:
            turns.append((number, message["role"], blocks_of(message["content"])))
    return turns


def _check_pairs(turns: list[tuple[int, str, list[Wire]]]) -> None:
    seen: set[str] = set()
    open_uses: list[str] = []
    asked = 0
    for number, role, blocks in turns:
        if role == "user":
            _check_results(number, blocks, open_uses, asked)
            open_uses = []
            continue
        asked = number
        for at, block in enumerate(blocks):
            if block["type"] == "tool_use":
                need(block["id"] not in seen, f"messages.{number}.content.{at}: `tool_use` ids must be unique")
                seen.add(block["id"])
                open_uses.append(block["id"])
    if open_uses:
        raise RequestRefused(_unanswered(asked, open_uses))


def _check_server_pairs(turns: list[tuple[int, str, list[Wire]]]) -> None:
    """A result of the provider's own tools follows its use. A use may stay open only while nothing but results of
    other tools follows it."""
    open_uses: dict[str, tuple[int, str]] = {}
    answers = [(number, blocks) for number, role, blocks in turns if role == "assistant"]
    for number, blocks in answers:
        for at, block in enumerate(blocks):
            if block["type"] == "server_tool_use":
                open_uses[block["id"]] = number, str(block.get("name"))
            elif block["type"].endswith("_tool_result"):
                id = str(block.get("tool_use_id"))
                need(
                    open_uses.pop(id, None) is not None,
                    f"messages.{number}.content.{at}: unexpected `tool_use_id` found in `{block['type']}` blocks: "
                    f"{id}. Each `{block['type']}` block must have a corresponding `server_tool_use` block before it.",
                )
    said = turns[-1][1] == "user" and any(block["type"] != "tool_result" for block in turns[-1][2])
    for id, (number, name) in open_uses.items():
        need(
            number == answers[-1][0] and not said,
            f"messages.{number}: `{name}` tool use with id `{id}` was found without a corresponding "
            f"`{name}_tool_result` block",
        )


def _check_results(number: int, blocks: list[Wire], uses: list[str], asked: int) -> None:
    answered: set[str] = set()
    others = False
    for at, block in enumerate(blocks):
        if block["type"] != "tool_result":
            others = True
            continue
        id = block["tool_use_id"]
        need(
            id in uses,
            f"messages.{number}.content.{at}: unexpected `tool_use_id` found in `tool_result` blocks: {id}. Each "
            f"`tool_result` block must have a corresponding `tool_use` block in the previous message.",
        )
        need(
            id not in answered,
            f"messages.{number}.content.{at}: each tool_use must have a single result. Found multiple `tool_result` "
            f"blocks with id: {id}",
        )
        need(not others, _unanswered(asked, [id]) + " `tool_result` blocks must come first in the message.")
        answered.add(id)
    if missing := [id for id in uses if id not in answered]:
        raise RequestRefused(_unanswered(asked, missing))


def _unanswered(number: int, ids: list[str]) -> str:
    return (
        f"messages.{number}: `tool_use` ids were found without `tool_result` blocks immediately after: "
        f"{', '.join(ids)}. Each `tool_use` block must have a corresponding `tool_result` block in the next message."
    )


def _check_thinks_first(turns: list[tuple[int, str, list[Wire]]]) -> None:
    """In an open tool loop, with thinking enabled, the turn that asked for the tools begins with its thinking."""
    if len(turns) < 2 or turns[-1][2][0]["type"] != "tool_result":
        return
    number, _, blocks = turns[-2]
    need(
        blocks[0]["type"] in ("thinking", "redacted_thinking"),
        f"messages.{number}.content.0.type: Expected `thinking` or `redacted_thinking`, but found "
        f"`{blocks[0]['type']}`. When `thinking` is enabled, a final `assistant` message must start with a thinking "
        f"block.",
    )


def _check_end(blocks: list[Wire], facts: Facts) -> None:
    """An assistant turn at the end is a prefill, unless the provider itself paused in it."""
    last = blocks[-1]
    if last["type"] == "server_tool_use" or last["type"].endswith("_tool_result"):
        return
    need(
        facts.prefill,
        "This model does not support assistant message prefill. The conversation must end with a user message.",
    )
    need(
        last["type"] != "text" or last["text"] == last["text"].rstrip(),
        "messages: final assistant content cannot end with trailing whitespace",
    )
