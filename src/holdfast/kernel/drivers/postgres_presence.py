"""A worker's sign of life on PostgreSQL: a session lock on a connection that does nothing else.

The server drops the lock within milliseconds of the process's death. Nobody ever waits for such a lock; others
read the list of locks. Behind a transaction pooler there is no session to hold it, so there is no presence.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import Protocol

from asyncpg import exceptions as pg

from holdfast.errors import Unavailable
from holdfast.kernel.database import unheeded
from holdfast.kernel.drivers.causes import raise_as
from holdfast.kernel.drivers.postgres_errors import AWAY, typed
from holdfast.kernel.drivers.postgres_pool import Connection, hang_up

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

    async def hold(self, worker: int, changed: Callable[[], None] = unheeded) -> bool:
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
