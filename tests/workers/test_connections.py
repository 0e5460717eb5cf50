"""What workers ask of a PostgreSQL server: few connections, none left behind, each with a name."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import psycopg
import pytest

from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.client.jobs import JobFunction
from holdfast.clock import Ports
from holdfast.errors import SchemaTooOld, StoreBusy, StoreUnavailable
from holdfast.kernel.database import Transaction
from holdfast.kernel.drivers import postgres_vacuum
from holdfast.kernel.drivers.postgres import PostgresDatabase, named, program
from holdfast.kernel.drivers.postgres_pool import ConnectionPool
from holdfast.kernel.queries import list_jobs
from holdfast.workers.role import Role
from holdfast.workers.worker import Worker
from tests.support.apps import eventually, settings_with, working
from tests.workers.test_self_fencing import CutLifeline

WORKERS = 20
TOO_FEW = 25  # connections; an idle worker wants three
JOBS = 100
PERIOD = 4.0  # seconds of a lock; every half second somebody's patience ends
# A call is given up after (lease_ttl - heartbeat - fence_margin) / 2.
HASTY: dict[str, Any] = {
    "lease_ttl": "2s",
    "heartbeat": "500ms",
    "fence_margin": "500ms",
    "store_patience": "200ms",
    "reconnect_cap": "200ms",
}


class Connections:
    """The sessions of a database, as the server lists them; its own is left out."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    async def names(self) -> list[str]:
        rows = await self._connection.fetch(
            "select application_name from pg_stat_activity where datname = current_database() "
            "and backend_type = 'client backend' and pid <> pg_backend_pid()"
        )
        return sorted(row[0] for row in rows)

    async def execute(self, statement: str) -> None:
        await self._connection.execute(statement)


@pytest.fixture
async def connections(postgres_url: str) -> AsyncIterator[Connections]:
    connection = await asyncpg.connect(postgres_url)
    yield Connections(connection)
    await connection.close()


@pytest.mark.parametrize("direct", [False, True])
async def test_a_store_is_looked_at_once_before_it_is_used(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, direct: bool
) -> None:
    """Past a pooler, once more there."""
    dialled: list[str] = []
    connect = asyncpg.connect

    async def noting(url: str, **given: Any) -> Any:
        dialled.append(given["server_settings"]["application_name"].rpartition(" ")[2])
        return await connect(url, **given)

    monkeypatch.setattr(asyncpg, "connect", noting)
    settings = settings_with(url=postgres_url, direct_url=postgres_url if direct else "")
    database = PostgresDatabase(postgres_url, settings, Ports())
    await database.open()
    await database.close()
    assert dialled == ["visit"] * (2 if direct else 1)


@asynccontextmanager
async def locked_jobs(url: str) -> AsyncIterator[None]:
    """Somebody keeps everybody from the table of jobs."""
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            await connection.execute("lock table holdfast.job in access exclusive mode")
            yield
    finally:
        await connection.close()


@pytest.mark.long
async def test_whoever_waits_for_a_lock_leaves_no_sessions_behind(postgres_url: str, connections: Connections) -> None:
    apps = [Holdfast(postgres_url, settings=settings_with(**HASTY), embedded=False) for _ in range(2)]
    first, second = apps

    @first.job(name="work")
    async def work() -> str:
        return "done"

    most = 0
    async with working(first), working(second):
        async with locked_jobs(postgres_url):
            begun = asyncio.get_running_loop().time()
            while asyncio.get_running_loop().time() < begun + PERIOD:
                most = max(most, len(await connections.names()))
                await asyncio.sleep(0.05)
        assert await (await work.enqueue()).result(timeout="60s") == "done"
    for app in apps:
        await app.close()
    print(f"at most {most} sessions")
    assert most <= 1 + 2 * (settings_with().connections + 3)


@pytest.mark.long
@pytest.mark.parametrize("pooler", [False, True])
async def test_the_server_gives_up_before_the_client_does(
    postgres_url: str, connections: Connections, pooler: bool
) -> None:
    """Also behind a pooler, where a session may serve others afterwards."""
    settings = settings_with(**HASTY, pooler=str(pooler).lower())
    database = PostgresDatabase(postgres_url, settings, Ports())
    await database.open()
    try:
        async with locked_jobs(postgres_url):
            before = await connections.names()
            for _ in range(3):
                with pytest.raises(StoreBusy, match="lock timeout"):
                    await database.transact(list_jobs)
            assert len(await connections.names()) <= len(before) + 1
        assert await database.transact(list_jobs) == []
        async with database.connection() as connection:
            limits = await connection.fetchval("select current_setting('statement_timeout')")
        assert limits == ("0" if pooler else "450ms")
    finally:
        await database.close()


async def test_a_statement_that_takes_too_long_is_given_up_by_the_server(postgres_url: str) -> None:
    database = PostgresDatabase(postgres_url, settings_with(**HASTY), Ports())
    await database.open()
    try:
        async with database.connection() as connection:
            with pytest.raises(asyncpg.QueryCanceledError, match="statement timeout"):
                await connection.execute("select pg_sleep(60)")
    finally:
        await database.close()


