"""Hints and announcements of one process on PostgreSQL: sent after their commits, many together, one NOTIFY in flight.

A transaction that has sent a NOTIFY holds a lock of the whole database while it commits, until its WAL is flushed: so
commits that carry one come one after the other. A transaction that does nothing else has no WAL to wait for. Nothing is
sent twice: what is lost with a connection, or with this process, is found by polling.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence

from asyncpg import exceptions as pg

from holdfast.errors import HoldfastError
from holdfast.kernel.drivers.postgres_errors import AWAY
from holdfast.kernel.hints import Announcement, merged
from holdfast.shown_text import plural

log = logging.getLogger("holdfast.hints")

SEND = "select pg_notify(n.channel, n.payload) from unnest($1::text[], $2::text[]) as n (channel, payload)"
_TOGETHER = 500  # announcements; the queue of notifications has room for millions
# After each sending a rest of so many times what it took, but not longer than this many seconds: the first hint goes at
# once, and however many commits follow it, announcing them takes a tenth of the time at most.
_REST, _LONGEST_REST = 9.0, 0.25
_LAST_SECONDS = 2.0  # for what is left when the process ends


class Sender:
    def __init__(self, channel: str, send: Callable[[Sequence[Announcement]], Awaitable[None]]) -> None:
        """`channel` of the hints; `send` puts notes on their channels, in one transaction."""
        self._channel = channel
        self._send = send
        self._hints: dict[str, None] = {}
        self._announcements: deque[Announcement] = deque()
        self._task: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._closed = False

    def post(self, hints: Iterable[str], announcements: Iterable[Announcement]) -> None:
        """Send these soon; to be called when their changes have committed."""
        self._hints.update(dict.fromkeys(hints))
        self._announcements.extend(announcements)
        if (self._hints or self._announcements) and (self._task is None or self._task.done()):
            self._closed = False
            self._task = asyncio.create_task(self._keep_sending(), name="hints")

    async def flush(self) -> None:
        """Wait until what was posted is sent, but not for long."""
        if self._task is not None and not self._task.done():
            self._hurry.set()
            await asyncio.wait([self._task], timeout=_LAST_SECONDS)
            self._hurry.clear()

    async def close(self) -> None:
        await self.flush()
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _keep_sending(self) -> None:
        loop = asyncio.get_running_loop()
        hints: list[str] = []
        try:
            while self._hints or self._announcements:
                begun = loop.time()
                hints, announcements = self._taken()
                await self._tell(hints, announcements)
                hints = []
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(_REST * (loop.time() - begun), _LONGEST_REST)):
                        await self._hurry.wait()
        except asyncio.CancelledError:
            # As at the end of asyncio.run() in a script that has just enqueued something.
            self._hints.update(dict.fromkeys(hints))
            await self._tell_the_rest()
            raise

    async def _tell_the_rest(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_SECONDS):
                while (self._hints or self._announcements) and not self._closed:
                    await self._tell(*self._taken())

    def _taken(self) -> tuple[list[str], list[Announcement]]:
        """All hints, and announcements up to one that repeats another: one NOTIFY tells equal words once."""
        hints, self._hints = list(self._hints), {}
        announcements: dict[Announcement, None] = {}
        while self._announcements and len(announcements) < _TOGETHER and self._announcements[0] not in announcements:
            announcements[self._announcements.popleft()] = None
        return hints, list(announcements)

    async def _tell(self, hints: list[str], announcements: list[Announcement]) -> None:
        notes = [Announcement(self._channel, note) for note in merged(hints)]
        try:
            await self._send([*notes, *announcements])
        except (pg.PostgresError, HoldfastError, *AWAY) as problem:
            if announcements:
                log.warning("%s of runs could not be announced: %s", plural(len(announcements), "change"), problem)
            else:
                log.debug("a wake-up was lost: %s", problem)
