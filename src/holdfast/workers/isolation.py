"""Handlers in processes of their own, which a timeout or a cancel really stops.

Children are spawned, never forked, and stay warm for the next job. A child never opens the database: it asks its
worker for what its context offers.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from holdfast.errors import UsageError
from holdfast.outcomes import Outcome, Retry
from holdfast.settings import Settings
from holdfast.workers import frames
from holdfast.workers.addresses import address_of
from holdfast.workers.context import JobContext
from holdfast.workers.definitions import Definition
from holdfast.workers.processes import ChildProcess, Died
from holdfast.workers.telling import about

log = logging.getLogger("holdfast.isolation")


class ProcessPool:
    """Warm child processes, at most `most` of them, one job each at a time; gone when idle for `patience` seconds."""

    def __init__(self, most: int, *, patience: float = 60.0) -> None:
        self._patience = patience
        self._slots = asyncio.Semaphore(most)
        self._all: set[ChildProcess] = set()
        self._idle: dict[ChildProcess, asyncio.TimerHandle] = {}
        self._closed = False

    async def run(self, definition: Definition, context: JobContext, payload: Any) -> Outcome | None:
        """How the handler ended in its child; None when its lease was lost. Cancelling the call kills the child."""
        job = _job(definition, context, payload)
        async with self._slots:
            try:
                child = self._take() or await self._start(context.settings)
                return await self._perform(child, job, context)
            except Died as death:
                log.warning("job %s: %s", context.id, death, extra=about(context.lease))
                return Retry(error=str(death), type="process_died")

    async def close(self) -> None:
        """Kill whatever still runs."""
        self._closed = True
        while self._take():
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
            self._idle[child] = asyncio.get_running_loop().call_later(self._patience, self._retire, child)
        return outcome

    async def _start(self, settings: Settings) -> ChildProcess:
        try:
            child = await ChildProcess.start(frames.limit(settings))
        except OSError as problem:
            raise Died(f"its process could not be started: {problem}") from problem
        self._all.add(child)
        child.gone.add_done_callback(lambda _: self._forget(child))
        return child

    def _take(self) -> ChildProcess | None:
        """The child that was busy last; the others grow old and leave."""
        if not self._idle:
            return None
        child, retirement = self._idle.popitem()
        retirement.cancel()
        return child

    def _retire(self, child: ChildProcess) -> None:
        del self._idle[child]
        child.end()

    def _forget(self, child: ChildProcess) -> None:
        """It is gone. An idle one can be, too: killed by someone else, or for want of memory."""
        self._all.discard(child)
        if child in self._idle:
            self._idle.pop(child).cancel()
            child.end()


def _job(definition: Definition, context: JobContext, payload: Any) -> dict[str, Any]:
    """Everything a child is told. It finds the handler by name, and has nothing else of ours."""
    values = {field.name: getattr(context.settings, field.name) for field in fields(Settings)}
    return {
        "job": {
            "address": address_of(definition.function),
            "lease": context.lease._replace(payload=""),
            "payload": payload,
            "settings": {name: value for name, value in values.items() if isinstance(value, int)},
            "log_level": context.log.getEffectiveLevel(),
            "path": [entry or str(Path.cwd()) for entry in sys.path],
            "argv": sys.argv,
        }
    }


_inside = False


def enter_child() -> None:
    """From now on this process is a job's own."""
    global _inside  # noqa: PLW0603  it is a fact about the process
    _inside = True


def require_outside() -> None:
    """Raise `UsageError` in a job's own process, which has no database."""
    if _inside:
        raise UsageError(
            'a job with isolate="process" cannot reach the database from its process. Use its JobContext: step, '
            "progress, start, join, wait. If this comes from importing your program, put what it does when it is run "
            'under `if __name__ == "__main__":`.'
        )
