"""A gateway on loopback over a fresh database of each kind, and clients that speak to it in bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.agw.link import Answer, GatewayAddress, GatewayRefusal, Link, request
from holdfast.app import core_of
from holdfast.resp.client import from_table
from holdfast.resp.options import RespOptions
from holdfast.resp.server import RespServer
from tests.workers.conftest import hf, live_database, make_app, place

__all__ = ["hf", "live_database", "make_app", "place"]

KEYS = {name: f"{number:02x}" * 32 for number, name in enumerate(("w1", "w2", "w3", "submitter"), 1)}
LONG = timedelta(seconds=120)  # a slow machine is no failure

Serve = Callable[..., Awaitable[RespServer]]


class Raw:
    """Bytes out, bytes in."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def until(self, end: bytes) -> bytes:
        return await self.reader.readuntil(end)

    async def rest(self) -> bytes:
        """Everything until the server closes."""
        return await self.reader.read()

    async def close(self) -> None:
        self.writer.close()


class Client:
    """A connection that gives each reply as Python, and errors as text with a minus before them."""

    def __init__(self, link: Link) -> None:
        self.link = link

    async def __call__(self, *arguments: str | bytes) -> Answer:
        try:
            return await self.link.call(*arguments)
        except GatewayRefusal as refusal:
            return f"-{refusal}"

    async def text(self, *arguments: str | bytes) -> str:
        answer = await self(*arguments)
        return answer.decode() if isinstance(answer, bytes) else str(answer)

    async def close(self) -> None:
        await self.link.close()


@pytest.fixture
async def serve(hf: Holdfast) -> AsyncIterator[Serve]:
    """Serve the app's database; more than once for several servers."""
    async with AsyncExitStack() as stack:

        async def begin(app: Holdfast | None = None, **options: Any) -> RespServer:
            given = {"bind": "127.0.0.1:0", "principals": from_table(KEYS), "auth_within": LONG, **options}
            return await stack.enter_async_context(RespServer(core_of(app or hf), RespOptions(**given)))

        yield begin


@pytest.fixture
async def server(serve: Serve) -> RespServer:
    return await serve()


@pytest.fixture
async def raw(server: RespServer) -> AsyncIterator[Callable[[], Awaitable[Raw]]]:
    opened: list[Raw] = []

    async def open() -> Raw:
        opened.append(Raw(*await asyncio.open_connection("127.0.0.1", server.port)))
        return opened[-1]

    yield open
    for each in opened:
        await each.close()


Connect = Callable[..., Awaitable[Client]]


@pytest.fixture
async def connect(server: RespServer) -> AsyncIterator[Connect]:
    """A connection that has shown the key of a worker; None: that has shown none."""
    opened: list[Client] = []

    async def open(name: str | None = "w1", port: int | None = None) -> Client:
        client = Client(await Link.open(GatewayAddress("127.0.0.1", port or server.port)))
        opened.append(client)
        if name is not None:
            assert await client("AUTH", KEYS[name]) == "OK"
        return client

    yield open
    for each in opened:
        await each.close()


__all__ += ["KEYS", "LONG", "Client", "Connect", "Raw", "Serve", "request"]
