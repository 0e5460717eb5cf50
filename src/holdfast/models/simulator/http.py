"""Just enough HTTP/1.1 for a loopback server: requests in, whole or chunked responses out, connections kept alive."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from holdfast.models import batches

# A refusal, as the provider words it.


class RequestRefused(Exception):
    """The request is not accepted, and costs nothing."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        type: str = "invalid_request_error",
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers or {}
        self.error: dict[str, Any] = {"type": type, "message": message}
        if code is not None:
            self.error["details"] = {"error_code": code}


def need(true: bool, message: str) -> None:
    """Refuse with this message unless `true`."""
    if not true:
        raise RequestRefused(message)


MOST_BYTES = 32 * 1024 * 1024
LARGER = {("POST", "/v1/messages/batches"): batches.MOST_BYTES}
"""Where more is taken."""


class TooLarge(Exception):
    """The body is over the provider's limit; it is not read."""


class Gone(Exception):
    """The other side has closed the connection."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    method: str
    path: str
    headers: Mapping[str, str]
    """By lower-case name."""
    body: bytes
    query: str = ""


class SimulatorConnection:
    """One client. A response is either `answer`ed whole, or begun with `start` and continued with `send`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.closing = False

    async def receive(self) -> HttpRequest | None:
        """The next request; none when the client has said goodbye."""
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
            first, *lines = head.decode("latin-1").split("\r\n")
            method, target, _ = first.split(" ", 2)
            headers = {
                name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
            }
            path, _, query = target.partition("?")
            most = LARGER.get((method, path), MOST_BYTES)
            length = int(headers.get("content-length", 0))
            if length > most:
                raise TooLarge
            if headers.get("transfer-encoding", "").lower() == "chunked":
                body = await self._chunked(most)
            else:
                body = await self._reader.readexactly(length) if length else b""
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError, ValueError):
            return None
        return HttpRequest(method, path, headers, body, query)

    async def _chunked(self, most: int) -> bytes:
        body = bytearray()
        while size := int((await self._reader.readline()).split(b";")[0], 16):
            body += await self._reader.readexactly(size)
            await self._reader.readline()
            if len(body) > most:
                raise TooLarge
        await self._reader.readline()
        return bytes(body)

    async def discard(self) -> None:
        """Read what is still sent and drop it: a client that is busy sending hears no answer."""
        with suppress(ConnectionError):
            while await self._reader.read(2**16):
                pass

    async def answer(self, status: int, value: Any, headers: Mapping[str, str]) -> None:
        body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
        more = {"content-type": "application/json", "content-length": str(len(body)), **headers}
        await self._write(_head(status, more) + body)

    async def start(self, headers: Mapping[str, str]) -> None:
        """Begin a stream of server-sent events."""
        more = {"content-type": "text/event-stream; charset=utf-8", "transfer-encoding": "chunked", **headers}
        await self._write(_head(200, more))

    async def send(self, data: bytes) -> None:
        await self._write(b"%x\r\n%b\r\n" % (len(data), data))

    async def finish(self) -> None:
        await self._write(b"0\r\n\r\n")

    async def _write(self, data: bytes) -> None:
        try:
            self._writer.write(data)
            await self._writer.drain()
        except ConnectionError as problem:
            raise Gone from problem
        if self._reader.at_eof():
            raise Gone

    async def hang(self, seconds: float | None) -> None:
        """Send nothing, for a while or until the client has had enough."""
        try:
            async with asyncio.timeout(seconds):
                await self._reader.read(1)
        except TimeoutError:
            return
        except ConnectionError as problem:
            raise Gone from problem
        raise Gone

    def cut(self) -> None:
        """Drop the connection in the middle of what it was doing."""
        self.closing = True
        self._writer.transport.abort()


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    try:
        reason = HTTPStatus(status).phrase
    except ValueError:
        reason = "Unknown"
    lines = [f"HTTP/1.1 {status} {reason}", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1")
