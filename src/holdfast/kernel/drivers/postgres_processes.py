"""Hints and announcements of one process on PostgreSQL: sent after their commits, many together, one NOTIFY in flight.

A transaction that has sent a NOTIFY holds a lock of the whole database while it commits, until its WAL is flushed: so
commits that carry one come one after the other. A transaction that does nothing else has no WAL to wait for. Nothing is
sent twice: what is lost with a connection, or with this process, is found by polling.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import Protocol

from asyncpg import exceptions as pg

from holdfast.errors import HoldfastError, Unavailable
from holdfast.kernel.database import Announcement, ignore_change, merged
from holdfast.kernel.drivers.errors import raise_as
from holdfast.kernel.drivers.postgres_errors import AWAY, typed
from holdfast.kernel.drivers.postgres_pool import Connection, hang_up
from holdfast.text import plural

hints_log = logging.getLogger("holdfast.hints")

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
                hints_log.warning(
                    "%s of runs could not be announced: %s", plural(len(announcements), "change"), problem
                )
            else:
                hints_log.debug("a wake-up was lost: %s", problem)


# A worker's sign of life on PostgreSQL: a session lock on a connection that does nothing else.
#
# The server drops the lock within milliseconds of the process's death. Nobody ever waits for such a lock; others
# read the list of locks. Behind a transaction pooler there is no session to hold it, so there is no presence.


log = logging.getLogger("holdfast.presence")

_KEYS = 2**31
_STEP = 0.05
_LONGEST_PAUSE = 2.0
_WARN_AT = 0.4  # seconds between two tries: at the fourth, so that others notice first if the server is away
# How long a lock may be another's before that is believed. A connection of our own that was lost may still be held by
# a server that has not noticed; that takes milliseconds.
_TAKE_SECONDS = 2.0
_ANSWER_SECONDS = 10.0

_HELD = """
select array(select cast(l.objid as bigint) from pg_locks l
        where l.locktype = 'advisory' and l.granted and l.objsubid = 2 and l.classid = cast($1 as bigint)::oid
            and l.database = (select oid from pg_database where datname = current_database())) as held,
    extract(epoch from clock_timestamp() - pg_postmaster_start_time()) as up
"""


class PresenceServer(Protocol):
    """The database as its presence needs it."""

    url: str
    chance: Random
    direct: bool  # no pooler between: sessions are ours
    hears: bool  # its listening connection is there

    def seconds_since_reconnect(self) -> float: ...

    def connection(self) -> AbstractAsyncContextManager[Connection]: ...

    async def dial_direct(self, use: str) -> Connection: ...


class PostgresPresence:
    def __init__(self, database: PresenceServer, schema: str, quiet: float) -> None:
        self._database = database
        self._class = int.from_bytes(hashlib.sha256(f"presence {schema}".encode()).digest()[:4], "big") % _KEYS
        self._quiet = quiet
        self._keepers: dict[int, asyncio.Task[None]] = {}
        self._shown: set[int] = set()
        self._disputed: set[int] = set()

    async def hold(self, worker: int, changed: Callable[[], None] = ignore_change) -> bool:
        if not self._database.direct:
            return False
        await self.withdraw(worker)  # of a registration whose answer was lost
        connection = None
        try:
            connection = await self._take(worker)
            if connection is None:
                self._disputed.add(worker)
                log.warning(
                    "worker number %s belongs to another live worker: an older state of the database was restored "
                    "under it. The new worker starts without presence, and takes it when the other registers again.",
                    worker,
                )
        except Unavailable as problem:
            log.warning(
                "worker %s starts without presence, so others notice its death only when its leases end: %s",
                worker,
                problem,
            )
        if connection is not None:
            self._shown.add(worker)
        keeper = self._keep(worker, connection, changed)
        self._keepers[worker] = asyncio.create_task(keeper, name=f"presence of {worker}")
        return connection is not None

    def shows(self, worker: int) -> bool:
        return worker in self._shown

    def disputed(self, worker: int) -> bool:
        return worker in self._disputed

    async def withdraw(self, worker: int) -> None:
        keeper = self._keepers.pop(worker, None)
        if keeper is not None:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
        self._disputed.discard(worker)

    async def close(self) -> None:
        for worker in list(self._keepers):
            await self.withdraw(worker)

    async def absent(self, workers: Iterable[int]) -> set[int]:
        candidates = set(workers)
        if not candidates or not self._database.direct:
            return set()
        if self._database.seconds_since_reconnect() < self._quiet:
            return set()
        try:
            async with self._database.connection() as connection:
                row = await connection.fetchrow(_HELD, self._class)
        except (pg.PostgresError, *AWAY) as problem:
            raise_as(typed(self._database.url, problem), problem)
        if row["up"] < self._quiet:
            return set()
        held = set(row["held"])
        return {worker for worker in candidates if worker % _KEYS not in held}

    async def _take(self, worker: int) -> Connection | None:
        """A connection that holds the lock; None while another has it."""
        connection = await self._database.dial_direct("presence")
        clock = asyncio.get_running_loop().time
        until = clock() + _TAKE_SECONDS
        try:
            while not await connection.fetchval(
                "select pg_try_advisory_lock($1, $2)", self._class, worker % _KEYS, timeout=_ANSWER_SECONDS
            ):
                if clock() >= until:
                    await hang_up(connection)
                    return None
                await asyncio.sleep(_STEP)  # nobody may wait on the lock itself
        except BaseException as problem:
            connection.terminate()
            if isinstance(problem, (pg.PostgresError, *AWAY)):
                raise_as(typed(self._database.url, problem), problem)
            raise
        return connection

    async def _keep(self, worker: int, connection: Connection | None, changed: Callable[[], None]) -> None:
        """Take the lock again whenever its connection is lost, and say so each time: until it is taken, others must not
        look for it.

        A warning says that this worker lacks its sign while the server answers it. If the server is away, the log says
        that already.
        """
        pause = _STEP
        warned = connection is None
        try:
            while True:
                if connection is not None:
                    await _closed(connection)
                    connection = None
                    self._shown.discard(worker)
                    changed()
                reason: object = "another holds it"
                try:
                    connection = await self._take(worker)
                except Exception as problem:  # noqa: BLE001  presence is taken again, whatever took it away
                    reason = problem
                if connection is not None:
                    self._shown.add(worker)
                    changed()
                    if warned:
                        log.info("worker %s shows its presence", worker)
                    pause, warned = _STEP, False
                    continue
                if not warned and self._database.hears and pause >= _WARN_AT:
                    warned = True
                    log.warning("worker %s lost its presence, and continues without it: %s", worker, reason)
                await asyncio.sleep(pause * (0.5 + self._database.chance.random()))
                pause = min(pause * 2, _LONGEST_PAUSE)
        finally:
            self._shown.discard(worker)
            if connection is not None:
                await hang_up(connection)


async def _closed(connection: Connection) -> None:
    closed = asyncio.Event()
    connection.add_termination_listener(lambda _: closed.set())
    if not connection.is_closed():
        await closed.wait()
