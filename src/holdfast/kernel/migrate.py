"""Migrations: numbered pairs of scripts, one for each database, each with its way down.

A script and its entry in the schema table are one transaction, so a migration killed half-way has not happened
and the next run does it. The database stores its version and the oldest code that may still use it: code runs
when its own version is not newer than the tables and not older than that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Literal, NamedTuple

from holdfast.errors import BadSetting, SchemaTooNew, SchemaTooOld
from holdfast.kernel.database import Database, StoredSchema
from holdfast.kernel.sql import Dialect, in_schema, split

Direction = Literal["up", "down"]

_FILE = re.compile(r"(?P<number>\d{4})_(?P<name>\w+)\.(?P<dialect>sqlite|postgres)\.sql")
_OLDEST = re.compile(r"^-- oldest_code: (\d+)$", re.M)

_LEDGER = """
create table if not exists holdfast.schema (
    one integer primary key default 1 check (one = 1), version integer not null, oldest_code integer not null
);
insert into holdfast.schema (version, oldest_code) values (0, 0) on conflict (one) do nothing;
"""


class Migration(NamedTuple):
    number: int
    name: str
    oldest_code: int
    up: str
    down: str


@cache
def migrations(dialect: Dialect) -> tuple[Migration, ...]:
    """All migrations of this code, in order; the last one's number is the code's own schema version."""
    folder = resources.files("holdfast.kernel.sql").joinpath("migrations")
    files = sorted((f for f in folder.iterdir() if f.name.endswith(f".{dialect}.sql")), key=lambda f: f.name)
    return tuple(_read(f.name, f.read_text("utf-8")) for f in files)


def code_version(dialect: Dialect) -> int:
    return migrations(dialect)[-1].number


def plan(stored: int, target: int, dialect: Dialect) -> list[tuple[Migration, Direction]]:
    """What leads from one version to another."""
    known = migrations(dialect)
    if not 0 <= target <= known[-1].number:
        raise BadSetting(f"there is no schema version {target}; this code knows 0 to {known[-1].number}.")
    if stored > known[-1].number:
        raise SchemaTooNew(
            f"the database has schema {stored}, this code knows the way from {known[-1].number} and below. "
            f"Use `holdfast migrate` of the release that made it."
        )
    if stored <= target:
        return [(m, "up") for m in known if stored < m.number <= target]
    return [(m, "down") for m in reversed(known) if target < m.number <= stored]


def script(migration: Migration, direction: Direction, dialect: Dialect, schema: str) -> Iterator[str]:
    """The statements of one step, the entry in the ledger included."""
    body = migration.up if direction == "up" else migration.down
    version = migration.number if direction == "up" else migration.number - 1
    oldest = migration.oldest_code if direction == "up" else min(migration.oldest_code, version)
    ledger = f"update holdfast.schema set version = {version}, oldest_code = {oldest}"
    guard = f"version = {version - 1 if direction == 'up' else version + 1}"
    for statement in [*split(body), f"{ledger} where {guard}"]:
        yield in_schema(statement, dialect, schema)


def ledger(dialect: Dialect, schema: str) -> list[str]:
    create = [f"create schema if not exists {schema}"] if dialect == "postgres" else []
    return create + [in_schema(statement, dialect, schema) for statement in split(_LEDGER)]


def dump(stored: int, target: int, dialect: Dialect, schema: str) -> str:
    """The SQL that a person may run instead of `holdfast migrate`."""
    parts = [*ledger(dialect, schema)] if stored == 0 else []
    for migration, direction in plan(stored, target, dialect):
        parts += ["begin", *script(migration, direction, dialect, schema), "commit"]
    return "".join(f"{part};\n" for part in parts)


async def migrate(database: Database, schema: str, target: int | None = None) -> list[str]:
    """Bring the tables to `target` (default: this code's version); returns what was done."""
    dialect = database.dialect
    if await database.stored_schema() is None:
        await database.script(ledger(dialect, schema), at=None)
    done: list[str] = []
    goal = code_version(dialect) if target is None else target
    while True:
        stored = await database.stored_schema()
        if stored is None or (target is None and stored.version > goal):
            return done
        steps = plan(stored.version, goal, dialect)
        if not steps:
            return done
        migration, direction = steps[0]
        if await database.script(list(script(migration, direction, dialect, schema)), at=stored.version):
            done.append(f"{direction} {migration.number:04} {migration.name}")


async def drop(database: Database, schema: str) -> list[str]:
    """Remove every table of Holdfast, and the work in them."""
    stored = await database.stored_schema()
    if stored is None:
        return []
    done = await migrate(database, schema, 0)
    last = [in_schema("drop table holdfast.schema", database.dialect, schema)]
    if database.dialect == "postgres":
        last.append(f"drop schema {schema}")
    await database.script(last, at=0)
    return done


def verify(stored: StoredSchema | None, dialect: Dialect) -> None:
    """Refuse tables this code must not touch, and say which side to change."""
    code = code_version(dialect)
    if stored is None or stored.version < code:
        have = "no tables" if stored is None else f"schema {stored.version}"
        raise SchemaTooOld(
            f"the database has {have}, this code needs schema {code}. Run `holdfast migrate`, or give "
            f"`holdfast migrate --dump-sql` to whoever may change the database."
        )
    if code < stored.oldest_code:
        raise SchemaTooNew(
            f"the database has schema {stored.version}, which works with code of schema {stored.oldest_code} "
            f"or newer; this code is of schema {code}. Upgrade holdfast in this environment."
        )


def _read(file: str, text: str) -> Migration:
    match = _FILE.fullmatch(file)
    oldest = _OLDEST.search(text)
    if match is None or oldest is None or "-- up\n" not in text or "-- down\n" not in text:
        raise ValueError(f"migration {file} needs a name like 0001_jobs.sqlite.sql, oldest_code, up and down")
    up, down = text.split("-- up\n")[1].split("-- down\n")
    return Migration(int(match["number"]), match["name"], int(oldest[1]), _uncomment(up), _uncomment(down))


def _uncomment(script: str) -> str:
    return re.sub(r"^\s*--.*\n", "", script, flags=re.M)
