"""Contents: what people and tools hand over, as blocks that a model reads."""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from holdfast.agents.attachments import check_blocks, sendable
from holdfast.errors import BadPayload, UsageError
from holdfast.kernel import codec

EXPIRES = "holdfast_expires_at"
"""Beside a reference to a file: when it expires, in microseconds UTC. `file_references.present` removes it."""
_CUT = "\n[… {left:,} more characters were cut off]"


@dataclass(frozen=True, slots=True)
class Image:
    """A picture for the model: `Image.from_path("a.png")`, `Image.from_url("https://…")`, or bytes.

    `Image.from_file_id("file_…")` is one that the provider has already, until it `expires`.
    """

    data: bytes = b""
    media_type: str = "image/png"
    url: str = ""
    file_id: str = ""
    expires: datetime | None = None

    @classmethod
    def from_path(cls, path: str | Path) -> Image:
        return cls(Path(path).read_bytes(), _type_of(path, "image/png"))

    @classmethod
    def from_url(cls, url: str) -> Image:
        return cls(url=url)

    @classmethod
    def from_file_id(cls, file_id: str, *, expires: datetime | None = None) -> Image:
        return cls(file_id=file_id, expires=expires)

    def block(self) -> dict[str, Any]:
        if self.file_id:
            return _reference("image", self.file_id, self.expires)
        return {"type": "image", "source": _source(self.data, self.media_type, self.url)}


@dataclass(frozen=True, slots=True)
class Document:
    """A document for the model: a PDF, or plain text. `title` is what it is called in citations.

    `Document.from_file_id("file_…")` is one that the provider has already, until it `expires`.
    """

    data: bytes = b""
    media_type: str = "application/pdf"
    url: str = ""
    title: str = ""
    file_id: str = ""
    expires: datetime | None = None

    @classmethod
    def from_path(cls, path: str | Path) -> Document:
        return cls(Path(path).read_bytes(), _type_of(path, "application/pdf"), title=Path(path).name)

    @classmethod
    def from_url(cls, url: str) -> Document:
        return cls(url=url)

    @classmethod
    def from_text(cls, text: str, title: str = "") -> Document:
        return cls(text.encode(), "text/plain", title=title)

    @classmethod
    def from_file_id(cls, file_id: str, *, expires: datetime | None = None, title: str = "") -> Document:
        return cls(file_id=file_id, expires=expires, title=title)

    def block(self) -> dict[str, Any]:
        block: dict[str, Any]
        if self.file_id:
            block = _reference("document", self.file_id, self.expires)
        elif self.media_type.startswith("text/") and not self.url:
            text = {"type": "text", "media_type": "text/plain", "data": self.data.decode(errors="replace")}
            block = {"type": "document", "source": text}
        else:
            block = {"type": "document", "source": _source(self.data, self.media_type, self.url)}
        return {**block, "title": self.title} if self.title else block


Part = str | Image | Document | dict[str, Any]
Prompt = str | Part | Iterable[Part]


def blocks_of(prompt: Prompt) -> list[dict[str, Any]]:
    """A prompt as blocks; `BadPayload` when there is nothing in it that could be sent, or something that could not."""
    if not isinstance(prompt, Iterable) and not isinstance(prompt, Image | Document):
        raise UsageError(f"a prompt is text, an Image, a Document or a list of them, not {type(prompt).__name__}.")
    parts = [prompt] if isinstance(prompt, str | Image | Document | dict) else list(prompt)
    blocks = [_block(part) for part in parts]
    if not blocks or all(block.get("type") == "text" and not str(block.get("text", "")).strip() for block in blocks):
        raise BadPayload("the prompt is empty: write some text, or pass an Image or a Document.")
    for block in blocks:
        codec.encode(block, what="the prompt", cap=1 << 28)
    check_blocks(blocks)
    return [block for block in blocks if block.get("type") != "text" or str(block.get("text", "")).strip()]


