"""Migrations: up, down, resumed, raced, dumped, dropped, and what code may use which tables."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import apsw
import asyncpg
import psycopg
import pytest

from holdfast.clock import Ports
from holdfast.errors import BadSetting, SchemaTooNew, SchemaTooOld
from holdfast.kernel import migrate
from holdfast.kernel.database import Database, StoredSchema
from holdfast.kernel.drivers import connect
from holdfast.kernel.migrate import Direction, code_version, drop, dump, ledger, locks, plan, script, verify
from holdfast.settings import Settings
from tests.conftest import Place
from tests.support import next_release
from tests.support.apps import eventually
from tests.support.next_release import ADDS, MOVES
from tests.support.postgres import Cluster
from tests.support.schemas import objects_at, sqlite_path, tables_at

SCHEMA = "holdfast"
BASE = code_version("sqlite")
NOTE_LOCKS = """
create temporary table noted on commit drop as
select c.oid, max(l.mode) filter (where l.mode ~ 'Exclusive') as mode
from pg_class c left join pg_locks l on l.relation = c.oid and l.pid = pg_backend_pid()
where c.relkind = 'r' and c.relnamespace = 'holdfast'::regnamespace and c.relname <> 'schema' group by c.oid
"""
NO_OTHER_LOCKS = """
do $$ declare late text; begin
    select string_agg(noted.oid::regclass || ' ' || l.mode, ', ') into late
    from pg_locks l join noted on noted.oid = l.relation
    where l.pid = pg_backend_pid() and l.mode not in ('AccessShareLock', 'RowShareLock')
        and (noted.mode is null or (l.mode = 'AccessExclusiveLock' and noted.mode <> 'AccessExclusiveLock'));
    if late is not null then raise 'locked half-way: %', late; end if;
