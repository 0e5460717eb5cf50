"""Handlers in processes of their own, which a timeout or a cancel really stops.

Children are spawned, never forked, and stay warm for the next job. A child never opens the database: it asks its
worker for what its context offers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, Self

from holdfast.errors import HoldfastError
from holdfast.kernel.rows import NewJob, Route
from holdfast.outcomes import Outcome, TryAgain
from holdfast.settings import Settings
from holdfast.workers.context import JobContext
from holdfast.workers.definitions import Definition
from holdfast.workers.isolation import frames
from holdfast.workers.isolation.addresses import address_of
from holdfast.workers.ledger import Ledger
from holdfast.workers.telemetry import about

# One child process, as its worker sees it.
#
# The child leads a process group of its own, and every end is a SIGKILL to that group: nothing that user code does
# can delay it, and what a handler started goes with it.


log = logging.getLogger("holdfast.isolation")

_LAST_WORDS = 1.0
_REAPING = 5.0
# -P: modules in this folder must not hide the standard library's. -u: what was printed before a kill is seen.
_COMMAND = ("-P", "-u", "-X", "faulthandler", "-m", "holdfast.workers.isolation.child")


class ChildDied(Exception):
    """The child ended, or cannot be talked to, before its handler had an outcome."""


class ChildProcess:
    """A process group, the socket it talks on, and a pipe whose closing is its death."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        lifeline: int,
        longest: int,
    ) -> None:
        """`longest`: the bytes it may say in one frame."""
        self.longest = longest
        self._process = process
        self._reader = reader
        self._writer = writer
        self._lifeline: int | None = lifeline
        self.gone = asyncio.create_task(self._watch(), name=f"process {process.pid}")

    @classmethod
    async def start(cls, longest: int) -> Self:
        """Spawn one, which waits for its first job."""
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as undo:
            here, there = socket.socketpair()
            theirs.callback(there.close)
            undo.callback(here.close)
            watched, lifeline = os.pipe()
            theirs.callback(os.close, watched)
            undo.callback(os.close, lifeline)
            reader, writer = await asyncio.open_unix_connection(sock=here, limit=longest)
            undo.callback(writer.transport.abort)
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *_COMMAND,
                *map(str, (there.fileno(), watched)),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(there.fileno(), watched),
                start_new_session=True,
            )
            undo.pop_all()
            return cls(process, reader, writer, lifeline, longest)

    async def perform(self, job: dict[str, Any], context: JobContext) -> Outcome | None:
        """Have a job done, answering what its handler asks. After anything but an outcome, kill it."""
        try:
            await self._send(job)
            while True:
                match await self._hear():
                    case {"ask": [str(verb), *given]}:
                        await self._send(await _answer(context.ledger, verb, given))
                    case {"log": [int(level), str(text)]}:
                        context.log.log(level, "%s", text)
                    case {"outcome": outcome}:
                        return frames.read_outcome(outcome)
                    case other:
                        raise ChildDied(f"its process wrote to the worker's socket: {str(other)[:200]}")
        except ConnectionError:
            raise ChildDied(await self._cause()) from None

    async def kill(self) -> None:
        """End it, and wait until it is reaped, unless the kernel cannot do that now."""
        self.end()
        await asyncio.wait({self.gone}, timeout=_REAPING)
        if not self.gone.done():
            log.warning("process %d was killed and has not exited yet", self._process.pid)

    def end(self) -> None:
        """Kill its group, and let go of what this side holds."""
        if not self.gone.done():
            self._kill_group()
        if self._lifeline is not None:
            self._writer.transport.abort()
            os.close(self._lifeline)
            self._lifeline = None

    async def _watch(self) -> int:
        """Its exit code, once it is gone; what it has started goes too."""
        code = await self._process.wait()
        self._kill_group()
        return code

    def _kill_group(self) -> None:
        # PermissionError: what macOS answers when the group has only zombies left.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def _send(self, frame: dict[str, Any]) -> None:
        self._writer.write(frames.pack(frame))
        await self._writer.drain()

    async def _hear(self) -> Any:
        """The next frame. A child that forked may leave the socket open behind it, so its end counts as well."""
        hearing = asyncio.ensure_future(self._reader.readline())
        try:
            await asyncio.wait({hearing, self.gone}, return_when=asyncio.FIRST_COMPLETED)
            if not hearing.done():
                await asyncio.wait({hearing}, timeout=_LAST_WORDS)
            line = hearing.result() if hearing.done() else b""
            if line.endswith(b"\n"):
                return frames.unpack(line)
        except (ValueError, RecursionError) as problem:
            raise ChildDied(f"its process wrote to the worker's socket, but not a frame: {problem}") from problem
        finally:
            hearing.cancel()
        raise ConnectionResetError

    async def _cause(self) -> str:
        await asyncio.wait({self.gone}, timeout=_LAST_WORDS)
        if not self.gone.done():
            return "its process closed its socket to the worker"
        code = self.gone.result()
        return f"its process died ({f'exit code {code}' if code >= 0 else f'signal {-code}'})"


