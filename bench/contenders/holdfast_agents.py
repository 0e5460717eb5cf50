"""Holdfast's agents: runs against the provider simulator, tools, and live streams."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

from bench.contenders.protocol import Order, async_gate, main, say
from holdfast import Holdfast, JobContext
from holdfast.agents.runs.loop import RunLoop
from holdfast.app import core_of
from holdfast.clock import SystemClock
from holdfast.events import TextDelta
from holdfast.models import Request, ResponseHead
from holdfast.models.script import Script, call, calls
from holdfast.models.script import say as answer
from holdfast.models.simulator import provider as simulated
from holdfast.outcomes import Outcome
from holdfast.settings import Settings
from holdfast.workers.role import Role

MODEL = "claude-sonnet-5-5"
TOOLS_A_TURN = 100
TOOL_SECONDS = 0.01
TOKENS_A_SECOND = 30
CLOCK = SystemClock()
Wire = dict[str, Any]

played: list[tuple[float, float]] = []  # when each turn began and ended, in seconds of one clock
_play = RunLoop.play


async def _timed(loop: RunLoop, ctx: JobContext) -> Outcome:
    begun = time.perf_counter()
    outcome = await _play(loop, ctx)
    played.append((begun, time.perf_counter()))
    return outcome


RunLoop.play = _timed  # type: ignore[method-assign, assignment]
hf = Holdfast(embedded=False, settings=Settings())


@hf.tool
async def look(question: str) -> str:
    """Look something up."""
    return question


@hf.tool
async def nap(number: int) -> int:
    """Take ten milliseconds."""
    await asyncio.sleep(TOOL_SECONDS)
    return number


hf.script("tools", Script(calls(*(call("nap", number=number) for number in range(TOOLS_A_TURN))), answer("Rested.")))
asker = hf.agent("asker", model=MODEL, tools=[look])
sleeper = hf.agent("sleeper", model="scripted:tools", tools=[nap])
talker = hf.agent("talker", model="scripted:")
crier = hf.agent("crier", model="scripted:")
TALKERS = frozenset({"talker", "crier"})


def _use(order: Order) -> None:
    hf.settings = hf.settings.override({"url": order.url})
    os.environ.setdefault("ANTHROPIC_API_KEY", "sk-ant-bench")
    hf.settings = Settings(provider_url=order.provider, public_topics=False).override(
        {name: str(value) for name, value in order.settings.items()}
    )


async def provide(order: Order) -> None:
    """Be the provider until the benchmark ends."""
    async with simulated(seed=1) as url:
        say("listening", url=url)
        await async_gate()
        await asyncio.Event().wait()


async def prepare(order: Order) -> None:
    _use(order)
    await hf.migrate()


async def fill(order: Order) -> None:
    """Accept so many runs, then say that it is done."""
    _use(order)
    agent = {"asker": asker, "sleeper": sleeper, "talker": talker}[order.what]
    await async_gate()
    for number in range(order.n):
        await agent.enqueue(f"Question {number}?")
    await hf.close()
    say("done")


async def work(order: Order) -> None:
    """Be a worker: warm, then let go, then until nothing is left."""
    _use(order)
    if order.what in TALKERS:
        core_of(hf).book.substitute = Metronome(order.pause)
    await core_of(hf).runtime().open()
    if order.what == "asker":
        await _warm_up()
    only = {"agent": [order.what]} if order.what in TALKERS else None
    worker = core_of(hf).make_worker(Role(until="empty" if order.until_empty else "stopped", only=only))
    await async_gate()
    await worker.run()
    await hf.close()
    say("done")


async def turns(order: Order) -> None:
    """One run after the other; how much of each turn was our own time."""
    _use(order)
    await core_of(hf).runtime().open()
    await _warm_up()
    watched = Watched(core_of(hf).book.open(MODEL))
    core_of(hf).book.substitute = watched
    worker = core_of(hf).make_worker()
    await worker.start()
    await async_gate()
    for number in range(order.n):
        await (await asker.enqueue(f"Question {number}?")).result()
    await worker.stop()
    await hf.close()
    own = [
        1e3 * (sent - begun + ended - final)
        for (begun, ended), (sent, final) in zip(played, watched.times, strict=True)
    ]
    say("done", own=own)


async def read(order: Order) -> None:
    """Follow so many streams at once; how late each piece came."""
    _use(order)
    lags: list[float] = []
    runs = [await talker.enqueue("Talk.") for _ in range(order.n)]
    await async_gate()

    async def follow(id: str) -> None:
        async for event in hf.runs[id].stream():
            if isinstance(event, TextDelta):
                now = CLOCK.wall_us() / 1e6
                lags.extend(now - float(said) for said in event.text.split())

    await asyncio.gather(*(follow(run.id) for run in runs))
    await hf.close()
    lags.sort()
    say("done", p50=1e3 * lags[len(lags) // 2], p99=1e3 * lags[int(len(lags) * 0.99)], pieces=len(lags))


async def _warm_up() -> None:
    """The SDK takes seconds to load, once a process."""
    request = Request(model=MODEL, max_tokens=16, messages=[{"role": "user", "content": "Hello"}], call="warm")
    async for _ in core_of(hf).book.open(MODEL).stream(request, lambda _: None):
        pass


class Metronome:
    """Says what time it is, so many times a second, for so many seconds."""

    def __init__(self, seconds: float) -> None:
        self._pieces = round(seconds * TOKENS_A_SECOND)

    async def stream(self, request: Request, answered: Callable[[ResponseHead], None]) -> AsyncGenerator[Wire, None]:
        answered(ResponseHead())
        usage = {"input_tokens": 1, "output_tokens": self._pieces}
        yield {"type": "message_start", "message": {"id": "m", "model": request.model, "content": [], "usage": usage}}
        yield {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        begun = asyncio.get_running_loop().time()
        for number in range(self._pieces):
            await asyncio.sleep(max(0.0, begun + number / TOKENS_A_SECOND - asyncio.get_running_loop().time()))
            text = f"{CLOCK.wall_us() / 1e6:.4f} "
            yield {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
        yield {"type": "content_block_stop", "index": 0}
        yield {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage}
        yield {"type": "message_stop"}

    async def count_tokens(self, request: Request) -> int:
        return 1

    async def close(self) -> None: ...


class Watched:
    """A model, and when each of its calls was sent and its answer complete."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.times: list[tuple[float, float]] = []

    async def stream(self, request: Request, answered: Callable[[ResponseHead], None]) -> AsyncGenerator[Wire, None]:
        begun = time.perf_counter()
        async for event in self._model.stream(request, answered):
            if event.get("type") == "message_stop":
                self.times.append((begun, time.perf_counter()))
            yield event

    async def count_tokens(self, request: Request) -> int:
        return 1

    async def close(self) -> None: ...


if __name__ == "__main__":
    main({"provide": provide, "prepare": prepare, "fill": fill, "work": work, "turns": turns, "read": read})
