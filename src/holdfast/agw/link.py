"""A link to the gateway: requests out, replies in, one after the other. A reply that is an error raises.

A gateway that does not answer is gone: every request has a time, after which the link is closed.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn, TypeAlias

from holdfast.resp.frames import watch_peer

Answer: TypeAlias = "int | bytes | str | list[Answer] | None"

_LONGEST_LINE = 1 << 16


class GatewayRefusal(Exception):
    """The gateway refused the request, with this text."""


class GatewayAddress(NamedTuple):
    """A host and a port, or a Unix socket. `ca`: a file with the certificates to trust, instead of the system's."""

    host: str
    port: int
    tls: bool = False
    ca: Path | None = None
    unix: Path | None = None


class LinkPatience(NamedTuple):
    """For how many seconds somebody waits for a connection, and for a reply; None: for ever."""

    connect: float | None = None
    reply: float | None = None


FOR_EVER = LinkPatience()


class Replies(asyncio.StreamReader):
    """What the gateway sends; `ended` is set as soon as nothing more can come."""

    def __init__(self) -> None:
        super().__init__(limit=_LONGEST_LINE)
        self.ended = asyncio.Event()

    def feed_eof(self) -> None:
        super().feed_eof()
        self.ended.set()

    def set_exception(self, exc: Exception) -> None:
        super().set_exception(exc)
        self.ended.set()


class Link:
    """One connection. Only one request is under way at a time."""

    def __init__(self, reader: Replies, writer: asyncio.StreamWriter, patience: LinkPatience = FOR_EVER) -> None:
        self._reader, self._writer = reader, writer
        self._patience = patience
        self._turn = asyncio.Lock()
        self._ended_by: OSError = ConnectionResetError("the gateway closed the connection")

    @classmethod
    async def open(cls, address: GatewayAddress, patience: LinkPatience = FOR_EVER) -> Link:
        """`OSError` when nobody is there, or does not take the connection in time."""
        context = ssl.create_default_context(cafile=address.ca) if address.tls else None
        loop, reader = asyncio.get_running_loop(), Replies()
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            async with asyncio.timeout(patience.connect):
                if address.unix is not None:
                    transport, _ = await loop.create_unix_connection(lambda: protocol, str(address.unix))
                else:
                    opening = loop.create_connection(lambda: protocol, address.host, address.port, ssl=context)
                    transport, _ = await opening
        except TimeoutError:
            raise TimeoutError("the gateway took no connection in time") from None
        watch_peer(transport)
        return cls(reader, asyncio.StreamWriter(transport, protocol, reader, loop), patience)

    async def call(self, *arguments: str | bytes, waits: float = 0) -> Answer:
        """The reply to one request; `GatewayRefusal`, or `OSError` when the connection is gone.

        `waits`: how many seconds the gateway may take because it was asked to wait for something. If the caller is
        cancelled, the reply is still read: the next request would take it for its own.
        """
        exchange = asyncio.create_task(self._exchange(arguments, waits))
        exchange.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(exchange)

    async def _exchange(self, arguments: Sequence[str | bytes], waits: float) -> Answer:
        limit = None if self._patience.reply is None else self._patience.reply + waits
        async with self._turn:
            try:
                async with asyncio.timeout(limit):
                    self._writer.write(request(*arguments))
                    await self._writer.drain()
                    return await read_reply(self._reader)
            except TimeoutError:
                self._ended_by = TimeoutError("the gateway did not answer in time")
                self._writer.transport.abort()  # a reply that comes later would be taken for that of the next request
                raise self._ended_by from None

    async def watch(self) -> NoReturn:
        """Wait until the connection has ended, on either side, and raise the reason."""
        await self._reader.ended.wait()
        raise self._ended_by

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
