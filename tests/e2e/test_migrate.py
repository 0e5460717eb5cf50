"""`holdfast migrate`: up, down, away, or as SQL for someone else to run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import apsw
import psycopg
import pytest

from holdfast import Holdfast
from holdfast.kernel.drivers import describe_url
from holdfast.kernel.migrate import code_version, migrations
from holdfast.kernel.sql import Dialect
from tests.support import next_release
from tests.support.commands import Said, environment, holdfast
from tests.support.next_release import ADDS, MOVES


@pytest.fixture
def latest(dialect: Dialect) -> int:
    return code_version(dialect)


def migrate(url: str, *words: str) -> Said:
    return holdfast("migrate", "--url", url, *words)


def done(url: str, *words: str) -> list[str]:
    """What it did, after the line that names the database."""
    named, *lines = migrate(url, *words).lines
    assert named == f"database: {describe_url(url)}"
    return lines


def execute(url: str, script: str) -> None:
    if url.startswith("sqlite"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        list(connection.execute(script))
        connection.close()
    else:
        with psycopg.connect(url, autocommit=True) as server:
            server.execute(script.encode())


def steps(dialect: Dialect, direction: str) -> list[str]:
    names = [f"{direction} {migration.number:04} {migration.name}" for migration in migrations(dialect)]
    return names if direction == "up" else names[::-1]


def test_migrate_does_what_is_missing_and_then_nothing(bare_url: str, dialect: Dialect, latest: int) -> None:
    before = migrate(bare_url, "--check")
    label = describe_url(bare_url)
    assert (before.code, before.out) == (1, f"{label} has schema 0, this code has schema {latest}\n")
    assert dialect == "postgres" or not Path(bare_url.removeprefix("sqlite:///")).exists(), "to check makes no file"
    assert migrate(bare_url).lines == [f"database: {label}", *steps(dialect, "up")]
    after = migrate(bare_url, "--check")
    assert (after.code, after.out) == (0, f"{label} has schema {latest}, this code has schema {latest}\n")
    assert migrate(bare_url).lines == [f"database: {label}", "nothing to do"]
    assert holdfast("jobs", "ls", "--url", bare_url).lines == ["no jobs"]


def test_migrate_tells_programs_what_it_did(bare_url: str, dialect: Dialect, latest: int) -> None:
    label = describe_url(bare_url)
    assert migrate(bare_url, "--json").json == {"done": steps(dialect, "up"), "database": label}
    assert migrate(bare_url, "--json").json == {"done": [], "database": label}
    assert migrate(bare_url, "--check", "--json").json == {"schema": latest, "code": latest, "database": label}


def test_the_dumped_sql_is_the_migration(bare_url: str, dialect: Dialect) -> None:
    execute(bare_url, migrate(bare_url, "--dump-sql").out)
    assert done(bare_url) == ["nothing to do"]
    assert holdfast("jobs", "ls", "--url", bare_url).lines == ["no jobs"]


def test_drop_must_be_meant_and_then_removes_everything(migrated_url: str, dialect: Dialect) -> None:
    assert migrate(migrated_url, "--drop").refused(2) == ("--drop removes all jobs permanently; add --yes to confirm.")
    assert tables(migrated_url) != []
    assert done(migrated_url, "--drop", "--yes") == [
        *steps(dialect, "down"),
        "all tables of Holdfast are removed",
    ]
    assert tables(migrated_url) == []
    assert done(migrated_url, "--drop", "--yes") == ["all tables of Holdfast are removed"]


def tables(url: str) -> list[str]:
    if url.startswith("sqlite"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        names = [
            str(row[0]) for row in connection.execute("select name from sqlite_master where name not like 'sqlite_%'")
        ]
        connection.close()
        return names
    with psycopg.connect(url) as server:
        return [row[0] for row in server.execute("select nspname from pg_namespace where nspname = 'holdfast'")]


@pytest.fixture
async def migrated_url(bare_url: str) -> str:
    await Holdfast(bare_url).migrate()
    return bare_url


def make_newer(url: str, *, oldest_code: int) -> None:
    """As a later release leaves a database."""
    schema = "" if url.startswith("sqlite") else "holdfast."
    execute(url, f"update {schema}schema set version = 99, oldest_code = {oldest_code}")


def test_a_newer_schema_is_neither_used_nor_taken_down(migrated_url: str, latest: int) -> None:
    """This code does not know what the later migrations made, nor how to undo it."""
    make_newer(migrated_url, oldest_code=98)
    before = tables(migrated_url)
    where = describe_url(migrated_url).replace("postgresql ", "PostgreSQL at ").removeprefix("sqlite ")
    assert holdfast("jobs", "ls", "--url", migrated_url).refused(3) == (
        f"{where} has schema 99, which works with code of schema 98 or newer; this code is of schema {latest}. "
        f"Upgrade holdfast in this environment."
    )
    for words in (["--to", "1"], ["--drop", "--yes"]):
        line = migrate(migrated_url, *words).refused(3)
        assert "schema 99" in line
        assert "the release that made it" in line
    assert tables(migrated_url) == before


@pytest.mark.long
def test_a_newer_schema_that_still_allows_this_code_is_used(migrated_url: str) -> None:
    make_newer(migrated_url, oldest_code=1)
    assert holdfast("jobs", "ls", "--url", migrated_url).lines == ["no jobs"]
    assert done(migrated_url) == ["nothing to do"]


def add_worker(url: str, id: str) -> None:
    """As a worker of this release leaves itself in the tables, while it lives."""
    if url.startswith("sqlite"):
        schema, now = "", "unixepoch() * 1000000"
    else:
        schema, now = "holdfast.", "holdfast.now_us()"
    execute(
        url,
        f"insert into {schema}worker (incarnation, id, name, hostname, pid, version, status, capabilities, queues, "
        f"slots, started_at, heartbeat_at, ttl_us, code) values ('i', '{id}', '{id}', 'host-1', 1, '0', 'active', "
        f"'[]', 'null', 1, {now}, {now}, 600000000, 1)",
    )


@pytest.fixture(scope="session")
def later(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The environment of a later release, which nobody has made: it knows two migrations more."""
    return environment(PYTHONPATH=str(next_release.build(tmp_path_factory.mktemp("later"), version=MOVES)))


