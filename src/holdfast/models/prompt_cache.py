"""A simulated prompt cache: what a provider reads of a request, what it writes, and what it bills for each.

Entries are written where markers stand. A request reads the longest prefix that an entry has, found at one of its
markers or at most 20 blocks before it. An entry that is read lives on; one that nobody reads for its lifetime is gone,
by the given clock. Prefixes below the model's least size are neither read nor written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from holdfast.clock import Clock
from holdfast.models.facts import facts_for
from holdfast.models.protocol import Wire, canonical, unmarked
from holdfast.models.thinking_signature import blocks_of

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
