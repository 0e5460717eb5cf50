"""Handlers that their own processes find here by name. What they need to say before they die, they write to a file.

Nothing here needs the app, so that such a process begins sooner. `isolated_jobs` makes jobs of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from holdfast import Cancel, Discard, JobContext, LeaseLost, Snooze
from holdfast import outcomes as out
from holdfast.errors import StoreBusy, StoreUnavailable, UsageError


class Point(BaseModel):
    x: int
    day: date


def double(n: int) -> int:
    return 2 * n


async def shift(point: Point, days: int = 1) -> Point:
    await asyncio.sleep(0)
    return Point(x=point.x + 1, day=point.day + timedelta(days=days))


def pid() -> int:
    return os.getpid()


def meet(folder: str, name: str, other: str) -> int:
    """Its pid, once the other one runs too."""
    (Path(folder) / name).touch()
    while not (Path(folder) / other).exists():
        pass
    return os.getpid()


def lend(ctx: JobContext) -> str:
    """What a handler is told that lends its connection."""
    try:
        return str(ctx.step_sync("book", int, tx=object()))
    except UsageError as refusal:
        return str(refusal)


def noisy() -> str:
    print('{"outcome":{"done":"printed"}}')
    print("x" * 100_000, file=sys.stderr)
    subprocess.run(["echo", '{"outcome":{"done":"echoed"}}'], check=True)
    return "returned"


def huge(size: int) -> str:
    return "x" * size


def unstorable() -> Any:
    return {"a": object()}


class Odd:
    """Misbehaves on its way to text, as a message can."""

    def __str__(self) -> str:
        return "\x00 \ud800 " + "y" * 100_000


def fails(message: str = "bad") -> None:
    raise ValueError(Odd() if message == "odd" else message)


async def ends(how: str) -> Any:
    """Ends in every way a handler can."""
    match how:
        case "done":
            return out.Done([1])
        case "retry":
            return out.TryAgain("90s", "not yet", "busy")
        case "fail":
            return out.Fail("never", "hopeless")
        case "park":
            return out.Park("news", timedelta(seconds=5))
        case "endless":
            return out.Park("c" * 50_000_000)
        case "bad duration":
            return out.TryAgain(after=5)  # type: ignore[arg-type]
        case "returned snooze":
            return Snooze("5m", "tired")
        case "snooze":
            raise Snooze("5m", "tired")
        case "cancel":
            raise Cancel("enough")
        case "discard":
            raise Discard("useless")
        case "exit":
            sys.exit(3)
        case "cancelled":
            raise asyncio.CancelledError


def exits_sync() -> None:
    sys.exit("done with it")


def dies(how: str) -> None:
    if how == "exit":
        os._exit(3)
    os.kill(os.getpid(), signal.SIGKILL)


def dies_leaving(file: str) -> None:
    """Leaves a grandchild that holds all it inherited, the socket to the worker too, and ignores SIGTERM."""
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        write_pids(file)
        while True:
            signal.pause()
    while not Path(file).exists():
        pass
    os._exit(3)


def babbles(junk: str, times: int) -> None:
    """Writes to the worker's socket past everything that should write there."""
    for fd in {int(each.name) for each in Path("/dev/fd").iterdir()} - {0, 1, 2}:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as peer:
            peer.sendall(junk.encode() * times)


def write_pids(file: str, *pids: int) -> None:
    """Whole or not at all, so that a test may read it as soon as it is there."""
    draft = Path(f"{file}.draft")
    draft.write_text(" ".join(map(str, (os.getpid(), *pids))))
    draft.rename(file)


def sleeper() -> int:
    return subprocess.Popen(["sleep", "100000"]).pid


def spins(file: str) -> None:
    write_pids(file, sleeper())
    while True:
        pass


async def spins_on_the_loop(file: str) -> None:
    write_pids(file)
    while True:
        pass


def never_returns(file: str) -> None:
    write_pids(file, sleeper())
    while True:
        pass


def holds_the_interpreter(file: str) -> None:
    """In C, where no other thread of this process gets a turn."""
    write_pids(file, sleeper())
    re.match(r"(a+)+$", "a" * 60 + "b")


def once(ctx: JobContext, folder: str) -> list[Any]:
    """Fails in its first attempt, after its step."""

    def effect() -> int:
        with (Path(folder) / "effects").open("a") as file:
            file.write("x")
        return os.getpid()

    first = ctx.step_sync("effect", effect)
    if ctx.attempt == 1:
        raise RuntimeError("after the step")
    return [first == os.getpid(), ctx.attempt]


async def steps_at_once(ctx: JobContext) -> list[int]:
    async def value(n: int) -> int:
        return n

    return list(await asyncio.gather(*(ctx.step(f"step {n}", value, n) for n in range(20))))


def big_step(ctx: JobContext, size: int) -> None:
    ctx.step_sync("big", lambda: "x" * size)


kept: list[JobContext] = []


async def keeps(ctx: JobContext) -> str:
    """Asks through the context of the job that this process ran before, if there was one."""
    kept.append(ctx)
    try:
        await kept[0].progress("mine")
    except LeaseLost:
        return "refused"
    return "accepted"


async def plain(n: int) -> int:
    """Not decorated here: a test does that."""
    return n + 1


def stores_a_step(ctx: JobContext, folder: str) -> str:
    """Begins a step, stores it when it is told to, and says when the store did not take it."""
    try:
        return ctx.step_sync("slow", _told_to_go_on, folder)
    except (StoreBusy, StoreUnavailable):
        (Path(folder) / "met").touch()
        raise


def _told_to_go_on(folder: str) -> str:
    (Path(folder) / "begun").touch()
    while not (Path(folder) / "go on").exists():
        time.sleep(0.01)
    return "stored"
