"""The provider's JSON of batches: a submit on its way out, statuses and lines of results on their way in.

Neither a submit nor a download is ever held as one piece: a submit is encoded request by request while it is sent, and
of the results there is one line at a time, which costs its length however many chunks it comes in.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.models.batches import BatchItem, BatchLine, BatchStatus
from holdfast.models.failures import Bought, ModelFailure
from holdfast.models.protocol import Wire

_PIECE = 256 * 1024  # bytes to a write, unless one request is longer
_HEAD, _TAIL = b'{"requests":[', b"]}"
_BETWEEN = (b'{"custom_id":"', b'","params":', b"}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Upload:
    """The body of a submit, as an HTTP client takes it: pieces of bytes, and `size`, how many there will be.

    As long as `handed_over` is false the last piece has not left our hands, so nobody can have accepted the whole.
    """

    def __init__(self, items: Sequence[BatchItem]) -> None:
        self._items = items
        self.size = upload_size(items)
        self.handed_over = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        held, size = [_HEAD], 0
        for part in _parts(self._items):
            held.append(part)
            size += len(part)
            if size >= _PIECE:
                yield b"".join(held)
                held, size = [], 0
        held.append(_TAIL)
        self.handed_over = True
        yield b"".join(held)


def upload_size(items: Sequence[BatchItem]) -> int:
    """The bytes that a submit of these requests has."""
    each = sum(map(len, _BETWEEN)) + 1  # and a comma
    return sum(len(item.custom_id) + _length(item.params) + each for item in items) + len(_HEAD) + len(_TAIL) - 1


def _parts(items: Sequence[BatchItem]) -> Iterator[bytes]:
    before, between, after = _BETWEEN
    comma = b""
    for item in items:
        yield comma + before + item.custom_id.encode() + between
        yield _encoded(item.params)
        yield after
        comma = b","


def _length(text: str) -> int:
    return len(text) if text.isascii() else len(_encoded(text))


def _encoded(text: str) -> bytes:
    return text.encode(errors="backslashreplace")  # half of a surrogate pair has no bytes, but a spelling in JSON


def status_of(value: Any, bought: Bought = "no") -> BatchStatus:
    """A batch, read from the provider's object; `ModelFailure("malformed")` if it is none."""
    try:
        counts = {str(name): int(count) for name, count in value["request_counts"].items()}
        created = _us(value["created_at"])
        if not isinstance(value["id"], str) or created is None:
            raise ValueError("it has no id, or no time of creation")
        return BatchStatus(
            id=value["id"],
            status=str(value["processing_status"]),
            created_us=created,
            expires_us=_us(value.get("expires_at")),
            ended_us=_us(value.get("ended_at")),
            counts=counts,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise ModelFailure("malformed", f"{value!r:.200} is not a batch: {problem!r}.", bought=bought) from problem


def _us(text: str | None) -> int | None:
    return None if text is None else (datetime.fromisoformat(text) - _EPOCH) // timedelta(microseconds=1)


def rfc3339(us: int | None) -> str | None:
    """A time as the provider writes it."""
    if us is None:
        return None
    return (_EPOCH + timedelta(microseconds=us)).isoformat(timespec="microseconds").replace("+00:00", "Z")


UNREADABLE = "unreadable"


async def read_lines(chunks: AsyncIterator[bytes]) -> AsyncGenerator[BatchLine, None]:
    """The lines of results in a stream of bytes until it ends."""
    parts: list[bytes] = []
    async for chunk in chunks:
        begin = 0
        while (end := chunk.find(b"\n", begin)) >= 0:
            parts.append(chunk[begin:end])
            data = b"".join(parts)
            parts, begin = [], end + 1
            if data.strip():
                yield _readable(data)
        if begin < len(chunk):
            parts.append(chunk[begin:])
    if rest := b"".join(parts).strip():
        try:
            line = line_of(rest)
        except ModelFailure as failure:  # half a line is how a download ends that nobody finished
            raise ModelFailure("cut", "the results end in the middle of a line.") from failure
        yield line


def _readable(data: bytes) -> BatchLine:
    """A line, or that there is one which cannot be read: those behind it can."""
    try:
        return line_of(data)
    except ModelFailure as failure:
        return BatchLine("", UNREADABLE, None, {"type": UNREADABLE, "message": str(failure)})


def line_of(data: bytes) -> BatchLine:
    """One line of results; `ModelFailure("malformed")` if it is none."""
    try:
        value = json.loads(data.decode())
    except (ValueError, RecursionError) as problem:
        raise ModelFailure("malformed", f"a line of the results is not JSON: {data[:200]!r}.") from problem
    id = value.get("custom_id") if isinstance(value, dict) else None
    if not isinstance(id, str):
        raise ModelFailure("malformed", f"a line of the results has no custom_id: {data[:200]!r}.")
    result = value.get("result")
    if not isinstance(result, dict) or not isinstance(result.get("type"), str):
        raise ModelFailure("malformed", f"the line of {id} has no result: {data[:200]!r}.")
    message = result.get("message")
    if result["type"] == "succeeded" and not isinstance(message, dict):
        raise ModelFailure("malformed", f"the line of {id} has succeeded without a message: {data[:200]!r}.")
    return BatchLine(id, result["type"], message if isinstance(message, dict) else None, _error(result.get("error")))


def _error(error: Any) -> Wire | None:
    """The error object itself; the provider wraps it as it does in a response of its own."""
    if not isinstance(error, Mapping):
        return None
    inner = error.get("error")
    return dict(inner if isinstance(inner, Mapping) else error)


def line_bytes(custom_id: str, result: Wire, **more: Any) -> bytes:
    """One line of results, as the provider writes it."""
    value = {"custom_id": custom_id, "result": result, **more}
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="backslashreplace") + b"\n"


def errored(error: Wire, request_id: str | None = None) -> Wire:
    """The result of a request that failed."""
    return {"type": "errored", "error": {"type": "error", "error": error, "request_id": request_id}}
