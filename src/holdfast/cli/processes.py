"""`--processes N`: one parent that starts N workers, restarts those that die, and passes signals on.

Children are spawned afresh, never forked, and hold a pipe to the parent: when it dies, they drain.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys

log = logging.getLogger("holdfast.processes")

_FIRST_PAUSE, _LAST_PAUSE = 1.0, 30.0
_STEADY = 60.0


async def supervise(count: int, worker_id: str) -> int:
    """Until every child has left; 0 when all left of their own will."""
    crew = [Child(number, worker_id) for number in range(1, count + 1)]

    def stop() -> None:
        for child in crew:
            child.stop()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    codes = await asyncio.gather(*(child.keep() for child in crew))
    return max(codes)


class Child:
    def __init__(self, number: int, worker_id: str) -> None:
        self._command = _command(number, worker_id)
        self._number = number
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        self._stopping.set()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)

    async def keep(self) -> int:
        """Run the child; start it again when it crashes, later each time."""
        loop = asyncio.get_running_loop()
        pause = _FIRST_PAUSE
        while not self._stopping.is_set():
            begun = loop.time()
            code = await self._run()
            if code == 0 or self._stopping.is_set():
                return max(code, 0)
            if loop.time() - begun > _STEADY:
                pause = _FIRST_PAUSE
            log.warning("worker process %d ended with %d; it starts again in %.0f s", self._number, code, pause)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
            pause = min(pause * 2, _LAST_PAUSE)
        return 0

    async def _run(self) -> int:
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=asyncio.subprocess.PIPE, start_new_session=True
        )
        if self._stopping.is_set():  # the signal came while it was being started
            self.stop()
        return await self._process.wait()


def _command(number: int, worker_id: str) -> list[str]:
    """Our own command line, for one process that watches us."""
    given = sys.argv[1:]
    kept: list[str] = []
    skip = False
    for word in given:
        if skip:
            skip = False
        elif word in ("--processes", "--id"):
            skip = True
        elif not word.startswith(("--processes=", "--id=")):
            kept.append(word)
    identity = ["--id", f"{worker_id}-{number}"] if worker_id else []
    return [sys.executable, "-m", "holdfast", *kept, "--leash", *identity]