@pytest.mark.long
def test_migrate_goes_to_any_version_and_back(bare_url: str, dialect: Dialect, later: Mapping[str, str]) -> None:
    ups = [*steps(dialect, "up"), f"up {ADDS:04} remarks", f"up {MOVES:04} remarks_apart"]

    def lines(*words: str) -> list[str]:
        return holdfast("migrate", "--url", bare_url, *words, env=later).lines[1:]

    assert lines("--to", "1") == ups[:1]
    assert lines() == ups[1:]
    assert lines("--to", "0") == [line.replace("up", "down", 1) for line in reversed(ups)]
    assert holdfast("migrate", "--url", bare_url, "--to", "99", env=later).refused(2) == (
        f"there is no schema version 99; this code knows 0 to {MOVES}."
    )
    assert migrate(bare_url, "--check").code == 1
    execute(bare_url, holdfast("migrate", "--url", bare_url, "--dump-sql", "--to", "2", env=later).out)
    assert lines() == ups[2:]


def test_migrate_beside_a_live_worker_is_refused_if_it_could_not_continue_unless_forced(
    migrated_url: str, latest: int, later: Mapping[str, str]
) -> None:
    def migrate_later(*words: str) -> Said:
        return holdfast("migrate", "--url", migrated_url, *words, env=later)

    add_worker(migrated_url, "old-1")
    line = migrate_later().refused(3)
    assert line.startswith(f"step up {MOVES:04} remarks_apart leaves tables for code of schema {MOVES} or newer")
    assert "old-1 on host-1" in line
    assert "`holdfast workers drain ID`" in line
    assert migrate(migrated_url, "--check").out.endswith(f" has schema {latest}, this code has schema {latest}\n")
    assert migrate_later("--to", str(ADDS)).lines[1:] == [f"up {ADDS:04} remarks"], "it can use those tables"
    forced = migrate_later("--force")
    assert (forced.code, forced.lines[1:]) == (0, [f"up {MOVES:04} remarks_apart"])
    assert "old-1 on host-1" in forced.err
    assert "--force ignores that" in forced.err
    execute(migrated_url, f"update {'' if migrated_url.startswith('sqlite') else 'holdfast.'}worker set code = {MOVES}")
    line = migrate_later("--to", str(ADDS)).refused(3)
    assert line.startswith(f"step down {MOVES:04} remarks_apart leaves tables for code of schema {ADDS} or older")
