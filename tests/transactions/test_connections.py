"""The connection stays its caller's: set up as it was, without a transaction if it had none, and with its errors."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.orm import Session

from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.client.jobs import JobFunction
from holdfast.errors import SchemaTooOld, StoreBusy
from holdfast.kernel.drivers.sqlite_processes import SqliteHints, runtime_folder, tell
from tests.support.apps import MakeApp
from tests.transactions.conftest import Query
from tests.transactions.libraries import (
    ON_POSTGRES,
    Apsw,
    Asyncpg,
    AsyncPsycopg,
    Django,
    Library,
    Psycopg,
    SqlAlchemyAsyncConnection,
    SqlAlchemyConnection,
    Undo,
    engine,
    file_connection,
)

ALONE = pytest.mark.parametrize("library", [Asyncpg, Psycopg, AsyncPsycopg, Django, Apsw], indirect=True)
FILES = pytest.mark.parametrize("library", [Apsw], indirect=True)
SERVERS = pytest.mark.parametrize("library", ON_POSTGRES, indirect=True)


@pytest.fixture
def pay(hf: Holdfast) -> JobFunction[[str], None]:
    @hf.job
    async def pay(order: str) -> None: ...

    return pay


@pytest.fixture
def no_jobs(query: Query) -> Iterator[None]:
    """The last table that a job is written to is missing."""
    query("alter table holdfast.job rename to hidden")
    yield
    query("alter table holdfast.hidden rename to job")


@ALONE
async def test_without_a_transaction_it_is_committed_at_once(
    library: Library, hf: Holdfast, pay: JobFunction[[str], None], query: Query
) -> None:
    keyed = await library.alone(lambda tx, suffix: getattr(pay.options(tx=tx, key="k"), f"enqueue{suffix}")("A1"))
    assert query("select count(*) from holdfast.job") == [(1,)]
    assert (await library.enqueue(pay, "A1", key="k")).id == keyed.id
    await library.alone(lambda tx, suffix: getattr(pay.options(tx=tx), f"enqueue{suffix}")("A2"))
    await library.alone(lambda tx, suffix: (hf.sync.signal if suffix else hf.signal)("door", 1, tx=tx))
    assert query("select count(*) from holdfast.job") == [(2,)]
    assert query("select count(*) from holdfast.signal") == [(1,)]


@ALONE
@pytest.mark.usefixtures("no_jobs")
async def test_without_a_transaction_it_is_still_all_or_nothing(
    library: Library, pay: JobFunction[[str], None], query: Query
) -> None:
    """A key that names a job which is not there would swallow every repetition."""
    with pytest.raises(SchemaTooOld):
        await library.alone(lambda tx, suffix: getattr(pay.options(tx=tx, key="k"), f"enqueue{suffix}")("A1"))
    assert query("select count(*) from holdfast.idempotency") == [(0,)]


@FILES
@pytest.mark.usefixtures("no_jobs")
async def test_a_call_that_failed_leaves_nothing_in_a_transaction_that_commits(
    library: Library, pay: JobFunction[[str], None], query: Query
) -> None:
    """PostgreSQL takes nothing more in a transaction that has failed; SQLite does."""

    def fail(tx: Any, _: str) -> None:
        with pytest.raises(SchemaTooOld):
            pay.options(tx=tx, key="k").enqueue_sync("A1")

    await library.call(fail)
    assert query("select note from ledger") == [("written by the caller",)]
    assert query("select count(*) from holdfast.idempotency") == [(0,)]
    assert query("select count(*) from holdfast.route") == [(0,)]


@SERVERS
@pytest.mark.usefixtures("no_jobs")
async def test_tables_that_are_missing_are_named_with_the_remedy(
    library: Library, pay: JobFunction[[str], None]
) -> None:
    message = r"behind the given connection lacks Holdfast's tables \(.*\"holdfast.job\".*\)\. Run `holdfast migrate`"
    with pytest.raises(SchemaTooOld, match=message) as caught:
        await library.enqueue(pay, "A1")
    assert "A1" not in str(caught.value), "no payload in a message"


@SERVERS
async def test_a_lock_that_is_not_had_is_worth_another_try(
    library: Library, pay: JobFunction[[str], None], query: Query
) -> None:
    ((name,),) = query("select current_database()")
    query(f"alter database {name} set lock_timeout = '50ms'")
    try:
        with psycopg.connect(library.url) as other:
            await asyncio.to_thread(pay.options(tx=other, key="k").enqueue_sync, "A1")
            with pytest.raises(StoreBusy, match="behind the given connection rolled a transaction back"):
                await library.enqueue(pay, "A1", key="k")
    finally:
        query(f"alter database {name} reset lock_timeout")


@SERVERS
async def test_the_schema_is_the_settings(library: Library, make_app: MakeApp, query: Query) -> None:
    hf = make_app(embedded=False, schema="elsewhere")

    @hf.job
    async def work() -> None: ...

    await hf.migrate()
    try:
        await library.enqueue(work)
        assert query("select count(*) from elsewhere.job") == [(1,)]
        assert query("select count(*) from holdfast.job") == [(0,)]
    finally:
        query("drop schema elsewhere cascade")


@pytest.mark.parametrize("library", [Asyncpg], indirect=True)
async def test_asyncpg_may_have_codecs_of_its_own(
    library: Library, hf: Holdfast, pay: JobFunction[[str], None], query: Query
) -> None:
    """With the usual JSON codec, a payload that is JSON already would be encoded twice."""
    connection = await asyncpg.connect(library.url)
    try:
        for name in ("json", "jsonb"):
            await connection.set_type_codec(name, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        await connection.set_type_codec(
            "uuid", encoder=lambda value: value.hex, decoder=str, schema="pg_catalog", format="text"
        )
        async with connection.transaction():
            job = await pay.options(tx=connection, key="k", metadata={"by": "Ann"}).enqueue("A1")
            await pay.options(tx=connection).enqueue_many([("A2",)])
            unique = pay.options(tx=connection, unique="pending", unique_key="u", on_duplicate="replace")
            replaced = await unique.enqueue("A3")
            await unique.enqueue("A4")
            await hf.signal("door", {"is": "open"}, tx=connection)
    finally:
        await connection.close()
    row = await job.refresh()
    assert (row.payload, row.metadata) == ({"order": "A1"}, {"by": "Ann"})
    assert (await replaced.refresh()).payload == {"order": "A4"}
    assert query("select payload ->> 'is' from holdfast.signal") == [("open",)]


@pytest.mark.parametrize("library", [Psycopg], indirect=True)
async def test_psycopg_may_have_rows_and_cursors_of_its_own(library: Library, pay: JobFunction[[str], None]) -> None:
    def enqueue() -> str:
        with psycopg.connect(library.url, row_factory=dict_row, cursor_factory=psycopg.RawCursor) as connection:
            return pay.options(tx=connection, key="k").enqueue_sync("A1").id

    first = await asyncio.to_thread(enqueue)
    async with await psycopg.AsyncConnection.connect(
        library.url, row_factory=dict_row, cursor_factory=psycopg.AsyncRawCursor
    ) as connection:
        assert (await pay.options(tx=connection, key="k").enqueue("A1")).id == first


@pytest.mark.parametrize("library", [SqlAlchemyConnection], indirect=True)
async def test_sqlalchemy_may_stream_what_it_reads(
    library: Library, hf: Holdfast, pay: JobFunction[[str], None], query: Query
) -> None:
    await pay.options(key="k").enqueue("A1")

    def enqueue() -> None:
        with engine(library.url, execution_options={"stream_results": True}).begin() as connection:
            pay.options(tx=connection, key="k").enqueue_sync("A1")
            hf.sync.signal("door", tx=connection)

    await asyncio.to_thread(enqueue)
    streaming = SqlAlchemyAsyncConnection(library.url).engine().execution_options(stream_results=True)
    async with streaming.begin() as connection:
        await pay.options(tx=connection, key="k").enqueue("A1")
        await hf.signal("door", tx=connection)
    assert query("select count(*) from holdfast.job") == [(1,)]
    assert query("select count(*) from holdfast.signal") == [(2,)]


@FILES
async def test_apsw_may_have_rows_of_its_own_and_be_reading(
    library: Library, pay: JobFunction[[str], None], query: Query
) -> None:
    connection = file_connection(library.url)
    connection.row_trace = lambda cursor, row: {"columns": row}
    connection.execute("insert into ledger values ('a'), ('b')")
    for _ in range(2):
        reading = connection.execute("select note from ledger")
        assert next(reading) == {"columns": ("a",)}
        with connection:
            pay.options(tx=connection, key="k").enqueue_sync("A1")
        assert next(reading) == {"columns": ("b",)}
    assert query("select count(*) from holdfast.job") == [(1,)]
    connection.close()


@FILES
async def test_a_transaction_on_a_file_may_be_undone_in_part(
    library: Library, pay: JobFunction[[str], None], query: Query
) -> None:
    connection = file_connection(library.url)
    with connection:
        pay.options(tx=connection).enqueue_sync("A1")
        with suppress(Undo), connection:
            pay.options(tx=connection).enqueue_sync("A2")
            raise Undo
    connection.close()
    assert query("select payload ->> 'order' from holdfast.job") == [("A1",)]


@FILES
async def test_on_a_file_the_wake_up_is_sent_once_and_after_the_commit(
    library: Library, pay: JobFunction[[str], None], tmp_path: Path
) -> None:
    folder = runtime_folder(tmp_path / "store.db")
    loop, heard = asyncio.get_running_loop(), asyncio.Queue[str]()
    ear = SqliteHints(folder)
    ear.listen(loop, heard.put_nowait)
    connection = file_connection(library.url)
    connection.execute("begin")
    for order in ("A1", "A2"):
        pay.options(tx=connection).enqueue_sync(order)
    tell(folder, ["before the commit"])
    assert await heard.get() == "before the commit"
    connection.execute("commit")
    tell(folder, ["after the commit"])
    assert await heard.get() == f"route {pay.definition.route.id}"
    assert await heard.get() == "after the commit"
    connection.execute("insert into ledger values ('of no interest')")
    tell(folder, ["later"])
    assert await heard.get() == "later"
    connection.close()
    ear.close(loop)


@FILES
async def test_a_forgotten_connection_to_a_file_is_freed(library: Library, pay: JobFunction[[str], None]) -> None:
    connection = file_connection(library.url)
    with connection:
        pay.options(tx=connection).enqueue_sync("A1")
    connection.execute("begin")
    pay.options(tx=connection).enqueue_sync("A2")
    gone = weakref.ref(connection)
    del connection
    gc.collect()
    assert gone() is None


@FILES
async def test_a_file_that_someone_else_has_is_worth_another_try(
    library: Library, pay: JobFunction[[str], None]
) -> None:
    other, connection = file_connection(library.url), apsw.Connection(library.url.removeprefix("sqlite:///"))
    other.execute("begin immediate")
    with pytest.raises(StoreBusy):
        pay.options(tx=connection).enqueue_sync("A1")
    other.execute("rollback")
    pay.options(tx=connection).enqueue_sync("A1")
    other.close()
    connection.close()


@pytest.mark.parametrize("library", [Psycopg], indirect=True)
async def test_a_connection_on_postgresql_is_left_as_it_was(
    library: Library, hf: Holdfast, pay: JobFunction[[str], None]
) -> None:
    state = (
        b"select name, setting from pg_settings union all select name, statement from pg_prepared_statements order by 1"
    )

    def enqueue() -> None:
        with psycopg.connect(library.url) as connection:
            before = connection.execute(state).fetchall()
            for number in range(10):
                pay.options(tx=connection, key=f"{number}").enqueue_sync("A1")
                hf.sync.signal("door", tx=connection)
            assert connection.execute(state).fetchall() == before
            assert connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS

    await asyncio.to_thread(enqueue)


@SERVERS
async def test_the_app_opens_nothing_of_its_own(library: Library) -> None:
    """No loop, no thread, no connection: its own URL need not even be reachable."""
    hf = Holdfast("postgresql://nobody@203.0.113.1:1/nothing")

    @hf.job
    async def work() -> None: ...

    threads = set(threading.enumerate())
    await library.enqueue(work)
    await library.signal(hf, "door")
    assert core_of(hf).binding.runtimes == []
    assert "holdfast-sync" not in {thread.name for thread in set(threading.enumerate()) - threads}


@pytest.mark.parametrize("library", [Psycopg], indirect=True)
async def test_what_a_library_says_of_its_connection_stays_as_it_is(
    library: Library, pay: JobFunction[[str], None]
) -> None:
    closed = await psycopg.AsyncConnection.connect(library.url)
    await closed.close()
    with pytest.raises(psycopg.OperationalError, match="closed"):
        await pay.options(tx=closed).enqueue("A1")
    lost = await asyncpg.connect(library.url)
    await lost.close()
    with pytest.raises(asyncpg.InterfaceError, match="closed"):
        await pay.options(tx=lost).enqueue("A1")
    session = Session(engine(library.url), autobegin=False)
    with pytest.raises(sqlalchemy.exc.InvalidRequestError, match="begin"):
        await asyncio.to_thread(pay.options(tx=session).enqueue_sync, "A1")


async def test_the_same_calls_without_a_transaction_are_committed(library: Library, hf: Holdfast, query: Query) -> None:
    await asyncio.to_thread(hf.sync.signal, "door", "open", key="k")
    await hf.signal("door", "open", key="k")
    assert query("select channel from holdfast.signal") == [("door",)]
    await asyncio.to_thread(hf.sync.close)
