"""A worker whose sign of life is gone although it lives keeps what it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from holdfast import Holdfast
from holdfast.kernel.leases import beat, expire
from holdfast.kernel.workers import advertise_presence, lose_workers, present_workers
from holdfast.values.workers import WorkerRecord
from holdfast.workers.role import Role
from holdfast.workers.sweeper import Sweeper
from tests.conftest import MakeStore
from tests.support.apps import eventually, outcomes, settings_with, working
from tests.support.proxy import Proxy
from tests.support.stores import TTL_US, SharedDatabase, Store, postgres_store

HOLDS = "select pid from pg_locks where locktype = 'advisory' and objsubid = 2 and granted and objid = {}"


@pytest.mark.long
async def test_a_live_worker_that_cannot_retake_its_presence_keeps_its_leases(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Proxy(postgres_url) as proxy:
        robbed = Holdfast(proxy.url, settings=settings_with(concurrency=3), embedded=False)
        watching = settings_with(presence_grace="1s", presence_quiet="0s", sweep_interval="50ms")
        watcher = Holdfast(postgres_url, settings=watching, embedded=False)
        begun, let_go = asyncio.Semaphore(0), asyncio.Event()

        @robbed.job(name="work")
        async def work() -> str:
            begun.release()
            await let_go.wait()
            return "done"

        @watcher.job(name="other")
        async def other() -> None: ...

        jobs = [await work.enqueue() for _ in range(3)]
        async with working(robbed, Role(id="robbed")) as worker, working(watcher, Role(id="watcher")):
            for _ in jobs:
                await begun.acquire()
            await eventually(row_where(watcher, lambda row: bool(row.presence)))
            proxy.refusing = True
            await cut_presence(postgres_url, worker.seq)
            lost = await eventually(row_where(watcher, lambda row: not row.presence or row.status == "lost"))
            assert lost.status == "active"
            await eventually(row_where(watcher, lambda row: row.now > lost.now + timedelta(seconds=2.5)))
            assert [(await job.refresh()).rescues for job in jobs] == [0, 0, 0]
            proxy.refusing = False
            await eventually(row_where(watcher, lambda row: bool(row.presence)))
            let_go.set()
            assert [await job.result() for job in jobs] == ["done"] * 3
        assert [await outcomes(watcher, job.id) for job in jobs] == [["succeeded"]] * 3
        await robbed.close()
        await watcher.close()
    assert "lost its presence" in caplog.text


async def test_a_worker_that_beats_is_not_gone_whatever_became_of_its_sign(make_store: MakeStore) -> None:
    store = await make_store(presence_quiet="0s")
    sweeper = Sweeper(store.database, store.ports, store.settings)
    lease = await store.claimed()
    await store.do(advertise_presence, lease.worker, presence=True)
    assert await sweeper.gone() == set()
    for _ in range(3):
        await store.advance("2s")
        await store.do(beat, lease.worker, 1, [], ttl_us=TTL_US, ceiling_us=TTL_US)
        assert await sweeper.gone() == set()
    await store.advance("2s")
    assert await sweeper.gone() == {lease.worker}


async def test_a_heartbeat_after_the_last_look_wins_over_the_verdict(store: Store) -> None:
    lease = await store.claimed()
    await store.do(advertise_presence, lease.worker, presence=True)
    ((_, seen),) = await store.do(present_workers)
    await store.advance("2s")
    await store.do(beat, lease.worker, 1, [], ttl_us=TTL_US, ceiling_us=TTL_US)
    assert await store.do(lose_workers, gone=[lease.worker], reason="gone", last_beats=[seen]) == 0
    rescue: dict[str, Any] = {"limit": 10, "backoff_us": 1, "chance": store.ports.random}
    assert await store.do(expire, gone=[lease.worker], **rescue) == []
    assert ((await store.find(lease.id)).state, await store.attempts(lease)) == ("running", [])
    ((_, seen),) = await store.do(present_workers)
    assert await store.do(lose_workers, gone=[lease.worker], reason="gone", last_beats=[seen]) == 1
    assert [moved.id for moved in await store.do(expire, gone=[lease.worker], **rescue)] == [lease.id]


def row_where(app: Holdfast, holds: Callable[[WorkerRecord], bool]) -> Callable[[], Awaitable[WorkerRecord | None]]:
    async def look() -> WorkerRecord | None:
        rows = [row for row in await app.workers.list(all=True) if row.id == "robbed"]
        return next((row for row in rows if holds(row)), None)

    return look


async def cut_presence(url: str, worker: int) -> None:
    connection = await asyncpg.connect(url)
    try:
        pid = await connection.fetchval(HOLDS.format(worker))
        await connection.execute(f"select pg_terminate_backend({pid})")
    finally:
        await connection.close()


async def test_nobody_is_judged_by_presence_right_after_the_server_has_started(shared_database: SharedDatabase) -> None:
    """The restart has cut everybody, and those who live need a moment to come back."""
    for quiet, absent in (("3650d", False), ("0s", True)):
        shared_database.empty()
        async with postgres_store(shared_database.url, shared_database.url, presence_quiet=quiet) as store:
            worker = await store.worker()
            assert await store.database.presence.absent([worker]) == ({worker} if absent else set())
