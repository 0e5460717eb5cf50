"""Contents: what people and tools hand over, as blocks that a model reads."""

from __future__ import annotations

import base64
import binascii
import mimetypes
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from holdfast.errors import BadPayload, UsageError
from holdfast.kernel import codec

# Attachments: pictures and documents, and which of them a model can be sent at all.
#
# What a provider is known to refuse is refused before it is stored: a conversation is sent again with every turn, and
# so
# is what is wrong with it. The limits are those of the Messages API: pictures of four kinds and of 5 MB, documents as
# PDF
# or as plain text, and 32 MB for a whole request. The provider knows more, such as how many pixels a picture has;
# what it
# refuses then is the subject of `refused_content`.


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


# References to files that the provider keeps, and what becomes of them when they expire. Pure.
#
# When a file expires is stored beside its block and never sent. From that moment on a sentence stands in its place,
# so
# what was sent before is no longer a prefix of what is sent: the history has another fingerprint.


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


# An estimate of how many tokens something is, without asking anybody. Pure, and only ever an estimate.


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
        raise UsageError(f"a prompt must be text, an Image, a Document or a list of them; got {type(prompt).__name__}.")
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
