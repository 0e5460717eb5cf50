"""Frames: events as the bytes of server-sent events."""

from __future__ import annotations

import json
from typing import Any

from holdfast.events import Event, wire

BEGIN = b"retry: 1000\n\n"
STILL_HERE = b": still here\n\n"


def frame(id: str | None, kind: str, data: Any) -> bytes:
    """One event; its data is one line, because JSON escapes the others."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), default=str)
    head = "" if id is None else f"id: {id}\n"
    return f"{head}event: {kind}\ndata: {text}\n\n".encode(errors="replace")


def frame_of(event: Event) -> bytes:
    kind, data = wire(event)
    return frame(str(event.seq), kind, data)
