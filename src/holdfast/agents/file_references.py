"""References to files that the provider keeps, and what becomes of them when they expire. Pure.

When a file expires is stored beside its block and never sent. From that moment on a sentence stands in its place, so
what was sent before is no longer a prefix of what is sent: the history has another fingerprint.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from holdfast.agents.content import EXPIRES
from holdfast.errors import BadPayload
from holdfast.kernel import codec


def present(block: dict[str, Any], now: int) -> dict[str, Any]:
    """A stored block as it is sent at this time, in microseconds UTC."""
    if block.get("type") == "tool_result" and isinstance(block.get("content"), list):
        return {**block, "content": [present(each, now) for each in block["content"]]}
    if EXPIRES not in block:
        return block
    if block[EXPIRES] <= now:
        return {"type": "text", "text": f"[The file {_id(block)} has expired: it can no longer be read.]"}
    return {name: value for name, value in block.items() if name != EXPIRES}


def expired(blocks: Iterable[dict[str, Any]], now: int) -> list[str]:
    """The files among these that have expired, each once, in the order of their ids."""
    return sorted({_id(block) for block in _references(blocks) if block[EXPIRES] <= now})


def expired_in(bodies: Sequence[str], now: int) -> list[str]:
    """The same of stored blocks; most have nothing to do with files, and are not read for that."""
    return expired((codec.decode(body) for body in bodies if EXPIRES in body), now)


def check_fresh(blocks: Iterable[dict[str, Any]], now: int) -> None:
    """`BadPayload` when a prompt refers to a file that has expired."""
    for block in _references(blocks):
        if block[EXPIRES] <= now:
            when = datetime.fromtimestamp(block[EXPIRES] / 1e6, UTC)
            raise BadPayload(f"file {_id(block)} expired at {when:%Y-%m-%d %H:%M:%S} UTC: upload it again.")


def _references(blocks: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    for block in blocks:
        if EXPIRES in block:
            yield block
        elif block.get("type") == "tool_result" and isinstance(block.get("content"), list):
            yield from _references(block["content"])


def _id(block: dict[str, Any]) -> str:
    return str(block["source"].get("file_id", ""))
