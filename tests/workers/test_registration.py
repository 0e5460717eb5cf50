"""The row of a worker: who it is, what it can do, and that there is one of it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence

import pytest

from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.errors import VERSION, DuplicateWorker
from holdfast.kernel.database import Transaction
from holdfast.kernel.workers import lose_workers
from holdfast.values.workers import WorkerRecord
from holdfast.workers.role import Role
from tests.support.apps import MakeApp, eventually, happens, outcomes, the_worker, working


def with_a_job(app: Holdfast) -> Holdfast:
    @app.job(name="work")
    async def work() -> None: ...

    return app


async def test_a_worker_says_who_it_is(make_app: MakeApp) -> None:
    app = with_a_job(make_app(embedded=False, concurrency=7))
    role = Role(name="mill", id="mill-3", queues=("b", "a"), capabilities=("tag:gpu=yes",))
    async with working(app, role) as worker:
        row = await the_worker(app)
        assert (row.id, row.name, row.hostname, row.pid) == ("mill-3", "mill", socket.gethostname(), os.getpid())
        assert (row.version, row.status, row.slots, row.active) == (VERSION, "active", 7, 0)
        assert row.capabilities == ["job:work", "tag:gpu=yes"]
        assert row.queues == ["b", "a"]
        assert bool(row.presence)
        assert (row.seq, row.id) == (worker.seq, worker.id)


async def test_names_may_be_shared_and_ids_are_made(make_app: MakeApp) -> None:
    app = with_a_job(make_app(embedded=False))
    async with working(app), working(app):
        first, second = await app.workers.list()
        assert first.name == second.name == socket.gethostname()
        assert first.id != second.id
        assert first.queues is None


async def test_a_live_id_is_refused_to_another(make_app: MakeApp) -> None:
    app, other = with_a_job(make_app(embedded=False)), with_a_job(make_app(embedded=False))
    async with working(app, Role(id="pod-1")):
        with pytest.raises(DuplicateWorker, match=f"'pod-1' is already in use on .* \\(pid {os.getpid()}\\)"):
            await other.work(Role(id="pod-1"))
        assert len(await app.workers.list(all=True)) == 1


async def test_a_stopped_workers_id_is_free_and_its_number_is_not(make_app: MakeApp) -> None:
    app = with_a_job(make_app(embedded=False))
    numbers = []
    for _ in range(3):
        async with working(app, Role(id="pod-1")) as worker:
            numbers.append(worker.seq)
    assert numbers == sorted(set(numbers))


async def test_a_worker_whose_id_was_taken_meanwhile_leaves(make_app: MakeApp) -> None:
    app, other = (with_a_job(make_app(embedded=False)) for _ in range(2))
    replaced = asyncio.create_task(app.work(Role(id="pod-1")))

    async def beating() -> bool:
        return any(row.heartbeat_at > row.started_at for row in await app.workers.list())

    await eventually(beating)
    (first,) = await app.workers.list()
    store = core_of(app).runtime().database
    await store.transact(lose_workers, gone={first.seq}, reason="given up")

    async def poke(tx: Transaction) -> None:
        await tx.hint(f"cancel {first.seq}")  # its heart beats at once

    async with working(other, Role(id="pod-1")) as worker:
        await store.transact(poke)
        await replaced
        (left,) = await other.workers.list()
        assert left.seq == worker.seq


async def test_a_worker_given_up_for_lost_registers_again_and_goes_on(make_app: MakeApp) -> None:
    app = make_app(embedded=False, heartbeat="100ms")
    begun, let_go = asyncio.Event(), asyncio.Event()

    @app.job
    async def stay() -> str:
        begun.set()
        await let_go.wait()
        return "finished"

    @app.job
    async def after() -> str:
        return "goes on"

    async with working(app, Role(id="pod-1")) as worker:
        job = await stay.enqueue()
        await happens(begun)
        before = worker.seq
        await core_of(app).runtime().database.transact(lose_workers, gone=[before], reason="a mistake")

        async def back() -> Sequence[WorkerRecord]:
            return [row for row in await app.workers.list() if row.seq != before and row.presence]

        (row,) = await eventually(back)
        assert (row.id, row.status) == ("pod-1", "active")
        let_go.set()
        assert await job.result() == "finished"
        assert await outcomes(app, job.id) == ["succeeded"], "what it held, it ends under its old number"
        assert await (await after.enqueue()).result() == "goes on"
        assert {one.seq: one.status for one in await app.workers.list(all=True)} == {before: "lost", row.seq: "active"}
    assert await app.workers.list() == []


async def test_heartbeats_are_recorded(make_app: MakeApp) -> None:
    app = with_a_job(make_app(embedded=False, heartbeat="50ms"))
    async with working(app):
        first = (await the_worker(app)).heartbeat_at

        async def later() -> bool:
            return (await the_worker(app)).heartbeat_at > first

        await eventually(later)


async def test_one_worker_holds_the_duty_and_gives_it_back(make_app: MakeApp) -> None:
    app = with_a_job(make_app(embedded=False, duty_ttl="200ms"))

    async def holder() -> int | None:
        return next((duty.holder for duty in await app.workers.duties() if duty.name == "cleanup"), None)

    async with working(app) as second:
        async with working(app) as first:
            held = await eventually(holder)
            assert held in (first.seq, second.seq)

        async def mine() -> bool:
            return await holder() == second.seq

        await eventually(mine)
    assert await app.workers.duties() == []


async def test_old_rows_are_cleaned_up(make_app: MakeApp) -> None:
    app = with_a_job(make_app(embedded=False, worker_retention="0s"))
    async with working(app):
        pass
    async with working(app) as worker:

        async def alone() -> bool:
            return [row.seq for row in await app.workers.list(all=True)] == [worker.seq]

        await eventually(alone)
