"""Callers do not wait for each other's transactions, however long those stay open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from holdfast import Holdfast
from holdfast.errors import IdempotencyConflict
from holdfast.workers.role import Role
from tests.support.apps import PATIENCE, eventually
from tests.transactions.conftest import Query
from tests.transactions.libraries import Asyncpg, Library

pytestmark = pytest.mark.parametrize("library", [Asyncpg], indirect=True)


@asynccontextmanager
async def two_transactions(url: str) -> AsyncIterator[tuple[Any, Any]]:
    one, two = await asyncpg.connect(url), await asyncpg.connect(url)
    try:
        async with asyncio.timeout(PATIENCE), one.transaction(), two.transaction():
            yield one, two
    finally:
        await one.close()
        await two.close()


async def test_two_transactions_may_enqueue_the_same_kinds_in_any_order(library: Library, hf: Holdfast) -> None:
    @hf.job
    async def left() -> None: ...

    @hf.job
    async def right() -> None: ...

    for job in (left, right):
        await job.enqueue()
    async with two_transactions(library.url) as (one, two):
        for tx, job in ((one, left), (two, right), (two, left), (one, right)):
            await job.options(tx=tx).enqueue()
    assert len(await hf.jobs.list()) == 6


async def test_the_second_to_use_a_key_waits_for_the_first(library: Library, hf: Holdfast, query: Query) -> None:
    """It must: whether the key is taken is known when the first transaction has ended."""

    @hf.job
    async def pay(order: str) -> None: ...

    async with two_transactions(library.url) as (one, two):
        winner = await pay.options(tx=one, key="k").enqueue("A1")
        loser = asyncio.create_task(pay.options(tx=two, key="k").enqueue("A2"))
        await eventually(lambda: asyncio.to_thread(query, "select pid from pg_locks where not granted"))
        await one.execute("commit; begin")
        with pytest.raises(IdempotencyConflict, match=winner.id):
            await loser


async def test_a_call_that_waits_for_an_open_transaction_does_not_hold_up_the_others(
    library: Library, hf: Holdfast, query: Query
) -> None:
    """Enqueue calls of one loop share their commits, but only those that can wait for nobody."""

    @hf.job
    async def keyed() -> None: ...

    @hf.job
    async def plain(n: int) -> None: ...

    await keyed.enqueue()
    await plain.enqueue(0)
    connection = await asyncpg.connect(library.url)
    try:
        async with asyncio.timeout(PATIENCE):
            async with connection.transaction():
                await keyed.options(tx=connection, key="k").enqueue()
                waiting = asyncio.create_task(keyed.options(key="k").enqueue())
                await eventually(lambda: _locked(query))
                await asyncio.gather(*(plain.enqueue(n) for n in range(1, 9)))
                assert not waiting.done()
            await waiting
    finally:
        await connection.close()
    assert len(await hf.jobs.list()) == 11


@pytest.mark.parametrize("old", [False, True], ids=["new", "old"])
async def test_a_lane_and_a_route_in_an_open_transaction_keep_nobody_waiting(
    library: Library, hf: Holdfast, query: Query, old: bool
) -> None:
    """New ones, and those that nobody has used for a while; whoever commits last, the limits are those declared."""

    @hf.job(concurrency=2)
    async def narrow(n: int) -> None: ...

    if old:
        await narrow.options(lane="shared").enqueue(0)
        query("update holdfast.lane set updated_at = 0")
        query("update holdfast.route set used_at = 0")
    async with two_transactions(library.url) as (one, two):
        await narrow.options(tx=one, lane="shared").enqueue(1)
        await narrow.options(tx=two, lane="shared").enqueue(2)
        await narrow.options(lane="shared").enqueue(3)
    assert len(await hf.jobs.list()) == 3 + old
    await hf.work(Role(until="empty"))
    assert query("select concurrency from holdfast.lane where name like '%shared%'") == [(2,)]
    assert {job.state for job in await hf.jobs.list()} == {"succeeded"}


async def _locked(query: Query) -> bool:
    return bool(query("select 1 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"))