async def test_a_connection_that_closes_between_two_messages_is_an_outage(postgres_url: str) -> None:
    """Between the answer to the first and the second, asyncpg looks for what the close has taken away."""
    database = PostgresDatabase(postgres_url, settings_with(**HASTY), Ports())
    await database.open()

    async def lose_the_connection() -> None:
        async with database.connection() as connection:
            asking: Any = asyncio.create_task(connection.fetch("select 7"))
            while asking._fut_waiter is None or not asking._fut_waiter.done():  # noqa: ASYNC110  one turn of the loop
                await asyncio.sleep(0)
            connection.terminate()
            await asking

    try:
        with pytest.raises(asyncpg.ConnectionDoesNotExistError):
            await lose_the_connection()
    finally:
        await database.close()


async def test_vacuum_may_take_as_long_as_it_takes(postgres_url: str) -> None:
    """It leaves the session as it was."""
    database = PostgresDatabase(postgres_url, settings_with(**HASTY, connections=1), Ports())
    await database.open()
    try:
        assert await database.tidy(after=-1)
        async with database.connection() as connection:
            assert await connection.fetchval("select current_setting('lock_timeout')") == "400ms"
    finally:
        await database.close()


async def test_a_vacuum_that_fails_leaves_no_session_without_limits(
    postgres_url: str, connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_vacuum, "HOT", {"Odd": 0})  # is there, but not by the name that vacuum is given
    await connections.execute('create table holdfast."Odd" ()')
    database = PostgresDatabase(postgres_url, settings_with(**HASTY, connections=1), Ports())
    await database.open()
    try:
        with pytest.raises(SchemaTooOld, match="odd"):
            await database.tidy(after=-1)
        async with database.connection() as connection:
            assert await connection.fetchval("select current_setting('lock_timeout')") == "400ms"
            assert await connection.fetchval("select current_setting('statement_timeout')") == "450ms"
    finally:
        await database.close()


async def test_an_error_of_ours_is_not_its_own_cause(postgres_url: str) -> None:
    """Whoever walks along the causes of an error comes to an end."""
    database = PostgresDatabase(postgres_url, settings_with(**HASTY, schema="nowhere"), Ports())
    with pytest.raises(SchemaTooOld, match="has no tables") as refused:
        await database.open()
    assert refused.value.__cause__ is None


@pytest.fixture
def few(postgres_url: str) -> Iterator[str]:
    """The same database as a role that may open too few connections."""
    role = f"few_{os.getpid()}"
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f"create role {role} login connection limit {TOO_FEW}".encode())
        admin.execute(f"grant all on schema holdfast to {role}".encode())
        for kind in ("tables", "sequences", "functions"):
            admin.execute(f"grant all on all {kind} in schema holdfast to {role}".encode())
        parts = urlsplit(postgres_url)
        yield parts._replace(netloc=f"{role}@{parts.hostname}:{parts.port}").geturl()
        admin.execute(f"select pg_terminate_backend(pid) from pg_stat_activity where usename = '{role}'".encode())
        admin.execute(f"drop owned by {role}; drop role {role}".encode())


@pytest.mark.long
async def test_of_too_many_workers_some_refuse_to_start_and_the_others_do_it_all(few: str, postgres_url: str) -> None:
    client = Holdfast(postgres_url, embedded=False)

    @client.job(name="work")
    async def work(number: int) -> int:
        return number

    pressed = {**HASTY, "lease_ttl": "6s", "worker_ttl": "4s", "heartbeat": "400ms", "presence_quiet": "0s"}
    apps = [Holdfast(few, settings=settings_with(**pressed), embedded=False) for _ in range(WORKERS)]
    for app in apps:

        @app.job(name="work")
        async def serve(number: int) -> int:
            await asyncio.sleep(0.05)
            return number

    async def start(app: Holdfast) -> Worker:
        await core_of(app).runtime().open()
        worker = core_of(app).make_worker()
        await worker.start()
        return worker

    answers = await asyncio.gather(*map(start, apps), return_exceptions=True)
    workers = [answer for answer in answers if isinstance(answer, Worker)]
    refused = [answer for answer in answers if not isinstance(answer, Worker)]
    print(f"{len(workers)} of {WORKERS} workers started")
    assert workers
    assert refused
    for problem in refused:
        assert isinstance(problem, StoreUnavailable)
        assert "max_connections" in str(problem)
    try:
        jobs = await work.enqueue_many([(number,) for number in range(JOBS)])
        registered = {row.seq: row for row in await client.workers.list()}
        for job in jobs:
            await job.result(timeout="60s")

        async def outlived() -> bool:
            """Everybody has been there for longer than a worker may be silent."""
            rows = await client.workers.list(all=True)
            return all(row.now > row.started_at + 2 * row.ttl for row in rows)

        await eventually(outlived)
        rows = [await job.refresh() for job in jobs]
        assert {(row.state, row.rescues) for row in rows} == {("succeeded", 0)}
        assert {row.seq for row in await client.workers.list()} == {worker.seq for worker in workers} == set(registered)
    finally:
        await asyncio.gather(*(worker.stop(0) for worker in workers))
        for app in (*apps, client):
            await app.close()


