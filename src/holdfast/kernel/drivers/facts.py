"""What a database says about itself: versions, durability, room, and how it would run a statement.

Asked for `holdfast doctor` and `holdfast sql`, judged elsewhere.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.clock import Ports
from holdfast.errors import HoldfastError
from holdfast.kernel.database import Database
from holdfast.kernel.drivers.errors import raise_as
from holdfast.kernel.drivers.postgres_vacuum import MAY_VACUUM
from holdfast.kernel.drivers.sqlite_file import MOUNTS, filesystem_of
from holdfast.kernel.sql import Rendered

if TYPE_CHECKING:
    from holdfast.kernel.drivers.postgres import PostgresDatabase

_ROUND_TRIP_SECONDS = 5.0

_SERVER = f"""
select current_setting('server_version') as version, current_setting('fsync') = 'on' as fsync,
    current_setting('synchronous_commit') as synchronous_commit,
    current_setting('full_page_writes') = 'on' as full_page_writes, current_setting('autovacuum') = 'on' as autovacuum,
    cast(current_setting('max_connections') as integer) as max_connections,
    cast(current_setting('superuser_reserved_connections') as integer)
        + cast(coalesce(nullif(current_setting('reserved_connections', true), ''), '0') as integer) as reserved,
    (select cast(sum(numbackends) as integer) from pg_stat_database) as used,
    current_user as role, pg_get_userbyid(c.relowner) as owner, {MAY_VACUUM} as may_vacuum,
    s.relname as table, s.n_live_tup as live, s.n_dead_tup as dead, pg_notification_queue_usage() as hint_queue
from pg_class c join pg_stat_user_tables s on s.relid = c.oid
where s.schemaname = $1 and s.relname = any($2::text[])
order by s.n_dead_tup desc, s.relname limit 1
"""
_TABLES = ("ready", "later", "lease", "ended", "job", "attempt")

# Who needs what has died since: a session, a slot of a replica, or a transaction that was prepared and left alone. How
# old a session's snapshot is, every role may know.
_HORIZON = """
select h.holder, h.transactions, h.seconds from (
    select format('session %s (%s, role %s, %s)', a.pid, coalesce(nullif(a.application_name, ''), 'without a name'),
            coalesce(a.usename, '?'), coalesce(a.state, '?')) as holder,
        greatest(age(a.backend_xmin), age(a.backend_xid)) as transactions,
        cast(extract(epoch from clock_timestamp() - a.xact_start) as bigint) as seconds
    from pg_stat_activity a
    where a.pid <> pg_backend_pid() and (a.backend_xmin is not null or a.backend_xid is not null)
        and (a.datname is null or a.datname = current_database()) and a.backend_type <> 'autovacuum worker'
    union all
    select format('replication slot %s', r.slot_name), age(r.xmin), null from pg_replication_slots r
    where r.xmin is not null
    union all
    select format('prepared transaction %s', p.gid), age(p.transaction),
        cast(extract(epoch from clock_timestamp() - p.prepared) as bigint) from pg_prepared_xacts p
    where p.database = current_database()
) as h order by h.transactions desc, h.seconds desc nulls last limit 1
"""

# The server is here if the connection has the same address at both ends, or none.
_FOLDER = """
select case when inet_server_addr() is not distinct from inet_client_addr() then current_setting('data_directory') end
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


class Horizon(NamedTuple):
    """Who has the oldest snapshot: nothing that died since can be vacuumed."""

    holder: str
    transactions: int  # begun since
    seconds: int | None  # None: it does not say


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
    may_vacuum: bool
    table: str  # the one of ours with the most dead rows
    live: int
    dead: int
    pooled: bool
    ahead_us: int  # how far its clock is before ours
    doubt_us: int  # half of how long the answer took
    hint_seconds: float | None  # until a hint came back; None: it did not
    hint_queue: float = 0.0  # how full the server's queue of notifications is, from 0 to 1
    free: int | None = None  # bytes left on its disk; None: it is on another machine, or does not say
    horizon: Horizon | None = None


class FileFacts(NamedTuple):
    """A SQLite file and what is under it."""

    version: str
    journal_mode: str
    synchronous: int
    filesystem: str
    size: int
    free: int  # bytes left on its disk
    wal: int = 0  # bytes of its write-ahead log


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
        raise_as(typed(database.url, problem), problem)


