"""PostgreSQL through asyncpg: statements over a few connections, hints by NOTIFY, presence by a session lock.

An operation marked `single` is one statement and commits by itself. Behind a transaction pooler nothing may
depend on the session: every operation is an explicit transaction, nothing is prepared, hints and presence are off.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from asyncpg import exceptions as pg

from holdfast.clock import Ports
from holdfast.errors import StoreBusy, StoreUnfit
from holdfast.kernel import epoch, migrate
from holdfast.kernel.database import (
    CROWD,
    Announcement,
    BlockingStore,
    Guard,
    Operation,
    Owner,
    StoredSchema,
    bounds_now,
    is_single,
    is_urgent,
    merged,
)
from holdfast.kernel.drivers.addresses import server_of
from holdfast.kernel.drivers.errors import raise_as
from holdfast.kernel.drivers.postgres_errors import AWAY, BUSY, CONFLICT, typed
from holdfast.kernel.drivers.postgres_pool import Connection, ConnectionPool, PooledConnection, dial, hang_up, visiting
from holdfast.kernel.drivers.postgres_processes import SEND, PostgresPresence, Sender
from holdfast.kernel.drivers.postgres_transaction import BoundedUse, PostgresTransaction
from holdfast.kernel.drivers.postgres_vacuum import Vacuum
from holdfast.kernel.sql import Dialect, Rendered, Statement, catalogue
from holdfast.kernel.statements import GROUPS
from holdfast.settings import Settings

# What a server shows of each connection in `pg_stat_activity`: who opened it, and for what.


_LONGEST = 63  # bytes; the server cuts what is longer, and the end is what tells connections apart


def named(owner: str, use: str) -> str:
    """`holdfast <owner> <use>`, such as `holdfast web-1 heartbeat`, of at most 63 bytes and plain characters."""
    plain = owner.encode("ascii", "replace").decode()
    printable = "".join(sign if sign.isprintable() else "?" for sign in plain)
    return f"holdfast {printable[: _LONGEST - len('holdfast  ') - len(use)]} {use}"


def program() -> str:
    """This process, as long as no worker has introduced itself: the program, or the command of ours that runs."""
    path = Path(sys.argv[0] if sys.argv else "")
    name = path.parent.name if path.stem == "__main__" else path.name
    if name == "holdfast" and len(sys.argv) > 1 and sys.argv[1].isalpha():
        return sys.argv[1]
    return name or "python"


P = ParamSpec("P")
R = TypeVar("R")

OLDEST_SERVER = 140_000
_CONFLICT_TRIES = 3
_CACHED_STATEMENTS = 200
_MIGRATION_LOCK = 5_073_114
# While a migration waits for a table, all others wait behind it. At first it gives up before the server looks for
# deadlocks, so that nobody else is made to; later it waits longer than that, when the server ends an autovacuum for it.
_MIGRATION_TRIES = 12
_MIGRATION_WAIT = 0.2  # seconds, doubled with each try
_MIGRATION_LAST_WAIT = 4.0
_KEPT_OUT = (
    "a migration of PostgreSQL at {} did not get its locks in {} tries ({}); nothing was changed. Look in "
    "pg_stat_activity for long transactions, a dump or a vacuum, wait for them or drain the workers, then run "
    "`holdfast migrate` again."
)

log = logging.getLogger("holdfast.postgres")

_FACTS = """
select pg_backend_pid() as pid, cast(current_setting('server_version_num') as integer) as version,
    current_setting('synchronous_commit') as synchronous_commit, current_setting('fsync') as fsync,
    pg_is_in_recovery() as standby
