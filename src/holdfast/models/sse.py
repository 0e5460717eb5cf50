"""Server-sent events, read from bytes, within two limits of our own.

The idle limit counts from event to event: pings are a sign of life, bytes that never complete an event are not. Time
in which the reader of these events is busy elsewhere does not count.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import TypeVar

from holdfast.models.failures import ModelFailure
from holdfast.models.protocol import Wire

T = TypeVar("T")


class DataLines:
    """Bytes in, the data of whole events out: that of the lines up to an empty one."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []  # pieces of a line whose end has not come
        self._data: list[bytes] = []

    def data(self, chunk: bytes) -> list[bytes]:
        events: list[bytes] = []
        if b"\n" not in chunk:
            self._rest.append(chunk)
            return events
        *lines, rest = b"".join((*self._rest, chunk)).split(b"\n")
        self._rest = [rest]
        for line in (each.removesuffix(b"\r") for each in lines):
            if line.startswith(b"data:"):
                self._data.append(line[5:])
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data = []
        return events


class Lines(DataLines):
    """Bytes in, whole events out."""

    def feed(self, chunk: bytes) -> list[Wire]:
        return [_decoded(data) for data in self.data(chunk)]


def _decoded(data: bytes) -> Wire:
    try:
        event = json.loads(data.decode())
    except (ValueError, RecursionError) as problem:
        raise ModelFailure("malformed", f"an event is not JSON: {data[:200]!r}.") from problem
    if not isinstance(event, dict) or not isinstance(event.get("type"), str):
        raise ModelFailure("malformed", f"an event has no type: {data[:200]!r}.")
    return event


class Patience:
    """How long to wait for the next event, and for all of them."""

    def __init__(self, idle: float, total: float) -> None:
        self._idle, self._total = idle, total
        self._ends = asyncio.get_running_loop().time() + total

    def next(self) -> float:
        """The moment, by the loop's clock, at which the next event is too late."""
        return min(asyncio.get_running_loop().time() + self._idle, self._ends)

    def lost(self) -> ModelFailure:
        if asyncio.get_running_loop().time() >= self._ends:
            return ModelFailure("timeout", f"the answer took longer than {self._total:g}s.")
        return ModelFailure("timeout", f"nothing arrived for {self._idle:g}s, not even a ping.")


def read_events(chunks: AsyncIterator[bytes], patience: Patience) -> AsyncGenerator[Wire, None]:
    """The events in a stream of bytes until it ends, up to and including one of type `error`."""
    return _read(chunks, patience, Lines().feed)


def read_data(chunks: AsyncIterator[bytes], patience: Patience) -> AsyncGenerator[bytes, None]:
    """The data of each event in a stream of bytes, until it ends."""
    return _read(chunks, patience, DataLines().data)


async def _read(
    chunks: AsyncIterator[bytes], patience: Patience, feed: Callable[[bytes], list[T]]
) -> AsyncGenerator[T, None]:
    until = patience.next()
    while True:
        try:
            async with asyncio.timeout_at(until):
                chunk = await anext(chunks, None)
        except TimeoutError:
            raise patience.lost() from None
        if chunk is None:
            return
        events = feed(chunk)
        for event in events:
            yield event
        if events:
            until = patience.next()
