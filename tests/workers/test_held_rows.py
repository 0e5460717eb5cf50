"""A worker goes on with everything else while somebody's open transaction holds rows, on PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from holdfast import Holdfast
from tests.support.apps import PATIENCE, eventually, settings_with, working


@pytest.fixture
async def hf(postgres_url: str) -> AsyncIterator[Holdfast]:
    app = Holdfast(postgres_url, settings=settings_with(drain_grace="5s"), embedded=False)
    yield app
    await app.close()


@asynccontextmanager
async def transaction(url: str) -> AsyncIterator[Any]:
    """Of a caller, who rolls it back in the end: whatever waits for it waits for the end of the test."""
    connection = await asyncpg.connect(url)
    try:
        async with asyncio.timeout(PATIENCE):
            await connection.execute("begin")
            yield connection
    finally:
        await connection.close()


async def test_other_jobs_run_and_endings_are_recorded_while_a_lane_is_held(postgres_url: str, hf: Holdfast) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    @hf.job(concurrency=1)
    async def narrow(n: int) -> int:
        begun.set()
        await go.wait()
        return n

    @hf.job
    async def plain(n: int) -> int:
        return n

    async with working(hf):
        first = await narrow.options(lane="held").enqueue(1)
        await begun.wait()
        second = await narrow.options(lane="held").enqueue(2)
        async with transaction(postgres_url) as holder:
            await holder.execute("select 1 from holdfast.lane where name like '%held%' for update")
            go.set()
            assert await first.result() == 1
            others = [await narrow.options(lane="other").enqueue(n) for n in (3, 4)]
            others += [await plain.enqueue(n) for n in (5, 6)]
            assert [await job.result() for job in others] == [3, 4, 5, 6]
        assert await second.result() == 2


async def test_a_worker_has_connections_while_calls_of_its_process_wait_for_locks(
    postgres_url: str, hf: Holdfast
) -> None:
    """As many calls as there are connections, and more, wait for a key that an open transaction has taken."""

    async def plain(n: int) -> int:
        return n

    other = Holdfast(postgres_url, embedded=False)
    here, elsewhere = hf.job(plain), other.job(plain)
    watch = await asyncpg.connect(postgres_url)
    try:
        async with working(hf):
            assert await (await here.enqueue(0)).result() == 0
            async with transaction(postgres_url) as holder:
                await here.options(tx=holder, key="taken").enqueue(1)
                calls = [asyncio.create_task(here.options(key="taken").enqueue(1)) for _ in range(8)]
                await eventually(lambda: _as_many_wait(watch, hf.settings.connections))
                assert await (await elsewhere.enqueue(2)).result() == 2
                assert not any(call.done() for call in calls)
            await asyncio.gather(*calls)
    finally:
        await watch.close()
        await other.close()


async def _as_many_wait(watch: Any, connections: int) -> bool:
    waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    return bool(await watch.fetchval(waiting) >= connections)
