"""Processes that begin with their imports done.

A Python that has imported what programs need waits for requests, and forks. What a test gets is a process like any
other, with its own folder, environment, files, signals and exit code; only the half second of importing is saved. A
test whose subject is that start itself (what is imported, PYTHONPATH, the entry point) starts a cold one.

The nursery must stay without threads and open files, which a fork would not survive: it imports and nothing else.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import io
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn, Self

from tests.support.planted import plant_what_the_environment_names

ROOT = Path(__file__).parents[2]
LONGEST_REQUEST = 1 << 20

Stream = int | IO[Any] | None


class Request(NamedTuple):
    words: Sequence[str]  # as they follow `python`: a file or `-m module`, and arguments
    cwd: str
    env: Mapping[str, str]
    own_session: bool
    title: str  # what others know it by, as its command line is that of the nursery


class WarmProcess:
    """As much of `subprocess.Popen` as tests need."""

    def __init__(self, words: Sequence[str], report: socket.socket, ours: Sequence[IO[Any] | None]) -> None:
        self.args = words
        self.stdin, self.stdout, self.stderr = ours
        self.returncode: int | None = None
        self._report = report
        self._lock = threading.Lock()
        self.pid = self._hear(None)

    def poll(self) -> int | None:
        if self._lock.acquire(blocking=False):  # else somebody waits for its end
            try:
                return self._end(0)
            except subprocess.TimeoutExpired:
                return None
            finally:
                self._lock.release()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        with self._lock:
            return self._end(timeout)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdout, self.stderr, self.stdin):
            if stream is not None:
                stream.close()
        self.wait()

    def _end(self, within: float | None) -> int:
        if self.returncode is None:
            try:
                self.returncode = os.waitstatus_to_exitcode(self._hear(within))
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(self.args, within or 0) from None
            self._report.close()
        return self.returncode

    def _hear(self, within: float | None) -> int:
        self._report.settimeout(within)
        answer = self._report.recv(100)
        assert answer, "the nursery has died"
        return int(answer)


class Nursery:
    """One waiting Python, and what it has begun."""

    def __init__(self, *preload: str) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LONGEST_REQUEST)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno()), *preload],
                cwd=ROOT,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._socket = ours
        self._lock = threading.Lock()
        atexit.register(self.close)

    def begin(self, request: Request, files: Sequence[int], ours: Sequence[IO[Any] | None]) -> WarmProcess:
        """A process on these files 0, 1 and 2; `ours` are the other ends of those that are pipes."""
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there, self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], [*files, there.fileno()])
        return WarmProcess(request.words, here, ours)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


@functools.cache
def nursery(*preload: str) -> Nursery:
    """The one of this process, which lives as long."""
    return Nursery(*preload)


def begin(
    *words: str,
    preload: Sequence[str],
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: Stream = None,
    stdout: Stream = None,
    stderr: Stream = None,
    text: bool = False,
    start_new_session: bool = False,
    title: str = "",
) -> WarmProcess:
    """What `subprocess.Popen([sys.executable, *words], …)` begins, sooner."""
    pipes = _Pipes("" if text else "b")
    theirs = [pipes.end(stdin, 0, "w"), pipes.end(stdout, 1, "r")]
    theirs.append(theirs[1] if stderr == subprocess.STDOUT else pipes.end(stderr, 2, "r"))
    chosen = dict(os.environ if env is None else env)
    request = Request(words, str(Path(cwd or ".").absolute()), chosen, start_new_session, title)
    try:
        return nursery(*preload).begin(request, theirs, pipes.ours)
    finally:
        pipes.close_theirs()


class _Pipes:
    """The files of a process that begins, and our ends of those that are pipes."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._theirs: list[int] = []
        self.ours: list[IO[Any] | None] = []

    def end(self, stream: Stream, inherited: int, mode: str) -> int:
        """The number of their end."""
        ours: IO[Any] | None = None
        if stream == subprocess.PIPE:
            read, write = os.pipe()
            kept, number = (write, read) if mode == "w" else (read, write)
            ours = os.fdopen(kept, mode + self._kind)
            self._theirs.append(number)
        elif stream == subprocess.DEVNULL:
            number = os.open(os.devnull, os.O_RDWR)
            self._theirs.append(number)
        else:
            number = inherited if stream is None else stream if isinstance(stream, int) else stream.fileno()
        self.ours.append(ours)
        return number

    def close_theirs(self) -> None:
        for each in self._theirs:
            os.close(each)
        self.ours += [None] * (3 - len(self.ours))


