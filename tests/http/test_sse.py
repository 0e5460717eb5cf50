"""Server-sent events: a run as any HTTP client reads it, from any point, and after any break."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request, Response
from starlette.applications import Starlette
from starlette.routing import Route

from holdfast import Agent, Holdfast
from holdfast.events import RunStateChanged
from holdfast.http import sse
from holdfast.models.script import Script, call, say
from tests.conftest import Place
from tests.http.browser import Frame, request
from tests.http.conftest import Serve
from tests.support.apps import MakeApp, eventually, working
from tests.support.commands import PATIENCE, environment, start

# Run by its arguments: with uvicorn.run, or with a server on a thread, whose program handles signals itself.
STREAMING = """
import signal, sys, threading
import uvicorn
from fastapi import FastAPI, Request, Response
from holdfast import Holdfast
from holdfast.http import Principal, sse

hf = Holdfast(embedded=False)
app = FastAPI(lifespan=hf.lifespan)

@app.middleware("http")
async def passed_on(request, call_next):
    return await call_next(request)

@app.get("/runs/{id}")
async def events(id: str, request: Request) -> Response:
    return sse(hf.runs[id], request)

app.mount("/ops", hf.web(who=lambda _: Principal("me", "admin")))

if __name__ == "__main__":
    server = uvicorn.Server(uvicorn.Config(app, port=0))
    if sys.argv[1] == "run":
        server.run()
    else:
        signal.signal(signal.SIGTERM, lambda *_: setattr(server, "should_exit", True))
        thread = threading.Thread(target=server.run)
        thread.start()
        thread.join()
"""
ANSWER = " ".join(f"word{n}" for n in range(60))


def talker(app: Holdfast, gate: asyncio.Event | None = None) -> Agent[str]:
    @app.tool
    async def look_up(word: str) -> str:
        """Look a word up."""
        if gate is not None:
            await gate.wait()
        return f"{word}:\n\nfound"

    app.script("talk", Script(call("look_up", word="cat"), say(ANSWER)))
    return app.agent("talker", model="scripted:talk", tools=[look_up])


def bare(app: Holdfast) -> Any:
    """No framework: the last part of the path is the run's id."""

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        await sse(app.runs[scope["path"].rpartition("/")[2]], scope)(scope, receive, send)

    return serve


def text_of(frames: list[Frame]) -> str:
    return "".join(frame.data["text"] for frame in frames if frame.event == "text_delta")


async def test_a_run_is_streamed_to_its_end(hf: Holdfast, serve: Serve) -> None:
    agent = talker(hf)
    await hf.ensure_worker()
    port = await serve(bare(hf))
    run = await agent.enqueue("Go")
    async with request(port, f"/{run.id}") as reader:
        assert reader.status == 200
        assert reader.headers["content-type"] == "text/event-stream; charset=utf-8"
        frames = [frame async for frame in reader.frames()]
    assert [frame.id for frame in frames] == list(range(1, len(frames) + 1))
    assert (frames[0].event, frames[-1].event) == ("run_created", "run_ended")
    assert text_of(frames) == ANSWER
    (called,) = [frame.data for frame in frames if frame.event == "tool_called"]
    assert (called["name"], called["input"]) == ("look_up", {"word": "cat"})
    result = frames[-1].data["result"]
    assert (result["outcome"], result["text"], result["usage"]["cost"]) == ("answered", ANSWER, "0")


async def test_a_reader_that_reconnects_misses_nothing(make_app: MakeApp, serve: Serve) -> None:
    hf = make_app(script_pace="5ms", stream_interval="10ms")
    agent = talker(hf)
    await hf.ensure_worker()
    port = await serve(bare(hf))
    run = await agent.enqueue("Go")
    seen: list[Frame] = []
    connections = 0
    while not seen or seen[-1].event != "run_ended":
        connections += 1
        last = {"last_event_id": str(seen[-1].id)} if seen else {}
        async with request(port, f"/{run.id}", **last) as reader:
            taken = 0
            async for frame in reader.frames():
                seen.append(frame)
                taken += 1
                if taken == 3:
                    break
    assert connections > 4
    assert [frame.id for frame in seen] == list(range(1, len(seen) + 1))
    assert text_of(seen) == ANSWER


