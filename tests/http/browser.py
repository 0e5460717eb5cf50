"""A reader of server-sent events on a plain socket, which shows what really went over the wire."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from tests.support.apps import PATIENCE


class Frame(NamedTuple):
    id: int
    event: str
    data: dict[str, Any]
    place: str = ""  # the id as it was sent


class Reader:
    def __init__(self, stream: asyncio.StreamReader, status: int, headers: dict[str, str]) -> None:
        self.status = status
        self.headers = headers
        self.comments: list[str] = []
        self.retries: list[str] = []
        self._stream = stream

    async def frames(self) -> AsyncIterator[Frame]:
        """Until the server closes the stream properly; `IncompleteReadError` when it is cut."""
        rest = ""
        while chunk := await self._chunk():
            rest += chunk.decode()
            while "\n\n" in rest:
                text, rest = rest.split("\n\n", 1)
                if (frame := self._frame(text)) is not None:
                    yield frame
        assert rest == ""

    async def body(self) -> bytes:
        if "content-length" in self.headers:
            return await self._stream.readexactly(int(self.headers["content-length"]))
        return b""

    async def _chunk(self) -> bytes:
        async with asyncio.timeout(PATIENCE):
            size = int(await self._stream.readuntil(b"\r\n"), 16)
            return (await self._stream.readexactly(size + 2))[:-2]

    def _frame(self, text: str) -> Frame | None:
        fields = {}
        for line in text.split("\n"):
            name, _, value = line.partition(": ")
            if line.startswith(":"):
                self.comments.append(line[1:].strip())
            else:
                assert name in ("id", "event", "data", "retry"), line
                fields[name] = value
        if "retry" in fields:
            self.retries.append(fields["retry"])
        if "data" not in fields:
            return None
        id = fields.get("id", "0")
        return Frame(int(id) if id.isdigit() else 0, fields["event"], json.loads(fields["data"]), id)


@asynccontextmanager
async def request(port: int, path: str, method: str = "GET", **headers: str) -> AsyncIterator[Reader]:
    stream, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        sent = {"host": "localhost", **{name.replace("_", "-"): value for name, value in headers.items()}}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items()), "", ""]
        writer.write("\r\n".join(lines).encode())
        async with asyncio.timeout(PATIENCE):
            head = (await stream.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        answered = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        yield Reader(stream, int(head[0].split()[1]), answered)
    finally:
        writer.close()
