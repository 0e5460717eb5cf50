"""A simulated prompt cache: what a provider reads of a request, what it writes, and what it bills for each.

Entries are written where markers stand. A request reads the longest prefix that an entry has, found at one of its
markers or at most 20 blocks before it. An entry that is read lives on; one that nobody reads for its lifetime is gone,
by the given clock. Prefixes below the model's least size are neither read nor written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from holdfast.clock import Clock
from holdfast.models.facts import facts_for
from holdfast.models.protocol import Request, Wire, canonical, unmarked
from holdfast.models.request_view import blocks_of

# Prompt caching: where the markers go, so that each turn of a conversation reads what the one before it wrote.
#
# The provider writes an entry at each marker, and looks for one at a marker and at most 20 blocks before it. A turn
# may
# add more blocks than that, so one marker stands where the request before this one ended.
#
# Pure. Markers aside, the request is the same before and after, and a turn's request is a prefix of the next one's:
# so
# text that stands for one block is written as that block, in every message, whether it is marked or not.


Caching = bool | Literal["1h"]
MOST = 4
_ONE_HOUR = "1h"
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
    return any(block["cache_control"].get("ttl") == _ONE_HOUR for block in markers(request.body()))


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
            hour = hour and ttl == _ONE_HOUR
        else:
            long = hour or _ONE_HOUR in theirs
            blocks[at]["cache_control"] = {"type": "ephemeral", **({"ttl": _ONE_HOUR} if long else {})}


def _ttl_of(block: Wire) -> Any:
    marker = block["cache_control"]
    return marker.get("ttl") if isinstance(marker, dict) else None


_PER_TOKEN = 4  # characters, as the whole is counted
REACH = 20  # blocks, the marked one among them
_MOST = 10_000  # entries, before those that have died are taken out
_FIVE_MINUTES, _HOUR = 300_000_000, 3_600_000_000


class _Block(NamedTuple):
    """One block of a request: the identity of all up to it, their size, and its marker."""

    prefix: str
    size: int
    marker: dict[str, Any] | None


class PromptCache:
    """What one provider has cached, for all of its accounts."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[str, tuple[int, int]] = {}  # by prefix: its lifetime, and its end

    def bill(self, body: Wire, tokens: int, account: str = "") -> Wire:
        """What a request of so many input tokens reads and writes now, as its usage says it."""
        least = facts_for(str(body["model"])).least_cached
        blocks = list(_blocks(body, account)) if tokens >= least else []
        sizes = [min(tokens, block.size // _PER_TOKEN) for block in blocks]
        places = [at for at, block in enumerate(blocks) if block.marker is not None and sizes[at] >= least]
        read_to = max((hit for at in places if (hit := self._hit(blocks, at)) is not None), default=-1)
        read = sizes[read_to] if read_to >= 0 else 0
        done, written = read, {_FIVE_MINUTES: 0, _HOUR: 0}
        for at in places:
            life = _HOUR if (blocks[at].marker or {}).get("ttl") == "1h" else _FIVE_MINUTES
            if at > read_to:
                written[life] += sizes[at] - done
                done = sizes[at]
            self._keep(blocks[at].prefix, life)
        if read_to >= 0:
            self._keep(blocks[read_to].prefix)
        return {
            "input_tokens": tokens - done,
            "cache_creation_input_tokens": sum(written.values()),
            "cache_read_input_tokens": read,
            "cache_creation": {
                "ephemeral_5m_input_tokens": written[_FIVE_MINUTES],
                "ephemeral_1h_input_tokens": written[_HOUR],
            },
        }

    def _hit(self, blocks: list[_Block], at: int) -> int | None:
        """The last block, within reach of a marker, up to which there is an entry that lives."""
        for place in range(at, max(-1, at - REACH), -1):
            entry = self._entries.get(blocks[place].prefix)
            if entry is not None and entry[1] > self._clock.wall_us():
                return place
        return None

    def _keep(self, prefix: str, life: int = 0) -> None:
        now = self._clock.wall_us()
        before, until = self._entries.get(prefix, (0, 0))
        longest = max(life, before) if until > now else life
        self._entries[prefix] = (longest, now + longest)
        if len(self._entries) > _MOST:
            self._entries = {each: entry for each, entry in self._entries.items() if entry[1] > now}


def _blocks(body: Wire, account: str) -> Iterator[_Block]:
    """Every block in the order in which the provider reads them. What changes how messages are read stands before."""
    running, size = hashlib.sha256(canonical([account, body["model"], body.get("speed")]).encode()), 0
    reading = {key: body.get(key) for key in ("tool_choice", "thinking")}
    parts: list[tuple[Any, Any]] = [("tools", body.get("tools")), ("system", body.get("system"))]
    parts += [([reading, message["role"]], message["content"]) for message in body["messages"]]
    for head, content in parts:
        for block in blocks_of(content or []):
            text = canonical(unmarked(block))
            running.update(f"{canonical(head)}{text}\n".encode())
            size += len(text)
            yield _Block(running.hexdigest(), size, block.get("cache_control"))
