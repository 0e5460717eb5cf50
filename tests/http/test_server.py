"""The server of `holdfast serve` under clients that say nothing, too slowly or too often, or take nothing."""

from __future__ import annotations

import asyncio
import resource
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from websockets.asyncio.client import connect

from holdfast import Holdfast
from holdfast.access.principals import Principal
from holdfast.access.tokens import NewToken
from holdfast.http import web
from holdfast.http.security import checks
from holdfast.http.server import server_for
from tests.conftest import Place
from tests.http import few_streams
from tests.http.browser import Reader, request
from tests.http.test_api import guide
from tests.support.apps import PATIENCE, MakeApp, eventually
from tests.support.commands import start

ROOT = Path(__file__).parents[2]
API = "/api/v1"
HEAD = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[tuple[int, uvicorn.Server]]:
    server = server_for(app, port=0)
    task = asyncio.create_task(server.serve())

    async def started() -> bool:
        return server.started

    await eventually(started)
    try:
        yield server.servers[0].sockets[0].getsockname()[1], server
    finally:
        server.should_exit = server.force_exit = True
        await task


async def dripped(port: int, sent: bytes, *, at_once: int = 0) -> bytes:
    """What a client reads that sends a byte every few milliseconds, until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    heard, left = b"", iter(sent[at_once:])
    writer.write(sent[:at_once])
    async with asyncio.timeout(PATIENCE):
        while not reader.at_eof():
            if (byte := next(left, None)) is not None:
                writer.write(bytes([byte]))
            try:
                heard += await asyncio.wait_for(reader.read(1000), 0.01)
            except TimeoutError:
                continue
            except ConnectionError:
                break
    writer.close()
    return heard


async def test_headers_that_drip_are_not_waited_for(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that says nothing, drips its first or its second headers, or a body that nobody wants, is closed."""
    monkeypatch.setattr(checks, "HEADER_SECONDS", 0.3)
    endless = b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"x" * 10_000
    refused = b"POST /api/v1/runs HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n" + b"x" * 10_000
    async with serving(web(hf, who=lambda _: None)) as (port, server):
        slow = [
            *(dripped(port, b"") for _ in range(10)),
            *(dripped(port, endless) for _ in range(10)),
            *(dripped(port, HEAD + endless, at_once=len(HEAD)) for _ in range(10)),
            *(dripped(port, refused, at_once=120) for _ in range(10)),
        ]
        waiting = asyncio.gather(*slow)
        while not waiting.done():  # others are answered meanwhile
            async with request(port, "/healthz") as reader:
                assert reader.status == 200
        heard = await waiting
        assert heard[:20] == [b""] * 20
        assert all(each.startswith(b"HTTP/1.1 200") for each in heard[20:30])
        assert all(each.startswith(b"HTTP/1.1 401") for each in heard[30:])

        async def gone() -> bool:
            return not server.server_state.connections

        await eventually(gone)


HANDSHAKE = (
    b"GET %s HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n%s\r\n"
)


@pytest.mark.parametrize(
    "sent",
    [
        HANDSHAKE % (b"/", b"content-length: 5\r\n") + b"hello",
        HANDSHAKE % (b"/", b"content-length: 5\r\n"),
        HANDSHAKE % (b"/", b"transfer-encoding: chunked\r\n"),
        HANDSHAKE % (b"/", b"x: 1\r\n" * 300),
        HANDSHAKE % (b"/", b"x: " + b"a" * 20_000 + b"\r\n"),
        HANDSHAKE % (b"/" + b"a" * 10_000, b""),
        HANDSHAKE % (b"/", b""),
    ],
    ids=["body", "body to come", "chunks", "many headers", "long header", "long path", "no token"],
)
async def test_a_handshake_that_cannot_be_is_refused_and_its_connection_closed(hf: Holdfast, sent: bytes) -> None:
    async with serving(web(hf)) as (port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        async with asyncio.timeout(PATIENCE):
            told = await reader.read()
        assert told.split()[1] in (b"400", b"403"), told
        writer.close()


async def test_what_is_being_answered_may_take_longer_than_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "HEADER_SECONDS", 0.1)
    later = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        if scope["type"] == "websocket":
            await send({"type": "websocket.accept"})
            await later.wait()
            await send({"type": "websocket.send", "text": "still here"})
            await receive()
            return
        await later.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async with serving(app) as (port, _):

        async def ask() -> int:
            async with request(port, "/") as reader:
                return reader.status

        asking = asyncio.create_task(ask())
        async with connect(f"ws://127.0.0.1:{port}/", open_timeout=PATIENCE) as socket:
            for _ in range(3):
                assert await dripped(port, b"") == b""  # so much time has passed
            later.set()
            assert await socket.recv() == "still here"
        assert await asking == 200


