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
from holdfast.outcomes import Outcome, TryAgain
from holdfast.settings import Settings
from holdfast.workers.context import JobContext
from holdfast.workers.definitions import Definition
from holdfast.workers.isolation import frames
from holdfast.workers.isolation.addresses import address_of
from holdfast.workers.isolation.process import ChildProcess, Died
from holdfast.workers.telemetry import about

log = logging.getLogger("holdfast.isolation")


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
            except Died as death:
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
            raise Died(f"its process could not be started: {problem}") from problem
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
