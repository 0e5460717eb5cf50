"""Migrations: numbered pairs of scripts, one for each database, each with its way down.

A script and its entry in the schema table are one transaction, so a migration killed half-way has not happened and
the next run does it. The database stores its version and the oldest code that may still use it: code runs when its
own version is not newer than the tables and not older than that. It also stores the release whose tables migration 1
made: tables from before that release are refused, because no migration leads on from them. No step is taken beside a
live worker whose code could not continue after it or after one of the steps that follow, unless that is forced. A step
locks all that it changes before it begins, so that it meets the transactions of live workers there and not half-way.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import resources
from typing import Any, Literal, NamedTuple

from holdfast.errors import BadSetting, MigrationRefused, SchemaTooNew, SchemaTooOld
from holdfast.kernel import row_security
from holdfast.kernel.database import Database, Guard, StoredSchema
from holdfast.kernel.sql import Dialect, in_schema, split

log = logging.getLogger("holdfast.migrate")

Direction = Literal["up", "down"]

_FILE = re.compile(r"(?P<number>\d{4})_(?P<name>\w+)\.(?P<dialect>sqlite|postgres)\.sql")
_OLDEST = re.compile(r"^-- oldest_code: (\d+)$", re.M)

BASE = "0.1.0"  # the release whose tables migration 1 makes
_LEDGER = f"""
create table if not exists holdfast.schema (
    one integer primary key default 1 check (one = 1), version integer not null, oldest_code integer not null,
    base text not null default '{BASE}'
);
insert into holdfast.schema (one, version, oldest_code) values (1, 0, 0) on conflict (one) do nothing;
"""

UNKNOWN_CODE = 1  # what counts as the code of a worker's row that says nothing of it: the oldest
_LIVE = """
select id, hostname, code from holdfast.worker
where status in ('active', 'draining') and heartbeat_at + ttl_us > holdfast.now_us() order by seq
"""
_REMEDY = (
    "Drain them first: SIGTERM, or `holdfast workers drain ID` of the release they run; one that was killed counts for "
    "a minute after its last heartbeat. Or `holdfast migrate --force`: what they claim from then on may fail."
)
# What a step changes is known by its text. Reading continues where rows and indexes are only added.
_ALTERED = re.compile(r"\b(?:alter|drop) table holdfast\.(\w+)")
_WRITTEN = re.compile(r"\b(?:insert into|update|delete from) holdfast\.(\w+)")
_CREATED = re.compile(r"\bcreate table holdfast\.(\w+)")
_INDEXED = re.compile(r"\bcreate (?:unique )?index (?:if not exists )?(\w+)\s+on holdfast\.(\w+)")
_TRIGGERED = re.compile(r"\bcreate (?:constraint )?trigger \w+\s[^;]*?\bon holdfast\.(\w+)")
_UNTRIGGERED = re.compile(r"\bdrop trigger \w+ on holdfast\.(\w+)")
_UNINDEXED = re.compile(r"\bdrop index holdfast\.(\w+)")
_MADE = re.compile(r"\s*create (table|view|trigger)\s+(?:if not exists\s+)?(\w+)", re.I)
_COMPUTES = re.compile(r"\s*create (view|trigger|unique index|index)\b", re.I)
_ALONE, _NO_WRITERS = "access exclusive", "share row exclusive"
# As most transactions of workers go: a heartbeat from its worker to jobs, a tick from its schedule to a job, an ending
# from its job to the lane, retention from jobs to their keys. No order suits all of them: an enqueue goes from the
# lane and the key to the job. That is why a migration waits briefly, and is repeated.
_LOCK_ORDER = ("duty", "worker", "schedule", "job")


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


class OwnObjects(NamedTuple):
    """What the migrations of this code make in a SQLite file."""

    names: frozenset[str]  # of tables, views and triggers
    tables: frozenset[str]
    texts: frozenset[str]  # of views, triggers and indexes, as `plain`


def own_objects() -> OwnObjects:
    return _objects_of(migrations("sqlite"))


@cache
def _objects_of(known: tuple[Migration, ...]) -> OwnObjects:
    scripts = [script for each in known for script in (each.up, each.down)]
    made = [text for script in scripts for text in split(in_schema(script, "sqlite", ""))]
    found = [(match[1].lower(), match[2].lower()) for text in made if (match := _MADE.match(text)) is not None]
    tables = {"schema", *(name for kind, name in found if kind == "table")}
    texts = {plain(text) for text in made if _COMPUTES.match(text)}
    return OwnObjects(frozenset(tables | {name for _, name in found}), frozenset(tables), frozenset(texts))


def plain(text: str) -> str:
    """A statement without what SQLite changes in it when it keeps it."""
    return re.sub(r"[\s\"]+|if not exists", "", text).rstrip(";").lower().replace("create", "create ", 1)


def code_version(dialect: Dialect) -> int:
    return migrations(dialect)[-1].number


def plan(stored: int, target: int, dialect: Dialect) -> list[tuple[Migration, Direction]]:
    """What leads from one version to another."""
    known = migrations(dialect)
    if not 0 <= target <= known[-1].number:
        raise BadSetting(f"there is no schema version {target}; this code knows 0 to {known[-1].number}.")
    if stored > known[-1].number:
        raise SchemaTooNew(
            f"the database has schema {stored}, this code can migrate only from {known[-1].number} and below. "
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


def locks(migration: Migration, direction: Direction, schema: str, *, guarded: bool = False) -> list[str]:
    """What a step on PostgreSQL locks before it begins: each table it changes, once, as much as it will need.

    `guarded`: the workers too, so that none registers while it is under way.
    """
    body = migration.up if direction == "up" else migration.down
    homes = {index: table for m in migrations("postgres") for index, table in _INDEXED.findall(m.up + m.down)}
    altered = {*_ALTERED.findall(body), *(homes[index] for index in _UNINDEXED.findall(body))}
    altered |= {*_UNTRIGGERED.findall(body)}
    changed = {*altered, *_WRITTEN.findall(body), *(table for _, table in _INDEXED.findall(body))}
    changed |= {*_TRIGGERED.findall(body)}
    changed = (changed - {*_CREATED.findall(body)}) | ({"worker"} if guarded else set())
    place = {table: number for number, table in enumerate(_LOCK_ORDER)}
    ordered = sorted(changed, key=lambda table: (place.get(table, len(place)), table))
    modes = [(table, _ALONE if table in altered else _NO_WRITERS) for table in ordered]
    return [f"lock table {schema}.{table} in {mode} mode" for table, mode in modes]


def ledger(dialect: Dialect, schema: str) -> list[str]:
    create = [f"create schema if not exists {schema}"] if dialect == "postgres" else []
    return create + [in_schema(statement, dialect, schema) for statement in split(_LEDGER)]


def dump(stored: int, target: int, dialect: Dialect, schema: str) -> str:
    """The SQL that a person may run instead of `holdfast migrate`."""
    parts = [*ledger(dialect, schema)] if stored == 0 else []
    for migration, direction in plan(stored, target, dialect):
        locked = locks(migration, direction, schema) if dialect == "postgres" else []
        parts += ["begin", *locked, *script(migration, direction, dialect, schema), "commit"]
    return "".join(f"{part};\n" for part in parts)


async def migrate(
    database: Database,
    schema: str,
    target: int | None = None,
    *,
    force: bool = False,
    say: Callable[[str], object] = log.warning,
) -> list[str]:
    """Bring the tables to `target` (default: this code's version); returns what was done.

    Raises `MigrationRefused` while workers live that could not use them, before the first step; with `force` it
    continues and says so.
    Raises `StoreBusy` when others held the tables too long: the steps before are done, and the next call continues.
    """
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
            return [*done, *(await row_security.renew(database, schema) if done and goal else [])]
        migration, direction = steps[0]
        guard = _beside_workers(stored, steps, dialect, schema, say if force else None)
        statements = list(script(migration, direction, dialect, schema))
        if await database.script(statements, at=stored.version, guard=guard):
            done.append(f"{direction} {migration.number:04} {migration.name}")


async def drop(database: Database, schema: str) -> list[str]:
    """Remove every table of Holdfast, and the work in them."""
    stored = await database.stored_schema()
    if stored is None:
        return []
    if database.dialect == "postgres" and stored.version:
        await row_security.turn("off", database, schema)
    done = await migrate(database, schema, 0, force=True)
    last = [in_schema("drop table holdfast.schema", database.dialect, schema)]
    if database.dialect == "postgres":
        last.append(f"drop schema {schema}")
    await database.script(last, at=0)
    return done


def verify(stored: StoredSchema | None, dialect: Dialect, where: str = "the database") -> None:
    """Refuse tables this code must not touch, and say which side to change. `where` names the database."""
    code = code_version(dialect)
    if stored is None or stored.version < code:
        have = "no tables" if stored is None else f"schema {stored.version}"
        raise SchemaTooOld(
            f"{where} has {have}, this code needs schema {code}. Run `holdfast migrate`, with the --app or --url that "
            f"names it, or give `holdfast migrate --dump-sql` to somebody who may change the database."
        )
    if code < stored.oldest_code:
        raise SchemaTooNew(
            f"{where} has schema {stored.version}, which works with code of schema {stored.oldest_code} "
            f"or newer; this code is of schema {code}. Upgrade holdfast in this environment."
        )


def check_base(base: str | None, where: str, remove: str) -> None:
    """Refuse tables that another release than `BASE` began: the versions of their steps mean other tables."""
    if base != BASE:
        raise SchemaTooOld(
            f"{where} has tables of a development version from before release {BASE}, and nothing migrates them. Let "
            f"that version finish the work in them, then {remove} and run `holdfast migrate`."
        )


def _beside_workers(
    stored: StoredSchema,
    steps: Sequence[tuple[Migration, Direction]],
    dialect: Dialect,
    schema: str,
    overruled: Callable[[str], object] | None,
) -> Guard | None:
    """Refuse the first of these steps if live workers could not continue after all of them, or say what they cannot
    continue after. Nobody registers while it is under way."""
    if stored.version == 0:
        return None
    migration, direction = steps[0]

    def judge(rows: Sequence[Any]) -> None:
        codes = [(*row[:2], UNKNOWN_CODE if row[2] is None else row[2]) for row in rows]
        for step in steps if overruled is None else steps[:1]:  # what is forced is said where it happens
            unfit = [f"{id} on {host}" for id, host, code in codes if _is_unfit(code, *step)]
            if unfit and overruled is None:
                raise MigrationRefused(f"{_reason(unfit, *step)} {_REMEDY}")
            if unfit and overruled is not None:
                overruled(f"{_reason(unfit, *step)} --force ignores that: replace them now.")

    locked = locks(migration, direction, schema, guarded=True) if dialect == "postgres" else []
    return Guard(locked, in_schema(_LIVE, dialect, schema), judge)


def _is_unfit(code: int, migration: Migration, direction: Direction) -> bool:
    return code < migration.oldest_code if direction == "up" else code >= migration.number


def _reason(unfit: Sequence[str], migration: Migration, direction: Direction) -> str:
    step = f"{direction} {migration.number:04} {migration.name}"
    names = ", ".join(unfit[:3]) + (f" and {len(unfit) - 3} more" if len(unfit) > 3 else "")
    needs = f"{migration.oldest_code} or newer" if direction == "up" else f"{migration.number - 1} or older"
    return f"step {step} leaves tables for code of schema {needs}, and workers of other code are alive: {names}."


def _read(file: str, text: str) -> Migration:
    match = _FILE.fullmatch(file)
    oldest = _OLDEST.search(text)
    if match is None or oldest is None or "-- up\n" not in text or "-- down\n" not in text:
        raise ValueError(f"migration {file} needs a name like 0001_jobs.sqlite.sql, oldest_code, up and down")
    up, down = text.split("-- up\n")[1].split("-- down\n")
    return Migration(int(match["number"]), match["name"], int(oldest[1]), _uncomment(up), _uncomment(down))


def _uncomment(script: str) -> str:
    return re.sub(r"^\s*--.*\n", "", script, flags=re.M)
