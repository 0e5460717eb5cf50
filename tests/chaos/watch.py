"""The store as a test watches it from outside, whatever happens to the processes and the server."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, ParamSpec, Self, TypeVar

import apsw

from holdfast.clock import Ports
from holdfast.errors import Unavailable
from holdfast.kernel.broker_rows import WorkerRow
from holdfast.kernel.database import Operation
from holdfast.kernel.drivers import connect
from holdfast.kernel.drivers.postgres import PostgresDatabase
from holdfast.kernel.drivers.postgres_errors import AWAY
from holdfast.kernel.drivers.sqlite import SqliteDatabase
from holdfast.kernel.queries import find_job
from holdfast.kernel.rows import DutyRow, JobRow
from holdfast.kernel.sql import in_schema
from holdfast.kernel.workers import list_duties, list_workers
from holdfast.settings import Settings
from tests.chaos.crew import freeze
from tests.support.apps import eventually
from tests.support.places import assert_well_placed
from tests.support.snapshots import PRIMARY_KEYS, Snapshot, relation, snapshot
from tests.support.stores import SqliteSetting

P = ParamSpec("P")
R = TypeVar("R")


class Ending(NamedTuple):
    """One row of `attempt`."""

    job: str
    token: int
    worker: int
    outcome: str
    started_at: int
    ended_at: int


class Watch:
    """One pair of eyes on a store; it never writes unless asked to. At the end each job stands in one place."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.settings = Settings(url=url, **settings)
        self.ports = Ports()
        self.database = connect(url, self.settings, self.ports)

    async def __aenter__(self) -> Self:
        await self.database.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                with contextlib.suppress(apsw.ConnectionClosedError):  # by the test, under our hands
                    await assert_well_placed(self.query)
        finally:
            await self.database.close()

    def now(self) -> int:
        """The clock of this machine, which is the databases' clock too: both run here."""
        return self.ports.clock.wall_us()

    async def do(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self.database.transact(operation, *args, **kwargs)

    async def query(self, text: str) -> list[tuple[Any, ...]]:
        """Rows of a statement written with `holdfast.` as its schema; waits while the server is away."""
        text = in_schema(text, self.database.dialect, self.settings.schema)
        if isinstance(self.database, SqliteDatabase):
            return await SqliteSetting(self.database).query(text)
        assert isinstance(self.database, PostgresDatabase)
        while True:
            try:
                async with self.database.connection() as connection:
                    return [tuple(row) for row in await connection.fetch(text)]
            except (Unavailable, *AWAY):
                await asyncio.sleep(0.05)

    async def job(self, id: str) -> JobRow:
        return await self.do(find_job, id)  # type: ignore[arg-type]

    async def states(self) -> Counter[str]:
        return Counter(dict(await self.query("select state, count(*) from holdfast.job_now group by state")))

    async def attempts(self, id: str | None = None) -> list[Ending]:
        """Ended attempts, oldest first."""
        where = f"where j.id = '{id}'" if id else ""
        rows = await self.query(
            "select cast(j.id as text), a.token, a.worker, a.outcome, a.started_at, a.ended_at "
            f"from holdfast.attempt_now a join holdfast.job j on j.seq = a.job {where} order by a.started_at, a.token"
        )
        return [Ending(*row) for row in rows]

    async def outcomes(self, id: str) -> list[str]:
        return [attempt.outcome for attempt in await self.attempts(id)]

    async def workers(self, *, all: bool = False) -> list[WorkerRow]:
        return await self.do(list_workers, all=all, limit=1_000)

    async def duties(self) -> list[DutyRow]:
        return await self.do(list_duties)

    async def snapshot(self) -> Snapshot:
        """All rows of all tables."""
        tables: dict[str, list[dict[str, Any]]] = {}
        for table in PRIMARY_KEYS:
            columns = await self._columns(relation(table))
            rows = await self.query(f"select {', '.join(columns)} from holdfast.{relation(table)}")
            tables[table] = [dict(zip(columns, row, strict=True)) for row in rows]
        return snapshot(self.now(), tables)

    async def until_ended(self, count: int) -> None:
        """Until so many jobs have ended, however long that takes while some do."""
        ended = 0

        async def enough() -> bool:
            nonlocal ended
            ((ended,),) = await self.query("select count(*) from holdfast.ended")
            return bool(ended >= count)

        await eventually(enough, lambda: ended)

    async def until_running(self, count: int) -> None:
        async def enough() -> bool:
            return (await self.states())["running"] >= count

        await eventually(enough)

    async def freeze(self, pid: int) -> None:
        """SIGSTOP, but not in the middle of a write: SQLite's one lock would stay taken and stop everybody."""
        while True:
            await freeze(pid)
            if await self._is_free():
                return
            os.kill(pid, signal.SIGCONT)
            await asyncio.sleep(0.1)  # or it is stopped again before it came any further

    async def _is_free(self) -> bool:
        if not isinstance(self.database, SqliteDatabase):
            return True
        locks = Path(f"{self.database.path}-locks")
        for _ in range(100):  # others write, too, but never for long
            if all(_lockable(locks / name) for name in ("next", "write")) and _writable(self.database.path):
                return True
            await asyncio.sleep(0.01)
        return False

    async def _columns(self, table: str) -> list[str]:
        if self.database.dialect == "sqlite":
            return [row[1] for row in await self.query(f"pragma table_info({table})")]
        found = await self.query(
            "select column_name from information_schema.columns "
            f"where table_schema = '{self.settings.schema}' and table_name = '{table}'"
        )
        return [row[0] for row in found]


def _lockable(path: Path) -> bool:
    handle = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True


def _writable(path: str) -> bool:
    connection = apsw.Connection(path)
    try:
        connection.execute("begin immediate; rollback")
    except apsw.BusyError:
        return False
    finally:
        connection.close()
    return True
