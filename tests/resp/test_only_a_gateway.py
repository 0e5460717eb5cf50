"""Where no worker runs, a gateway does what a worker's sweep and duties do; so does a broker in a program."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.durations import next_tick
from holdfast.kernel.cancel import cancel
from holdfast.kernel.claim import claim
from holdfast.kernel.enqueue import enqueue_children
from holdfast.kernel.ids import JobId, new_id
from holdfast.kernel.lanes import claim_in_lanes
from holdfast.kernel.routes import route_for
from holdfast.kernel.schedules import put_schedule
from tests.resp.conftest import KEYS
from tests.support.apps import MakeApp, eventually, in_state
from tests.support.contents import changed_at, contents_at
from tests.support.jobs import plain_job

WORKER, TTL_US = 999, 600_000_000  # a worker that is not there, for what somebody has to claim

Alone = Callable[[Holdfast], AbstractAsyncContextManager[object]]


@pytest.fixture(params=["gateway", "broker"])
def alone(request: pytest.FixtureRequest) -> Alone:
    """The only process of Holdfast there is."""

    @asynccontextmanager
    async def gateway(hf: Holdfast) -> AsyncIterator[None]:
        async with hf.resp("127.0.0.1:0", workers=KEYS):
            yield

    @asynccontextmanager
    async def broker(hf: Holdfast) -> AsyncIterator[None]:
        async with hf.broker(queues=["nobody's"]):
            yield

    return gateway if request.param == "gateway" else broker


@pytest.fixture
def lonely(make_app: MakeApp) -> Holdfast:
    return make_app(embedded=False, poll_interval="50ms", sweep_interval="50ms", cleanup_interval="50ms")


async def test_a_job_that_nobody_takes_fails_at_its_deadline(lonely: Holdfast, alone: Alone) -> None:
    async with alone(lonely):
        job = await lonely.enqueue("mail", {}, deadline="50ms")
        assert (await in_state(lonely, job.id, "failed")).error is not None


@pytest.mark.sample(1)
async def test_a_lane_that_was_full_lets_the_next_job_through(lonely: Holdfast, alone: Alone) -> None:
    @lonely.job(rate="1/s")
    async def mail() -> None: ...

    database = await core_of(lonely).opened()
    (route,) = [route.id for route in core_of(lonely).registry.routes()]
    for _ in range(2):
        await mail.enqueue()

    async def claimed() -> bool:
        return len(await database.transact(claim_in_lanes, WORKER, [route], 2, TTL_US)) == 1

    assert await claimed()
    assert not await claimed()
    async with alone(lonely):
        await eventually(claimed)


async def test_a_cancel_reaches_the_children_though_its_caller_has_gone(lonely: Holdfast, alone: Alone) -> None:
    database = await core_of(lonely).opened()
    parent, route = await lonely.enqueue("parent", {}), route_for("default", "parent")
    (lease,) = await database.transact(claim, WORKER, [route.id], 1, TTL_US)
    child, below = new_id(core_of(lonely).ports), route_for("default", "child")
    await database.transact(enqueue_children, lease, [plain_job(child, "child", below, parent=lease.seq)], [below])
    await database.transact(cancel, JobId(parent.id), reason="no longer wanted")
    assert (await lonely.jobs.get(child)).state == "pending"
    async with alone(lonely):
        await in_state(lonely, child, "cancelled")


async def test_finished_jobs_are_removed_when_they_are_old(lonely: Holdfast, alone: Alone) -> None:
    job = await lonely.enqueue("mail", {})
    await lonely.jobs[job.id].cancel()
    changed_at(lonely.settings.url, "update holdfast.ended set finished_at = 1")

    async def removed() -> bool:
        return not list(await lonely.jobs.list())

    async with alone(lonely):
        await eventually(removed)


async def test_schedules_are_fired(lonely: Holdfast, alone: Alone) -> None:
    @lonely.schedule("every 1s", name="often")
    async def mail() -> None: ...

    await (await core_of(lonely).opened()).transact(put_schedule, core_of(lonely).registry.schedules[0], next_tick)

    async def fired() -> bool:
        return bool(list(await lonely.jobs.list()))

    async with alone(lonely):
        await eventually(fired)


async def test_what_has_ended_is_counted(lonely: Holdfast, alone: Alone) -> None:
    job = await lonely.enqueue("mail", {})
    await lonely.jobs[job.id].cancel()
    changed_at(lonely.settings.url, "update holdfast.ended set finished_at = finished_at - 600000000")

    async def counted() -> bool:
        return bool(contents_at(lonely.settings.url)["tally"])

    async with alone(lonely):
        await eventually(counted)