def serve(requests: socket.socket) -> Request | None:
    """Fork for each request. Returns in every child, with what it is to do; and None when nobody will ask again."""
    woken, wake = socket.socketpair()
    for end in (woken, wake):
        end.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)  # it only wakes us up
    begun: dict[int, socket.socket] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            if woken in [key.fileobj for key, _ in selector.select()]:
                woken.recv(1000)
                _report_ended(begun)
                continue
            message, files, *_ = socket.recv_fds(requests, LONGEST_REQUEST, 4)
            if not message:
                return None
            *standard, report = files
            if not (pid := os.fork()):
                break
            for file in standard:
                os.close(file)
            begun[pid] = socket.socket(fileno=report)
            begun[pid].send(str(pid).encode())
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.close(report)
    for each in (woken, wake, requests, *begun.values()):
        each.close()
    return _become(Request(*json.loads(message)), standard)


def _report_ended(begun: dict[int, socket.socket]) -> None:
    for pid in list(begun):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with begun.pop(pid) as report:
                try:
                    report.send(str(status).encode())
                except BrokenPipeError:  # nobody waits for it any more
                    continue


def _become(request: Request, files: Sequence[int]) -> Request:
    for number, file in enumerate(files):
        os.dup2(file, number)
    for file in files:
        os.close(file)
    if request.own_session:
        os.setsid()
    if request.title and Path("/proc/self/comm").exists():
        Path("/proc/self/comm").write_text(request.title)
    os.environ.clear()
    os.environ.update(request.env)
    os.chdir(request.cwd)
    sys.path[1:1] = [
        each for each in request.env.get("PYTHONPATH", "").split(os.pathsep) if each not in ("", *sys.path)
    ]
    unbuffered = bool(request.env.get("PYTHONUNBUFFERED"))
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = _standard_stream(number, unbuffered=unbuffered)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    return request


def _standard_stream(number: int, *, unbuffered: bool) -> IO[str]:
    """As Python opens it at its start."""
    if number == 0:
        return open(0, closefd=False)
    errors = "backslashreplace" if number == 2 else None
    if unbuffered:
        return io.TextIOWrapper(open(number, "wb", 0, closefd=False), errors=errors, write_through=True)
    return open(number, "w", 1 if number == 2 else -1, errors=errors, closefd=False)


def run(words: Sequence[str]) -> int:
    """What Python does with them; the exit code."""
    try:
        _run(words)
    except SystemExit as left:
        if not isinstance(left.code, int | None):
            raise
        return left.code or 0
    return 0


def leave(code: int) -> NoReturn:
    """End as Python does, but do not take apart what was imported: that would copy all of it first."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    gc.collect()  # what complains when it goes, complains now
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run(words: Sequence[str]) -> None:
    if words[0] == "-m":
        sys.argv = list(words[1:])
        sys.path[0] = str(Path.cwd())
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(words)
        sys.path[0] = str(Path(words[0]).resolve().parent)
        runpy.run_path(words[0], run_name="__main__")


def main(file: str, *preload: str) -> None:
    for module in preload:
        importlib.import_module(module)
    plant_what_the_environment_names()
    gc.freeze()  # what is shared stays shared
    if request := serve(socket.socket(fileno=int(file))):
        leave(run(request.words))


if __name__ == "__main__":
    main(*sys.argv[1:])
