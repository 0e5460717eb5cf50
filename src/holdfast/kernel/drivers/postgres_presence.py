"""A worker's sign of life on PostgreSQL: a session lock on a connection that does nothing else.

The server drops the lock within milliseconds of the process's death. Nobody ever waits for such a lock; others
read the list of locks. Behind a transaction pooler there is no session to hold it, so there is no presence.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from asyncpg import exceptions as pg

from holdfast.kernel.drivers.postgres_errors import AWAY, typed
from holdfast.kernel.drivers.postgres_pool import Connection, hang_up

if TYPE_CHECKING:
    from holdfast.kernel.drivers.postgres import PostgresDatabase

log = logging.getLogger("holdfast.presence")

_KEYS = 2**31
_STEP = 0.05

_HELD = """
select array(select cast(l.objid as bigint) from pg_locks l
        where l.locktype = 'advisory' and l.granted and l.objsubid = 2 and l.classid = cast($1 as bigint)::oid
            and l.database = (select oid from pg_database where datname = current_database())) as held,
    extract(epoch from clock_timestamp() - pg_postmaster_start_time()) as up
"""


class PostgresPresence:
    def __init__(self, database: PostgresDatabase, schema: str, quiet: float) -> None:
        self._database = database
        self._class = int.from_bytes(hashlib.sha256(f"presence {schema}".encode()).digest()[:4], "big") % _KEYS
        self._quiet = quiet
        self._held: dict[int, asyncio.Task[None]] = {}

    async def hold(self, worker: int) -> bool:
        if not self._database.direct:
            return False
        connection = await self._take(worker)
        self._held[worker] = asyncio.create_task(self._keep(worker, connection), name=f"presence of {worker}")
        return True

    async def withdraw(self, worker: int) -> None:
        keeper = self._held.pop(worker, None)
        if keeper is not None:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)

    async def close(self) -> None:
        for worker in list(self._held):
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
            raise typed(self._database.url, problem) from problem
        if row["up"] < self._quiet:
            return set()
        held = set(row["held"])
        return {worker for worker in candidates if worker % _KEYS not in held}

    async def _take(self, worker: int) -> Connection:
        connection = await self._database.dial_direct()
        try:
            # The lock can only be held by a connection of ours that the server has not buried yet: it will be free.
            while not await connection.fetchval(  # noqa: ASYNC110  nobody may wait on the lock itself
                "select pg_try_advisory_lock($1, $2)", self._class, worker % _KEYS
            ):
                await asyncio.sleep(_STEP)
        except BaseException as problem:
            connection.terminate()
            if isinstance(problem, (pg.PostgresError, *AWAY)):
                raise typed(self._database.url, problem) from problem
            raise
        return connection

    async def _keep(self, worker: int, connection: Connection) -> None:
        """Take the lock again whenever its connection is lost: others give a short grace before they judge."""
        pause = _STEP
        try:
            while True:
                await _closed(connection)
                try:
                    connection = await self._take(worker)
                    pause = _STEP
                except Exception as problem:  # noqa: BLE001  presence is taken again, whatever took it away
                    log.debug("presence of worker %s is away: %s", worker, problem)
                    await asyncio.sleep(pause * (0.5 + self._database.chance.random()))
                    pause = min(pause * 2, 2.0)
        finally:
            await hang_up(connection)


async def _closed(connection: Connection) -> None:
    closed = asyncio.Event()
    connection.add_termination_listener(lambda _: closed.set())
    if not connection.is_closed():
        await closed.wait()
