"""How much a worker takes: what it has slots for, and ahead of that only while attempts are short."""

from __future__ import annotations

import asyncio
import random

import pytest

from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.kernel.claim import claim
from holdfast.kernel.database import Transaction
from holdfast.kernel.enqueue import enqueue
from holdfast.kernel.ids import JobId, new_id
from holdfast.kernel.leases import expire
from holdfast.kernel.rows import NewJob, Route
from holdfast.kernel.waiting import wake
from holdfast.kernel.workers import Registration, register, unregister
from tests.support.apps import MakeApp, eventually, happens, outcomes, working

MANY = 40  # more than a worker remembers of its attempts


class Line:
    """An app with short jobs and jobs that stay until they are let go."""

    def __init__(self, hf: Holdfast) -> None:
        self.let_go = asyncio.Event()
        self.held = asyncio.Event()

        @hf.job
        async def short() -> None: ...

        @hf.job
        async def long() -> None:
            self.held.set()
            await self.let_go.wait()

        self.short, self.long = short, long

    async def warm_up(self) -> None:
        for job in await self.short.enqueue_many([{}] * MANY):
            await job.result()


async def running(hf: Holdfast) -> int:
    return len(await hf.jobs.list(state="running", limit=1_000))


async def test_a_new_worker_takes_what_it_has_slots_for(make_app: MakeApp) -> None:
    hf = make_app(concurrency=2, prefetch=2)
    line = Line(hf)
    async with hf:
        jobs = await line.long.enqueue_many([{}] * 10)
        await happens(line.held)
        assert await running(hf) == 2
        line.let_go.set()
        for job in jobs:
            await job.result()


async def test_while_attempts_are_short_it_takes_some_ahead(make_app: MakeApp) -> None:
    hf = make_app(concurrency=2, prefetch=2)
    line = Line(hf)
    async with hf:
        await line.warm_up()
        jobs = await line.long.enqueue_many([{}] * 10)

        async def six() -> bool:
            return await running(hf) == 6

        await eventually(six)
        line.let_go.set()
        for job in jobs:
            await job.result()
        assert {(await job.refresh()).attempts for job in jobs} == {1}


async def test_prefetch_can_be_turned_off(make_app: MakeApp) -> None:
    hf = make_app(concurrency=2, prefetch=0)
    line = Line(hf)
    async with hf:
        await line.warm_up()
        jobs = await line.long.enqueue_many([{}] * 10)
        await happens(line.held)
        assert await running(hf) == 2
        line.let_go.set()
        for job in jobs:
            await job.result()


async def test_what_was_taken_ahead_is_handed_back_when_the_worker_leaves(make_app: MakeApp) -> None:
    hf = make_app(embedded=False, concurrency=1, prefetch=2)
    line = Line(hf)
    async with working(hf) as worker:
        await line.warm_up()
        jobs = await line.long.enqueue_many([{}] * 3)

        async def three() -> bool:
            return await running(hf) == 3

        await eventually(three)
        stopping = asyncio.create_task(worker.stop())

        async def handed_back() -> bool:
            return [(await job.refresh()).state for job in jobs] == ["running", "pending", "pending"]

        await eventually(handed_back)
        line.let_go.set()
        await stopping
    assert [await outcomes(hf, job.id) for job in jobs] == [["succeeded"], ["released"], ["released"]]
    assert [(await job.refresh()).attempts for job in jobs] == [1, 0, 0]


async def enqueue_lost(tx: Transaction, job: NewJob, route: Route, chance: random.Random, *, times: int = 1) -> None:
    """Accept a job that another worker has taken and lost already, all in one commit."""
    await enqueue(tx, [job], [route])
    ghost = Registration(job.id, "ghost", "ghost", "nowhere", 1, "0", (), None, 1)
    seq = await register(tx, ghost, [], ttl_us=60_000_000, gone=[])
    await unregister(tx, seq, reason="died")
    for _ in range(times):
        await wake(tx, limit=10)
        await claim(tx, seq, [route.id], 1, 60_000_000)
        await expire(tx, gone=[seq], limit=1, backoff_us=0, chance=chance)


class Suspect:
    """A job that others have lost, and in which order it started among short ones."""

    def __init__(self, hf: Holdfast) -> None:
        self._hf = hf
        self.started: list[str] = []

        @hf.job(priority=1)
        async def suspect() -> str:
            self.started.append("suspect")
            return "harmless"

        @hf.job
        async def young() -> None:
            self.started.append("young")
            await asyncio.sleep(0.005)

        self._suspect, self.young = suspect, young

    async def enqueue(self, *, lost: int) -> JobId:
        id = new_id(core_of(self._hf).ports)
        new, route = self._suspect.new_job((), {}, id=id, settings=self._hf.settings)
        await core_of(self._hf).runtime().database.transact(enqueue_lost, new, route, random.Random(1), times=lost)
        return id


async def test_a_job_that_was_lost_once_starts_before_younger_ones(make_app: MakeApp) -> None:
    hf = make_app(concurrency=1, prefetch=2)
    line, scene = Line(hf), Suspect(hf)
    async with hf:
        await line.warm_up()
        await line.long.enqueue()
        await happens(line.held)
        id = await scene.enqueue(lost=1)
        young = await scene.young.enqueue_many([{}] * 5)

        async def taken_ahead() -> bool:
            return await running(hf) == 3

        await eventually(taken_ahead)
        line.let_go.set()
        for job in young:
            await job.result()
        assert await hf.jobs[id].result() == "harmless"
        assert scene.started[0] == "suspect"
        assert await outcomes(hf, id) == ["lost", "succeeded"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("lost", [1, 2])
async def test_a_busy_worker_does_not_put_off_what_was_lost_before(make_app: MakeApp, lost: int) -> None:
    hf = make_app(concurrency=1, prefetch=2)
    line, scene = Line(hf), Suspect(hf)
    async with hf:
        await line.warm_up()
        young = await scene.young.enqueue_many([{}] * 500)
        await young[0].result()
        id = await scene.enqueue(lost=lost)
        assert await hf.jobs[id].result() == "harmless"
        for job in young:
            await job.result()
        assert scene.started[-1] == "young"
        assert lost > 1 or "snoozed" not in await outcomes(hf, id)


@pytest.mark.long
async def test_a_job_that_was_lost_more_than_once_does_not_wait_here_for_long(make_app: MakeApp) -> None:
    """Who dies beside it would cost it another rescue before it has run: it goes back to the store, for others."""
    hf = make_app(concurrency=1, prefetch=2)
    line, scene = Line(hf), Suspect(hf)
    async with hf:
        await line.warm_up()
        blocking = await line.long.enqueue()
        await happens(line.held)
        id = await scene.enqueue(lost=2)

        async def put_off() -> bool:
            return "snoozed" in await outcomes(hf, id)

        await eventually(put_off)
        line.let_go.set()
        await blocking.result()
        assert await hf.jobs[id].result() == "harmless"
        row = await hf.jobs.get(id)
        assert (row.rescues, row.attempts) == (2, 1)
