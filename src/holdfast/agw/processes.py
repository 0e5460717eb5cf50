"""Processes: one tool, started without a shell, fed and read at the same time, and gone when it ends.

It leads a process group, which gets TERM and then KILL. A process that leaves the group is found by a mark in its
environment once it is ours again: on Linux this process adopts what its descendants leave behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import os
import secrets
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from holdfast.agw.confinement import PATH, ProcessLimits, confined
from holdfast.clock import Clock

MARK = "HOLDFAST_TASK"
_CHUNK = 65_536
_PR_SET_CHILD_SUBREAPER = 36


class Ran(NamedTuple):
    """How a tool ended. A negative code is the signal that ended it."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    duration_ms: int
    timed_out: bool
    stdout_cut: bool
    stderr_cut: bool


class ToolCall(NamedTuple):
    """What is to be run: where, with what, and for how long."""

    path: str
    args: Sequence[str]
    stdin: bytes | None
    folder: Path
    timeout: float  # seconds


async def run_tool(call: ToolCall, limits: ProcessLimits, clock: Clock) -> Ran:
    """Run it to its end, or to the end of its time; `OSError` if it is gone. Cancelled, it kills what it started."""
    if not os.access(call.path, os.X_OK):
        raise FileNotFoundError(errno.ENOENT, f"{call.path} is no program any more")
    mark = secrets.token_hex(16)
    begun = clock.monotonic()
    process = await asyncio.create_subprocess_exec(
        *confined(call.path, call.args, call.folder, call.timeout, limits),
        stdin=asyncio.subprocess.DEVNULL if call.stdin is None else asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=call.folder,
        env=_environment(call.folder, mark),
        start_new_session=True,
    )
    out, err = _Kept(limits.output), _Kept(limits.output)
    pumping = asyncio.gather(_feed(process, call.stdin), _drain(process.stdout, out), _drain(process.stderr, err))
    timed_out = False
    try:
        async with asyncio.timeout(call.timeout):
            await process.wait()
            await asyncio.shield(pumping)
    except TimeoutError:
        timed_out = True
        await _terminate(process, limits.grace)
    finally:
        _kill_group(process.pid)
        _kill_strays(mark)
        await _settle(process, pumping)
    code = process.returncode if process.returncode is not None else -signal.SIGKILL
    duration = int((clock.monotonic() - begun) * 1_000)
    return Ran(code, bytes(out.data), bytes(err.data), duration, timed_out, out.cut, err.cut)


def adopt_strays() -> None:
    """Make this process the parent of what its descendants leave behind, where the system can."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class _Kept:
    """The beginning of a stream."""

    def __init__(self, cap: int) -> None:
        self.data, self._cap, self.cut = bytearray(), cap, False

    def add(self, chunk: bytes) -> None:
        room = self._cap - len(self.data)
        self.data += chunk[:room]
        self.cut = self.cut or len(chunk) > room


async def _feed(process: asyncio.subprocess.Process, stdin: bytes | None) -> None:
    if process.stdin is None or stdin is None:
        return
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it does not want all of it
        for at in range(0, len(stdin), _CHUNK):
            process.stdin.write(stdin[at : at + _CHUNK])
            await process.stdin.drain()
    process.stdin.close()


async def _drain(stream: asyncio.StreamReader | None, kept: _Kept) -> None:
    """Read to the end: a tool that writes more than is kept must not stand still."""
    assert stream is not None
    while chunk := await stream.read(_CHUNK):
        kept.add(chunk)


async def _terminate(process: asyncio.subprocess.Process, grace: float) -> None:
    _signal_group(process.pid, signal.SIGTERM)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(grace):
            await process.wait()


async def _settle(process: asyncio.subprocess.Process, pumping: asyncio.Future[tuple[None, None, None]]) -> None:
    """Collect what is left in the pipes; somebody who still holds them open is not waited for."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1):
            await process.wait()
            await asyncio.shield(pumping)
    pumping.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await pumping
    transport = process._transport  # type: ignore[attr-defined]  # its pipes may be held by a process that left
    transport.close()


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _kill_group(pid: int) -> None:
    _signal_group(pid, signal.SIGKILL)


def _kill_strays(mark: str) -> None:
    """Kill processes of this task that have left its group."""
    if sys.platform != "linux":
        return
    wanted = f"{MARK}={mark}".encode()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)
                os.waitpid(int(folder.name), 0)


def _environment(folder: Path, mark: str) -> dict[str, str]:
    """Nothing of ours: no key, no proxy, no locale but bytes."""
    return {
        "PATH": PATH,
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        MARK: mark,
    }
