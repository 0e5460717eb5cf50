"""An estimate of how many tokens something is, without asking anybody. Pure, and only ever an estimate."""

from __future__ import annotations

from typing import Any

_BYTES_PER_TOKEN = 4  # of text in many languages, counted in UTF-8
_IMAGE = 1_600  # tokens of a picture, which the provider shrinks to a common size
_DOCUMENT_BYTES_PER_TOKEN = 40  # of a PDF: its pages are read as text and as pictures


def estimate(value: Any) -> int:
    """Tokens of a block, of tools, or of any other JSON that is sent."""
    size, media = _measure(value)
    return -(-size // _BYTES_PER_TOKEN) + media


def _measure(value: Any) -> tuple[int, int]:
    """Bytes of text, and tokens of what is not text."""
    if isinstance(value, str):
        return (len(value) if value.isascii() else len(value.encode(errors="replace"))), 0
    if isinstance(value, list | tuple):
        return _sum([_measure(item) for item in value], len(value))
    if isinstance(value, dict):
        data = value.get("data")
        if value.get("type") == "base64" and isinstance(data, str):
            return 0, _media(str(value.get("media_type", "")), len(data) * 3 // 4)
        if value.get("type") == "image" and isinstance(value.get("source"), dict) and "data" not in value["source"]:
            return 0, _IMAGE
        return _sum([_measure(item) for item in value.values()], sum(len(str(key)) + 6 for key in value))
    return len(str(value)), 0


def _sum(parts: list[tuple[int, int]], more: int) -> tuple[int, int]:
    return sum(size for size, _ in parts) + more, sum(media for _, media in parts)


def _media(kind: str, size: int) -> int:
    return _IMAGE if kind.startswith("image/") else max(_IMAGE, size // _DOCUMENT_BYTES_PER_TOKEN)
