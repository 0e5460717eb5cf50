"""Pictures and documents in a request, and those that the provider refuses, in its words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.models.facts import Facts
from holdfast.models.protocol import Wire
from holdfast.models.simulator.refusal import need

_PICTURES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_LARGEST = 5 * 1024 * 1024


def media_in(place: str, content: Any) -> Iterator[tuple[str, str]]:
    """Where there are pictures and documents, those in results of tools included, and which."""
    for at, kind, _ in _media(place, content):
        yield at, kind


def check_media(body: Wire, facts: Facts) -> None:
    for number, message in enumerate(body["messages"]):
        for place, kind, block in _media(f"messages.{number}.content", message["content"]):
            source = block.get("source")
            need(isinstance(source, dict), f"{place}.{kind}.source: Field required")
            if isinstance(source, dict) and source.get("type") == "base64":
                _check(f"{place}.{kind}.source.base64", kind, source)


def _media(place: str, content: Any) -> Iterator[tuple[str, str, Wire]]:
    for number, block in enumerate(content if isinstance(content, list) else ()):
        kind = block.get("type")
        if kind in ("image", "document"):
            yield f"{place}.{number}", kind, block
        elif kind == "tool_result":
            yield from _media(f"{place}.{number}.tool_result.content", block.get("content"))


def _check(place: str, kind: str, source: Wire) -> None:
    known = _PICTURES if kind == "image" else ("application/pdf",)
    wanted = " or ".join(f"'{name}'" for name in known)
    need(source.get("media_type") in known, f"{place}.media_type: Input should be {wanted}")
    data = source.get("data")
    need(isinstance(data, str) and bool(data), f"{place}.data: Field required")
    size = len(str(data)) * 3 // 4
    need(
        kind != "image" or size <= _LARGEST,
        f"{place}: image exceeds 5 MB maximum: {size} bytes > {_LARGEST} bytes",
    )
