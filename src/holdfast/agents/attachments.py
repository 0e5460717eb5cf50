"""Attachments: pictures and documents, and which of them a model can be sent at all.

What a provider is known to refuse is refused before it is stored: a conversation is sent again with every turn, and so
is what is wrong with it. The limits are those of the Messages API: pictures of four kinds and of 5 MB, documents as PDF
or as plain text, and 32 MB for a whole request. The provider knows more, such as how many pixels a picture has; what it
refuses then is the subject of `refused_content`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator
from typing import Any

from holdfast.errors import BadPayload

PICTURES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})  # those that models look at
PDF = "application/pdf"
_PICTURE_BYTES = 5 * 1024 * 1024  # of the picture itself, before it is written as base64
_REQUEST_BYTES = 32 * 1024 * 1024  # of base64: nothing larger fits into a request
_MEDIA = ("image", "document")


def problem_of(block: Any) -> str | None:
    """Why this block, or one inside it, cannot be sent to a model; None when nothing is known against it."""
    return next((why for each in _inside(block) if (why := _problem(each)) is not None), None)


def check_blocks(blocks: Iterable[dict[str, Any]]) -> None:
    """`BadPayload` for the first of them that no provider would take."""
    for block in blocks:
        if (why := problem_of(block)) is not None:
            raise BadPayload(why)


def sendable(block: dict[str, Any]) -> dict[str, Any]:
    """A block of a tool's result, or an error in its place: the tool has done its work, and is not run again."""
    why = problem_of(block)
    if why is None:
        return block
    return {"type": "text", "text": f"Error: the tool returned something that cannot be shown: {why}"}


def carries_media(block: Any) -> bool:
    """Whether there is a picture or a document in it."""
    return any(each.get("type") in _MEDIA for each in _inside(block))


def is_more_than_text(result: dict[str, Any]) -> bool:
    """Whether a tool's result holds something beside words, which a provider may refuse for what it is."""
    return any(each.get("type") != "text" for each in _inside(result) if each is not result)


def _inside(block: Any) -> Iterator[dict[str, Any]]:
    """A block, and those that it is made of: results of tools and documents have some."""
    if not isinstance(block, dict):
        return
    yield block
    source = block.get("source")
    for content in (block.get("content"), source.get("content") if isinstance(source, dict) else None):
        for each in content if isinstance(content, list) else ():
            yield from _inside(each)


def _problem(block: dict[str, Any]) -> str | None:
    kind, source = block.get("type"), block.get("source")
    if kind not in _MEDIA or not isinstance(source, dict):
        return None
    media_type, data = source.get("media_type"), source.get("data")
    if not isinstance(media_type, str | None):
        return f"the {kind}'s source.media_type is text, not {type(media_type).__name__}."
    if kind == "document" and source.get("type") == "text":
        return None if media_type == "text/plain" else f"a document of text is text/plain, not {media_type}."
    if source.get("type") != "base64":
        return None
    if kind == "image" and media_type not in PICTURES:
        return f"models accept {', '.join(sorted(PICTURES))}, not at {media_type}: convert the picture."
    if kind == "document" and media_type != PDF:
        return f"models accept PDF ({PDF}) and plain text, not {media_type}: convert the document, or send its text."
    if not isinstance(data, str) or not data:
        return f"the {kind} has no bytes: give them as base64 in source.data."
    return _size_problem(kind, data)


def _size_problem(kind: str, data: str) -> str | None:
    try:
        size = len(base64.b64decode(data, validate=True))
    except binascii.Error:
        return f"the {kind}'s source.data is not base64."
    if kind == "image" and size > _PICTURE_BYTES:
        return f"the picture has {size:,} bytes, and models accept {_PICTURE_BYTES:,} at most: make it smaller."
    if len(data) > _REQUEST_BYTES:
        return f"the {kind} has {size:,} bytes, which no request can hold: send part of it, or upload it as a file."
    return None