async def test_whoever_read_it_to_the_end_is_told_not_to_come_back(hf: Holdfast, serve: Serve) -> None:
    result = await talker(hf).run("Go")
    events = (await hf.runs.get(result.run_id)).events
    port = await serve(bare(hf))
    async with request(port, f"/{result.run_id}?after={events}") as reader:
        assert reader.status == 204
    async with request(port, f"/{result.run_id}?after={events - 1}") as reader:
        assert [frame.event async for frame in reader.frames()] == ["run_ended"]
    async with request(port, f"/{result.run_id}?after=1", last_event_id=str(events - 2)) as reader:
        assert [frame.id async for frame in reader.frames()] == [events - 1, events]
    async with request(port, f"/{result.run_id}", last_event_id="nonsense") as reader:
        assert (await anext(reader.frames())).id == 1


async def test_a_run_that_is_not_there_is_404(hf: Holdfast, serve: Serve) -> None:
    run = await talker(hf).enqueue("Go", tenant="ann")

    async def of_bob(scope: Any, receive: Any, send: Any) -> None:
        await sse(hf.tenant("bob").runs[scope["path"][1:]], scope)(scope, receive, send)

    for app in (bare(hf), of_bob):
        port = await serve(app)
        async with request(port, "/nothing" if app is not of_bob else f"/{run.id}") as reader:
            assert reader.status == 404
            assert b'"error": "not_found"' in await reader.body()


async def test_a_run_that_failed_says_why(hf: Holdfast, serve: Serve) -> None:
    hf.script("short", Script())
    agent = hf.agent("short", model="scripted:short")
    await hf.ensure_worker()
    run = await agent.enqueue("Go")
    port = await serve(bare(hf))
    async with request(port, f"/{run.id}") as reader:
        last = [frame async for frame in reader.frames()][-1]
    assert (last.data["state"], last.data["result"], last.data["error_type"]) == ("failed", None, "streaming_error")
    assert "the script has 0 steps" in last.data["error"]


@pytest.mark.parametrize("framework", ["fastapi", "starlette"])
async def test_it_is_a_response_of_the_framework(hf: Holdfast, serve: Serve, framework: str) -> None:
    result = await talker(hf).run("Go")

    async def events(request: Request) -> Response:
        response: Response = sse(hf.runs[request.path_params["run_id"]], request)
        response.headers["x-mine"] = "yes"
        return response

    app: Any = Starlette(routes=[Route("/runs/{run_id}", events)])
    if framework == "fastapi":
        app = FastAPI()
        app.get("/runs/{run_id}")(events)
    port = await serve(app)
    async with request(port, f"/runs/{result.run_id}") as reader:
        assert (reader.status, reader.headers["x-mine"]) == (200, "yes")
        assert "content-length" not in reader.headers
        assert [frame.event async for frame in reader.frames()][-1] == "run_ended"
    async with request(port, "/runs/nothing") as reader:
        assert reader.status == 404


