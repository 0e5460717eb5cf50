"""Workers of a pool as processes of this machine: started on a leash, as those of every pool, and told what to be.

A process imports the handler of runs by its name, as `worker_process` does. It says over a socket what its worker does,
so that the manager knows it without asking the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
from dataclasses import asdict, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, Self

from holdfast.app import Holdfast, core_of
from holdfast.clock import Clock
from holdfast.durations import microseconds, show
from holdfast.errors import UsageError
from holdfast.facades.universal_agent.runtime_db import DefineAgent
from holdfast.facades.universal_agent.worker import RunHandler, WorkerConfig, WorkerStatus
from holdfast.pools.launchers import Exit, WorkerProcess
from holdfast.settings import Settings
from holdfast.workers.isolation.addresses import Address, address_in, address_of

_PROGRAM = "holdfast.facades.universal_agent.worker_process"
_LAST_REPORT = 1.0  # seconds until what a process said before its end has been read
_IN = "in a worker process"


class ProcessOrder(NamedTuple):
    """What a process is told when it starts. It goes over a socket: passwords may be in it."""

    config: dict[str, Any]
    pool: str
    app: Address | None  # the program's app, if it has one that can be imported
    settings: dict[str, str]  # of the database otherwise
    handler: Address | None  # None: the pool's default
    agent: Address | None
    defines: bool  # whether the program has said how its agent is defined
    installed: bool  # whether the document's module names are registered
    path: list[str]

    def text(self) -> str:
        return json.dumps(self._asdict())

    @classmethod
    def read(cls, text: str) -> Self:
        said = json.loads(text)
        for name in ("app", "handler", "agent"):
            said[name] = None if said[name] is None else Address(*said[name])
        return cls(**said)


class _ImportFlag:
    """Whether this is the process of a worker that imports its program."""

    now = False


def set_importing(now: bool) -> None:
    _ImportFlag.now = now


def require_a_program() -> None:
    """Raise `UsageError` where a worker's process is importing the program: it would start workers without end."""
    if _ImportFlag.now:
        raise UsageError(
            "a worker process imports your program, and that starts a pool. Put what the program does when it is run "
            'under `if __name__ == "__main__":`.'
        )


def handler_address(handler: RunHandler) -> Address:
    """`UsageError` when another process cannot find it."""
    return address_of(handler, use=_IN)


def order_of(app: Holdfast, *, own: bool, handler: Address | None, define: DefineAgent | None) -> ProcessOrder:
    """The order for processes of a pool on this app, as yet without a worker. `own`: the program has brought the app.

    `UsageError` when another process could not have the same agent.
    """
    found = _address_of_app(app) if own else None
    if own and found is None and core_of(app).defined:
        raise UsageError(
            "db_path is an app with agents, and worker processes cannot import it: make it a variable of a module."
        )
    agent = None
    if define is not None:
        try:
            agent = address_of(define, use=_IN)
        except UsageError:
            if handler is None:  # else the handler's module may say it as well, and the process looks whether it does
                raise
    return ProcessOrder(
        config={},
        pool="",
        app=found,
        settings=_written(app.settings),
        handler=handler,
        agent=agent,
        defines=define is not None,
        installed="universal_agent" in sys.modules,
        path=[entry or str(Path.cwd()) for entry in sys.path],
    )


def _address_of_app(app: Holdfast) -> Address | None:
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):  # what is there may be anything
            if value is app:
                with contextlib.suppress(UsageError):
                    return address_in(module.__name__, name, use=_IN)
    return None


def _written(settings: Settings) -> dict[str, str]:
    """The settings that the environment does not say, as `Settings.override` reads them."""
    known = Settings.from_environment()
    written = {}
    for each in fields(Settings):
        value = getattr(settings, each.name)
        if value != getattr(known, each.name):
            written[each.name] = show(microseconds(value)) if isinstance(value, timedelta) else str(value)
    return written


class ProcessWorker:
    """A worker in a process of its own, as its manager sees it."""

    def __init__(self, config: WorkerConfig, process: WorkerProcess, line: asyncio.StreamReader, clock: Clock) -> None:
        self.config = config
        self.worker_id = config.worker_id
        self.current_run: str | None = None
        self.completed = self.failed = self.lost = 0
        self.has_started = False  # its worker was ready once
        self._process = process
        self._clock = clock
        self._draining = self._gone = False
        self._asked = 0
        self._idle_since = clock.monotonic()
        self._hearing = asyncio.create_task(self._hear(line), name=f"reports of {self.worker_id}")
        self._ended = asyncio.create_task(self._wait(), name=f"end of {self.worker_id}")

    @classmethod
    async def start(cls, config: WorkerConfig, pool: str, order: ProcessOrder, clock: Clock) -> Self:
        """Start its process; the pool waits until it has registered."""
        ours, theirs = socket.socketpair()
        try:
            command = [sys.executable, "-m", _PROGRAM, str(theirs.fileno())]
            process = await WorkerProcess.start(command, passed=[theirs.fileno()])
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        line, writer = await asyncio.open_connection(sock=ours)
        writer.write(f"{order._replace(config=asdict(config), pool=pool).text()}\n".encode())
        worker = cls(config, process, line, clock)
        worker._ended.add_done_callback(lambda _: writer.close())
        return worker

    def __repr__(self) -> str:
        return f"ProcessWorker({self.worker_id!r}, {self.status})"

    @property
    def status(self) -> WorkerStatus:
        if self._gone or not self.has_started:
            return "stopped"
        if self._draining:
            return "draining"
        return "idle" if self.current_run is None else "processing"

    def is_idle(self) -> bool:
        return self.status == "idle"

    @property
    def idle_duration(self) -> float:
        """For how many seconds it has been idle; 0 while it is not."""
        return self._clock.monotonic() - self._idle_since if self.is_idle() else 0.0

    def stats(self) -> dict[str, Any]:
        return {
            "status": self.status,
            "current_run": self.current_run,
            "completed": self.completed,
            "failed": self.failed,
        }

    def is_frozen(self) -> bool:
        return self._process.is_frozen()

    def ask_to_stop(self, *, drain: bool) -> None:
        """Begin to stop; `ended` says when it is over. A second signal hands its run back."""
        self._draining = True
        for _ in range(1 if drain else 2 - self._asked):
            self._asked += 1
            self._process.stop()

    async def stop(self, drain: bool = True) -> None:
        self.ask_to_stop(drain=drain)
        await self.ended()

    def kill(self) -> None:
        self._process.kill()

    async def ended(self) -> Exit:
        """Wait until nothing of its process is left."""
        return await asyncio.shield(self._ended)

    async def _wait(self) -> Exit:
        exit = await self._process.ended()
        with contextlib.suppress(TimeoutError):  # what a handler has forked may keep the other end open
            await asyncio.wait_for(self._hearing, _LAST_REPORT)
        self._gone, self.current_run = True, None
        return exit

    async def _hear(self, line: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            while text := await line.readline():
                said = json.loads(text)
                if self.current_run is not None and said["current_run"] is None:
                    self._idle_since = self._clock.monotonic()
                self.has_started = True
                self.current_run, self._draining = said["current_run"], self._draining or said["draining"]
                self.completed, self.failed, self.lost = said["completed"], said["failed"], said["lost"]
