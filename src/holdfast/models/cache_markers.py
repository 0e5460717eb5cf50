"""Prompt caching: where the markers go, so that each turn of a conversation reads what the one before it wrote.

The provider writes an entry at each marker, and looks for one at a marker and at most 20 blocks before it. A turn may
add more blocks than that, so one marker stands where the request before this one ended.

Pure. Markers aside, the request is the same before and after, and a turn's request is a prefix of the next one's: so
text that stands for one block is written as that block, in every message, whether it is marked or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

from holdfast.models.protocol import Request, Wire
from holdfast.models.thinking_signature import blocks_of

Caching = bool | Literal["1h"]
MOST = 4
_HOUR = "1h"
_OURS = "ours"  # in the place of a lifetime, until all markers are set
_CACHEABLE = frozenset(("text", "image", "document", "tool_use", "tool_result"))


def with_breakpoints(request: Request, *, hour: bool = False) -> Request:
    """The request with cache markers: on its fixed part, on its end, and where the request before it ended.

    Markers that are there already stay and count. What was given is not changed. `hour`: entries are to live an hour
    instead of five minutes.
    """
    messages = [{**message, "content": blocks_of(message["content"])} for message in request.messages]
    system, tools = list(request.system), list(request.tools)
    room = MOST - _marked(system) - _marked(tools) - sum(_marked(message["content"]) for message in messages)
    if room > 0 and (_mark_last(system, _takes_marker) or _mark_last(tools, _is_loaded)):
        room -= 1
    if room > 0 and _mark_end(messages, len(messages)):
        room -= 1
    if room > 0:
        _mark_end(messages, _answered(messages))
    _give_lifetimes([tools, system, *(message["content"] for message in messages)], hour=hour)
    return replace(request, messages=messages, system=system, tools=tools)


def lasts_an_hour(request: Request) -> bool:
    """Whether something of this request is written to live an hour."""
    return any(block["cache_control"].get("ttl") == _HOUR for block in markers(request.body()))


def markers(body: Wire) -> Iterator[Wire]:
    """The blocks of a request body that have a marker, in the order in which the provider reads them."""
    for blocks in (body.get("tools"), body.get("system"), *(message["content"] for message in body["messages"])):
        for block in blocks_of(blocks or []):
            if isinstance(block.get("cache_control"), dict):
                yield block


def _answered(messages: Sequence[Wire]) -> int:
    """How many messages the request had whose answer is the last one here; 0 when there was none."""
    return max((number for number, message in enumerate(messages) if message["role"] == "assistant"), default=0)


def _marked(blocks: Sequence[Wire]) -> int:
    return sum("cache_control" in block for block in blocks)


def _takes_marker(block: Wire) -> bool:
    return block.get("type") in _CACHEABLE and bool(block.get("type") != "text" or block.get("text", "").strip())


def _is_loaded(tool: Wire) -> bool:
    return not tool.get("defer_loading")  # one that is found by search is not part of the prefix


def _mark_last(blocks: list[Wire], fit: Callable[[Wire], bool]) -> bool:
    for at in range(len(blocks) - 1, -1, -1):
        if fit(blocks[at]):
            if "cache_control" not in blocks[at]:
                blocks[at] = {**blocks[at], "cache_control": {"type": "ephemeral", "ttl": _OURS}}
            return True
    return False


def _mark_end(messages: list[dict[str, Any]], count: int) -> bool:
    """Mark the last block of the first `count` messages that takes a marker; whether there is one."""
    return any(_mark_last(message["content"], _takes_marker) for message in reversed(messages[:count]))


def _give_lifetimes(parts: Sequence[list[Wire]], *, hour: bool) -> None:
    """Ours live as long as they are to, as far as the caller's allow it: no longer life may come after a shorter."""
    places = [(blocks, at) for blocks in parts for at, block in enumerate(blocks) if "cache_control" in block]
    theirs = [ttl for ttl in (_ttl_of(blocks[at]) for blocks, at in places) if ttl != _OURS]
    for blocks, at in places:
        ttl = _ttl_of(blocks[at])
        if ttl != _OURS:
            theirs.pop(0)
            hour = hour and ttl == _HOUR
        else:
            long = hour or _HOUR in theirs
            blocks[at]["cache_control"] = {"type": "ephemeral", **({"ttl": _HOUR} if long else {})}


def _ttl_of(block: Wire) -> Any:
    marker = block["cache_control"]
    return marker.get("ttl") if isinstance(marker, dict) else None
