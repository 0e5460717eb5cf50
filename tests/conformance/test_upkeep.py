"""Upkeep: dead rows are cleared away before they slow the claim."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from urllib.parse import urlsplit

import psycopg
import pytest

from holdfast.clock import Ports
from holdfast.kernel.drivers.facts import ServerFacts, facts
from holdfast.kernel.drivers.postgres import PostgresDatabase
from holdfast.kernel.queries import now
from holdfast.outcomes import Done
from holdfast.settings import Settings
from tests.support.stores import Store

ON_POSTGRES = pytest.mark.parametrize("dialect", ["postgres"], indirect=True)
# A database of its own: what other tests left open in a shared one would keep its dead rows.
pytestmark = pytest.mark.usefixtures("place")
MOVING = ("lease", "ready")  # every job leaves a dead row in each


async def dead(store: Store) -> dict[str, int]:
    rows = await store.query(
        "select relname::text, n_dead_tup from pg_stat_user_tables where relname in ('lease', 'ready') order by 1"
    )
    return {str(table): int(number) for table, number in rows}


async def until_dead(store: Store, least: int) -> None:
    """A session tells what it counted a second later at the earliest, when it is used again."""
    while min((await dead(store)).values()) < least:
        await asyncio.sleep(0.05)
        await store.do(now)


async def until_cleared(store: Store) -> None:
    """Another session may report after the vacuum what it deleted before it, and the rows count as dead once more."""
    while max((await dead(store)).values()) > 0:
        await asyncio.sleep(0.05)
        await store.advance("10s")
        await store.database.tidy(1)


async def run_jobs(store: Store, n: int) -> None:
    worker = await store.worker()
    for _ in range(n):
        await store.enqueue()
    for lease in await store.claim(worker, n):
        await store.end(lease, Done())


async def unwatched(store: Store) -> None:
    """Nobody but the test vacuums."""
    for table in MOVING:
        await store.query(f"alter table holdfast.{table} set (autovacuum_enabled = off)")


@ON_POSTGRES
async def test_dead_rows_are_vacuumed_when_there_are_enough(store: Store) -> None:
    await unwatched(store)
    await run_jobs(store, 50)
    await until_dead(store, 50)
    assert not await store.database.tidy(1_000_000)
    assert await store.database.tidy(10)
    await until_cleared(store)
    assert not await store.database.tidy(10)


@ON_POSTGRES
async def test_rows_that_an_open_transaction_needs_are_tried_again_after_pauses_that_double(store: Store) -> None:
    await unwatched(store)
    with psycopg.connect(store.url, autocommit=True) as reader:
        reader.execute("begin isolation level repeatable read; select 1 from holdfast.cluster")
        await run_jobs(store, 50)
        await until_dead(store, 50)
        assert await store.database.tidy(10), "it may not know yet"
        await until_dead(store, 50)
        assert not await store.database.tidy(10), "the last one has just been of no use"
        for pause in ("1s", "2s", "4s"):
            await store.advance(pause)
            assert await store.database.tidy(10)
            assert not await store.database.tidy(10)
        await store.advance("4s")
        assert not await store.database.tidy(10)
        reader.execute("rollback")
    await store.advance("4s")
    assert await store.database.tidy(10)
    await until_cleared(store)


@ON_POSTGRES
async def test_whoever_needs_dead_rows_is_named(store: Store) -> None:
    with psycopg.connect(store.url, autocommit=True, application_name="forgotten psql") as reader:
        reader.execute("begin isolation level repeatable read; select 1 from holdfast.cluster")
        await run_jobs(store, 3)
        found = await facts(store.database, store.ports)
        assert isinstance(found, ServerFacts)
        assert found.horizon is not None
        assert found.horizon.holder.startswith(f"session {reader.info.backend_pid} (forgotten psql, role ")
        assert found.horizon.holder.endswith(", idle in transaction)")
        assert found.horizon.transactions >= 3
        assert found.horizon.seconds is not None
        reader.execute("rollback")
    gone = await facts(store.database, store.ports)
    assert isinstance(gone, ServerFacts)
    assert gone.horizon is None or "forgotten" not in gone.horizon.holder


@pytest.mark.long
@ON_POSTGRES
async def test_what_died_since_is_no_reason_for_a_pause(store: Store) -> None:
    await unwatched(store)
    for _ in range(2):
        await run_jobs(store, 50)
        await until_dead(store, 50)
        assert await store.database.tidy(10)
        await until_cleared(store)


@pytest.fixture
def guest(store: Store) -> Iterator[str]:
    """The same database as a role that may do everything but vacuum."""
    role = f"upkeep_{os.getpid()}"
    with psycopg.connect(store.url, autocommit=True) as admin:
        admin.execute(f"create role {role} login".encode())
        admin.execute(f"grant all on schema holdfast to {role}".encode())
        for kind in ("tables", "sequences", "functions"):
            admin.execute(f"grant all on all {kind} in schema holdfast to {role}".encode())
        if admin.info.server_version >= 170_000:
            admin.execute(f"revoke maintain on all tables in schema holdfast from {role}".encode())
        place = urlsplit(store.url)
        yield place._replace(netloc=f"{role}@{place.netloc.rpartition('@')[2]}").geturl()
        admin.execute(f"drop owned by {role}".encode())
        admin.execute(f"drop role {role}".encode())


@ON_POSTGRES
async def test_a_role_that_may_not_vacuum_leaves_it_alone(store: Store, guest: str) -> None:
    await unwatched(store)
    await run_jobs(store, 50)
    await until_dead(store, 50)
    database = PostgresDatabase(guest, Settings(url=guest), Ports())
    try:
        assert not await database.tidy(10)
    finally:
        await database.close()
    with psycopg.connect(store.url, autocommit=True) as admin:
        owner = urlsplit(guest).username
        for table in MOVING:
            admin.execute(f"alter table holdfast.{table} owner to {owner}".encode())
    database = PostgresDatabase(guest, Settings(url=guest), Ports())
    try:
        assert await database.tidy(10), "it owns them now"
    finally:
        await database.close()
        with psycopg.connect(store.url, autocommit=True) as admin:
            for table in MOVING:
                admin.execute(f"alter table holdfast.{table} owner to current_user".encode())
    await until_cleared(store)


@pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
async def test_sqlite_has_none(store: Store) -> None:
    assert not await store.database.tidy(0)
