"""A link to the gateway: requests out, replies in, one after the other. A reply that is an error raises."""

from __future__ import annotations

import asyncio
import ssl
from typing import NamedTuple, TypeAlias

Answer: TypeAlias = "int | bytes | str | list[Answer] | None"

_LONGEST_LINE = 1 << 16


class GatewayRefusal(Exception):
    """The gateway refused the request, with this text."""


class GatewayAddress(NamedTuple):
    host: str
    port: int
    tls: bool = False


class Link:
    """One connection. Only one request is under way at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._turn = asyncio.Lock()

    @classmethod
    async def open(cls, address: GatewayAddress) -> Link:
        context = ssl.create_default_context() if address.tls else None
        return cls(*await asyncio.open_connection(address.host, address.port, ssl=context, limit=_LONGEST_LINE))

    async def call(self, *arguments: str | bytes) -> Answer:
        """The reply to one request; `Refusal`, or `OSError` when the connection is gone."""
        async with self._turn:
            self._writer.write(request(*arguments))
            await self._writer.drain()
            return await read_reply(self._reader)

    async def close(self) -> None:
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            return  # it was gone already


def request(*arguments: str | bytes) -> bytes:
    """A request as bytes: an array of bulk strings."""
    parts = [b"*%d\r\n" % len(arguments)]
    for each in arguments:
        data = each.encode() if isinstance(each, str) else each
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


async def read_reply(reader: asyncio.StreamReader) -> Answer:
    """The next reply of RESP2; `Refusal` if it is an error."""
    line = await reader.readline()
    if not line.endswith(b"\r\n"):
        raise ConnectionResetError("the gateway closed the connection")
    kind, rest = line[:1], line[1:-2]
    match kind:
        case b"+":
            return rest.decode()
        case b"-":
            raise GatewayRefusal(rest.decode(errors="replace"))
        case b":":
            return int(rest)
        case b"$":
            return None if rest == b"-1" else (await _exactly(reader, int(rest) + 2))[:-2]
        case b"*":
            return None if rest == b"-1" else [await _element(reader) for _ in range(int(rest))]
        case _:
            raise ConnectionResetError(f"{kind!r} does not begin a reply")


async def _element(reader: asyncio.StreamReader) -> Answer:
    try:
        return await read_reply(reader)
    except GatewayRefusal as refusal:  # one of several replies: the others follow
        return f"-{refusal}"


async def _exactly(reader: asyncio.StreamReader, count: int) -> bytes:
    try:
        return await reader.readexactly(count)
    except asyncio.IncompleteReadError as problem:
        raise ConnectionResetError("the gateway closed the connection") from problem