"""
# A cached plan outlives the empty tables it was made for, where scanning them was right. The price that this puts on
# the scans that remain (of tables with one row) must not make the server compile them. Every statement has one plan
# that is right for all its values, and planning takes longer than most of them run: so each is planned once.
_SESSION = """
set default_transaction_isolation = 'read committed'; set enable_seqscan = off; set jit = off;
set plan_cache_mode = force_generic_plan;
set idle_in_transaction_session_timeout = {frozen_ms};
"""
_LIMITS = "set {scope} lock_timeout = {lock_ms}; set {scope} statement_timeout = {statement_ms}"
_BEGIN = "begin isolation level read committed{kind}; "
# The control file's timeline is stale right after a promotion; the name of the current WAL file is not.
_IDENTITY = """
select system_identifier || ' timeline ' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)
from pg_control_system()
"""


class PostgresDatabase:
    dialect: Dialect = "postgres"

    def __init__(
        self,
        url: str,
        settings: Settings,
        ports: Ports,
        layers: Sequence[Owner] = (),
        *,
        owner: str = "",
        use: str = "statements",
    ) -> None:
        self.url = url
        self.settings = settings
        self.chance = ports.random
        self._owner = owner or program()
        self._use = use
        self.direct = False  # no pooler between: sessions are ours
        self.verifies = True  # on each new connection, that this code may still use the tables
        self._ports = ports
        self._layers = layers
        self._statements: Mapping[Statement, Rendered] = {}
        self._pool: ConnectionPool | None = None
        self._patience = settings.call_patience
        self._limits = _limits(settings.lock_patience, settings.statement_patience)
        for_web = min(settings.statement_patience, settings.web_patience.total_seconds())
        self.web_limits = _limits(for_web, for_web)
        self._opening = asyncio.Lock()
        self._reconnected_at: float | None = None
        self._lost_once = False
        self._listening: asyncio.Task[None] | None = None
        self.hears = False  # the listening connection is there, as far as anybody knows
        self.presence = PostgresPresence(self, settings.schema, settings.presence_quiet.total_seconds())
        self._heard: list[Callable[[str], None]] = []
        self._channel = f"{settings.schema}.hint"
        self._sender = Sender(self._channel, self._send)
        self._bounded = BoundedUse(self)
        self._vacuum = Vacuum(settings.schema, ports.clock)
        self._mouths: set[int] = set()  # server processes that send hints of ours, while our connection to them lives

    @property
    def crowd(self) -> float:
        return CROWD if self.hears else math.inf

    def introduce(self, owner: str) -> None:
        self._owner = owner

    async def connect(self) -> None:
        """Migrations dial for themselves, past the pooler."""

    async def open(self) -> None:
        async with self._opening:
            if self._pool is not None:
                return
            self._statements = catalogue(GROUPS, "postgres", self.settings.schema)
            try:
                stored = await self._examine()
                if self.settings.direct_url:
                    stored = await self.stored_schema()
                migrate.verify(stored, "postgres", f"PostgreSQL at {server_of(self.url)}")
                self._pool = ConnectionPool(self._connect, self.settings.connections, self._patience)
                if not self.direct:
                    async with self._pool.line() as line:
                        await self._note_identity(line)
            except Exception as problem:  # noqa: BLE001  it is raised again, under a name of ours
                self._pool = None
                raise_as(typed(self.url, problem), problem)

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
            self._listening = None
        self._heard.clear()
        await self._sender.close()
        await self.presence.close()
        await self._bounded.close()
        if self._pool is not None:
            await self._pool.close()
            self._pool = None

    async def transact(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._ports.watching(operation):
            return await self._insist(operation, args, kwargs)

    async def _insist(self, operation: Callable[..., Awaitable[R]], args: Any, kwargs: Any) -> R:
        clock = self._ports.clock
        patience = clock.monotonic() + self.settings.store_patience.total_seconds()
        conflicts, pause = 0, 0.02
        while True:
            try:
                return await self._attempt(operation, args, kwargs)
            except CONFLICT as problem:
                conflicts += 1
                if conflicts >= _CONFLICT_TRIES:
                    raise_as(typed(self.url, problem), problem)
            except BUSY as problem:
                if clock.monotonic() >= patience:
                    raise_as(typed(self.url, problem), problem)
            except AWAY as problem:
                self._lost_once = True
                if clock.monotonic() >= patience:
                    raise_as(typed(self.url, problem), problem)
            except pg.PostgresError as problem:
                raise_as(typed(self.url, problem), problem)
            left = max(0.0, patience - clock.monotonic())
            await clock.sleep(min(left, pause * (0.5 + self.chance.random() / 2)))
            pause = min(pause * 2, self.settings.reconnect_cap.total_seconds())

    def blocking(self) -> BlockingStore:
        return PostgresBlocking(self.url, self.settings, self._ports, self._layers, self._owner)

    async def listen(self, heard: Callable[[str], None]) -> None:
        if not self.direct:
            log.warning(
                "a transaction pooler is between: no wake-ups and no presence; polling every %s finds work. "
                "Give this worker a URL that bypasses the pooler to have both.",
                self.settings.poll_interval,
            )
            return
        self._heard.append(heard)
        if self._listening is None:
            ready = asyncio.Event()
            self._listening = asyncio.create_task(self._listen(ready), name="listener")
            await ready.wait()

    def unlisten(self, heard: Callable[[str], None]) -> None:
        self._heard = [other for other in self._heard if other != heard]

    def _on_hint(self, note: str) -> None:
        for heard in self._heard:
            heard(note)

    def _on_notify(self, sender: int, note: str) -> None:
        """Our own hints were heard here when they were posted."""
        if sender not in self._mouths:
            self._on_hint(note)

    def post(self, tx: PostgresTransaction) -> None:
        """What a transaction has to tell, now that it has committed: here at once, elsewhere soon."""
        if tx.hints or tx.announcements:
            self._sender.post(tx.hints, tx.announcements)
            for note in merged(tx.hints):
                self._on_hint(note)

    async def _send(self, notes: Sequence[Announcement]) -> None:
        async with (await self.pool()).line() as line:
            self._remember_mouth(line.connection)
            words = [note.channel for note in notes], [note.payload for note in notes]
            if self.direct:
                await line.connection.fetch(SEND, *words)
                return
            async with self.transaction(line.connection):
                await line.connection.fetch(SEND, *words)

    def _remember_mouth(self, connection: Connection) -> None:
        """Until the connection closes: the server may give its process's number to somebody else's then."""
        sender: int = connection.get_server_pid()
        if sender not in self._mouths:
            self._mouths.add(sender)
            connection.add_termination_listener(lambda _: self._mouths.discard(sender))

    async def flush(self) -> None:
        """Wait until the hints of committed changes are sent, but not for long."""
        await self._sender.flush()

    async def script(self, statements: Sequence[str], *, at: int | None, guard: Guard | None = None) -> bool:
        tries, wait = 0, _MIGRATION_WAIT
        while True:
            try:
                return await self._script(statements, at, guard, wait)
            except (*CONFLICT, pg.LockNotAvailableError) as problem:
                tries += 1
                if tries >= _MIGRATION_TRIES:
                    raise StoreBusy(_KEPT_OUT.format(server_of(self.url), tries, problem)) from problem
            except (pg.PostgresError, *AWAY) as problem:
                raise_as(typed(self.url, problem), problem)
            await self._ports.clock.sleep(wait * (0.5 + self.chance.random() / 2))
            wait = min(wait * 2, _MIGRATION_LAST_WAIT)

    async def _script(self, statements: Sequence[str], at: int | None, guard: Guard | None, wait: float) -> bool:
        """Try it once, and wait so many seconds for each lock."""
        connection = await self.dial_direct("migration")  # no other limits: it may take as long as it takes
        try:
            async with connection.transaction():
                await connection.execute(f"select pg_advisory_xact_lock({_MIGRATION_LOCK})")
                stored = await self._stored_schema(connection)
                if at != (stored and stored.version):
                    return False
                await connection.execute(f"set local lock_timeout = {round(wait * 1_000)}")
                if guard is not None:
                    for lock in guard.locks:
                        await connection.execute(lock)
                    guard.judge(await connection.fetch(guard.question))
                for statement in statements:
                    await connection.execute(statement)
                return True
        finally:
            await hang_up(connection)

    async def tidy(self, after: int) -> bool:
        limits = self._limits.format(scope="") if self.direct else None
        try:
            async with (await self.pool()).line() as line:
                return await self._vacuum.tidy(line, after, limits=limits)
        except (pg.PostgresError, *AWAY) as problem:
            raise_as(typed(self.url, problem), problem)

    async def stored_schema(self) -> StoredSchema | None:
        async with visiting(await self.dial_direct("visit"), self._patience) as connection:
            await connection.execute(self._limits.format(scope="local"))
            return await self._stored_schema(connection)

    async def _stored_schema(self, connection: Connection) -> StoredSchema | None:
        name = f"{self.settings.schema}.schema"
        if await connection.fetchval("select to_regclass($1)", name) is None:
            return None
        version, oldest, base = await connection.fetchrow(
            f"select version, oldest_code, to_jsonb(stored) ->> 'base' from {name} stored"
        )
        remove = f"drop its schema (`drop schema {self.settings.schema} cascade`)"
        migrate.check_base(base, f"PostgreSQL at {server_of(self.url)}", remove)
        return StoredSchema(version, oldest)

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        async with (await self.pool()).line() as line:
            yield line.connection

    async def pool(self) -> ConnectionPool:
        """The connections for all that knows no bounds."""
        if self._pool is None:
            await self.open()
        assert self._pool is not None
        return self._pool

    async def dial_direct(self, use: str) -> Connection:
        """A connection outside the pool, past the pooler if a direct URL is set."""
        try:
            return await self.dial(self.settings.direct_url or self.url, use)
        except (pg.PostgresError, ValueError, *AWAY) as problem:
            raise_as(typed(self.url, problem), problem)

    def now(self) -> float:
        return self._ports.clock.monotonic()

    def seconds_since_reconnect(self) -> float:
        if self._reconnected_at is None:
            return float("inf")
        return self._ports.clock.monotonic() - self._reconnected_at

    async def _attempt(self, operation: Callable[..., Awaitable[R]], args: Any, kwargs: Any) -> R:
        bounds = bounds_now()
        if bounds is not None:
            return await self._bounded.attempt(bounds, operation, args, kwargs)
        async with (self._pool or await self.pool()).line(urgent=is_urgent()) as line:
            tx = self.transaction_on(line)
            if self.direct and is_single(operation):
                answer = await operation(tx, *args, **kwargs)
            else:
                async with self.transaction(line.connection):
                    answer = await operation(tx, *args, **kwargs)
        self.post(tx)
        return answer

    def transaction_on(self, line: PooledConnection) -> PostgresTransaction:
        return PostgresTransaction(line, self._statements, self._layers)

    @contextlib.asynccontextmanager
    async def transaction(self, connection: Connection, *, reads: bool = False) -> AsyncIterator[None]:
        if self.direct:
            async with connection.transaction(isolation="read_committed", readonly=reads):
                yield
            return
        # Behind a pooler the session is not ours: the limits go with the transaction, in the same round trip.
        limits = self.web_limits if reads else self._limits
        await connection.execute(_BEGIN.format(kind=" read only" if reads else "") + limits.format(scope="local"))
        try:
            yield
        except Exception:
            with contextlib.suppress(pg.PostgresError, *AWAY):  # what is still open is closed with its connection
                await connection.execute("rollback")
            raise
        await connection.execute("commit")

    @property
    def cached(self) -> int:
        """How many statements a connection remembers."""
        return _CACHED_STATEMENTS if self.direct else 0

    async def _connect(self) -> Connection:
        connection = await self.dial(self.url, self._use, cached_statements=self.cached)
        if self._lost_once:
            self._lost_once = False
            self._reconnected_at = self._ports.clock.monotonic()
        if self.direct:
            line = PooledConnection(connection, self._patience)
            try:
                await self._prepare(line)
                await self.verify(line)
            except BaseException:
                connection.terminate()
                raise
            finally:
                line.rest()
        return connection

    async def dial(self, url: str, use: str, *, cached_statements: int = 0) -> Connection:
        return await dial(url, self._name(use), cached_statements=cached_statements, within=self._patience)

    def _name(self, use: str) -> str:
        return named(self._owner, use)

    @property
    def session(self) -> str:
        """What each session of ours begins with."""
        # One that is frozen in a transaction must release its rows before its leases end: others rescue them then.
        return _SESSION.format(frozen_ms=round(self._patience * 1_000))

    async def _prepare(self, line: PooledConnection) -> None:
        line.ask()
        await line.connection.execute(self.session + self._limits.format(scope=""))
        if self.settings.profile == "fast":
            await line.connection.execute("set synchronous_commit = off")
        await self._note_identity(line)

    async def verify(self, line: PooledConnection) -> None:
        """Somebody may have migrated the tables since they were verified first."""
        if self.verifies:
            line.ask()
            stored = await self._stored_schema(line.connection)
            migrate.verify(stored, "postgres", f"PostgreSQL at {server_of(self.url)}")

    async def _note_identity(self, line: PooledConnection) -> None:
        try:
            async with line.connection.transaction():
                identity = await line.connection.fetchval(_IDENTITY)
                await epoch.adopt(PostgresTransaction(line, self._statements), identity)
        except (pg.InsufficientPrivilegeError, pg.FeatureNotSupportedError, pg.ObjectNotInPrerequisiteStateError):
            log.warning("cannot read the server's identity; run `holdfast epoch bump` after a failover or restore")

    async def _examine(self) -> StoredSchema | None:
        """Learn what is at the other end, and refuse what cannot keep the promises. Returns the schema found there."""
        async with visiting(await self.dial(self.url, "visit"), self._patience) as connection:
            facts = await connection.fetchrow(_FACTS)
            self.direct = not self.settings.pooler and facts["pid"] == connection.get_server_pid()
            self._refuse_unfit(facts)
            await connection.execute(self._limits.format(scope="local"))
            return await self._stored_schema(connection)

    def _refuse_unfit(self, facts: Mapping[str, Any]) -> None:
        place = server_of(self.url)
        if facts["version"] < OLDEST_SERVER:
            raise StoreUnfit(f"PostgreSQL at {place} is older than 14, which Holdfast needs.")
        if facts["standby"]:
            raise StoreUnfit(f"PostgreSQL at {place} is a standby and accepts no writes; point the URL at the primary.")
        if facts["fsync"] != "on" or (self.settings.profile == "full" and facts["synchronous_commit"] == "off"):
            log.warning(
                "PostgreSQL at %s has fsync=%s and synchronous_commit=%s: a crash of its host can lose accepted work",
                place,
                facts["fsync"],
                facts["synchronous_commit"],
            )

    async def _listen(self, ready: asyncio.Event) -> None:
        """Keep one connection listening; after every gap say "", because hints may have been missed."""
        pause = 0.05
        while True:
            try:
                async with self.connection() as connection:
                    assert self._pool is not None
                    self._pool.listening = connection
                    closed = asyncio.Event()
                    connection.add_termination_listener(lambda _, event=closed: event.set())
                    await connection.execute("select set_config('application_name', $1, false)", self._name("listen"))
                    await connection.add_listener(self._channel, lambda *call: self._on_notify(call[1], call[3]))
                    listening = connection
                pause = 0.05
                ready.set()
                self.hears = True
                self._on_hint("")
                if not listening.is_closed():
                    await closed.wait()
                self._lost_once = True
            except (pg.PostgresError, *AWAY) as problem:
                log.debug("the listener lost its connection: %s", problem)
            finally:
                self.hears = False
            await self._ports.clock.sleep(pause * (0.5 + self.chance.random() / 2))
            pause = min(pause * 2, self.settings.reconnect_cap.total_seconds())


def _limits(lock: float, statement: float) -> str:
    """How many seconds a statement waits for a lock, and may take; with a place for their scope."""
    lock_ms, statement_ms = (max(1, round(seconds * 1_000)) for seconds in (lock, statement))
    return _LIMITS.format(scope="{scope}", lock_ms=lock_ms, statement_ms=statement_ms)


class PostgresBlocking:
    """The heartbeat thread's own loop and connection, so that a blocked event loop cannot hold it up."""

    def __init__(self, url: str, settings: Settings, ports: Ports, layers: Sequence[Owner], owner: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._database = PostgresDatabase(url, settings, ports, layers, owner=owner, use="heartbeat")
        self._database.verifies = False  # a worker that has become too old must still hear so, and end what it holds

    def open(self) -> None:
        self.call(epoch.read)  # whose connection stays open

    def call(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._loop.run_until_complete(self._call(operation, *args, **kwargs))

    async def _call(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        answer = await self._database.transact(operation, *args, **kwargs)
        await self._database.flush()  # this loop stands still until the next call
        return answer

    def close(self) -> None:
        self._loop.run_until_complete(self._database.close())
        self._loop.close()
