"""A job's own process: `python -m holdfast.workers.isolation.child SOCKET LIFELINE`. Only `pool` starts it.

It runs one job at a time and asks its worker for everything a context offers. It dies with its worker, at once,
whatever user code is doing.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import inspect
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, NoReturn

from holdfast.errors import LeaseLost, UsageError
from holdfast.kernel import codec
from holdfast.kernel.rows import ChildRow, Lease, NewJob, Route
from holdfast.kernel.waiting import TakenSignal
from holdfast.outcomes import Done, Fail, Outcome
from holdfast.settings import Settings
from holdfast.workers.attempt import call, conclude, raised
from holdfast.workers.context import JobContext
from holdfast.workers.definitions import Definition, enter_child
from holdfast.workers.isolation import frames
from holdfast.workers.isolation.addresses import Address, find
from holdfast.workers.signatures import Signature


def main() -> None:
    fd, lifeline = map(int, sys.argv[1:])
    die_with_worker(lifeline)
    enter_child()
    line = WorkerChannel(socket.socket(fileno=fd))
    runner = asyncio.Runner()  # one loop for all jobs: clients that a module keeps stay usable
    while True:
        line.send(IsolatedJob(line.receive()["job"]).run(runner, line))


def die_with_worker(lifeline: int) -> None:
    """Let the kernel kill our whole group when the worker's end of the pipe closes, as it does when it dies.

    The thread does so where the kernel cannot, and when the worker has died already; it needs user code to let
    go of the interpreter now and then.
    """
    os.set_inheritable(lifeline, False)
    if sys.platform == "linux":
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC)
    threading.Thread(target=_watch, args=(lifeline,), name="holdfast-lifeline", daemon=True).start()


def _watch(lifeline: int) -> None:
    os.read(lifeline, 1)
    os.killpg(0, signal.SIGKILL)


class WorkerChannel:
    """The socket to the worker. One thread asks, so that every answer follows its question."""

    def __init__(self, peer: socket.socket) -> None:
        peer.set_inheritable(False)
        self._peer = peer
        self._lines = peer.makefile("rb")
        self.asking = ThreadPoolExecutor(1, "holdfast-line")

    def send(self, line: bytes) -> None:
        self._peer.sendall(line)

    def receive(self) -> Any:
        line = self._lines.readline()
        if not line:
            os._exit(0)
        return frames.unpack(line)


class IsolatedJob:
    """One job as the worker sent it."""

    def __init__(self, task: dict[str, Any]) -> None:
        sys.path[:] = task["path"]
        sys.argv[:] = task["argv"]
        self.address = Address(*task["address"])
        self.lease = Lease(*task["lease"])
        self.payload = task["payload"]
        self.settings = Settings(**task["settings"])
        self.result_cap = int(task["result_cap"])
        self.longest = int(task["longest"])
        self.log_level = int(task["log_level"])

    def run(self, runner: asyncio.Runner, line: WorkerChannel) -> bytes:
        """The frame that says how it ended. Modules load outside the loop, where they may do as they like."""
        try:
            loaded = load(self.address, self.lease.kind)
        except UsageError as problem:
            return self._ended(Fail(str(problem)))
        except BaseException:  # noqa: BLE001  a module may raise anything, SystemExit too
            return self._ended(raised())
        return self._ended(runner.run(self._attempt(loaded, line)))

    async def _attempt(self, loaded: LoadedJob, line: WorkerChannel) -> Outcome | None:
        function, signature, given = loaded
        ledger = PipeLedger(line, self.lease, self.longest)
        context = JobContext(self.lease, ledger, self.settings)
        try:
            with relayed(ledger, self.log_level, self.settings.error_cap):
                elsewhere = None if inspect.iscoroutinefunction(function) else asyncio.to_thread
                arguments = functools.partial(signature.decode, self.payload)
                return await conclude(call(function, signature, given(context), arguments, elsewhere))
        except BaseException:  # noqa: BLE001  what gets past `conclude` ends the attempt, not this process
            return raised()
        finally:
            await ledger.close()

    def _ended(self, outcome: Outcome | None) -> bytes:
        """An outcome that cannot be sent becomes one that says so."""
        try:
            if isinstance(outcome, Done):
                codec.encode(outcome.result, what=f"the result of {self.lease.kind}", cap=self.result_cap)
            return self._frame(outcome)
        except UsageError as problem:
            return self._frame(Fail(str(problem), "result_error"))

    def _frame(self, outcome: Outcome | None) -> bytes:
        frame = frames.write_outcome(outcome, self.settings.error_cap)
        return frames.pack({"outcome": frame}, self.longest)


class LoadedJob(NamedTuple):
    """A function, how it is called, and what it is given for its context."""

    function: Callable[..., Any]
    signature: Signature
    given: Callable[[JobContext], Any]


@functools.cache
def load(address: Address, kind: str) -> LoadedJob:
    """What is behind a name, which may stand for a decorated function."""
    found = find(address)
    definition = getattr(found, "definition", None)
    function = definition.function if isinstance(definition, Definition) else found
    if not callable(function) or getattr(function, "__qualname__", None) != address.name:
        raise UsageError(
            f"the name {address.name!r} in {address.script or address.module} no longer names the function of job "
            f"{kind!r}. Give the function a name of its own at module level."
        )
    if not isinstance(definition, Definition):
        return LoadedJob(function, Signature(kind, function), _itself)
    return LoadedJob(function, definition.signature, definition.context or _itself)


def _itself(context: JobContext) -> JobContext:
    return context


class PipeLedger:
    """The ledger as a child keeps it: every question goes to the worker."""

    cancelled = False  # a cancel kills this process before it could look

    def __init__(self, line: WorkerChannel, lease: Lease, most: int) -> None:
        self._line = line
        self._lease = lease
        self._most = most
        self._closed = False

    async def find_step(self, name: str) -> str | None:
        stored: str | None = await self._ask("find_step", name)
        return stored

    async def store_step(self, name: str, result: str) -> str:
        stored: str = await self._ask("store_step", name, result)
        return stored

    def lent(self, tx: object, *, sync: bool) -> NoReturn:
        raise UsageError(
            "this job runs in a process of its own, and only its worker writes to the store: call ctx.step without tx."
        )

    async def report_progress(self, progress: str) -> None:
        await self._ask("report_progress", progress)

    async def start_child(self, child: NewJob, route: Route) -> None:
        await self._ask("start_child", child, route)

    async def list_children(self) -> Sequence[ChildRow]:
        return [ChildRow(*row) for row in await self._ask("list_children")]

    async def take_signal(self, channel: str, step: str) -> TakenSignal:
        return TakenSignal(*await self._ask("take_signal", channel, step))

    def tell(self, level: int, text: str) -> None:
        """Log in the worker, where logging is set up. From any thread; nobody waits for it."""
        self._line.asking.submit(self._tell, level, text)

    async def close(self) -> None:
        """The attempt is over. What it left running may ask no more: the answer would come from the next job."""
        await asyncio.get_running_loop().run_in_executor(self._line.asking, self._close)

    async def _ask(self, *question: object) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._line.asking, self._exchange, question)

    def _exchange(self, question: tuple[object, ...]) -> Any:
        if self._closed:
            raise LeaseLost(self._lease.id, self._lease.fence)
        self._line.send(frames.pack({"ask": question}, self._most))
        match self._line.receive():
            case {"answer": answer}:
                return answer
            case {"problem": problem}:
                raise frames.read_problem(problem)

    def _tell(self, level: int, text: str) -> None:
        if not self._closed:
            self._line.send(frames.pack({"log": [level, text]}, self._most))

    def _close(self) -> None:
        self._closed = True


class Relay(logging.Handler):
    """Hands what a job logs to its worker."""

    def __init__(self, ledger: PipeLedger, cap: int) -> None:
        super().__init__()
        self._ledger = ledger
        self._cap = cap

    def emit(self, record: logging.LogRecord) -> None:
        self._ledger.tell(record.levelno, codec.clip(self.format(record), self._cap))


@contextlib.contextmanager
def relayed(ledger: PipeLedger, level: int, cap: int) -> Iterator[None]:
    relay = Relay(ledger, cap)
    log = logging.getLogger("holdfast.job")
    log.setLevel(level)
    log.propagate = False
    log.addHandler(relay)
    try:
        yield
    finally:
        log.removeHandler(relay)


if __name__ == "__main__":
    main()
