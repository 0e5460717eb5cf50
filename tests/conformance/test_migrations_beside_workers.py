"""Migrations beside live workers: a step that a worker's code could not go on after is refused, or forced."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.clock import Ports
from holdfast.errors import MigrationRefused, SchemaTooNew, StoreBusy
from holdfast.kernel import migrate
from holdfast.kernel.database import Database, Transaction
from holdfast.kernel.drivers import connect, postgres
from holdfast.kernel.migrate import Migration, code_version, migrations
from holdfast.kernel.queries import list_jobs
from holdfast.kernel.sql import Dialect
from holdfast.kernel.workers import Registration, drain, register, unregister
from holdfast.settings import Settings
from tests.conftest import Place
from tests.support import next_release
from tests.support.apps import eventually, happens, settings_with, working
from tests.support.locks import blocked_by
from tests.support.next_release import ADDS
from tests.support.postgres import Cluster

SCHEMA = "holdfast"
CODE = code_version("sqlite")
TTL_US = 60_000_000
_numbers = itertools.count()


@pytest.fixture
def bare_url(dialect: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    if dialect == "sqlite":
        yield f"sqlite:///{tmp_path / 'bare.db'}"
        return
    cluster: Cluster = request.getfixturevalue("cluster")
    name = f"holdfast_beside_{os.getpid()}_{next(_numbers)}"
    yield cluster.create_database(name)
    cluster.drop_database(name)


@pytest.fixture
async def database(place: Place) -> AsyncIterator[Database]:
    database = connect(place.direct, Settings(url=place.direct), Ports())
    await database.open()
    await database.transact(list_jobs, limit=1)  # it has a connection, and keeps it
    yield database
    await database.close()


@pytest.fixture
def a_next_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """This code knows one migration more, after which only its own code may use the tables."""
    known = migrations

    def with_one_more(dialect: Dialect) -> tuple[Migration, ...]:
        table = "holdfast.newer" if dialect == "postgres" else "newer"
        step = Migration(CODE + 1, "newer", CODE + 1, f"create table {table} (n integer);", f"drop table {table};")
        return (*known(dialect), step)

    monkeypatch.setattr(migrate, "migrations", with_one_more)


async def version(database: Database) -> int:
    stored = await database.stored_schema()
    assert stored is not None
    return stored.version


async def a_worker(database: Database, id: str = "old", *, code: int | None = CODE) -> int:
    who = Registration(f"incarnation of {id}", id, id, "host-1", 1, "0", (), None, 1, code)
    return await database.transact(register, who, [], ttl_us=TTL_US, gone=[])


@pytest.mark.parametrize("code", [CODE, None], ids=["of this code", "of unknown code"])
async def test_a_step_that_a_live_worker_could_not_go_on_after_is_refused(
    database: Database, a_next_release: None, code: int | None
) -> None:
    worker = await a_worker(database, code=code)
    with pytest.raises(MigrationRefused) as refused:
        await migrate.migrate(database, SCHEMA)
    assert await version(database) == CODE
    said = str(refused.value)
    assert f"{CODE + 1:04} newer" in said
    assert f"code of schema {CODE + 1} or newer" in said
    assert "old on host-1" in said
    assert "`holdfast workers drain ID`" in said
    assert "--force" in said
    await database.transact(drain, worker)
    with pytest.raises(MigrationRefused):
        await migrate.migrate(database, SCHEMA)
    await database.transact(unregister, worker, reason="stopped")
    assert await migrate.migrate(database, SCHEMA) == [f"up {CODE + 1:04} newer"]


@pytest.fixture
def two_next_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    """This code knows two migrations more; code of the one before may use the tables after the first of them."""
    known = migrations

    def with_two_more(dialect: Dialect) -> tuple[Migration, ...]:
        prefix = "holdfast." if dialect == "postgres" else ""
        steps = [
            Migration(
                CODE + n,
                f"newer_{n}",
                oldest,
                f"create table {prefix}newer_{n} (n integer);",
                f"drop table {prefix}newer_{n};",
            )
            for n, oldest in ((1, CODE), (2, CODE + 1))
        ]
        return (*known(dialect), *steps)

    monkeypatch.setattr(migrate, "migrations", with_two_more)


async def test_no_step_is_taken_if_a_live_worker_could_not_go_on_after_a_later_one(
    database: Database, two_next_releases: None
) -> None:
    worker = await a_worker(database)
    with pytest.raises(MigrationRefused, match=f"{CODE + 2:04} newer_2 .*old on host-1"):
        await migrate.migrate(database, SCHEMA)
    assert await version(database) == CODE, "nothing was changed"
    assert await migrate.migrate(database, SCHEMA, CODE + 1) == [f"up {CODE + 1:04} newer_1"], "the worker can use that"
    with pytest.raises(MigrationRefused):
        await migrate.migrate(database, SCHEMA)
    await database.transact(unregister, worker, reason="stopped")
    assert await migrate.migrate(database, SCHEMA) == [f"up {CODE + 2:04} newer_2"]


async def test_steps_that_are_forced_are_named_one_by_one(database: Database, two_next_releases: None) -> None:
    await a_worker(database)
    said: list[str] = []
    assert len(await migrate.migrate(database, SCHEMA, force=True, say=said.append)) == 2
    (line,) = said
    assert f"{CODE + 2:04} newer_2" in line


async def test_a_worker_of_the_next_release_is_in_nobodys_way(database: Database, a_next_release: None) -> None:
    await a_worker(database, code=CODE + 1)
    assert await migrate.migrate(database, SCHEMA) == [f"up {CODE + 1:04} newer"]


async def test_the_step_is_taken_by_force_and_says_beside_whom(database: Database, a_next_release: None) -> None:
    for number in range(5):
        await a_worker(database, f"old-{number}")
    said: list[str] = []
    assert await migrate.migrate(database, SCHEMA, force=True, say=said.append) == [f"up {CODE + 1:04} newer"]
    (line,) = said
    assert "old-0 on host-1, old-1 on host-1, old-2 on host-1 and 2 more" in line
    assert "--force ignores that" in line


async def test_a_silent_worker_counts_no_more(database: Database, a_next_release: None) -> None:
    who = Registration("incarnation", "dead", "dead", "host-1", 1, "0", (), None, 1, CODE)
    await database.transact(register, who, [], ttl_us=0, gone=[])
    assert await migrate.migrate(database, SCHEMA) == [f"up {CODE + 1:04} newer"]


async def test_no_step_down_is_taken_beside_a_worker_whose_tables_it_takes(database: Database) -> None:
    worker = await a_worker(database)
    with pytest.raises(MigrationRefused, match=rf"code of schema {CODE - 1} or older.*old on host-1"):
        await migrate.migrate(database, SCHEMA, CODE - 1)
    assert await version(database) == CODE
    await database.transact(unregister, worker, reason="stopped")
    assert len(await migrate.migrate(database, SCHEMA, CODE - 1)) == 1


@pytest.mark.parametrize("dialect", ["sqlite"])
async def test_a_file_that_a_live_older_worker_uses_is_not_migrated_by_who_opens_it(
    database: Database, place: Place, a_next_release: None
) -> None:
    worker = await a_worker(database)
    newer = connect(place.direct, Settings(url=place.direct), Ports())
    with pytest.raises(MigrationRefused, match="old on host-1"):
        await newer.open()
    assert await version(database) == CODE
    await database.transact(unregister, worker, reason="stopped")
    await newer.open()
    assert await version(newer) == CODE + 1
    await newer.close()


# Transactions under way

LANE = "select name from holdfast.lane where name = 'x' for update"
JOB = "update holdfast.job set priority = priority where seq = 1"
KEY = "update holdfast.idempotency set created_at = created_at where created_at = 1"
WORKER = "update holdfast.worker set active = active where seq = 1"
READ = "select (select count(*) from holdfast.lane), (select count(*) from holdfast.worker)"


@pytest.fixture
async def database_before(bare_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Database]:
    """One that the next release is about to migrate, with a step beside which this code continues."""
    database = connect(bare_url, Settings(url=bare_url), Ports())
    await database.connect()
    await migrate.migrate(database, SCHEMA)
    monkeypatch.setattr(migrate, "migrations", next_release.migrations)
    yield database
    await database.close()


@pytest.mark.parametrize("dialect", ["postgres"])
@pytest.mark.parametrize(
    ("first", "then"),
    [(JOB, LANE), (LANE, JOB), (JOB, KEY), (KEY, JOB), (WORKER, JOB), (JOB, WORKER), (READ, WORKER)],
    ids=["an ending", "an enqueue", "retention", "a keyed enqueue", "a heartbeat", "worker last", "read, then write"],
)
async def test_a_migration_and_a_transaction_that_goes_on_beside_it_both_succeed(
    database_before: Database, bare_url: str, first: str, then: str
) -> None:
    async with await psycopg.AsyncConnection.connect(bare_url) as worker:
        await worker.execute(first.encode())
        migrating = asyncio.create_task(migrate.migrate(database_before, SCHEMA, ADDS))
        await blocked_by(bare_url, worker)
        await worker.execute(then.encode())
        await worker.commit()
        assert len(await migrating) == 1


@pytest.mark.parametrize("dialect", ["postgres"])
async def test_a_migration_that_is_kept_out_changes_nothing_says_what_to_do_and_is_done_by_the_next_run(
    database_before: Database, bare_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "_MIGRATION_TRIES", 2)
    async with await psycopg.AsyncConnection.connect(bare_url) as dump:
        await dump.execute(READ.encode())
        with pytest.raises(StoreBusy, match=r"in 2 tries.*lock timeout.*nothing was changed.*drain the workers"):
            await migrate.migrate(database_before, SCHEMA, ADDS)
        assert await version(database_before) == CODE
        await dump.rollback()
        assert len(await migrate.migrate(database_before, SCHEMA, ADDS)) == 1


# Running code


async def only_newer_code(database: Database) -> None:
    """As a forced migration of the next release leaves the tables."""
    schema = "holdfast." if database.dialect == "postgres" else ""
    statement = f"update {schema}schema set version = {CODE + 1}, oldest_code = {CODE + 1}"
    assert await database.script([statement], at=CODE)


async def test_a_worker_that_has_become_too_old_says_so_once_ends_what_it_has_and_leaves(
    database: Database, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    app = Holdfast(place.direct, settings=settings_with(heartbeat="200ms", drain_grace="60s"), embedded=False)
    begun, gate = asyncio.Event(), asyncio.Event()

    @app.job(name="work")
    async def work() -> str:
        begun.set()
        await gate.wait()
        return "done"

    with caplog.at_level(logging.WARNING, "holdfast"):
        async with working(app):
            first = await work.enqueue()
            await happens(begun)
            await only_newer_code(database)

            async def drains() -> bool:
                (row,) = await app.workers.list()
                return row.status == "draining"

            await eventually(drains)
            second = await work.enqueue()
            gate.set()

            async def left() -> bool:
                return not await app.workers.list()

            await eventually(left)
        assert (await first.refresh()).state == "succeeded"
        assert (await second.refresh()).state == "pending"
        await app.close()
    said = [record.getMessage() for record in caplog.records if "drains:" in record.getMessage()]
    assert len(said) == 1
    assert f"takes code of schema {CODE + 1} or newer, this is of schema {CODE}" in said[0]


@pytest.mark.parametrize("dialect", ["postgres"])
async def test_a_program_that_has_become_too_old_is_refused_at_its_next_connection(
    database: Database, place: Place
) -> None:
    program = connect(place.direct, dataclasses.replace(Settings(url=place.direct), connections=2), Ports())
    await program.open()
    await program.transact(list_jobs, limit=1)
    await only_newer_code(database)
    await program.transact(list_jobs, limit=1)

    async def two_at_once(tx: Transaction) -> None:
        await program.transact(list_jobs, limit=1)

    with pytest.raises(SchemaTooNew, match=f"schema {CODE + 1} or newer"):
        await program.transact(two_at_once)
    await program.close()
