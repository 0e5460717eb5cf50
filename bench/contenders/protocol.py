"""What a contender's process and the benchmark say to each other: one JSON order in, JSON lines out.

The process is started with a verb and an order, says `ready`, waits for a line on its standard input, and says
`done` at its end. When its standard input closes, the benchmark is gone, and so is the process with all its
children. Standard library only.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.board import Board

_LOOK = 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to do. A verb reads what concerns it."""

    url: str = ""
    n: int = 0
    chunk: int = 1  # jobs in one call of enqueue
    callers: int = 1  # tasks that call at the same time, where the contender can have several
    warm: int = 0  # calls of enqueue before the clock starts; their jobs come on top
    pause: float = 0.0  # seconds between two calls
    ahead: int = 0  # never more jobs waiting than this; 0: no limit
    board: str = ""
    slot: int = 0
    provider: str = ""  # where the model provider is
    what: str = ""  # which of several kinds of work
    loop: str = ""  # the event loop, where the contender has one: uvloop, or asyncio's own
    until_empty: bool = False  # leave when nothing is left, where the contender can
    settings: Mapping[str, int] = field(default_factory=dict)

    def text(self) -> str:
        return json.dumps(asdict(self))


Enqueue = Callable[[list[int]], Awaitable[object]]
Ran = Callable[[int], object]  # what a handler calls with the number of its job
Verb = Callable[[Order], Coroutine[Any, Any, None] | None]


def say(event: str, **facts: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()


def gate() -> None:
    """Say `ready` and wait for the word to go; from then on the leash is watched."""
    say("ready")
    if not os.read(0, 64):  # past sys.stdin, whose lock a forked child would inherit
        os._exit(1)
    threading.Thread(target=_watch_leash, name="leash", daemon=True).start()


async def async_gate() -> None:
    await asyncio.to_thread(gate)


def recorder(order: Order) -> Ran:
    board, slot = Board(order.board), order.slot
    return lambda n: board.ran(slot, n)


async def send(order: Order, enqueue: Enqueue) -> None:
    """Enqueue as ordered, through `enqueue`, which takes the numbers of one call; say how long it took."""
    for _ in range(order.warm):
        await enqueue(list(range(order.chunk)))
    await async_gate()
    board = Board(order.board) if order.board else None
    begun = time.perf_counter()
    if order.callers > 1:
        await _send_at_once(order, enqueue)
    else:
        async for numbers in _calls(order, board):
            await enqueue(numbers)
            if board is not None and order.chunk == 1:
                board.sent(numbers[0])
    say("done", seconds=time.perf_counter() - begun)


async def _send_at_once(order: Order, enqueue: Enqueue) -> None:
    """As requests of a web server would: each caller makes its next call when it has the answer to its last."""
    calls = chunks(order)

    async def call() -> None:
        for numbers in calls:
            await enqueue(numbers)

    async with asyncio.TaskGroup() as callers:
        for _ in range(order.callers):
            callers.create_task(call())


def send_sync(order: Order, enqueue: Callable[[list[int]], object]) -> None:
    """`send` for contenders without an event loop."""
    for _ in range(order.warm):
        enqueue(list(range(order.chunk)))
    gate()
    board = Board(order.board) if order.board else None
    begun = time.perf_counter()
    for numbers in chunks(order):
        _sleep_until(begun + numbers[0] * order.pause)
        enqueue(numbers)
        if board is not None and order.chunk == 1:
            board.sent(numbers[0])
    say("done", seconds=time.perf_counter() - begun)


def chunks(order: Order) -> Iterator[list[int]]:
    for first in range(0, order.n, order.chunk):
        yield list(range(first, min(first + order.chunk, order.n)))


def main(verbs: Mapping[str, Verb]) -> None:
    """`python -m bench.contenders.NAME VERB ORDER`."""
    verb, text = sys.argv[1:3]
    order = Order(**json.loads(text))
    doing = verbs[verb](order)
    if doing is not None:
        with asyncio.Runner(loop_factory=_loop_factory(order)) as runner:
            runner.run(doing)


def _loop_factory(order: Order) -> Callable[[], asyncio.AbstractEventLoop] | None:
    if order.loop != "uvloop":
        return None
    import uvloop  # not in every contender's environment

    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _calls(order: Order, board: Board | None) -> AsyncIterator[list[int]]:
    begun = time.perf_counter()
    for numbers in chunks(order):
        if order.pause:
            await asyncio.sleep(max(0.0, begun + numbers[0] * order.pause - time.perf_counter()))
        while order.ahead and board is not None and numbers[0] - board.total > order.ahead:  # noqa: ASYNC110  other processes
            await asyncio.sleep(_LOOK)
        yield numbers


def _sleep_until(moment: float) -> None:
    left = moment - time.perf_counter()
    if left > 0:
        time.sleep(left)


def _watch_leash() -> None:
    while os.read(0, 64):
        pass
    os.killpg(0, signal.SIGKILL)
