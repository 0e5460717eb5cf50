"""Connections that cannot be used are refused before anything is written, and the refusal says what to pass."""

from __future__ import annotations

import asyncio
import sqlite3  # noqa: TID251  to be refused; it opens no file of ours
import weakref
from types import SimpleNamespace
from typing import Any

import apsw
import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from holdfast import Holdfast, JobContext
from holdfast.client.jobs import JobFunction
from holdfast.errors import UsageError
from tests.transactions.libraries import Django, engine, file_connection, over

POSTGRES = "postgresql://nobody@203.0.113.1:1/nothing"
TWO_LIBRARIES = "two SQLite libraries in one process break each other's locks.*Pass an apsw.Connection on the same file"


APPS: weakref.WeakKeyDictionary[JobFunction[[], None], Holdfast] = weakref.WeakKeyDictionary()  # of each job


def job_of(url: str) -> JobFunction[[], None]:
    hf = Holdfast(url)

    @hf.job
    async def work() -> None: ...

    APPS[work] = hf
    return work


async def refused(work: JobFunction[[], None], tx: Any, match: str) -> None:
    """Whatever the call."""
    hf = APPS[work]
    with pytest.raises(UsageError, match=match):
        work.options(tx=tx).enqueue_sync()
    with pytest.raises(UsageError, match=match):
        await work.options(tx=tx).enqueue()
    with pytest.raises(UsageError, match=match):
        await work.options(tx=tx).enqueue_many([()])
    with pytest.raises(UsageError, match=match):
        work.options(tx=tx, key="k").enqueue_many_sync([()])
    with pytest.raises(UsageError, match=match):
        await hf.signal("door", tx=tx)
    with pytest.raises(UsageError, match=match):
        hf.sync.signal("door", tx=tx)


async def test_the_standard_librarys_sqlite(sqlite: str) -> None:
    connection = sqlite3.connect(":memory:")
    await refused(job_of(sqlite), connection, f"sqlite3 opens SQLite files with the standard.*{TWO_LIBRARIES}")
    connection.close()
    with Session(sqlalchemy.create_engine("sqlite://", poolclass=NullPool)) as session:
        await refused(job_of(sqlite), session, f"sqlalchemy opens SQLite files with the standard.*{TWO_LIBRARIES}")


async def test_a_connection_to_another_kind_of_database(sqlite: str, postgres: str) -> None:
    file = file_connection(sqlite)
    await refused(job_of(postgres), file, "jobs are in PostgreSQL, and this connection is to SQLite")
    file.close()
    with psycopg.connect(postgres) as server:
        await refused(job_of(sqlite), server, "jobs are in SQLite, and this connection is to PostgreSQL")
    with engine(postgres).connect() as connected:
        await refused(job_of(sqlite), connected, "jobs are in SQLite, and this connection is to PostgreSQL")
    connection = sqlite3.connect(":memory:")
    await refused(job_of(postgres), connection, "jobs are in PostgreSQL, and this connection is to SQLite")
    connection.close()


async def test_another_file(sqlite: str, tmp_path: Any) -> None:
    work = job_of(sqlite)
    elsewhere = apsw.Connection(str(tmp_path / "other.db"))
    await refused(work, elsewhere, r"this connection is to .*other\.db, and the app's jobs are in .*store\.db")
    await refused(job_of(f"sqlite:///{tmp_path / 'missing.db'}"), elsewhere, r"the app's jobs are in .*missing\.db")
    elsewhere.close()
    memory = apsw.Connection(":memory:")
    await refused(work, memory, "this connection is to a database in memory")
    await refused(job_of("sqlite://:memory:"), memory, "has its database to itself")
    memory.close()


async def test_what_is_no_connection(postgres: str) -> None:
    work = job_of(postgres)
    pool = asyncpg.create_pool(postgres)
    for thing, name in (
        ("conn", "a builtins.str"),
        (object(), "a builtins.object"),
        (engine(postgres), "a sqlalchemy.engine.base.Engine"),
        (pool, "an asyncpg.pool.Pool"),
    ):
        await refused(work, thing, f"tx is {name}, which Holdfast does not know.*not its pool or engine")


