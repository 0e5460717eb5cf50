"""A handler that holds the event loop is named while it does so, and afterwards: in the log, by the doctor, in its row.

The app of these tests works on a thread of its own, which the handlers hold; the tests look on from their own loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast import Holdfast, Retry, RunFailed
from holdfast.app import core_of
from holdfast.kernel.doctor import examine
from holdfast.settings import Settings
from holdfast.testing import Script, call, say
from holdfast.values.workers import LoopHeld
from holdfast.workers.loop_watch import LoopWatch
from holdfast.workers.slots import Holdings
from tests.conftest import Place
from tests.support.apps import PATIENCE, eventually, settings_with, the_worker

ONCE = Retry(attempts=1)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Handlers hold the loop until it opens."""
    made = threading.Event()
    yield made
    made.set()


@pytest.fixture
async def hf(place: Place, gate: threading.Event) -> AsyncIterator[Holdfast]:
    app = Holdfast(place.url, settings=settings_with(loop_patience="100ms", tick="20ms", drain_grace="5s"))
    yield app
    gate.set()
    await asyncio.to_thread(core_of(app).close_sync)


@pytest.fixture
async def watcher(place: Place) -> AsyncIterator[Holdfast]:
    app = Holdfast(place.url, embedded=False)
    yield app
    await app.close()


async def held(watcher: Holdfast, *, until: bool) -> LoopHeld:
    """What the worker's row says, once the loop is held or, with `until`, is free again."""

    async def look() -> LoopHeld | None:
        found = [each.loop_held for each in await watcher.workers.list() if each.loop_held is not None]
        return next((each for each in found if (each.until is not None) == until), None)

    return await eventually(look)


