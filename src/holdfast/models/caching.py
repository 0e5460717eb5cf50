"""Prompt caching: where the markers go, so that each turn of a conversation reads what the one before it wrote.

Pure. Markers aside, the request is the same before and after, and a turn's request is a prefix of the next one's: so
text that stands for one block is written as that block, in every message, whether it is marked or not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from holdfast.models.protocol import Request, Wire
from holdfast.models.signing import blocks_of

MOST = 4
_REACH = 20  # the provider looks back so many blocks from a marker for something it has cached
_MARKER = {"type": "ephemeral"}
_CACHEABLE = frozenset(("text", "image", "document", "tool_use", "tool_result"))


def with_breakpoints(request: Request) -> Request:
    """The request with cache markers: on its fixed part, on its end, and one between where the end is far away.

    Markers that are there already stay and count. What was given is not changed.
    """
    messages = [{**message, "content": blocks_of(message["content"])} for message in request.messages]
    system, tools = list(request.system), list(request.tools)
    room = MOST - _marked(system) - _marked(tools) - sum(_marked(message["content"]) for message in messages)
    if room > 0 and (_mark_last(system, _takes_marker) or _mark_last(tools, _is_loaded)):
        room -= 1
    places = [(number, at) for number, message in enumerate(messages) for at in range(len(message["content"]))]
    end = _mark_before(messages, places, len(places)) if room > 0 else None
    if end is not None and room > 1 and end >= _REACH:
        _mark_before(messages, places, end - _REACH + 2)
    return replace(request, messages=messages, system=system, tools=tools)


def _marked(blocks: Sequence[Wire]) -> int:
    return sum("cache_control" in block for block in blocks)


def _takes_marker(block: Wire) -> bool:
    return block.get("type") in _CACHEABLE and bool(block.get("type") != "text" or block.get("text", "").strip())


def _is_loaded(tool: Wire) -> bool:
    return not tool.get("defer_loading")  # one that is found by search is not part of the prefix


def _mark_last(blocks: list[Wire], fit: Callable[[Wire], bool]) -> bool:
    for at in range(len(blocks) - 1, -1, -1):
        if fit(blocks[at]):
            blocks[at] = _with_marker(blocks[at])
            return True
    return False


def _mark_before(messages: list[dict[str, Any]], places: list[tuple[int, int]], end: int) -> int | None:
    """Mark the last block before `end` that takes a marker; where it is."""
    for place in range(end - 1, -1, -1):
        number, at = places[place]
        block = messages[number]["content"][at]
        if _takes_marker(block):
            messages[number]["content"][at] = _with_marker(block)
            return place
    return None


def _with_marker(block: Wire) -> Wire:
    return block if "cache_control" in block else {**block, "cache_control": dict(_MARKER)}
