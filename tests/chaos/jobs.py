"""The app that the workers of the chaos tests run. What a handler does is witnessed in files, outside the database.

A handler that holds waits for a file to appear: so a test decides when it ends, and may kill it before.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from pathlib import Path

from holdfast.app import Holdfast
from holdfast.clock import Ports
from holdfast.kernel.database import Transaction
from holdfast.kernel.drivers import connect
from holdfast.kernel.pools import put_pool
from holdfast.settings import Settings
from holdfast.workers.context import JobContext

hf = Holdfast(settings=Settings(), embedded=False)

STEPS = ("fetch", "work", "publish")


@hf.job(name="quick")
async def quick(number: int) -> int:
    return number


@hf.job(name="nap")
async def nap(seconds: float) -> None:
    await asyncio.sleep(seconds)


@hf.job(name="limited", concurrency=2, rate="50/s burst 5")
async def limited(seconds: float) -> None:
    await asyncio.sleep(seconds)


@hf.job(name="steps")
async def steps(ctx: JobContext, witness: str, seconds: float = 0.02) -> str:
    """Some steps, each witnessed when its effect happens and again when it is stored."""
    for name in STEPS:
        await ctx.step(name, _effect, witness, f"{ctx.id} {name}", seconds)
        note(witness, f"stored {ctx.id} {name} {os.getpid()}")
    return "done"


async def _effect(witness: str, what: str, seconds: float) -> None:
    await asyncio.sleep(seconds)
    note(witness, f"effect {what} {os.getpid()}")


@hf.job(name="family")
async def family(ctx: JobContext, witness: str) -> list[str]:
    """Two children of several steps, waited for without a worker."""
    for _ in range(2):
        await ctx.start(steps, witness)
    return [child.state for child in await ctx.join()]


@hf.job(name="hold")
async def hold(ctx: JobContext, witness: str, gate: str = "") -> str:
    """Says that it runs, then waits for the gate to be opened; says how it was stopped."""
    note(witness, f"running {ctx.id} {os.getpid()}")
    try:
        while not is_open(gate):  # noqa: ASYNC110  the gate is a file, opened by another process
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        note(witness, f"cancelled {ctx.id} {os.getpid()} told={ctx.cancelled}")
        raise
    note(witness, f"ended {ctx.id} {os.getpid()}")
    return f"held by {os.getpid()}"


@hf.job(name="hold_in_thread")
def hold_in_thread(ctx: JobContext, witness: str, gate: str = "") -> str:
    """As `hold`, on a thread, where nothing can stop it but its own look at `cancelled`."""
    note(witness, f"running {ctx.id} {os.getpid()}")
    while not is_open(gate):
        if ctx.cancelled:
            note(witness, f"cancelled {ctx.id} {os.getpid()} told=True")
            return "stopped"
        time.sleep(0.02)
    note(witness, f"ended {ctx.id} {os.getpid()}")
    return f"held by {os.getpid()}"


@hf.job(name="deaf")
async def deaf(ctx: JobContext, witness: str) -> None:
    """Ignores being cancelled."""
    note(witness, f"running {ctx.id} {os.getpid()}")
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)


@hf.job(name="deaf_step")
async def deaf_step(ctx: JobContext, witness: str) -> None:
    """Its step blocks a thread for ever."""
    note(witness, f"running {ctx.id} {os.getpid()}")
    await ctx.step("never", threading.Event().wait)


@hf.job(name="block")
async def block(ctx: JobContext, witness: str, seconds: float, times: int) -> str:
    """Blocks the event loop, as no handler should, and comes up for air in between."""
    note(witness, f"running {ctx.id} {os.getpid()}")
    for _ in range(times):
        time.sleep(seconds)  # noqa: ASYNC251  the fault under test
        await asyncio.sleep(0.3)
    return f"blocked by {os.getpid()}"


@hf.job(name="block_until")
async def block_until(ctx: JobContext, witness: str, gate: str) -> str:
    """Blocks the event loop until the gate is opened."""
    note(witness, f"running {ctx.id} {os.getpid()}")
    while not is_open(gate):
        time.sleep(0.02)  # noqa: ASYNC251  the fault under test
    note(witness, f"ended {ctx.id} {os.getpid()}")
    return f"blocked by {os.getpid()}"


@hf.job(name="freeze_in_write")
async def freeze_in_write(url: str, mark: str) -> str:
    """Stops its process in the middle of a write; when the mark is there, it only says who runs it."""
    if not is_open(mark):
        note(mark, f"freezes {os.getpid()}")
        database = connect(url, Settings(url=url), Ports())
        await database.open()
        await database.transact(_write_and_freeze)
    return f"run by {os.getpid()}"


async def _write_and_freeze(tx: Transaction) -> None:
    await put_pool(tx, "frozen", "{}")
    while True:  # this thread may be the last to stop, and it must not commit before
        os.kill(os.getpid(), signal.SIGSTOP)


def is_open(gate: str) -> bool:
    return gate != "" and Path(gate).exists()


def note(witness: str, line: str) -> None:
    """One line, whole, whoever else writes."""
    handle = os.open(witness, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(handle, f"{line}\n".encode())
    finally:
        os.close(handle)
