"""Survival: loops that outlive the store's absence, work that outlives its caller, waits that end in time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from holdfast.clock import Ports
from holdfast.errors import Unavailable

log = logging.getLogger("holdfast.worker")

_FIRST_PAUSE = 0.05
_STEADY = 10.0  # seconds after which a loop counts as well again


async def survive(loop: Callable[[], Awaitable[None]], worker: str, ports: Ports, *, longest_pause: float) -> None:
    """Run a loop for ever: while the store is away it waits, longer each time, and tries again."""
    pause = _FIRST_PAUSE
    while True:
        begun = ports.clock.monotonic()
        try:
            await loop()
        except Unavailable as problem:
            ports.try_again(problem)
        except Exception:
            log.exception("worker %s met an unexpected error; it continues", worker, extra={"worker": worker})
        if ports.clock.monotonic() - begun > _STEADY:
            pause = _FIRST_PAUSE
        await ports.clock.sleep(pause * (0.5 + ports.random.random()))
        pause = min(pause * 2, longest_pause)


async def as_far_as_possible(worker: str, *steps: Callable[[], Awaitable[object]]) -> None:
    """What a worker does on its way out. After an error in one step it does the others, except when the store is
    away, because then they would fail as well."""
    for step in steps:
        try:
            await step()
        except Unavailable as problem:
            log.warning("worker %s could not unregister: %s", worker, problem, extra={"worker": worker})
            return
        except Exception as problem:  # noqa: BLE001  it leaves, whatever the store answers
            log.warning("worker %s could not unregister completely: %s", worker, problem, extra={"worker": worker})


async def to_the_end(work: Awaitable[None]) -> None:
    """Finish `work` also when cancelled meanwhile: only what is whole can be taken back."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


async def first_of(*events: asyncio.Event, within: float | None = None) -> None:
    """Until one of these events is set, or the time is over."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=within, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


async def sleep_unless(event: asyncio.Event, ports: Ports, seconds: float) -> None:
    """Until this event is set, or so many seconds of our own clock are over."""
    waits = [asyncio.create_task(event.wait()), asyncio.ensure_future(ports.clock.sleep(seconds))]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
