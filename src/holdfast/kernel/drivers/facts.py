"""What a database says about itself: versions, durability, room. Asked for `holdfast doctor`, judged elsewhere."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import NamedTuple

from holdfast.clock import Ports
from holdfast.kernel.database import Database, Transaction
from holdfast.kernel.drivers.filesystems import MOUNTS, filesystem_of
from holdfast.kernel.statements import Jobs

_ROUND_TRIP_SECONDS = 5.0

_SERVER = """
select current_setting('server_version') as version, current_setting('fsync') = 'on' as fsync,
    current_setting('synchronous_commit') as synchronous_commit,
    current_setting('full_page_writes') = 'on' as full_page_writes, current_setting('autovacuum') = 'on' as autovacuum,
    cast(current_setting('max_connections') as integer) as max_connections,
    cast(current_setting('superuser_reserved_connections') as integer)
        + cast(coalesce(nullif(current_setting('reserved_connections', true), ''), '0') as integer) as reserved,
    (select cast(sum(numbackends) as integer) from pg_stat_database) as used,
    current_user as role, pg_get_userbyid(c.relowner) as owner, pg_has_role(current_user, c.relowner, 'USAGE') as owns,
    s.n_live_tup as live, s.n_dead_tup as dead,
    (select cast(max(extract(epoch from statement_timestamp() - a.xact_start)) as bigint) from pg_stat_activity a
        where a.pid <> pg_backend_pid()) as longest_transaction
from pg_class c join pg_stat_all_tables s on s.relid = c.oid
where c.oid = to_regclass($1)
"""


# Of those ahead in a queue for a lock, the one that does not wait itself is the cause.
_BLOCKERS = """
select b.pid, b.application_name as name, coalesce(b.usename, '?') as role, coalesce(b.state, '?') as state,
    cast(extract(epoch from clock_timestamp() - b.xact_start) as bigint) as open_for,
    count(distinct w.pid) as waiting,
    cast(extract(epoch from clock_timestamp() - min(w.query_start)) as bigint) as longest
from pg_stat_activity w
    cross join lateral unnest(pg_blocking_pids(w.pid)) as ahead (pid)
    join pg_stat_activity b on b.pid = ahead.pid and b.wait_event_type is distinct from 'Lock'
where w.datname = current_database() and w.wait_event_type = 'Lock' and w.application_name like 'holdfast %'
    and w.query_start < clock_timestamp() - interval '1 second'
group by b.pid, b.application_name, b.usename, b.state, b.xact_start
order by b.xact_start
"""


class Blocker(NamedTuple):
    """A session that others of Holdfast wait for."""

    pid: int
    name: str
    role: str
    state: str
    open_for: int | None  # seconds of its transaction, if this role may know
    waiting: int
    longest: int  # seconds that the first of them has waited in its present statement


class ServerFacts(NamedTuple):
    """A PostgreSQL server, as this role may see it."""

    version: str
    fsync: bool
    synchronous_commit: str
    full_page_writes: bool
    autovacuum: bool
    max_connections: int
    reserved: int
    used: int
    role: str
    owner: str
    owns: bool
    live: int  # rows of the job table
    dead: int
    longest_transaction: int | None  # seconds
    pooled: bool
    ahead_us: int  # how far its clock is before ours
    doubt_us: int  # half of how long the answer took
    hint_seconds: float | None  # until a hint came back; None: it did not


class FileFacts(NamedTuple):
    """A SQLite file and what is under it."""

    version: str
    journal_mode: str
    synchronous: int
    filesystem: str
    size: int
    free: int  # bytes left on its disk


async def facts(database: Database, ports: Ports) -> ServerFacts | FileFacts | None:
    """What an open database says about itself; None when there is nothing to ask, as in memory."""
    if database.dialect == "sqlite":
        return await _file(database)
    return await _server(database, ports)


async def blockers(database: Database) -> list[Blocker]:
    """Who keeps sessions of Holdfast waiting for a lock. It reads none of the tables that may be locked."""
    from asyncpg import PostgresError

    from holdfast.kernel.drivers.postgres import PostgresDatabase
    from holdfast.kernel.drivers.postgres_errors import AWAY, typed

    if not isinstance(database, PostgresDatabase):
        return []
    try:
        async with database.connection() as connection:
            return [Blocker(*row) for row in await connection.fetch(_BLOCKERS)]
    except (PostgresError, *AWAY) as problem:
        raise typed(database.url, problem) from problem


async def _file(database: Database) -> FileFacts | None:
    from holdfast.kernel.drivers.sqlite import SqliteDatabase

    if not isinstance(database, SqliteDatabase) or database.path == ":memory:":
        return None
    return FileFacts(*await database.describe(), *_under(Path(database.path)))


def _under(path: Path) -> tuple[str, int, int]:
    """The file system a file is on, the file's size, and how much more the disk can take."""
    whole = path.resolve()
    mounts = MOUNTS.read_text() if MOUNTS.exists() else ""
    return filesystem_of(whole.parent, mounts), whole.stat().st_size, shutil.disk_usage(whole.parent).free


async def _server(database: Database, ports: Ports) -> ServerFacts | None:
    from asyncpg import PostgresError

    from holdfast.kernel.drivers.postgres import PostgresDatabase
    from holdfast.kernel.drivers.postgres_errors import AWAY, typed

    if not isinstance(database, PostgresDatabase):
        return None
    try:
        async with database.connection() as connection:
            row = await connection.fetchrow(_SERVER, f"{database.settings.schema}.job")
            before = ports.clock.wall_us()
            there = await connection.fetchval(f"select {database.settings.schema}.now_us()")
            after = ports.clock.wall_us()
    except (PostgresError, *AWAY) as problem:
        raise typed(database.url, problem) from problem
    return ServerFacts(
        **dict(row),
        pooled=not database.direct,
        ahead_us=there - (before + after) // 2,
        doubt_us=(after - before) // 2,
        hint_seconds=await _round_trip(database, ports) if database.direct else None,
    )


async def _round_trip(database: Database, ports: Ports) -> float | None:
    """How long a hint takes from a commit to a listener; no worker heeds this one."""
    heard = asyncio.Event()
    word = f"doctor-{ports.random.getrandbits(32):x}"
    await database.listen(lambda note: heard.set() if word in note else None)
    begun = ports.clock.monotonic()
    await database.transact(_send, word)
    try:
        async with asyncio.timeout(_ROUND_TRIP_SECONDS):
            await heard.wait()
    except TimeoutError:
        return None
    return ports.clock.monotonic() - begun


async def _send(tx: Transaction, word: str) -> None:
    await tx.run(Jobs.hint_routes, routes=word)
