"""A fresh store for one test, on either database, under a clock that the test moves."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar

import apsw.ext
import asyncpg
import psycopg

from holdfast import durations
from holdfast.clock import Ports
from holdfast.kernel import ids
from holdfast.kernel.claim import claim
from holdfast.kernel.complete import complete, complete_and_settle, ending
from holdfast.kernel.database import Database, Operation, Owner
from holdfast.kernel.drivers import connect
from holdfast.kernel.drivers.postgres import PostgresDatabase
from holdfast.kernel.drivers.sqlite import SqliteDatabase
from holdfast.kernel.enqueue import enqueue, enqueue_children
from holdfast.kernel.ids import JobId
from holdfast.kernel.leases import expire
from holdfast.kernel.queries import find_job, list_attempts
from holdfast.kernel.retry import RetryPolicy
from holdfast.kernel.routes import route_for
from holdfast.kernel.rows import AttemptRow, EndedLease, Ending, JobRow, Lease, LostJob, NewJob
from holdfast.kernel.sql import in_schema
from holdfast.kernel.states import State
from holdfast.kernel.workers import Registration, lose_workers, register
from holdfast.outcomes import Cancel, Discard, Done, Fail, Snooze, TryAgain
from holdfast.settings import Settings
from tests.support.jobs import plain_job

P = ParamSpec("P")
R = TypeVar("R")

START_US = 1_800_000_000_000_000
TTL_US = 60_000_000
TEST_CLOCK = "{}.test_clock"
NO_JITTER = RetryPolicy(base="10s", jitter=0)

_PYTHON = {"int8": int, "int4": int, "text": str, "json": str, "jsonb": str, "bool": bool}

Ends = Done | TryAgain | Fail | Cancel | Discard | Snooze


@dataclass
class ManualClock:
    """Database time that stands still until a test moves it; pauses are real but short."""

    us: int = START_US

    def monotonic(self) -> float:
        return self.us / 1e6

    def wall_us(self) -> int:
        return self.us

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.01))


class Setting(Protocol):
    """The part of a database that only tests need: its clock, and SQL past the kernel."""

    async def set_clock(self, us: int) -> None: ...

    async def query(self, text: str) -> list[tuple[Any, ...]]: ...

    async def columns(self, text: str) -> list[Column]:
        """What a statement would answer; it is prepared and not run."""


class Column(NamedTuple):
    name: str
    type: type | None  # None: this database does not say


@dataclass
class Store:
    """A database, its clock, and the few gestures most tests begin with."""

    database: Database
    clock: ManualClock
    ports: Ports
    settings: Settings
    url: str
    setting: Setting
    _routes: dict[tuple[str, str], int] = field(default_factory=dict)

    async def do(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self.database.transact(operation, *args, **kwargs)

    @property
    def hears(self) -> bool:
        """Can this store pass hints on? Not behind a transaction pooler."""
        return not isinstance(self.database, PostgresDatabase) or self.database.direct

    async def advance(self, by: str) -> None:
        self.clock.us += durations.microseconds(by)
        await self.setting.set_clock(self.clock.us)

    async def set_back(self, by: str) -> None:
        """Somebody sets the database's clock back."""
        self.clock.us -= durations.microseconds(by)
        await self.setting.set_clock(self.clock.us)

    async def query(self, text: str) -> list[tuple[Any, ...]]:
        """Rows of a statement written with `holdfast.` as its schema."""
        return await self.setting.query(in_schema(text, self.database.dialect, self.settings.schema))

    def job(self, kind: str = "work", queue: str = "default", requires: Iterable[str] = (), **changes: Any) -> NewJob:
        """A job to be enqueued, with ordinary values where the test names none."""
        return plain_job(ids.new_id(self.ports), kind, route_for(queue, kind, requires), **changes)

    async def enqueue(self, kind: str = "work", queue: str = "default", **changes: Any) -> JobId:
        job = self.job(kind, queue, **changes)
        await self.do(enqueue, [job], [route_for(queue, kind)])
        return job.id

    async def worker(self, name: str = "w", **changes: Any) -> int:
        who = Registration(
            incarnation=ids.new_id(self.ports),
            id=f"{name}-{ids.new_id(self.ports)}",
            name=name,
            hostname="test",
            pid=os.getpid(),
            version="0",
            capabilities=(),
            queues=None,
            slots=10,
        )
        return await self.do(register, who._replace(**changes), [], ttl_us=TTL_US, gone=[])

    async def claim(self, worker: int, n: int = 1, *, kind: str = "work", queue: str = "default") -> list[Lease]:
        return await self.do(claim, worker, [route_for(queue, kind).id], n, TTL_US)

    async def claimed(self, worker: int | None = None, **changes: Any) -> Lease:
        """A job that was just enqueued and claimed."""
        await self.enqueue(**changes)
        (lease,) = await self.claim(worker if worker is not None else await self.worker())
        return lease

    async def find(self, id: JobId) -> JobRow:
        return await self.do(find_job, id)

    async def state(self, id: JobId) -> State:
        return State((await self.find(id)).state)

    async def attempts(self, lease: Lease) -> list[AttemptRow]:
        return await self.do(list_attempts, lease.seq)

    def ending(self, lease: Lease, outcome: Ends, policy: RetryPolicy = NO_JITTER) -> Ending:
        caps = {"result_cap": self.settings.result_cap, "error_cap": self.settings.error_cap}
        return ending(lease, outcome, policy=policy, chance=self.ports.random, **caps)

    async def end(self, lease: Lease, outcome: Ends, policy: RetryPolicy = NO_JITTER) -> list[EndedLease]:
        """End an attempt as its worker would; an empty answer means that the lease was lost."""
        return await self.complete(lease, self.ending(lease, outcome, policy))

    async def complete(self, lease: Lease, ending: Ending) -> list[EndedLease]:
        if lease.parent is None:
            return await self.do(complete, [ending])
        return await self.do(complete_and_settle, [ending], [lease.parent])

    async def expire(self, *, gone: Iterable[int] = (), limit: int = 100) -> list[LostJob]:
        """Give up the workers that are `gone`, then take back what they held and what lapsed."""
        if gone := list(gone):
            await self.do(lose_workers, gone=gone, reason="gone")
        backoff_us = durations.microseconds(self.settings.rescue_backoff)
        return await self.do(expire, gone=list(gone), limit=limit, backoff_us=backoff_us, chance=self.ports.random)

    async def launch(self, parent: Lease, n: int = 1, *, step: str = "launch", **changes: Any) -> list[JobId]:
        """Enqueue children of kind `child` under a running job."""
        children = [self.job("child", id=ids.derived_id(parent.id, step, k), **changes) for k in range(n)]
        await self.do(enqueue_children, parent, children, [route_for("default", "child")])
        return [child.id for child in children]