end $$
"""
_numbers = itertools.count()


@pytest.fixture
def bare_url(dialect: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """A database with nothing in it."""
    if dialect == "sqlite":
        yield f"sqlite:///{tmp_path / 'bare.db'}"
        return
    cluster: Cluster = request.getfixturevalue("cluster")
    name = f"holdfast_bare_{os.getpid()}_{next(_numbers)}"
    yield cluster.create_database(name)
    cluster.drop_database(name)


async def reach(url: str) -> Database:
    database = connect(url, Settings(url=url), Ports())
    await database.connect()
    return database


@pytest.fixture
async def bare(bare_url: str) -> AsyncIterator[Database]:
    database = await reach(bare_url)
    yield database
    await database.close()


@pytest.fixture
async def migrated(place: Place) -> AsyncIterator[Database]:
    """One with all tables, in a fraction of the time that the migrations take."""
    database = await reach(place.direct)
    yield database
    await database.close()


@pytest.fixture
def next_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    """This code knows two migrations more."""
    monkeypatch.setattr(migrate, "migrations", next_release.migrations)


async def version(database: Database) -> int | None:
    stored = await database.stored_schema()
    return stored.version if stored else None


async def execute(database: Database, statement: str) -> None:
    statement = statement if database.dialect == "postgres" else statement.replace("holdfast.", "")
    assert await database.script([statement], at=await version(database))


def test_every_migration_exists_for_both_databases() -> None:
    sqlite, postgres = migrate.migrations("sqlite"), migrate.migrations("postgres")
    assert [(m.number, m.name, m.oldest_code) for m in sqlite] == [(m.number, m.name, m.oldest_code) for m in postgres]
    assert [m.number for m in sqlite] == list(range(1, len(sqlite) + 1))


@pytest.mark.usefixtures("next_releases")
async def test_up_from_nothing_down_to_nothing_and_up_again(bare: Database, bare_url: str) -> None:
    names = [f"{m.number:04} {m.name}" for m in migrate.migrations(bare.dialect)]
    assert await version(bare) is None
    assert await migrate.migrate(bare, SCHEMA) == [f"up {name}" for name in names]
    first = tables_at(bare_url), objects_at(bare_url)
    assert await migrate.migrate(bare, SCHEMA) == []
    assert await migrate.migrate(bare, SCHEMA, 0) == [f"down {name}" for name in reversed(names)]
    assert list(tables_at(bare_url)) == ["schema"]
    assert await version(bare) == 0
    await migrate.migrate(bare, SCHEMA)
    assert (tables_at(bare_url), objects_at(bare_url)) == first


@pytest.mark.usefixtures("next_releases")
async def test_each_step_down_and_up_leads_back(bare: Database, bare_url: str) -> None:
    shapes = [tables_at(bare_url)]
    for migration in migrate.migrations(bare.dialect):
        await migrate.migrate(bare, SCHEMA, migration.number)
        shapes.append(tables_at(bare_url))
        assert await bare.stored_schema() == StoredSchema(migration.number, migration.oldest_code)
    for migration in reversed(migrate.migrations(bare.dialect)):
        await migrate.migrate(bare, SCHEMA, migration.number - 1)
        assert await version(bare) == migration.number - 1
        if migration.number > 1:
            assert tables_at(bare_url) == shapes[migration.number - 1]
        await migrate.migrate(bare, SCHEMA, migration.number)
        assert tables_at(bare_url) == shapes[migration.number]
        await migrate.migrate(bare, SCHEMA, migration.number - 1)


async def test_a_migration_that_is_cut_off_has_not_happened_and_is_done_by_the_next_run(
    bare: Database, bare_url: str
) -> None:
    await bare.script(ledger(bare.dialect, SCHEMA), at=None)
    before = tables_at(bare_url), objects_at(bare_url)
    steps = list(script(migrate.migrations(bare.dialect)[0], "up", bare.dialect, SCHEMA))
    with pytest.raises((apsw.SQLError, asyncpg.PostgresError)):
        await bare.script([*steps, "and then the power went"], at=0)
    assert (tables_at(bare_url), objects_at(bare_url)) == before
    assert await version(bare) == 0
    await migrate.migrate(bare, SCHEMA)
    assert await version(bare) == code_version(bare.dialect)


@pytest.mark.usefixtures("next_releases")
async def test_a_database_half_way_up_is_brought_up(bare: Database) -> None:
    await migrate.migrate(bare, SCHEMA, 1)
    assert [line.split()[1] for line in await migrate.migrate(bare, SCHEMA)] == [
        f"{m.number:04}" for m in migrate.migrations(bare.dialect)[1:]
    ]


@pytest.mark.usefixtures("next_releases")
async def test_migrators_that_start_together_do_each_step_once(bare_url: str) -> None:
    databases = [await reach(bare_url) for _ in range(4)]
    try:
        done = await asyncio.gather(*(migrate.migrate(database, SCHEMA) for database in databases))
        (first, *_) = databases
        assert sorted(line for lines in done for line in lines) == [
            f"up {m.number:04} {m.name}" for m in migrate.migrations(first.dialect)
        ]
        assert await version(first) == code_version(first.dialect)
    finally:
        for database in databases:
            await database.close()


async def test_a_step_from_a_version_that_has_passed_is_not_run(migrated: Database) -> None:
    steps = list(script(migrate.migrations(migrated.dialect)[0], "up", migrated.dialect, SCHEMA))
    assert await migrated.script(steps, at=0) is False
    assert await migrated.script(steps, at=None) is False


@pytest.mark.usefixtures("next_releases")
async def test_code_that_is_newer_than_the_tables_says_what_to_run(bare: Database) -> None:
    with pytest.raises(SchemaTooOld, match=r"has no tables.*`holdfast migrate`.*--dump-sql"):
        verify(await bare.stored_schema(), bare.dialect)
    await migrate.migrate(bare, SCHEMA, 1)
    with pytest.raises(SchemaTooOld, match=r"has schema 1, this code needs schema \d.*`holdfast migrate`"):
        verify(await bare.stored_schema(), bare.dialect)
    await migrate.migrate(bare, SCHEMA)
    verify(await bare.stored_schema(), bare.dialect)


async def test_tables_of_the_next_release_are_used_while_they_allow_it(migrated: Database, place: Place) -> None:
    code = code_version(migrated.dialect)
    await execute(migrated, f"update holdfast.schema set version = {code + 1}, oldest_code = {code}")
    database = connect(place.direct, Settings(url=place.direct), Ports())
    await database.open()
    await database.close()
    assert await migrated.stored_schema() == StoredSchema(code + 1, code)


async def test_tables_too_new_for_this_code_are_refused(migrated: Database, place: Place) -> None:
    code = code_version(migrated.dialect)
    await execute(migrated, f"update holdfast.schema set version = {code + 2}, oldest_code = {code + 1}")
    database = connect(place.direct, Settings(url=place.direct), Ports())
    with pytest.raises(SchemaTooNew, match=rf"has schema {code + 2}.*schema {code + 1} or newer.*Upgrade holdfast"):
        await database.open()
    await database.close()


@pytest.mark.parametrize("target", [0, 1])
async def test_code_takes_no_step_down_from_tables_it_does_not_know(
    migrated: Database, place: Place, target: int
) -> None:
    code = code_version(migrated.dialect)
    before = tables_at(place.direct)
    await execute(migrated, f"update holdfast.schema set version = {code + 1}")
    with pytest.raises(SchemaTooNew, match=rf"schema {code + 1}.*release that made it"):
        await migrate.migrate(migrated, SCHEMA, target)
    with pytest.raises(SchemaTooNew):
        await drop(migrated, SCHEMA)
    assert tables_at(place.direct) == before
    assert await migrate.migrate(migrated, SCHEMA) == []


@pytest.mark.parametrize("target", [-1, 999])
async def test_there_is_no_way_to_a_version_nobody_knows(bare: Database, target: int) -> None:
    with pytest.raises(BadSetting, match=f"no schema version {target}"):
        await migrate.migrate(bare, SCHEMA, target)


def run_by_hand(url: str, sql: str) -> None:
    """As a person would: the whole text, in their own client."""
    if url.startswith("sqlite"):
        connection = apsw.Connection(str(sqlite_path(url)))
        for _ in connection.execute(sql):
            pass
        connection.close()
        return
    with psycopg.connect(url, autocommit=True) as server:
        server.execute(sql)


@pytest.mark.usefixtures("next_releases")
async def test_the_dumped_sql_makes_the_same_tables(bare: Database, bare_url: str) -> None:
    code = code_version(bare.dialect)
    run_by_hand(bare_url, dump(0, code, bare.dialect, SCHEMA))
    dumped = tables_at(bare_url), objects_at(bare_url)
    assert await bare.stored_schema() == StoredSchema(code, migrate.migrations(bare.dialect)[-1].oldest_code)
    assert await migrate.migrate(bare, SCHEMA) == []
    run_by_hand(bare_url, dump(code, 0, bare.dialect, SCHEMA))
    assert await version(bare) == 0
    await migrate.migrate(bare, SCHEMA)
    assert (tables_at(bare_url), objects_at(bare_url)) == dumped


@pytest.mark.usefixtures("next_releases")
async def test_a_dump_may_begin_where_the_database_is(bare: Database, bare_url: str) -> None:
    code = code_version(bare.dialect)
    await migrate.migrate(bare, SCHEMA, 1)
    run_by_hand(bare_url, dump(1, code, bare.dialect, SCHEMA))
    assert await version(bare) == code
    assert plan(code, code, bare.dialect) == []


@pytest.mark.usefixtures("next_releases")
@pytest.mark.parametrize("dialect", ["postgres"])
async def test_a_step_locks_each_table_that_it_changes_before_it_begins(bare: Database) -> None:
    """And waits for none later, when it has done half of its work."""
    await bare.script(ledger(bare.dialect, SCHEMA), at=None)
    code = code_version(bare.dialect)
    for migration, direction in [*plan(0, code, bare.dialect), *plan(code, 0, bare.dialect)]:
        step = script(migration, direction, bare.dialect, SCHEMA)
        statements = [*locks(migration, direction, SCHEMA), NOTE_LOCKS, *step, NO_OTHER_LOCKS]
        assert await bare.script(statements, at=await version(bare))


async def test_drop_removes_everything(migrated: Database, place: Place) -> None:
    assert len(await drop(migrated, SCHEMA)) == code_version(migrated.dialect)
    assert (tables_at(place.direct), objects_at(place.direct)) == ({}, {})
    assert await version(migrated) is None
    assert await drop(migrated, SCHEMA) == []
    await migrate.migrate(migrated, SCHEMA)
    verify(await migrated.stored_schema(), migrated.dialect)


# Tables from before the first release

PAST = "create table holdfast.schema (one integer primary key default 1, version integer not null, oldest_code integer)"


@pytest.mark.parametrize("past", [0, 1, 22])
async def test_tables_of_a_development_version_are_refused_whatever_their_number(
    bare: Database, bare_url: str, past: int
) -> None:
    """Migration 1 of that time made other tables than migration 1 of 0.1.0."""
    script = [PAST, f"insert into holdfast.schema (version, oldest_code) values ({past}, {min(past, 8)})"]
    if bare.dialect == "postgres":
        script.insert(0, "create schema holdfast")
    script.append("create view holdfast.job_now as select version from holdfast.schema")  # not as in 0.1.0
    run_by_hand(bare_url, ";".join(script).replace("holdfast.", "" if bare.dialect == "sqlite" else "holdfast."))
    before = tables_at(bare_url)
    remedy = "move the file away" if bare.dialect == "sqlite" else r"drop its schema \(`drop schema holdfast cascade`\)"
    refused = rf"development version from before release 0\.1\.0.* then {remedy} and run `holdfast migrate`\."
    for attempt in (bare.stored_schema, lambda: migrate.migrate(bare, SCHEMA), lambda: drop(bare, SCHEMA), bare.open):
        with pytest.raises(SchemaTooOld, match=refused):
            await attempt()
    assert tables_at(bare_url) == before


# A step that is killed half-way


def remarked(url: str) -> str:
    """What the next release writes: a job with a remark."""
    columns = "id, route, created_at, priority, max_attempts, max_rescues, kind, queue, tenant, payload, metadata"
    id = "00000000-0000-7000-8000-000000000001"
    values = f"'{id}', 1, 1, 1, 1, 1, 'work', 'default', '', '{{}}', '{{}}'"
    return f"insert into holdfast.job ({columns}, remark) values ({values}, 'late')".replace(
        "holdfast.", "" if url.startswith("sqlite") else "holdfast."
    )


async def kill_at(url: str, version: int, after: int) -> None:
    """Somebody kills `holdfast migrate` of the next release when it has done so many statements of its step."""
    words = ["-m", "tests.support.half_migration", url, str(version), str(after)]
    pipe = asyncio.subprocess.PIPE
    doomed = await asyncio.create_subprocess_exec(sys.executable, *words, stdin=pipe, stdout=pipe)
    try:
        assert doomed.stdout is not None
        assert await doomed.stdout.readline() == b"half-way\n"
    finally:
        doomed.kill()
        await doomed.wait()
    if not url.startswith("sqlite"):
        await until_alone(url)


async def until_alone(url: str) -> None:
    """The server has seen that the process is gone."""
    others = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as watch:

        async def alone() -> bool:
            return await (await watch.execute(others)).fetchone() == (0,)

        await eventually(alone)


@pytest.mark.usefixtures("next_releases")
@pytest.mark.parametrize("part", [0.5, 1.0], ids=["half-way", "not committed"])
@pytest.mark.parametrize("direction", ["up", "down"])
async def test_killed_on_the_way_it_has_not_happened_and_the_next_run_does_it(
    bare: Database, bare_url: str, direction: Direction, part: float
) -> None:
    await migrate.migrate(bare, SCHEMA, ADDS)
    run_by_hand(bare_url, remarked(bare_url))
    source, target = (ADDS, MOVES) if direction == "up" else (MOVES, ADDS)
    await migrate.migrate(bare, SCHEMA, source)
    await bare.close()
    before = tables_at(bare_url), objects_at(bare_url), remarks_at(bare_url)
    step = migrate.migrations(bare.dialect)[MOVES - 1]
    statements = list(script(step, direction, bare.dialect, SCHEMA))
    await kill_at(bare_url, target, 1 + round(part * (len(statements) - 1)))
    assert (tables_at(bare_url), objects_at(bare_url), remarks_at(bare_url)) == before
    database = await reach(bare_url)
    assert await migrate.migrate(database, SCHEMA, target) == [f"{direction} {MOVES:04} remarks_apart"]
    await database.close()
    assert remarks_at(bare_url) == ["late"]


def remarks_at(url: str) -> list[str]:
    """Wherever they are."""
    place = "remarked" if "remarked" in tables_at(url) else "job"
    if url.startswith("sqlite"):
        connection = apsw.Connection(str(sqlite_path(url)))
        found = [str(row[0]) for row in connection.execute(f"select remark from {place}")]
        connection.close()
        return found
    with psycopg.connect(url) as server:
        return [str(row[0]) for row in server.execute(f"select remark from holdfast.{place}".encode()).fetchall()]