async def test_a_worker_without_heartbeats_takes_nothing_more(postgres_url: str) -> None:
    """It would be given up for lost while it works."""
    brief = {"heartbeat": "400ms", "worker_ttl": "1s", "sweep_interval": "100ms"}
    apps = [Holdfast(postgres_url, settings=settings_with(**brief), embedded=False) for _ in range(2)]
    ran: list[int] = []

    def serve(app: Holdfast, place: int) -> JobFunction[[], None]:
        @app.job(name="work")
        async def work() -> None:
            ran.append(place)

        return work

    work, _ = [serve(app, place) for place, app in enumerate(apps)]
    silent = Worker(
        core_of(apps[0]).registry,
        core_of(apps[0]).runtime().database,
        apps[0].settings,
        Ports(),
        lifeline=CutLifeline(),
    )
    await core_of(apps[0]).runtime().open()
    await silent.start()
    try:
        await (await work.enqueue()).result(timeout="60s")
        assert ran == [0]

        async def is_lost() -> bool:
            return any(row.status == "lost" for row in await apps[1].workers.list(all=True))

        await eventually(is_lost)
        async with working(apps[1]):
            for job in [await work.enqueue() for _ in range(20)]:
                await job.result(timeout="60s")
        assert ran == [0] + [1] * 20
    finally:
        await silent.stop(0)
        for app in apps:
            await app.close()


async def test_each_connection_says_whose_it_is_and_what_for(postgres_url: str, connections: Connections) -> None:
    app = Holdfast(postgres_url, settings=settings_with(), embedded=False)

    @app.job
    async def work() -> None: ...

    async with working(app, Role(id="web-1")):

        async def named_so() -> bool:
            uses = {name.removeprefix("holdfast web-1 ") for name in await connections.names()}
            return {"heartbeat", "presence", "listen"} <= uses <= {"heartbeat", "presence", "listen", "statements"}

        await eventually(named_so)
    await app.close()


async def test_a_worker_without_a_name_goes_by_its_host_and_process(
    postgres_url: str, connections: Connections
) -> None:
    app = Holdfast(postgres_url, settings=settings_with(), embedded=False)

    @app.job
    async def work() -> None: ...

    async with working(app):
        assert f"holdfast {socket.gethostname()}:{os.getpid()} presence" in await connections.names()
    await app.close()


async def test_a_program_that_only_enqueues_is_named_too(postgres_url: str, connections: Connections) -> None:
    app = Holdfast(postgres_url, embedded=False)

    @app.job
    async def work() -> None: ...

    await work.enqueue()
    assert await connections.names() == [f"holdfast {program()} statements"]
    await app.close()


async def test_a_name_in_the_url_stands(postgres_url: str, connections: Connections) -> None:
    app = Holdfast(f"{postgres_url}?application_name=mine", embedded=False)
    await app.workers.list()
    assert await connections.names() == ["mine"]
    await app.close()


def test_a_long_name_is_cut_where_the_use_still_shows() -> None:
    assert named("web-1", "heartbeat") == "holdfast web-1 heartbeat"
    long = named("w" * 200, "heartbeat")
    assert len(long) == 63
    assert long.endswith("w heartbeat")
    assert named("bäcker\n", "listen") == "holdfast b?cker? listen"


async def test_a_refused_transaction_behind_a_pooler_is_rolled_back(postgres_url: str) -> None:
    database = PostgresDatabase(postgres_url, settings_with(pooler="true", connections=1), Ports())
    await database.open()

    async def refuse(tx: Transaction) -> None:
        raise ValueError("no")

    try:
        async with database.connection() as connection:
            before = connection.get_server_pid()
        with contextlib.suppress(ValueError):
            await database.transact(refuse)
        async with database.connection() as connection:
            assert (connection.get_server_pid(), connection.is_in_transaction()) == (before, False)
    finally:
        await database.close()


async def test_a_connection_is_not_used_again_when_its_call_was_cancelled(postgres_url: str) -> None:
    """The server may be about to begin a transaction, and whoever had it next would be part of that."""
    pool = ConnectionPool(lambda: asyncpg.connect(postgres_url), 1, 60)

    async def ask(holding: asyncio.Event) -> None:
        async with pool.line():
            holding.set()
            await asyncio.Event().wait()

    async with pool.line() as line:
        first = line.connection
    holding = asyncio.Event()
    asking = asyncio.create_task(ask(holding))
    await holding.wait()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    async with pool.line() as line:
        assert line.connection is not first
        assert await line.connection.fetchval("select 1") == 1
    assert first.is_closed()
    await pool.close()