class SqliteSetting:
    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database

    async def set_clock(self, us: int) -> None:
        """The store already reads the test's clock."""

    async def query(self, text: str) -> list[tuple[Any, ...]]:
        rows = await asyncio.wrap_future(self._database._thread.call(lambda file: file.execute(text)))
        return [tuple(row) for row in rows]

    async def columns(self, text: str) -> list[Column]:
        info = await asyncio.wrap_future(
            self._database._thread.call(lambda file: apsw.ext.query_info(file.connection, text))
        )
        return [Column(name, None) for name, _ in info.description]


class PostgresSetting:
    def __init__(self, connection: Any, schema: str) -> None:
        self._connection = connection
        self._schema = schema

    async def take_clock(self, us: int) -> None:
        """Put a clock that stands still in place of the server's."""
        clock = TEST_CLOCK.format(self._schema)
        await self._connection.execute(
            f"create table if not exists {clock} (us bigint not null); "
            f"insert into {clock} select {us} where not exists (select 1 from {clock}); "
            f"create or replace function {self._schema}.now_us() returns bigint language sql stable as "
            f"$$ select us from {clock} $$"
        )

    async def set_clock(self, us: int) -> None:
        await self._connection.execute(f"update {TEST_CLOCK.format(self._schema)} set us = {us}")

    async def query(self, text: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in await self._connection.fetch(text)]

    async def columns(self, text: str) -> list[Column]:
        prepared = await self._connection.prepare(text)
        return [Column(column.name, _PYTHON[column.type.name]) for column in prepared.get_attributes()]


@asynccontextmanager
async def sqlite_store(
    folder: Path, *, seed: int = 0, layers: Sequence[Owner] = (), **settings: Any
) -> AsyncIterator[Store]:
    clock = ManualClock()
    ports = Ports(clock, random.Random(seed))
    url = f"sqlite:///{folder / 'store.db'}"
    chosen = Settings(url=url, **settings)
    database = connect(url, chosen, ports, layers)
    assert isinstance(database, SqliteDatabase)
    await database.open()
    try:
        yield Store(database, clock, ports, chosen, url, SqliteSetting(database))
    finally:
        await database.close()


class SharedDatabase:
    """A migrated PostgreSQL database that tests use in turn: emptying one is twenty times faster than making one."""

    def __init__(self, url: str, *filling: str) -> None:
        """`filling` are statements that an empty database needs besides."""
        self.url = url
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute(f"create table {TEST_CLOCK.format('holdfast')} (us bigint not null)".encode())
        named = "select format('{}', schemaname, {}) from pg_{}s where schemaname = 'holdfast' and {} <> 'schema'"
        tables = named.format("delete from %I.%I", "tablename", "table", "tablename")
        sequences = named.format("alter sequence %I.%I restart", "sequencename", "sequence", "sequencename")
        statements = [row[0] for row in self._connection.execute(f"{tables} union all {sequences}".encode())]
        statements += ["insert into holdfast.cluster (epoch, identity) values (1, '')", *filling]
        self._script = "; ".join(statements).encode()

    def empty(self) -> None:
        self._connection.execute(self._script)

    def take_back(self) -> None:
        """Empty it, and cut whoever is still connected: they may hold locks."""
        others = "from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        self._connection.execute(f"select pg_terminate_backend(pid, 10000) {others}".encode())
        self.empty()

    def close(self) -> None:
        self._connection.close()


@asynccontextmanager
async def postgres_store(
    url: str, direct_url: str, *, seed: int = 0, layers: Sequence[Owner] = (), **settings: Any
) -> AsyncIterator[Store]:
    """A store in a database that has been migrated already."""
    clock = ManualClock()
    ports = Ports(clock, random.Random(seed))
    chosen = Settings(url=url, direct_url="" if direct_url == url else direct_url, **settings)
    connection = await asyncpg.connect(direct_url)
    setting = PostgresSetting(connection, chosen.schema)
    await setting.take_clock(clock.us)
    database = connect(url, chosen, ports, layers)
    await database.open()
    try:
        yield Store(database, clock, ports, chosen, url, setting)
    finally:
        await database.close()
        await connection.close()


def owner_named(name: str) -> Registration:
    """An owner as another system would register it."""
    return Registration(ids.new_id(Ports()), name, name, "elsewhere", 0, "0", (), None, 1)
