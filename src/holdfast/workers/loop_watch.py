"""Who holds the event loop: a handler that blocks it is named while it does so, with the stack where it stands.

The event loop stamps a tick, and the lifeline's thread looks on. Once the stamp is late, each look notes which attempt
is on the loop. A kind is blamed only if two looks without a tick between them saw it there, and it has computed, or has
waited, for longer than the setting `loop_patience`. A busy machine alone must not look like that. So the time in which
the thread was ready to run and got no processor does not count, where Linux says how long that was, and who starved for
longer than it waited is not blamed for waiting: others starved too, perhaps with the interpreter's lock. Nor does the
time count in which nobody could look, because the process was stopped or the heartbeat waited for the store.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from asyncio.events import Handle
from collections.abc import Collection
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from holdfast.clock import Clock
from holdfast.durations import show
from holdfast.kernel.workers import HOLD_REMEDY, LoopHold
from holdfast.settings import Settings
from holdfast.text import log_with_traceback, shown, stack_of
from holdfast.workers.slots import Holding, Holdings

log = logging.getLogger("holdfast.worker")

_SHORTEST_PAUSE = 0.02  # seconds between looks, whatever the setting is
_STILL = 5  # times the patience after which a line says that the loop is still held
_AGAIN = 60.0  # seconds in which a kind has one such line
_KEPT = 900.0  # seconds for which heartbeats still say who held the loop
_LONGEST_NAME = 200

attempted: ContextVar[Holding | None] = ContextVar("holdfast_attempt", default=None)  # whose code runs


class _ThreadTime(NamedTuple):
    """Seconds of a thread: on a processor, and ready to run without one."""

    ran: float
    starved: float


_NOTHING = _ThreadTime(0.0, 0.0)


class _LoopSample(NamedTuple):
    """What is on the loop now. `holding` is None for code that is not of a handler."""

    name: str
    holding: Holding | None
    stack: str


@dataclass
class _SilentSpan:
    """A time without a tick, and what was seen in it."""

    ticked: float  # the last tick before it
    spent: _ThreadTime  # before it
    unseen: float = 0.0  # seconds of it in which nobody could look
    had: _ThreadTime = _NOTHING  # what the loop's thread had since then, at the last look
    looks: dict[str, int] = field(default_factory=dict)
    began: dict[str, float] = field(default_factory=dict)  # from when on each of them may have held the loop
    sight: _LoopSample | None = None  # the last of what was seen most
    told: bool = False  # a line has said that it lasts
    blamed: bool = False


class LoopWatch:
    """The watch over the loop of one worker. `attempts` is the code that has an attempt's holding by that name."""

    def __init__(
        self, clock: Clock, settings: Settings, holdings: Holdings, worker: str, attempts: Collection[CodeType]
    ) -> None:
        self._clock = clock
        self._attempts = attempts
        self._holdings = holdings
        self._worker = worker
        patience, tick = settings.loop_patience.total_seconds(), settings.tick.total_seconds()
        self._patience = max(patience, 2 * tick) if patience else float("inf")  # a tick is late after two
        self.every = max(self._patience / 2, _SHORTEST_PAUSE)  # seconds between looks
        self.ticked = 0.0
        self._resumed = 0.0  # the first tick after the last stretch that was too long
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = self._native = 0
        self._looked = 0.0
        self._stretch: _SilentSpan | None = None
        self._spent_before: _ThreadTime | None = None  # at the last look at a loop that was not held
        self._said: dict[str, float] = {}  # when a kind had its last line
        self._unsaid: dict[str, int] = {}  # how often it had none since then
        self._last: tuple[LoopHold, float] | None = None  # and when it was over, by this process's clock

    def begin(self) -> None:
        """On the event loop that is to be watched."""
        self._loop = asyncio.get_running_loop()
        self._thread, self._native = threading.get_ident(), threading.get_native_id()
        self.ticked = self._looked = self._clock.monotonic()

    def tick(self) -> float:
        """On the event loop: it runs, now."""
        now = self._clock.monotonic()
        if now - self.ticked > self._patience:
            self._resumed = now
        self.ticked = now
        return now

    def look(self) -> bool:
        """On the lifeline's thread, every now and then. Whether the store is to be told something new."""
        if self._loop is None:
            return False
        now, ticked, stretch = self._clock.monotonic(), self.ticked, self._stretch
        pause, self._looked = now - self._looked, now
        if stretch is not None and ticked > stretch.ticked:
            self._stretch, self._spent_before = None, self._spent()
            return stretch.blamed and self._end(stretch, self._resumed)
        if now - ticked < self._patience / 2 or self._spent_before is None:
            self._spent_before = self._spent()
            return False
        if stretch is None:
            stretch = self._stretch = _SilentSpan(ticked, self._spent_before)
        if pause > 4 * self.every:
            stretch.unseen += min(pause, now - ticked)
        sight = self._on_the_loop()
        if sight is None:
            return False
        stretch.looks[sight.name] = seen = stretch.looks.get(sight.name, 0) + 1
        if seen == 1:
            stretch.began[sight.name] = max(ticked, sight.holding.began if sight.holding else 0.0)
        if seen < max(stretch.looks.values()):
            return False
        before, stretch.sight = stretch.sight, sight
        if sight.holding is not None and before is not None and before.holding is sight.holding:
            sight.holding.held_loop_at = now
        return seen > 1 and self._judge(stretch, sight, now)

    def said(self) -> LoopHold | None:
        """On the lifeline's thread: the hold of now, or the last one if it is not long ago."""
        if self._last is None:
            return None
        hold, over = self._last
        if hold.ago is None:
            return hold
        ago = self._clock.monotonic() - over
        return hold._replace(ago=round(ago, 1)) if ago < _KEPT else None

    def _judge(self, stretch: _SilentSpan, sight: _LoopSample, now: float) -> bool:
        """Whether what was seen is blamed for the first time, or a line was written."""
        ran, starved = self._spent()
        had = stretch.had = _ThreadTime(ran - stretch.spent.ran, starved - stretch.spent.starved)
        lasted = _lasted(stretch, sight, now)
        if had.ran < self._patience and lasted - had.ran < max(self._patience, had.starved):
            return False
        first, stretch.blamed = not stretch.blamed, True
        hold = LoopHold(sight.name, round(lasted, 1), None)
        self._last = hold, now
        if lasted < _STILL * self._patience or now - self._said.get(sight.name, -_AGAIN) < _AGAIN:
            return first
        stretch.told = True
        self._write(sight, hold, now)
        return True

    def _end(self, stretch: _SilentSpan, over: float) -> bool:
        sight = stretch.sight
        assert sight is not None
        hold = LoopHold(sight.name, round(_lasted(stretch, sight, over), 1), 0.0)
        self._last = hold, over
        if stretch.told or over - self._said.get(sight.name, -_AGAIN) >= _AGAIN:
            self._write(sight, hold, over)
        else:
            self._unsaid[sight.name] = self._unsaid.get(sight.name, 0) + 1
        return True

    def _write(self, sight: _LoopSample, hold: LoopHold, now: float) -> None:
        unsaid, self._said[sight.name] = self._unsaid.pop(sight.name, 0), now
        more = f" It did so {unsaid} more times since the last such line." if unsaid else ""
        extra: dict[str, Any] = {"worker": self._worker, "seconds": hold.seconds}
        timeout = ""
        if sight.holding is not None:
            lease = sight.holding.lease
            extra |= {"kind": lease.kind, "job": lease.id}
            if lease.timeout_us is not None and hold.seconds > lease.timeout_us / 1e6:
                timeout = f" Its timeout of {show(lease.timeout_us)} could not interrupt it."
        words = (
            f"{hold.words('the event loop')}: nothing else of worker {self._worker} could run meanwhile."
            f"{timeout}{more} {HOLD_REMEDY} It stood here:"
        )
        log_with_traceback(log, logging.WARNING, words, sight.stack, extra)

    def _on_the_loop(self) -> _LoopSample | None:
        """What runs on the loop now; None: nothing, it waits or starves."""
        task, frame = asyncio.current_task(self._loop), sys._current_frames().get(self._thread)
        if task is None or frame is None:
            return None
        coroutine = task.get_coro()
        holding, frames = self._find_holding(task, frame, getattr(coroutine, "cr_frame", None))
        name = getattr(coroutine, "__qualname__", type(coroutine).__name__)
        named = f"task {shown(name)}" if holding is None else f"handler {shown(holding.lease.kind)}"
        return _LoopSample(named[:_LONGEST_NAME], holding, stack_of(frames))

    def _find_holding(
        self, task: asyncio.Task[Any], frame: FrameType | None, root: FrameType | None
    ) -> tuple[Holding | None, list[FrameType]]:
        """Whose code this is, and its frames, up to that of the attempt or to the outermost of the task, `root`.

        A task that a handler has started has the handler's context. Before Python 3.12 only the frame of asyncio that
        runs it shows that context, and uvloop has no such frame: there it is only a task.
        """
        frames: list[FrameType] = []
        inside, holding = True, None
        if sys.version_info >= (3, 12):
            holding = task.get_context().get(attempted)
        while frame is not None and (inside or holding is None):
            if frame.f_code in self._attempts:
                holding, inside = frame.f_locals.get("holding"), False
            elif holding is None and frame.f_code is Handle._run.__code__:
                context = getattr(frame.f_locals.get("self"), "_context", None)
                holding = None if context is None else context.get(attempted)
            if inside:
                frames.append(frame)
            inside = inside and frame is not root
            frame = frame.f_back
        known = isinstance(holding, Holding) and self._holdings.has(holding)
        return (holding if known else None), frames

    def _spent(self) -> _ThreadTime:
        """What the loop's thread has had so far; 0 where the system does not say."""
        try:
            ran, starved = Path(f"/proc/self/task/{self._native}/schedstat").read_text().split()[:2]
            return _ThreadTime(int(ran) / 1e9, int(starved) / 1e9)
        except (OSError, ValueError):
            return _NOTHING


def _lasted(stretch: _SilentSpan, sight: _LoopSample, until: float) -> float:
    """For how long it has held the loop."""
    return until - stretch.began[sight.name] - stretch.unseen - stretch.had.starved
