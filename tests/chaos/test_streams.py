"""kill -9 of the server and of the worker under many readers: each reader comes back, and has every event once."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import pytest

from holdfast.settings import Settings
from tests.chaos import agents
from tests.chaos.agents import APP, STORY, teller
from tests.chaos.crew import Crew, Member
from tests.chaos.test_agents import QUICKLY
from tests.http.browser import Frame, request
from tests.support.apps import PATIENCE, eventually

pytestmark = pytest.mark.chaos

READERS = 50
A_PRINCIPAL = 20  # streams that one may have open
SLOWLY = {"script_pace": "250ms", "stream_interval": "20ms"}  # the story takes longer than anything before the deaths


class Server:
    """A server that is started again after each death, on whichever port is free."""

    def __init__(self, crew: Crew, url: str) -> None:
        self._crew = crew
        self._url = url
        self.member: Member | None = None
        self.port = 0

    async def start(self) -> None:
        where = ("--url", self._url, "--bind", "127.0.0.1:0")
        self.member = self._crew.start("holdfast", "serve", APP, *where)
        line = await self.member.says("http://")
        found = re.search(r"127\.0\.0\.1:(\d+)", line)
        assert found is not None, line
        self.port = int(found[1])

    def kill(self) -> None:
        assert self.member is not None
        self.member.kill()


class Reader:
    """Reads until the run has ended; when the connection breaks, it comes back with its last number."""

    def __init__(self, server: Server, path: str, secret: str) -> None:
        self.frames: list[Frame] = []
        self.broken = 0
        self._server = server
        self._path = path
        self._secret = secret

    async def read(self) -> None:
        while True:
            try:
                await self._read_on()
            except (OSError, asyncio.IncompleteReadError):
                await asyncio.sleep(0.05)  # as a browser waits before it comes back
            if self.frames and self.frames[-1].event == "run_ended":
                return
            self.broken += 1

    async def _read_on(self) -> None:
        last = {"last_event_id": self.frames[-1].place} if self.frames else {}
        bearer = f"Bearer {self._secret}"
        async with request(self._server.port, self._path, authorization=bearer, **last) as reader:
            assert reader.status == 200, await reader.body()
            async for frame in reader.frames():
                self.frames.append(frame)
                if frame.event == "run_ended":
                    return


@pytest.fixture
async def server(url: str, crew: Crew) -> AsyncIterator[Server]:
    agents.hf.settings = Settings(url=url)
    yield Server(crew, url)
    await agents.hf.close()


@pytest.mark.parametrize("what", ["runs", pytest.param("sessions", marks=pytest.mark.long)])
async def test_every_reader_has_every_event_once(server: Server, crew: Crew, url: str, what: str) -> None:
    run = await teller.enqueue("Tell")
    record = await agents.hf.runs.get(run.id)
    path = f"/api/v1/{what}/{run.id if what == 'runs' else record.session}/stream"
    count = -(-READERS // A_PRINCIPAL)
    secrets = [(await agents.hf.access.tokens.create(f"reader {n}")).secret for n in range(count)]
    readers = [Reader(server, path, secrets[n // A_PRINCIPAL]) for n in range(READERS)]
    await server.start()
    reading = [asyncio.create_task(reader.read()) for reader in readers]
    worker = crew.worker(url, app=APP, **QUICKLY, **SLOWLY)

    async def all_hear(pieces: int) -> bool:
        assert not [task for task in reading if task.done() and task.exception()]
        return all(sum(f.event == "text_delta" for f in reader.frames) >= pieces for reader in readers)

    await eventually(lambda: all_hear(2), progress=lambda: sum(len(reader.frames) for reader in readers))
    server.kill()
    await server.start()
    await eventually(lambda: all_hear(4), progress=lambda: sum(len(reader.frames) for reader in readers))
    worker.kill()
    crew.worker(url, app=APP, **QUICKLY)
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*reading)
    events = (await run.refresh()).events
    ids = [str(seq) if what == "runs" else f"1.{seq}" for seq in range(1, events + 1)]
    for reader in readers:
        assert [frame.place for frame in reader.frames] == ids
        assert reader.frames[-1].data["result"]["text"] == STORY
        assert reader.broken >= 1