def _block(part: object) -> dict[str, Any]:
    match part:
        case str():
            return {"type": "text", "text": part}
        case Image() | Document():
            return part.block()
        case dict():
            if not isinstance(part.get("type"), str):
                raise UsageError('a block is a dict that says its type: {"type": "text", "text": "…"}.')
            return part
        case _:
            raise UsageError(f"a prompt is made of text, Image, Document and blocks, not of {type(part).__name__}.")


def content_of(value: Any, cap: int) -> str | list[dict[str, Any]]:
    """What a tool returned, as the content of its result. Text that is too long is cut, and says so."""
    match value:
        case None:
            return ""
        case str():
            return _cut(value, cap)
        case Image() | Document():
            return [sendable(value.block())]
        case [*parts] if parts and any(isinstance(part, Image | Document) or _is_reference(part) for part in parts):
            return blocks_within(parts, cap)
        case _:
            return _cut(_as_text(value), cap)


_BLOCKS = ("text", "image", "document", "search_result", "tool_reference")
_MOST_CUT = 200  # characters that say that something was cut


def content_from_outside(value: Any, cap: int) -> str | list[dict[str, Any]]:
    """What somebody returned who is no worker of ours, as a worker would have stored it. What is stored so stays."""
    if isinstance(value, str):
        return value if len(value) <= cap + _MOST_CUT else _cut(value, cap)
    if isinstance(value, list) and all(isinstance(each, dict) and each.get("type") in _BLOCKS for each in value):
        return value
    return content_of(value, cap)


def blocks_within(parts: Iterable[Any], cap: int) -> list[dict[str, Any]]:
    """Parts as blocks; their texts have room for so many characters together."""
    blocks = []
    for part in parts:
        if isinstance(part, Image | Document):
            blocks.append(sendable(part.block()))
        elif _is_reference(part):
            blocks.append(dict(part))
        else:
            text = part if isinstance(part, str) else _as_text(part)
            blocks.append({"type": "text", "text": _cut(text, cap) or "(empty)"})
            cap = max(0, cap - len(text))
    return blocks


def _is_reference(part: Any) -> bool:
    """Whether it tells the model of a deferred tool, as tools that search for tools do."""
    return isinstance(part, dict) and part.get("type") == "tool_reference" and isinstance(part.get("tool_name"), str)


def _as_text(value: Any) -> str:
    from pydantic_core import PydanticSerializationError, to_json

    try:
        return to_json(value).decode()
    except (PydanticSerializationError, UnicodeDecodeError, ValueError, RecursionError) as problem:
        raise BadPayload(f"the tool returned something that is not JSON: {problem}") from None


def readable(value: Any) -> Any:
    """JSON from outside, with NUL and lone surrogates, which no database holds as text, replaced."""
    match value:
        case str():
            if value.isascii() and "\x00" not in value:
                return value
            joined = value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
            return joined.replace("\x00", "\N{REPLACEMENT CHARACTER}")
        case dict():
            return {readable(key): readable(each) for key, each in value.items()}
        case list():
            return [readable(each) for each in value]
        case _:
            return value


def _cut(text: str, cap: int) -> str:
    text = readable(text)
    if len(text) <= cap:
        return text
    return text[:cap] + _CUT.format(left=len(text) - cap)


def _type_of(path: str | Path, otherwise: str) -> str:
    return mimetypes.guess_type(str(path))[0] or otherwise


def _reference(kind: str, file_id: str, expires: datetime | None) -> dict[str, Any]:
    block: dict[str, Any] = {"type": kind, "source": {"type": "file", "file_id": file_id}}
    if expires is None:
        return block
    if expires.tzinfo is None:
        raise UsageError("expires= needs a time zone: datetime(…, tzinfo=UTC).")
    since = expires - datetime(1970, 1, 1, tzinfo=UTC)
    return {**block, EXPIRES: round(since.total_seconds() * 1e6)}


def _source(data: bytes, media_type: str, url: str) -> dict[str, Any]:
    if url:
        return {"type": "url", "url": url}
    if not data:
        raise BadPayload("an Image or a Document needs its bytes, a URL or the id of a file.")
    return {"type": "base64", "media_type": media_type, "data": base64.b64encode(data).decode()}
