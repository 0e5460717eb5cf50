"""Holdfast's web: a server beside a bare route, and the clients that ask it and read its streams."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import socket
import time
from typing import Any

import uvicorn
from fastapi import FastAPI

from bench.contenders.holdfast_agents import CLOCK, crier, talker
from bench.contenders.holdfast_agents import hf as talking
from bench.contenders.protocol import Order, async_gate, main, say
from bench.run_filling import copy_message, copy_run
from holdfast import Holdfast
from holdfast.access.principals import Principal
from holdfast.agents import queries
from holdfast.app import core_of
from holdfast.cli.serve import listen_on
from holdfast.http.security.binds import Bind
from holdfast.models.script import Script
from holdfast.models.script import say as answer
from holdfast.settings import Settings

NAMES = 1_000  # principals, by turns: each of them has a rate, and so many streams
SESSION = "long"
API = "/ops/api/v1"
# Only where it is said: the answer and the end have the whole text once more.
_SAID = re.compile(rb'event: text_delta\ndata: [^\n]*"text":"([0-9. ]+)"')

hf = Holdfast(embedded=False, settings=Settings())
hf.script("short", Script(answer("Yes.")))
guide = hf.agent("guide", model="scripted:short")


def _use(order: Order) -> None:
    hf.settings = hf.settings.override({"url": order.url, "public_topics": "false"})
    talking.settings = talking.settings.override({"url": order.url, "public_topics": "false"})


async def prepare(order: Order) -> None:
    """The tables; with `n`, so many copies of a run, and of a message `ahead` times as many."""
    _use(order)
    await hf.migrate()
    if not order.n:
        return
    worker = core_of(hf).make_worker()
    await worker.start()
    run = await guide.enqueue("Is it so?")
    await run.result()
    asked = await guide.enqueue("Is it so?", session=SESSION)
    await asked.result()
    message = (await hf.sessions[SESSION].messages(limit=1))[0].id
    await worker.stop()
    await hf.close()
    copy_run(order.url, run.id, order.n)
    copy_message(order.url, message, order.ahead)
    await _count()


async def _count() -> None:
    """Count what has ended, as the chore of a worker has done long before there are so many."""
    core = core_of(hf)
    await core.runtime().open()
    while await core.runtime().database.transact(queries.count, core.settings):
        pass
    await hf.close()


async def serve(order: Order) -> None:
    """The API under /ops and a bare route, until this process is ended."""
    _use(order)
    names = itertools.cycle(Principal(f"bench {number}", "admin") for number in range(NAMES))
    app = FastAPI()

    @app.get("/bare/{id}")
    async def show(id: str) -> dict[str, str]:
        return {"id": id}

    @app.post("/bare", status_code=201)
    async def create(body: dict[str, Any]) -> dict[str, Any]:
        return body

    app.mount("/ops", hf.web(who=lambda _: next(names)))
    with listen_on(Bind("127.0.0.1", 0), socket.AF_INET) as listener:
        server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="error", access_log=False))
        say("ready", port=listener.getsockname()[1])
        await server.serve([listener])


class Connection:
    """HTTP/1.1 on a socket that is kept, with as little of our own as there can be."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def to(cls, port: int) -> Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 24))

    async def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        await self.send(method, path, body)
        head = await self._reader.readuntil(b"\r\n\r\n")
        size = re.search(rb"(?i)content-length: (\d+)", head)
        return int(head.split(b" ", 2)[1]), await self._reader.readexactly(int(size[1]) if size else 0)

    async def send(self, method: str, path: str, body: bytes = b"") -> None:
        kind = "content-type: application/json\r\n" if body else ""
        kind += "" if "/api/" in path else "accept: text/html\r\n"
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n{kind}content-length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)

    async def chunks(self) -> Any:
        """What comes, as it comes, without taking it apart."""
        while data := await self._reader.read(1 << 18):
            yield data


def _port(order: Order) -> int:
    return order.slot


def _named(path: str, names: dict[str, str]) -> str:
    for name, value in names.items():
        path = path.replace(name, value)
    return path


async def look(order: Order) -> None:
    """Ask each of the paths `n` times, one after the other; milliseconds of each."""
    line = await Connection.to(_port(order))
    _, listed = await line.ask("GET", f"{API}/runs?limit=1")
    newest = json.loads(listed)["items"][0]
    named = {"{run}": newest["id"], "{agent}": newest["agent"], "{session}": SESSION}
    paths = [_named(path, named) for path in json.loads(order.what)]
    await async_gate()
    taken: list[list[float]] = []
    for path in paths:
        times: list[float] = []
        for number in range(order.warm + order.n):
            begun = time.perf_counter()
            status, body = await line.ask("GET", path)
            if number >= order.warm:
                times.append(1e3 * (time.perf_counter() - begun))
            assert status == 200, (path, status, body[:300])
        taken.append(times)
    say("done", times=taken)


async def hit(order: Order) -> None:
    """`n` requests over `callers` connections; how many a second."""
    port = _port(order)
    lines = [await Connection.to(port) for _ in range(order.callers)]
    body = json.dumps({"agent": "guide", "prompt": "Is it so?"}).encode()
    run = ""
    if order.what == "run":
        _, made = await lines[0].ask("POST", f"{API}/runs", body)
        run = json.loads(made)["id"]
    method, path, sent = {
        "run": ("GET", f"{API}/runs/{run}", b""),
        "runs": ("POST", f"{API}/runs", body),
        "bare run": ("GET", "/bare/0123", b""),
        "bare runs": ("POST", "/bare", body),
    }[order.what]
    left = iter(range(order.n))

    async def call(line: Connection) -> None:
        for _ in left:
            status, answered = await line.ask(method, path, sent)
            assert status in (200, 201), answered[:300]

    await asyncio.gather(*(line.ask(method, path, sent) for line in lines))
    await async_gate()
    begun = time.perf_counter()
    await asyncio.gather(*map(call, lines))
    say("done", seconds=time.perf_counter() - begun)


async def read(order: Order) -> None:
    """So many readers of one run, and one of another; how late each piece of the first came to each of them."""
    _use(order)
    crowded, alone = await crier.enqueue("Talk."), await talker.enqueue("Talk.")
    lines = [await Connection.to(_port(order)) for _ in range(order.n + 1)]
    heard: list[tuple[float, bytes]] = []
    begun = [asyncio.Event() for _ in lines]

    async def follow(line: Connection, run: str, first: asyncio.Event, into: list[tuple[float, bytes]]) -> None:
        await line.send("GET", f"{API}/runs/{run}/stream")
        async for data in line.chunks():
            first.set()
            into.append((CLOCK.wall_us() / 1e6, data))
            if b"event: run_ended" in data:
                return

    following = [asyncio.create_task(follow(lines[0], alone.id, begun[0], []))]
    for line, first in zip(lines[1:], begun[1:], strict=True):
        following.append(asyncio.create_task(follow(line, crowded.id, first, heard)))
    await asyncio.gather(*(first.wait() for first in begun))
    await async_gate()
    await asyncio.gather(*following)
    lags = sorted(
        at - float(said) for at, data in heard for text in _SAID.findall(data) for said in text.decode().split()
    )
    await talking.close()
    say("done", p50=1e3 * lags[len(lags) // 2], p99=1e3 * lags[int(len(lags) * 0.99)], pieces=len(lags))


if __name__ == "__main__":
    main({"prepare": prepare, "serve": serve, "look": look, "hit": hit, "read": read})
