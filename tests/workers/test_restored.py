"""An older state of the database is restored under a live worker: numbers and tokens come twice, results do not."""

from __future__ import annotations

import asyncio
from datetime import datetime
from functools import partial

import pytest

from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.kernel.database import Transaction
from holdfast.values.workers import WorkerRecord
from holdfast.workers.role import Role
from holdfast.workers.worker import Worker
from tests.conftest import Place
from tests.support.apps import PATIENCE, MakeApp, eventually, happens, in_state, outcomes, working
from tests.support.restoring import Backup

SHORT = {"heartbeat": "500ms", "lease_ttl": "2s", "fence_margin": "200ms", "worker_ttl": "30s", "prefetch": 0}
LASTING = {"heartbeat": "500ms", "prefetch": 0}  # a slow machine loses no lease
FAR = {"heartbeat": "10m", "lease_ttl": "30m", "worker_ttl": "30m", "prefetch": 0}  # no heartbeat during the test


class Hand:
    """A worker's app, whose job says who ran it, when it may."""

    def __init__(self, app: Holdfast, name: str) -> None:
        self.app = app
        self.begun = asyncio.Event()
        self.let_go = asyncio.Event()
        self.ended = asyncio.Event()

        @app.job(name="work")
        async def work(payload: str) -> str:
            self.begun.set()
            try:
                await self.let_go.wait()
            finally:
                self.ended.set()
            return f"{payload} by {name}"

        self.work = work


async def poke(tx: Transaction, worker: int) -> None:
    """Have whoever believes to have this number beat now."""
    await tx.hint(f"cancel {worker}")


async def has_beaten(app: Holdfast, worker: Worker) -> bool:
    """Its first heartbeat is sent as it starts, and may come late."""
    return any(row.heartbeat_at > row.started_at for row in await app.workers.list() if row.seq == worker.seq)


async def row_of(app: Holdfast, id: str, *, other_than: int = 0) -> WorkerRecord | None:
    """The live row of a worker that shows its presence."""
    rows = [row for row in await app.workers.list() if row.id == id and row.presence and row.seq != other_than]
    return rows[0] if rows else None


async def test_a_newcomer_gets_the_survivors_number_and_both_work_on(
    make_app: MakeApp, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    survivor = Hand(make_app(embedded=False, concurrency=1, **FAR), "the survivor")
    newcomer = Hand(make_app(embedded=False, concurrency=1, **LASTING), "the newcomer")
    job = await survivor.work.enqueue("one")
    with Backup(place.direct) as backup:
        async with working(survivor.app, Role(id="survivor")) as old:
            await happens(survivor.begun)
            await eventually(partial(has_beaten, survivor.app, old))
            before = old.seq
            await backup.restore()
            async with asyncio.timeout(PATIENCE), working(newcomer.app, Role(id="newcomer")) as new:
                await happens(newcomer.begun)
                assert new.seq == before
                survivor.let_go.set()
                await happens(survivor.ended)
                await core_of(survivor.app).runtime().database.transact(poke, before)
                again = await eventually(partial(row_of, survivor.app, "survivor", other_than=before))
                assert again is not None
                assert again.seq == old.seq
                assert await eventually(partial(row_of, newcomer.app, "newcomer")) is not None
                assert (await job.refresh()).state == "running"
                newcomer.let_go.set()
                assert await job.result() == "one by the newcomer"
                assert new.seq != old.seq
                second = await newcomer.work.enqueue("two")
                assert str(await second.result()).startswith("two by ")
    assert await outcomes(survivor.app, job.id) == ["succeeded"]
    assert (await job.refresh()).rescues == 0
    assert "an older state of the database was restored" in caplog.text


async def test_a_job_never_gets_the_result_of_one_that_the_restore_undid(
    make_app: MakeApp, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """The survivor's row is in the backup, and the new job has the number and the token of the old one."""
    hand = Hand(make_app(embedded=False, concurrency=4, **SHORT), "the survivor")
    async with working(hand.app, Role(id="survivor")) as worker:
        with Backup(place.direct) as backup:
            undone = await hand.work.enqueue("undone")
            await happens(hand.begun)
            row = await in_state(hand.app, undone.id, "running")
            for _ in range(2):  # when the second heartbeat comes, the answer to the first was heard
                last = (await hand.app.workers.list())[0].heartbeat_at

                async def beaten(since: datetime = last) -> bool:
                    return (await hand.app.workers.list())[0].heartbeat_at > since

                await eventually(beaten)
            await backup.restore()
            job = await hand.work.enqueue("new")
            assert (await job.refresh()).seq == row.seq

            async def claimed() -> bool:
                return (await job.refresh()).claimed_at is not None

            await eventually(claimed)
            hand.let_go.set()
            assert await job.result() == "new by the survivor"
            assert worker.seq == row.worker
    assert (await outcomes(hand.app, job.id))[-1] == "succeeded"
    assert "an older state of the database was restored" in caplog.text


async def test_a_worker_that_leaves_does_not_sign_off_whoever_has_its_number_now(
    make_app: MakeApp, place: Place
) -> None:
    """Its heartbeats are far apart, so that it learns nothing before it leaves."""
    survivor = Hand(make_app(embedded=False, concurrency=1, **FAR), "the survivor")
    newcomer = Hand(make_app(embedded=False, concurrency=1, **FAR), "the newcomer")
    job = await survivor.work.enqueue("one")
    with Backup(place.direct) as backup:
        async with working(survivor.app, Role(id="survivor")) as old:
            await happens(survivor.begun)
            await eventually(partial(has_beaten, survivor.app, old))
            await backup.restore()
            async with working(newcomer.app, Role(id="newcomer")) as new:
                assert new.seq == old.seq
                await happens(newcomer.begun)
                await old.stop(grace=0)
                assert await eventually(partial(row_of, newcomer.app, "newcomer")) is not None
                newcomer.let_go.set()
                assert await job.result() == "one by the newcomer"
    assert await outcomes(newcomer.app, job.id) == ["succeeded"]
