"""Batches: many requests handed to the provider at once, answered within a day for half the price.

`Batches` is what a model may offer beside `Model`; nothing here retries, stores or interprets. The provider never says
which custom ids an open batch holds: a batch whose submit was lost is known again by its results alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Protocol, runtime_checkable

from holdfast.models.failures import Bought, ModelFailure
from holdfast.models.protocol import ResponseHead, Wire

MOST_REQUESTS = 100_000
"""Of one batch, as the provider limits it."""
MOST_BYTES = 256 * 1024 * 1024
"""Of the body of one submit; `upload_size` in `batch_wire` tells how large it will be."""
LASTS_US = 24 * 3600 * 1_000_000
"""What has not been processed so long after the submit expires."""
CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class BatchItem(NamedTuple):
    """One request of a batch."""

    custom_id: str
    """`[A-Za-z0-9_-]{1,64}`, unique in its batch: all that will connect a result to its request."""
    params: str
    """The request body as JSON text, without `stream`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStatus:
    """A batch, as the provider speaks of it. Times are microseconds UTC, by the provider's clock."""

    id: str
    status: str
    """`in_progress`, `canceling` or `ended`."""
    created_us: int
    expires_us: int | None
    ended_us: int | None
    counts: Mapping[str, int]
    """Requests by state: processing, succeeded, errored, canceled, expired. All are processing until the batch ends."""

    @property
    def size(self) -> int:
        """How many requests it holds, in whatever state."""
        return sum(self.counts.values())

    @property
    def ended(self) -> bool:
        """Nothing will change any more, and there are results."""
        return self.status == "ended"


class BatchLine(NamedTuple):
    """What became of one request."""

    custom_id: str
    type: str
    """`succeeded`, `errored`, `canceled`, `expired`, or what the provider says next year."""
    message: Wire | None
    """Of `succeeded`: the whole message."""
    error: Wire | None
    """Of `errored`: the provider's error object, `{"type": ..., "message": ...}`."""


@runtime_checkable
class Batches(Protocol):
    """A provider that takes batches. Whatever goes wrong is a `ModelFailure`."""

    async def submit_batch(
        self, items: Sequence[BatchItem], *, call: str, total: float, answered: Callable[[ResponseHead], None]
    ) -> BatchStatus:
        """Make a batch of these requests, within `total` seconds; `call` names the submit to a witness.

        A failure with `bought="unknown"` (no answer, a broken one, an error of the server) may have left a batch at the
        provider: look for it with `list_batches` before submitting again. After `bought="no"` there is none.
        """

    async def get_batch(self, id: str) -> BatchStatus:
        """How a batch stands. Just made, it can be `not_found` for a moment: the provider's servers differ."""

    async def list_batches(self, since_us: int) -> list[BatchStatus]:
        """Every batch of the account that was made at `since_us` or later, newest first."""

    async def cancel_batch(self, id: str) -> BatchStatus:
        """Ask that no more of a batch is processed: it ends soon, with the results of what was processed until then.

        Where it has ended already that is refused, as `bad_request`: read its results.
        """

    def batch_results(self, id: str) -> AsyncGenerator[BatchLine, None]:
        """The results of a batch that has ended, in any order, as they come in: one line is held at a time.

        A line may come twice, or not at all; one that cannot be read comes without custom id. The iteration fails with
        `cut` where the download breaks off, and `not_found` where there are no results, or none yet.
        """


def check_items(items: Sequence[BatchItem]) -> None:
    """Refuse, before anything is sent, what the provider would refuse as a whole."""
    if not 1 <= len(items) <= MOST_REQUESTS:
        raise _refused(f"a batch has between 1 and {MOST_REQUESTS:,} requests, not {len(items):,}")
    seen: set[str] = set()
    for item in items:
        if not CUSTOM_ID.fullmatch(item.custom_id):
            raise _refused(f"custom id {item.custom_id!r} does not match [A-Za-z0-9_-]{{1,64}}")
        if item.custom_id in seen:
            raise _refused(f"custom id {item.custom_id!r} is given to two requests")
        seen.add(item.custom_id)


def _refused(problem: str) -> ModelFailure:
    return ModelFailure("bad_request", f"{problem}.", bought="no")


# The provider's JSON of batches: a submit on its way out, statuses and lines of results on their way in.
#
# Neither a submit nor a download is ever held as one piece: a submit is encoded request by request while it is sent,
# and
# of the results there is one line at a time, which costs its length however many chunks it comes in.


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
