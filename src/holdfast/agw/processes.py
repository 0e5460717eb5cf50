"""Processes: one tool, started without a shell, fed and read at the same time, and gone when it ends.

A tool runs under a keeper, a process that has whatever the tool leaves behind as its own and ends when all of it has
ended. So nothing of a task outlives it, and nothing of another task is touched.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import json
import os
import resource
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from holdfast.agw import keeper
from holdfast.clock import Clock

# Confinement: what a tool may use, and the command that starts it so.
#
# The limits are taken by a program that then becomes the tool, so they hold from its first moment, for it and for
# what it
# starts. In bubblewrap it has no network, sees the system's programs and libraries and nothing else, and can write to
# one
# folder only.


PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store")
# What programs need of /etc; the rest of it may have secrets.
_ETC = (
    *("alternatives", "ca-certificates", "fonts", "group", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.conf"),
    *("localtime", "magic", "mime.types", "nsswitch.conf", "passwd", "pki/tls/certs", "ssl/certs", "timezone"),
)
_PR_SET_DUMPABLE = 4
_BECOME = """
import json, os, resource, sys
for kind, most in json.loads(sys.argv[1]):
    resource.setrlimit(kind, (most, most))
os.execv(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """What one tool may use."""

    output: int = 16 << 20  # bytes of each stream that are kept
    grace: float = 5.0  # seconds between TERM and KILL
    memory: int | None = 2 << 30  # bytes of address space
    files: int = 256  # open at once
    file_size: int = 1 << 30  # bytes of one file
    sandbox: str | None = None  # the path of bubblewrap
    shown: tuple[str, ...] = ()  # what a tool may read in it, besides the system's programs


def confined(path: str, args: Sequence[str], folder: Path, timeout: float, limits: ProcessLimits) -> list[str]:
    """The command that starts a tool within its limits, and inside of bubblewrap if there is one."""
    box = [] if limits.sandbox is None else [*_box(limits.sandbox, path, str(folder), limits.shown), "--"]
    return _limited([*box, path, *args], limits, timeout)


def _limited(command: Sequence[str], limits: ProcessLimits, timeout: float) -> list[str]:
    wanted = {"core": 0, "nofile": limits.files, "fsize": limits.file_size, "cpu": int(timeout) + 1}
    if limits.memory is not None and sys.platform != "darwin":  # which has no such limit
        wanted["as"] = limits.memory
    kinds = {name: getattr(resource, f"RLIMIT_{name.upper()}") for name in wanted}
    allowed = {name: _allowed(kinds[name], most) for name, most in wanted.items()}
    if (program := _prlimit()) is not None:
        return [program, *(f"--{name}={most}:{most}" for name, most in allowed.items()), "--", *command]
    limits_json = json.dumps([(kinds[name], most) for name, most in allowed.items()])
    return [sys.executable, "-I", "-S", "-c", _BECOME, limits_json, *command]


def _allowed(kind: int, most: int) -> int:
    """No more than this process may use itself: nobody can raise that."""
    _, hard = resource.getrlimit(kind)
    return most if hard == resource.RLIM_INFINITY else min(most, hard)


@cache
def _prlimit() -> str | None:
    """The program of util-linux, which starts faster than an interpreter."""
    return shutil.which("prlimit", path=PATH)


def _box(sandbox: str, path: str, folder: str, shown: Sequence[str]) -> list[str]:
    """bubblewrap, in which only what is named here can be seen: no home, no data and no secrets, for root too."""
    seen: list[str] = []
    for each in _PROGRAMS:
        if Path(each).is_symlink():
            seen += ["--symlink", str(Path(each).readlink()), each]
        elif Path(each).is_dir():
            seen += ["--ro-bind", each, each]
    for name in _ETC:
        seen += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    seen += ["--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]
    for each in sorted({path, str(Path(path).resolve()), *shown}):
        if not each.startswith(tuple(f"{known}/" for known in _PROGRAMS)):
            seen += ["--ro-bind", each, each]
    seen += ["--bind", folder, folder, "--remount-ro", "/", "--chdir", folder]
    return [sandbox, *seen, "--unshare-all", "--die-with-parent", "--new-session"]


def hide_from_tools() -> None:
    """Let no other process of this user read the memory and the environment of this one, as far as the system can.

    A process of root reads both, also if root runs this one.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, *(ctypes.c_ulong(0) for _ in range(4)))


_CHUNK = 65_536
_PATIENCE = 5.0  # seconds for a keeper to kill what is left; nobody can kill what has become another user's


class ToolExit(NamedTuple):
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


async def run_tool(call: ToolCall, limits: ProcessLimits, clock: Clock) -> ToolExit:
    """Run it to its end, or to the end of its time; `OSError` if it is gone. Cancelled, it kills what it started.

    The end is that of the tool itself: what it has left in the background is killed then.
    """
    if not os.access(call.path, os.X_OK):
        raise FileNotFoundError(errno.ENOENT, f"{call.path} is no program any more")
    begun = clock.monotonic()
    process = await _start(call, limits)
    out, err = _OutputHead(limits.output), _OutputHead(limits.output)
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
        await _settle(process, pumping)
    code = process.returncode if process.returncode is not None else -signal.SIGKILL
    duration = int((clock.monotonic() - begun) * 1_000)
    return ToolExit(code, bytes(out.data), bytes(err.data), duration, timed_out, out.cut, err.cut)


async def _start(call: ToolCall, limits: ProcessLimits) -> asyncio.subprocess.Process:
    """Start the keeper. Cancelled meanwhile, this waits until the keeper has killed what it started.

    asyncio would kill the keeper itself, and nobody would wait for the tool.
    """
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *_kept(confined(call.path, call.args, call.folder, call.timeout, limits)),
            stdin=asyncio.subprocess.DEVNULL if call.stdin is None else asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=call.folder,
            env=_environment(call.folder),
            start_new_session=True,
        )
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        process = await starting
        await _settle(
            process, asyncio.gather(*(_drain(each, _OutputHead(0)) for each in (process.stdout, process.stderr)))
        )
        raise


def _kept(command: Sequence[str]) -> list[str]:
    """The command that starts a keeper of this one."""
    return [sys.executable, "-I", "-S", keeper.__file__, str(os.getpid()), *command]


class _OutputHead:
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


async def _drain(stream: asyncio.StreamReader | None, kept: _OutputHead) -> None:
    """Read to the end: a tool that writes more than is kept must not stand still."""
    assert stream is not None
    while chunk := await stream.read(_CHUNK):
        kept.add(chunk)


async def _terminate(process: asyncio.subprocess.Process, grace: float) -> None:
    _signal(process, signal.SIGTERM)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(grace):
            await process.wait()


async def _settle(process: asyncio.subprocess.Process, pumping: asyncio.Future[Any]) -> None:
    """Kill what is left, and collect what is in the pipes; somebody who still holds them open is not waited for."""
    _signal(process, signal.SIGQUIT)
    try:
        async with asyncio.timeout(_PATIENCE):
            await process.wait()
            await asyncio.shield(pumping)
    except TimeoutError:
        _signal(process, signal.SIGKILL)
    pumping.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await pumping
    transport = process._transport  # type: ignore[attr-defined]  # its pipes may be held by a process that left
    transport.close()


def _signal(process: asyncio.subprocess.Process, number: int) -> None:
    """To the keeper, which knows what it means for the tool."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)


def _environment(folder: Path) -> dict[str, str]:
    """Nothing of ours: no key, no proxy, no locale but bytes."""
    return {
        "PATH": PATH,
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
    }