async def test_no_framework_is_needed(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    result = await talker(hf).run("Go")
    monkeypatch.delitem(sys.modules, "starlette.responses")
    scope = {"type": "http", "headers": [], "query_string": b""}
    response = sse(hf.runs[result.run_id], scope)
    assert [kind.__module__ for kind in type(response).__mro__] == ["holdfast.http.sse", "builtins"]
    sent: list[Any] = []

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    await response(scope, receive, send)
    assert sent[0]["status"] == 200
    assert sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


async def test_a_reader_who_leaves_is_let_go(make_app: MakeApp, serve: Serve) -> None:
    hf, gate = make_app(), asyncio.Event()
    agent = talker(hf, gate)
    await hf.ensure_worker()
    calls: Counter[str] = Counter()
    inner = bare(hf)

    async def counted(scope: Any, receive: Any, send: Any) -> None:
        calls["begun"] += 1
        try:
            await inner(scope, receive, send)
        finally:
            calls["ended"] += 1

    port = await serve(counted)
    run = await agent.enqueue("Go")
    async with request(port, f"/{run.id}") as reader:
        async for frame in reader.frames():
            if frame.event == "tool_called":
                break

    async def let_go() -> bool:
        return calls == {"begun": 1, "ended": 1}

    await eventually(let_go)
    gate.set()
    assert await run.text() == ANSWER, "leaving does not cancel"


class Hours:
    """A clock whose sleeps a test ends."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self.tick = asyncio.Semaphore(0)

    def monotonic(self) -> float:
        return 0.0

    def wall_us(self) -> int:
        return 0

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await self.tick.acquire()


async def test_comments_keep_a_quiet_stream_open(
    make_app: MakeApp, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf, gate, clock = make_app(), asyncio.Event(), Hours()
    agent = talker(hf, gate)
    await hf.ensure_worker()
    run = await agent.enqueue("Go")
    monkeypatch.setattr("holdfast.agents.api.run.Run.clock", clock)
    port = await serve(bare(hf))
    async with request(port, f"/{run.id}") as reader:
        frames = reader.frames()
        while (await anext(frames)).event != "tool_called":
            pass
        for _ in range(3):
            clock.tick.release()

        async def three() -> bool:
            return len(clock.slept) > 3

        await eventually(three)
        gate.set()
        rest = [frame.event async for frame in frames]
    assert rest[-1] == "run_ended"
    assert reader.comments == ["still here"] * 3
    assert set(clock.slept) == {15.0}


async def test_a_stream_of_a_run_read_to_its_end_is_empty(hf: Holdfast) -> None:
    result = await talker(hf).run("Go")
    run = hf.runs[result.run_id]
    events = [event async for event in run.stream()]
    async with asyncio.timeout(60):
        assert [event async for event in run.stream(after=events[-1].seq)] == []
        assert [event async for event in run.stream(after=10**9)] == []


async def test_a_number_that_is_still_to_come_is_no_reason_to_wait_for_ever(make_app: MakeApp) -> None:
    hf, gate = make_app(embedded=False), asyncio.Event()
    run = await talker(hf, gate).enqueue("Go")
    seen: list[Any] = []

    async def read() -> None:
        async for event in run.stream(after=10**9):
            seen.append(event)

    reading = asyncio.create_task(read())
    async with working(hf):
        gate.set()
        async with asyncio.timeout(60):
            await reading
    assert any(isinstance(event, RunStateChanged) for event in seen)


async def test_a_program_without_a_loop_reads_as_much_as_it_wants(hf: Holdfast) -> None:
    result = await talker(hf).run("Go")
    run = hf.runs[result.run_id]

    def read(most: int) -> list[int]:
        seen = []
        for event in run.stream_sync():
            seen.append(event.seq)
            if len(seen) == most:
                break
        return seen

    assert await asyncio.to_thread(read, 3) == [1, 2, 3]
    assert (await asyncio.to_thread(read, 10**6))[-1] == (await run.refresh()).events
    await asyncio.to_thread(hf.sync.close)


@pytest.mark.sample(1)
@pytest.mark.parametrize("how", ["command", "run", "thread"])
async def test_streams_end_when_their_server_stops(place: Place, tmp_path: Path, how: str) -> None:
    """uvicorn waits for open responses as long as they last; no worker ever takes this run."""
    (tmp_path / "streaming.py").write_text(STREAMING)
    hf = Holdfast(place.url, embedded=False)
    await hf.migrate()
    run = await talker(hf).enqueue("Go")
    words = ("-m", "uvicorn", "streaming:app", "--port", "0") if how == "command" else ("streaming.py", how)
    said = tmp_path / "said"
    with said.open("wb") as err:
        process = start(*words, cwd=tmp_path, env=environment(HOLDFAST_URL=place.url), stderr=err)
    try:
        port = int((await eventually(matches(said, r"running on http://127.0.0.1:(\d+)")))[1])
        async with AsyncExitStack() as stack:
            streams = []
            for path in (f"/runs/{run.id}", f"/ops/api/v1/runs/{run.id}/stream"):
                reader = await stack.enter_async_context(request(port, path))
                frames = reader.frames()
                assert (await anext(frames)).event == "run_created"
                streams.append((reader, frames))
            process.send_signal(signal.SIGTERM)
            for reader, frames in streams:
                assert [frame async for frame in frames] == []
                assert reader.comments[-1] == "the server stops"
                assert reader.retries == ["1000", "1000"]
            assert await asyncio.to_thread(process.wait, PATIENCE) == (0 if how == "thread" else -signal.SIGTERM)
    finally:
        process.kill()
        await hf.close()
    told = await asyncio.to_thread(said.read_text)
    assert "Traceback" not in told, told


def matches(file: Path, pattern: str) -> Callable[[], Any]:
    async def look() -> re.Match[str] | None:
        return re.search(pattern, await asyncio.to_thread(file.read_text))

    return look