async def test_who_takes_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch, hf: Holdfast) -> None:
    """Neither the answer nor the connection is kept for a reader that does not read."""
    monkeypatch.setattr(checks, "TAKE_SECONDS", 0.2)
    await guide(hf).enqueue("x" * 1_000_000)
    async with serving(web(hf, who=lambda _: Principal("ann", "admin"))) as (port, server):
        held: list[Streams] = []
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1_000)
            writer.write(b"".join(b"GET /api/v1/runs HTTP/1.1\r\nhost: localhost\r\n\r\n" for _ in range(20)))
            held.append((reader, writer))
            assert await reader.readexactly(8) == b"HTTP/1.1"

        async def gone() -> bool:
            return not server.server_state.connections

        await eventually(gone)
        for _, writer in held:
            writer.close()


class Process:
    """`holdfast serve` in a process of its own."""

    def __init__(self, url: str, module: str) -> None:
        command = ("-m", module, "serve", "--url", url, "--bind", "127.0.0.1:0")
        self._process = start(*command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        self.port = int(line.split("/login")[0].rpartition(":")[2])

    @property
    def megabytes(self) -> float:
        """What it has in memory."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    def stop(self) -> None:
        self._process.terminate()
        assert self._process.wait(60) == 0
        assert self._process.stdout is not None
        self._process.stdout.close()


@asynccontextmanager
async def process(url: str, module: str = "holdfast") -> AsyncIterator[Process]:
    made = await asyncio.to_thread(Process, url, module)
    try:
        yield made
    finally:
        await asyncio.to_thread(made.stop)


async def tokens(hf: Holdfast, n: int) -> list[NewToken]:
    return [await hf.access.tokens.create(f"reader {number}") for number in range(n)]


def by(token: NewToken) -> dict[str, str]:
    return {"authorization": f"Bearer {token.secret}"}


async def together(some: list[Callable[[], Any]], at_once: int = 100) -> None:
    """So many at a time: a listener's backlog is finite."""
    for first in range(0, len(some), at_once):
        await asyncio.gather(*(each() for each in some[first : first + at_once]))


async def hold(stack: AsyncExitStack, served: Process, path: str, token: NewToken) -> None:
    """Open a stream, and read its first event; it stays open, and nothing more happens there."""
    reader: Reader = await stack.enter_async_context(request(served.port, path, **by(token)))
    assert reader.status == 200, await reader.body()
    assert (await anext(reader.frames())).event == "run_created"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("streams", "module"),
    [(few_streams.STREAMS, few_streams.__name__), pytest.param(checks.STREAMS_ALL, "holdfast", marks=pytest.mark.long)],
)
async def test_idle_streams_up_to_the_cap_leave_room_for_others(
    make_app: MakeApp, place: Place, streams: int, module: str
) -> None:
    hf = make_app(embedded=False)
    agent = guide(hf)
    runs = [await agent.enqueue(f"Hello {n}", session=f"s{n}") for n in range(10)]
    paths = [
        path for n, run in enumerate(runs) for path in (f"{API}/runs/{run.id}/stream", f"{API}/sessions/s{n}/stream")
    ]
    *readers, other = await tokens(hf, streams // checks.STREAMS_EACH + 1)
    async with process(place.url, module) as served, AsyncExitStack() as stack:
        async with request(served.port, f"{API}/runs", **by(other)) as reader:
            assert reader.status == 200
        before = served.megabytes
        await together(
            [
                lambda path=path, token=token: hold(stack, served, path, token)  # type: ignore[misc]
                for token in readers
                for path in paths[: checks.STREAMS_EACH]
            ]
        )
        async with request(served.port, paths[0], **by(other)) as reader:
            assert (reader.status, reader.headers["retry-after"]) == (429, "5")
            assert f"the process {streams}".encode() in await reader.body()
        for path in (f"{API}/runs", f"{API}/system", "/healthz", "/readyz"):
            async with request(served.port, path, **by(other)) as reader:
                assert reader.status == 200, path
        assert served.megabytes - before < 20 + 0.14 * streams, "150 KB a stream would be too much"
        await stack.aclose()

        async def room() -> bool:
            async with request(served.port, paths[0], **by(other)) as reader:
                return reader.status == 200

        await eventually(room)


@pytest.mark.long
@pytest.mark.slow
async def test_ten_thousand_idle_connections_are_closed_and_others_answered(place: Place, make_app: MakeApp) -> None:
    hf = make_app(embedded=False)
    (token,) = await tokens(hf, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    idle = 10_000 if hard == resource.RLIM_INFINITY else min(10_000, hard - 1_000)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, idle + 1_000), hard))
    opened: list[Streams] = []

    async def connect_only() -> None:
        opened.append(await asyncio.open_connection("127.0.0.1", served.port))

    try:
        async with process(place.url) as served:
            before = served.megabytes
            await together([connect_only] * idle)
            async with request(served.port, f"{API}/runs", **by(token)) as reader:
                assert reader.status == 200
            assert served.megabytes - before < 500, "50 KB a connection would be too much"
            for reader_, writer in opened:
                async with asyncio.timeout(PATIENCE):
                    assert await reader_.read() == b""
                writer.close()
            async with request(served.port, f"{API}/runs", **by(token)) as reader:
                assert reader.status == 200
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
