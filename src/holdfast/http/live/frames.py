"""Frames: events as the bytes of server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from typing import Any

from holdfast.events import Event, wire

BEGIN = b"retry: 1000\n\n"
STILL_HERE = b": still here\n\n"
SERVER_STOPS = b": the server stops\nretry: 1000\n\n"
_DATA = b"\ndata: "
_SHORT = 4_096  # bytes


def _compact(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), default=str)


def frame(id: str | None, kind: str, data: Any) -> bytes:
    """One event; its data is one line, because JSON escapes the others."""
    head = "" if id is None else f"id: {id}\n"
    return f"{head}event: {kind}\ndata: {_compact(data)}\n\n".encode(errors="replace")


async def retold(
    frames: AsyncIterator[bytes], tell: Callable[[Any], Any], kinds: Collection[str] | None = None
) -> AsyncGenerator[bytes, None]:
    """The same frames with other data: what `tell` makes of it, the kind of the event as its `type`.

    `tell` is asked about events of these `kinds`, or about all.
    """
    heads = None if kinds is None else [f"event: {kind}\n".encode() for kind in kinds]
    try:
        async for data in frames:
            if heads is not None and not any(head in data for head in heads):
                yield data
            elif len(data) < _SHORT:
                yield _all_retold(data, tell)
            else:  # beside the event loop: who wrote the text may have made it long
                yield await asyncio.to_thread(_all_retold, data, tell)
    finally:
        if isinstance(frames, AsyncGenerator):
            await frames.aclose()


def _all_retold(data: bytes, tell: Callable[[Any], Any]) -> bytes:
    return b"\n\n".join(_retold(each, tell) for each in data.split(b"\n\n"))


def _retold(one: bytes, tell: Callable[[Any], Any]) -> bytes:
    head, mark, text = one.partition(_DATA)
    if not mark:
        return one
    kind = head.partition(b"event: ")[2].decode()
    told = tell({**json.loads(text), "type": kind})
    del told["type"]
    return head + mark + _compact(told).encode(errors="replace")


def frame_of(event: Event) -> bytes:
    kind, data = wire(event)
    return frame(str(event.seq), kind, data)