async def plan_of(database: Database, rendered: Rendered) -> list[str]:
    """How an open database would run a statement whose values it does not know. It runs nothing."""
    from holdfast.kernel.drivers.sqlite import SqliteDatabase

    if isinstance(database, SqliteDatabase):
        return await database.explain(rendered)
    return await _plan_on_server(database, rendered)


async def _plan_on_server(database: Database, rendered: Rendered) -> list[str]:
    from asyncpg import PostgresError

    from holdfast.kernel.drivers.postgres import PostgresDatabase
    from holdfast.kernel.drivers.postgres_errors import AWAY, typed

    assert isinstance(database, PostgresDatabase)
    nulls = ", ".join("null" for _ in rendered.parameters)
    try:
        async with database.connection() as connection, connection.transaction():
            await connection.execute("set local plan_cache_mode = force_generic_plan")
            await connection.execute(f"prepare holdfast_plan as {rendered.texts[0]}")
            try:
                async with connection.transaction():  # after an error, only its own statements are refused
                    lines = await connection.fetch(f"explain execute holdfast_plan{f'({nulls})' if nulls else ''}")
            finally:
                await connection.execute("deallocate holdfast_plan")
    except (PostgresError, *AWAY) as problem:
        raise_as(typed(database.url, problem), problem)
    return [line[0] for line in lines]


async def _file(database: Database) -> FileFacts | None:
    from holdfast.kernel.drivers.sqlite import SqliteDatabase
    from holdfast.kernel.drivers.sqlite_file import wal_size

    if not isinstance(database, SqliteDatabase) or database.path == ":memory:":
        return None
    return FileFacts(*await database.describe(), *_under(Path(database.path)), wal_size(database.path))


def free_space(database: Database) -> int | None:
    """Bytes left on the disk of a file that may not even be open; None where there is no file."""
    from holdfast.kernel.drivers.sqlite import SqliteDatabase

    if not isinstance(database, SqliteDatabase) or database.path == ":memory:":
        return None
    try:
        return shutil.disk_usage(Path(database.path).resolve().parent).free
    except OSError:
        return None


async def open_alone(database: Database) -> bool:
    """Open a file whose disk has no room for what processes share; False if this is another file, or it is in use."""
    from holdfast.kernel.drivers.sqlite import SqliteDatabase

    if not isinstance(database, SqliteDatabase) or database.path == ":memory:":
        return False
    database.alone = True
    try:
        await database.open()
    except HoldfastError:
        database.alone = False
        return False
    return True


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
            row = await connection.fetchrow(_SERVER, database.settings.schema, list(_TABLES))
            oldest = await connection.fetchrow(_HORIZON)
            before = ports.clock.wall_us()
            there = await connection.fetchval(f"select {database.settings.schema}.now_us()")
            after = ports.clock.wall_us()
            folder = await _data_folder(connection)
    except (PostgresError, *AWAY) as problem:
        raise_as(typed(database.url, problem), problem)
    return ServerFacts(
        **dict(row),
        pooled=not database.direct,
        ahead_us=there - (before + after) // 2,
        doubt_us=(after - before) // 2,
        hint_seconds=await _round_trip(database, ports) if database.direct else None,
        free=_free_under(folder),
        horizon=Horizon(*oldest) if oldest is not None else None,
    )


async def _data_folder(connection: Any) -> str | None:
    """Where a server on this machine keeps its data, if this role may know."""
    from asyncpg import InsufficientPrivilegeError

    try:
        folder: str | None = await connection.fetchval(_FOLDER)
    except InsufficientPrivilegeError:
        return None
    return folder


def _free_under(folder: str | None) -> int | None:
    try:
        return None if folder is None else shutil.disk_usage(folder).free
    except OSError:
        return None


async def _round_trip(database: PostgresDatabase, ports: Ports) -> float | None:
    """How long a hint takes from a commit to a listener; no worker reacts to this one.

    It comes from a connection of its own, as from another process: of ours the listener hears without the server.
    """
    heard = asyncio.Event()
    word = f"doctor-{ports.random.getrandbits(32):x}"

    def listener(note: str) -> None:
        if word in note:
            heard.set()

    await database.listen(listener)
    elsewhere = await database.dial_direct("visit")
    try:
        begun = ports.clock.monotonic()
        await elsewhere.execute(f"select {database.settings.schema}.hint('route {word}')")
        async with asyncio.timeout(_ROUND_TRIP_SECONDS):
            await heard.wait()
        return ports.clock.monotonic() - begun
    except TimeoutError:
        return None
    finally:
        database.unlisten(listener)
        elsewhere.terminate()
