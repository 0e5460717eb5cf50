"""Processes that begin with their imports done.

A Python that has imported what a command needs waits for requests, and forks. What a test gets is a process like any
other, with its own folder, environment, files, signals and exit code; only the 0.25 s of importing are saved. A test
whose subject is that start itself (what is imported, PYTHONPATH, the entry point) starts a cold one.

The nursery must stay without threads and open files, which a fork would not survive: it imports and nothing else.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
LONGEST_REQUEST = 1 << 20


class Request(NamedTuple):
    module: str
    words: Sequence[str]
    cwd: str
    env: Mapping[str, str]


class Nursery:
    """One waiting Python; its children are run one after the other."""

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

    def run(self, request: Request, files: Sequence[int], *, within: float) -> int:
        """Run a module as `python -m` does, on these files 0, 1 and 2; its exit code, as `subprocess` would say it."""
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], files)
            pid = self._answer(None)
            try:
                return os.waitstatus_to_exitcode(self._answer(within))
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                self._answer(None)
                raise subprocess.TimeoutExpired([request.module, *request.words], within) from None

    def close(self) -> None:
        self._socket.close()
        self._process.wait()

    def _answer(self, within: float | None) -> int:
        self._socket.settimeout(within)
        answer = self._socket.recv(100)
        assert answer, "the nursery has died"
        return int(answer)


@functools.cache
def nursery(*preload: str) -> Nursery:
    """The one of this process, which lives as long."""
    return Nursery(*preload)


def serve(requests: socket.socket) -> Request | None:
    """Fork for each request. Returns in every child, with what it is to do; and None when nobody will ask again."""
    while True:
        message, files, *_ = socket.recv_fds(requests, LONGEST_REQUEST, 3)
        if not message:
            return None
        pid = os.fork()
        if not pid:
            requests.close()
            return _become(Request(*json.loads(message)), files)
        for file in files:
            os.close(file)
        requests.send(str(pid).encode())
        requests.send(str(os.waitpid(pid, 0)[1]).encode())


def _become(request: Request, files: Sequence[int]) -> Request:
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request.env)
    os.chdir(request.cwd)
    sys.path[0] = request.cwd
    sys.argv = [request.module, *request.words]
    return request


def main(file: str, *preload: str) -> None:
    for module in preload:
        importlib.import_module(module)
    gc.freeze()  # what is shared stays shared
    if request := serve(socket.socket(fileno=int(file))):
        runpy.run_module(request.module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