async def _answer(ledger: Ledger, verb: str, given: list[Any]) -> dict[str, Any]:
    """Do what the child's context asks of the store, and nothing else it might ask for."""
    answer: object = None
    try:
        match verb, given:
            case "find_step", [name]:
                answer = await ledger.find_step(name)
            case "store_step", [name, result]:
                answer = await ledger.store_step(name, result)
            case "report_progress", [progress]:
                await ledger.report_progress(progress)
            case "start_child", [child, route]:
                await ledger.start_child(NewJob(*child), Route(*route))
            case "list_children", []:
                answer = await ledger.list_children()
            case "take_signal", [channel, step]:
                answer = await ledger.take_signal(channel, step)
            case _:
                raise ChildDied(f"its process asked for {verb!r}, which the worker does not know")
    except HoldfastError as problem:
        return {"problem": frames.write_problem(problem)}
    return {"answer": answer}


class ProcessPool:
    """Warm child processes, at most `most` of them, one job each at a time; gone when idle for `patience` seconds."""

    def __init__(self, most: int, *, patience: float = 60.0) -> None:
        self._most = most
        self._patience = patience
        self._slots = asyncio.Semaphore(most)
        self._all: set[ChildProcess] = set()
        self._idle: dict[ChildProcess, asyncio.TimerHandle] = {}
        self._closed = False

    async def run(self, definition: Definition, context: JobContext, payload: Any) -> Outcome | None:
        """How the handler ended in its child; None when its lease was lost. Cancelling the call kills the child."""
        result_cap = definition.result_cap(context.settings)
        longest = frames.limit(context.settings, result_cap)
        job = _job(definition, context, payload, result_cap=result_cap, longest=longest)
        async with self._slots:
            try:
                child = self._take(longest) or await self._start(longest)
                return await self._perform(child, job, context)
            except ChildDied as death:
                log.info("job %s: %s", context.id, death, extra=about(context.lease))
                return TryAgain(error=str(death), type="process_died")

    async def close(self) -> None:
        """Kill whatever still runs."""
        self._closed = True
        while self._take(0):
            pass
        await asyncio.gather(*(child.kill() for child in self._all))

    async def _perform(self, child: ChildProcess, job: dict[str, Any], context: JobContext) -> Outcome | None:
        try:
            outcome = await child.perform(job, context)
        except BaseException:
            await child.kill()
            raise
        if self._closed:
            await child.kill()
        else:
            self._idle[child] = asyncio.get_running_loop().call_later(self._patience, self._dismiss, child)
        return outcome

    async def _start(self, longest: int) -> ChildProcess:
        if len(self._all) >= self._most and self._idle:  # it may send less than this job needs
            self._dismiss(next(iter(self._idle)))
        try:
            child = await ChildProcess.start(longest)
        except OSError as problem:
            raise ChildDied(f"its process could not be started: {problem}") from problem
        self._all.add(child)
        child.gone.add_done_callback(lambda _: self._forget(child))
        return child

    def _take(self, longest: int) -> ChildProcess | None:
        """The child that was busy last, of those that may send frames of this length; the others grow old and leave."""
        for child in reversed(self._idle):
            if child.longest >= longest:
                self._idle.pop(child).cancel()
                return child
        return None

    def _dismiss(self, child: ChildProcess) -> None:
        """End an idle child."""
        self._idle.pop(child).cancel()
        child.end()

    def _forget(self, child: ChildProcess) -> None:
        """It is gone. An idle one can be, too: killed by someone else, or for want of memory."""
        self._all.discard(child)
        if child in self._idle:
            self._dismiss(child)


def _job(definition: Definition, context: JobContext, payload: Any, *, result_cap: int, longest: int) -> dict[str, Any]:
    """Everything a child is sent. It finds the handler by name, and has nothing else of ours."""
    values = {field.name: getattr(context.settings, field.name) for field in fields(Settings)}
    return {
        "job": {
            "address": address_of(definition.function),
            "lease": context.lease._replace(payload=""),
            "payload": payload,
            "settings": {name: value for name, value in values.items() if isinstance(value, int)},
            "result_cap": result_cap,
            "longest": longest,
            "log_level": context.log.getEffectiveLevel(),
            "path": [entry or str(Path.cwd()) for entry in sys.path],
            "argv": sys.argv,
        }
    }
