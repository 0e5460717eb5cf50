"""A crowd on PostgreSQL: few look, they tell the others, and duties are asked for only when one is free."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import asyncpg
import pytest

from holdfast.clock import Ports
from holdfast.kernel import duties
from holdfast.kernel.claim import tell_look
from holdfast.kernel.database import CROWD
from holdfast.kernel.drivers.postgres import PostgresDatabase
from holdfast.kernel.workers import look, lose_workers
from holdfast.settings import Settings
from holdfast.workers.duties import Duties
from tests.support.apps import MakeApp, eventually, happens, working
from tests.support.proxy import Proxy
from tests.support.stores import Store

WORKERS = CROWD + 3
NEVER: dict[str, Any] = {"poll_interval": "10m", "sweep_interval": "10m", "route_refresh": "10m"}
SOON = "1m"  # far below ten minutes, far above what it takes
LISTENERS = "select pid from pg_stat_activity where application_name like '%listen' and datname = current_database()"

Asked = Counter[Callable[..., Any]]


@pytest.fixture
def dialect() -> str:
    return "postgres"  # on SQLite nobody tells of looks: each is a read of a local file


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """How often each operation was asked for, by all workers of this process."""
    count: Asked = Counter()
    transact = PostgresDatabase.transact

    async def counted(self: PostgresDatabase, operation: Any, /, *args: Any, **kwargs: Any) -> Any:
        count[operation] += 1
        return await transact(self, operation, *args, **kwargs)

    monkeypatch.setattr(PostgresDatabase, "transact", counted)
    return count


@asynccontextmanager
async def crowd(make_app: MakeApp) -> AsyncIterator[None]:
    """Workers that can do nothing of what the test enqueues."""
    async with AsyncExitStack() as stack:
        for _ in range(WORKERS):
            app = make_app(embedded=False)

            @app.job(name="other")
            async def other() -> None: ...

            worker = await stack.enter_async_context(working(app))
            await happens(worker.tended)
        yield


@pytest.mark.long
async def test_few_of_a_crowd_look(make_app: MakeApp, asked: Asked) -> None:
    async def told() -> bool:
        return asked[tell_look] >= 8

    async with crowd(make_app):
        asked.clear()
        await eventually(told)  # by then all have settled
        asked.clear()
        await eventually(told)
        # For each look that is told of there may be another's at the same time, and the one of who fires schedules.
        assert asked[look] <= asked[tell_look] * 3


@pytest.mark.long
async def test_a_worker_that_does_not_poll_finds_work_by_what_others_saw(make_app: MakeApp) -> None:
    """Nobody hints at the job, and whoever could do it looks ten minutes from now."""
    able = make_app(embedded=False, **NEVER)

    @able.job(name="work")
    async def work() -> str:
        return "found"

    async with crowd(make_app), working(able):
        await (await work.enqueue()).result(timeout=SOON)
        for _ in range(2):
            assert await (await work.options(notify=False).enqueue()).result(timeout=SOON) == "found"


@pytest.mark.long
async def test_duties_that_are_held_are_not_asked_for(make_app: MakeApp, asked: Asked) -> None:
    async with crowd(make_app):
        at_start, told = asked[duties.acquire], asked[tell_look]

        async def told_thrice() -> bool:
            return asked[tell_look] >= told + 3

        await eventually(told_thrice)
        assert asked[duties.acquire] == at_start


async def test_who_does_not_hear_any_more_counts_on_nobody(postgres_url: str) -> None:
    async with Proxy(postgres_url) as proxy:
        database = PostgresDatabase(proxy.url, Settings(), Ports())
        heard: asyncio.Queue[str] = asyncio.Queue()

        async def counts_on_nobody() -> bool:
            return database.crowd == math.inf

        await database.open()
        assert await counts_on_nobody()
        await database.listen(heard.put_nowait)
        assert (await heard.get(), database.crowd) == ("", CROWD)
        proxy.refusing = True
        await cut_listeners(postgres_url)
        await eventually(counts_on_nobody)
        proxy.refusing = False
        assert (await heard.get(), database.crowd) == ("", CROWD)
        await database.close()
        assert await counts_on_nobody()


async def cut_listeners(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        assert await connection.fetch(f"select pg_terminate_backend(pid) from ({LISTENERS}) as l")
    finally:
        await connection.close()


class Asking:
    """A database that remembers what it was asked."""

    def __init__(self, database: Any) -> None:
        self.asked: Asked = Counter()
        self._database = database

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    async def transact(self, operation: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.asked[operation] += 1
        return await self._database.transact(operation, *args, **kwargs)


async def test_in_a_crowd_a_round_of_duties_asks_for_nothing_until_one_is_free(store: Store) -> None:
    one, two = await store.worker(), await store.worker()
    database: Any = Asking(store.database)
    holder = Duties(store.database, store.ports, store.settings)
    other = Duties(database, store.ports, store.settings)
    await holder.tend(one)
    assert len(holder.held) == len(duties.DUTIES)
    await other.tend(two)
    assert database.asked == {duties.held: 1}, "the first round looks, and finds that all are held"
    sight = await store.do(look, two, [])
    other.update(sight, crowded=True)
    await other.tend(two)
    assert database.asked == {duties.held: 1}
    await store.do(lose_workers, gone=[one], reason="test")
    other.update(await store.do(look, two, []), crowded=True)
    await other.tend(two)
    assert (database.asked[duties.held], database.asked[duties.acquire]) == (2, 2)
    assert [term.term for term in other.held] == [2, 2]