def lines_of(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """What the log says of held loops, each with the stack."""
    records = [each for each in caplog.records if "the event loop" in each.message]
    return [(each.message, each.exc_text or "") for each in records]


def said(caplog: pytest.LogCaptureFixture, words: str) -> Callable[[], Awaitable[tuple[str, str] | None]]:
    async def look() -> tuple[str, str] | None:
        return next((line for line in lines_of(caplog) if words in line[0]), None)

    return look


async def test_who_holds_the_loop_is_named_while_and_after(
    hf: Holdfast, watcher: Holdfast, gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    @hf.job(name="mail.send")
    async def send() -> str:
        gate.wait(PATIENCE)
        return "sent"

    async with watcher:
        running = asyncio.create_task(asyncio.to_thread(send.run_sync))
        assert (await held(watcher, until=False)).by == "handler mail.send"
        line, stack = await eventually(said(caplog, "and still holds it"))
        assert line.startswith("handler mail.send has held the event loop for ")
        assert "make the handler a plain `def`, or declare it with isolate=" in line
        assert "gate.wait(PATIENCE)" in stack
        worker = (await the_worker(watcher)).id
        runtime = core_of(watcher).runtime()
        findings = [each.sentence for each in await examine(runtime.database, watcher.settings, runtime.ports)]
        named = [each for each in findings if "event loop" in each]
        assert len(named) == 1
        assert named[0].startswith(f"handler mail.send has held the event loop of worker {worker} for ")
        gate.set()
        assert await running == "sent"
        assert (await held(watcher, until=True)).lasted >= timedelta(milliseconds=100)
        line, _ = await eventually(said(caplog, "handler mail.send held the event loop for"))
        assert "still" not in line


async def test_a_timeout_that_could_not_interrupt_says_so(
    hf: Holdfast, watcher: Holdfast, gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    @hf.job(name="mail.send", timeout="400ms", retry=ONCE)
    async def send() -> None:
        gate.wait(PATIENCE)
        await asyncio.Event().wait()

    @hf.job(name="mail.late", timeout="400ms", retry=ONCE)
    async def late() -> str:
        gate.wait(PATIENCE)
        return "sent after all"

    async with watcher:
        running = asyncio.create_task(asyncio.to_thread(send.run_sync))
        await eventually(said(caplog, "handler mail.send has held"))  # for half a second, then
        gate.set()
        words = "timed out after 400ms, but the handler held the event loop and could not be interrupted: it ran .* s"
        with pytest.raises(RunFailed, match=words):
            await running
        line, _ = await eventually(said(caplog, "handler mail.send held the event loop"))
        assert "Its timeout of 400ms could not interrupt it." in line
        gate.clear()
        returning = asyncio.create_task(asyncio.to_thread(late.run_sync))
        await eventually(said(caplog, "handler mail.late has held"))
        gate.set()
        assert await returning == "sent after all", "what it returned is not thrown away"


async def test_a_task_of_a_handlers_own_and_a_tool_are_named_too(
    hf: Holdfast, watcher: Holdfast, gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    @hf.tool
    async def weather(city: str) -> str:
        """The weather."""
        gate.wait(PATIENCE)
        return f"sunny in {city}"

    @hf.job(name="mail.send")
    async def send() -> None:
        async def one() -> None:
            gate.wait(PATIENCE)

        await asyncio.gather(one(), asyncio.sleep(0))

    guide = hf.agent("guide", model="scripted:guide", tools=[weather])
    hf.script("guide", Script(call("weather", city="Oslo"), say("sunny")))
    async with watcher:
        for run, name in ((lambda: guide.run_sync("Oslo"), "tool:weather"), (send.run_sync, "mail.send")):
            gate.clear()
            running = asyncio.create_task(asyncio.to_thread(run))

            async def is_named(name: str = name) -> bool:
                row = await watcher.workers.list()
                return any(each.loop_held is not None and each.loop_held.by == f"handler {name}" for each in row)

            await eventually(is_named)
            gate.set()
            await running


class Hands:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def wall_us(self) -> int:
        return round(self.now * 1e6)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@pytest.fixture
def clock() -> Hands:
    return Hands()


@pytest.fixture
def watch(clock: Hands, gate: threading.Event) -> Iterator[LoopWatch]:
    """Over a loop that is held all the time; the ticks are the test's."""
    made, held = LoopWatch(clock, Settings(), Holdings(), "w", ()), threading.Event()

    async def hold() -> None:
        made.begin()
        held.set()
        gate.wait(PATIENCE)

    thread = threading.Thread(target=asyncio.run, args=(hold(),))
    thread.start()
    assert held.wait(PATIENCE)
    while "sleeping" not in Path(f"/proc/self/task/{thread.native_id}/status").read_text():
        threading.Event().wait(
            0.01
        )  # else the thread is still on its way to the gate, and may get no processor for long
    yield made
    gate.set()
    thread.join(PATIENCE)


def look(watch: LoopWatch, clock: Hands, *pauses: float) -> list[bool]:
    def after(pause: float) -> bool:
        clock.now += pause
        return watch.look()

    return [after(pause) for pause in pauses]


def test_one_look_blames_nobody_and_time_in_which_nobody_looked_does_not_count(
    watch: LoopWatch, clock: Hands, caplog: pytest.LogCaptureFixture
) -> None:
    """A process that was stopped for a minute, or a machine that is busy, is not the fault of who is on the loop."""
    assert look(watch, clock, 0.4, 60.0, 0.5) == [False] * 3
    watch.tick()
    assert look(watch, clock, 0.1, 1.5) == [False] * 2
    watch.tick()
    assert look(watch, clock, 0.1) == [False]
    assert (watch.said(), lines_of(caplog)) == (None, [])


def test_a_kind_has_one_line_a_minute_and_one_at_the_end_of_what_lasts(
    watch: LoopWatch, clock: Hands, caplog: pytest.LogCaptureFixture
) -> None:
    def hold(seconds: float) -> list[str]:
        """The lines that a hold of so many seconds adds."""
        before = len(lines_of(caplog))
        look(watch, clock, *[0.5] * round(2 * seconds))
        now = watch.said()
        assert now is not None
        assert now.name.startswith("task watch.<locals>.hold")
        assert now.ago is None
        watch.tick()
        assert look(watch, clock, 0.1) == [True], "the store is told that it is over"
        return [line for line, _ in lines_of(caplog)[before:]]

    (line,) = hold(2.0)
    assert "held the event loop for" in line
    assert "gate.wait(PATIENCE)" in lines_of(caplog)[0][1]
    assert hold(2.0) == hold(8.0) == []
    clock.now += 60.0
    watch.tick()
    look(watch, clock, 0.1)
    still, over = hold(8.0)
    assert "and still holds it: " in still
    assert "It did so 2 more times since the last such line." in still
    assert "held the event loop for" in over
    assert len(hold(130.0)) == 3, "one for each minute that it lasts, and its end"
    clock.now += 1_000.0
    assert watch.said() is None, "that is long ago"


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "holdfast.worker")