async def test_a_connection_that_is_awaited_in_a_call_that_is_not(postgres: str) -> None:
    work = job_of(postgres)
    hf = APPS[work]
    plain = await asyncpg.connect(postgres)
    session = AsyncSession(create_async_engine(over(postgres, "asyncpg"), poolclass=NullPool))
    async with await psycopg.AsyncConnection.connect(postgres) as other:
        for tx in (plain, session, other):
            with pytest.raises(UsageError, match="must be awaited, but a call that ends in _sync cannot await"):
                work.options(tx=tx).enqueue_sync()
            with pytest.raises(UsageError, match="must be awaited"):
                work.options(tx=tx).enqueue_many_sync([()])
            with pytest.raises(UsageError, match="must be awaited"):
                hf.sync.signal("door", tx=tx)
    await session.close()
    await plain.close()


async def test_a_connection_that_blocks_in_a_call_that_is_awaited(postgres: str) -> None:
    work = job_of(postgres)
    django = Django(postgres).connection()
    with psycopg.connect(postgres) as plain, Session(engine(postgres)) as session:
        for tx in (plain, session, django):
            with pytest.raises(UsageError, match=r"blocks, and an awaited call .* would stop the event loop\. Where"):
                await work.options(tx=tx).enqueue()


async def test_sqlalchemy_without_transactions(postgres: str) -> None:
    work = job_of(postgres)

    def enqueue() -> None:
        with engine(postgres, isolation_level="AUTOCOMMIT").connect() as connection:
            work.options(tx=connection).enqueue_sync()

    with pytest.raises(UsageError, match="is in AUTOCOMMIT: it has no transaction to join"):
        await asyncio.to_thread(enqueue)
    for driver in ("asyncpg", "psycopg"):
        automatic = create_async_engine(over(postgres, driver), poolclass=NullPool, isolation_level="AUTOCOMMIT")
        async with AsyncSession(automatic) as session:
            with pytest.raises(UsageError, match="is in AUTOCOMMIT"):
                await work.options(tx=session).enqueue()


async def test_sqlalchemy_over_a_driver_that_was_never_tried() -> None:
    pg8000 = SimpleNamespace(paramstyle="format", __version__="1.31")
    session = Session(sqlalchemy.create_engine("postgresql+pg8000://", module=pg8000))
    with pytest.raises(UsageError, match=r"SQLAlchemy over pg8000; .* Write postgresql\+psycopg://"):
        job_of(POSTGRES).options(tx=session).enqueue_sync()


async def test_sqlalchemy_on_a_database_that_is_not_ours() -> None:
    mysql = SimpleNamespace(paramstyle="format", __version__="1", version_info=(1, 0), constants=None)
    session = Session(sqlalchemy.create_engine("mysql+pymysql://", module=mysql))
    with pytest.raises(UsageError, match="jobs are in PostgreSQL, and this connection is to mysql"):
        job_of(POSTGRES).options(tx=session).enqueue_sync()


async def test_waiting_for_what_is_not_committed() -> None:
    with pytest.raises(UsageError, match="enqueue it, commit, then wait"):
        await job_of(POSTGRES).options(tx=object()).run()


async def test_a_child_in_somebody_elses_transaction(sqlite: str) -> None:
    hf = Holdfast(sqlite)

    @hf.job
    async def child() -> None: ...

    @hf.job
    async def parent(ctx: JobContext) -> str:
        with pytest.raises(UsageError, match="a child is part of its parent's attempt"):
            await ctx.start(child.options(tx=object()))
        return "refused"

    async with hf:
        assert await (await parent.enqueue()).result() == "refused"


async def test_tx_may_be_the_name_of_an_argument(sqlite: str) -> None:
    hf = Holdfast(sqlite, embedded=False)

    @hf.job
    async def confirm(tx: str) -> None: ...

    assert (await (await confirm.enqueue(tx="0xabc")).refresh()).payload == {"tx": "0xabc"}
    file = file_connection(sqlite)
    await confirm.options(tx=file).enqueue(tx="0xdef")
    file.close()
    assert len(await hf.jobs.list()) == 2
    await hf.close()


def test_nothing_here_needs_a_loop(postgres: str) -> None:
    work = job_of(postgres)
    with psycopg.connect(postgres) as connection:
        job = work.options(tx=connection).enqueue_sync()
    with psycopg.connect(postgres) as connection:
        assert connection.execute("select state from holdfast.job_now where id = %s", [job.id]).fetchone() == (
            "pending",
        )
