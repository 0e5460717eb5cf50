"""A script's turn as the provider's stream events or message, with a plausible usage. Same request, same answer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from holdfast.models import request_view
from holdfast.models.fold import ReplyFold
from holdfast.models.prompt_cache import PromptCache
from holdfast.models.protocol import Wire, canonical, request_hash, unmarked
from holdfast.models.script import Call, Inside, Raw, Say, ScriptedTurn, Think

KEY = "scripted"
_PIECES = 4  # at least so many deltas for a text, so that readers meet more than one
_LONGEST = 64


def to_events(
    turn: ScriptedTurn,
    body: Wire,
    *,
    call: str = "",
    key: str = KEY,
    account: str = "",
    cache: PromptCache | None = None,
) -> list[Wire]:
    """The events of an answer to `body`. Ids follow from the request and the turn of `call`, not from its attempt.

    Without a `cache` nothing is read from one or written to one, whatever is marked.
    """
    identity = hashlib.sha256(f"{request_hash(body)}/{call.rpartition('/')[0]}".encode()).hexdigest()
    binding = request_view.after(key, body, account)
    blocks: list[Wire] = []
    inner: list[Wire] = []
    for index, part in enumerate(turn.parts):
        block = _block(part, f"toolu_{identity[:18]}{index:02}", binding)
        binding.block(block)
        blocks.append(block)
        inner += _block_events(index, block)
    cached = {} if cache is None else cache.bill(body, count_tokens(body), account)
    usage = turn.usage or {**usage_of(body, blocks), **cached}
    message = {
        "id": f"msg_{identity[:24]}",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {**usage, "output_tokens": 1},
    }
    stop: Wire = {"stop_reason": turn.stop_reason, "stop_sequence": None, "stop_details": None}
    if turn.stop_reason == "refusal":
        stop["stop_details"] = {"type": "refusal", "category": turn.category, "explanation": None}
    return [
        {"type": "message_start", "message": message},
        {"type": "ping"},
        *inner,
        {"type": "message_delta", "delta": stop, "usage": {"output_tokens": usage.get("output_tokens", 0)}},
        {"type": "message_stop"},
    ]


def to_message(events: list[Wire]) -> Wire:
    """The message of a stream, as it is answered without streaming."""
    folding = ReplyFold()
    for event in events:
        folding.feed(event)
    reply = folding.reply()
    return {
        "id": reply.id,
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": reply.blocks,
        "stop_reason": reply.stop_reason,
        "stop_sequence": reply.stop_sequence,
        "stop_details": reply.stop_details,
        "usage": reply.usage,
    }


def to_batch_message(turn: ScriptedTurn, body: Wire, custom_id: str, *, key: str = KEY, account: str = "") -> Wire:
    """The message of an answer in a batch. Its ids follow from the request and its custom id."""
    message = to_message(to_events(turn, body, call=f"{custom_id}/", key=key, account=account))
    return {**message, "usage": {**message["usage"], "service_tier": "batch"}}


def _block(part: Inside, id: str, binding: request_view.SignatureBinding) -> Wire:
    match part:
        case Think(text):
            return {"type": "thinking", "thinking": text, "signature": binding.sign(text)}
        case Say(text):
            return {"type": "text", "text": text}
        case Call(name, given):
            return {"type": "tool_use", "id": id, "name": name, "input": given}
        case Raw(body):
            return body


def _block_events(index: int, block: Wire) -> Iterator[Wire]:
    match block["type"]:
        case "thinking":
            empty: Wire = {"thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"])]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        case "text":
            empty = {"text": ""}
            deltas = [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
        case _ if not isinstance(block.get("input"), dict):
            empty, deltas = {}, []
        case _:
            empty = {"input": {}}
            given = json.dumps(block["input"], ensure_ascii=False)
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ["", *pieces(given)]]
    yield {"type": "content_block_start", "index": index, "content_block": {**block, **empty}}
    for delta in deltas:
        yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}


def pieces(text: str) -> list[str]:
    size = max(1, min(_LONGEST, -(-len(text) // _PIECES)))
    return [text[at : at + size] for at in range(0, len(text), size)]


def count_tokens(body: Wire) -> int:
    """A plausible count: a token for every four characters of what is asked, cache markers aside."""
    asked = {key: body[key] for key in ("system", "tools", "messages") if body.get(key)}
    return max(1, len(canonical(unmarked(asked))) // 4)


def usage_of(body: Wire, blocks: list[Wire]) -> Wire:
    said: list[Any] = [{key: value for key, value in block.items() if key != "signature"} for block in blocks]
    return {
        "input_tokens": count_tokens(body),
        "output_tokens": max(1, len(canonical(said)) // 4),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        "service_tier": "standard",
    }
