"""Workers for one job, or until nothing is left: `holdfast worker --once` and `--until-empty`."""

from __future__ import annotations

import asyncio

from holdfast import JobContext, Retry
from holdfast.app import core_of
from holdfast.workers.role import Role
from tests.conftest import Place
from tests.support.apps import PATIENCE, MakeApp, outcomes
from tests.support.past_kernel import query

ONE, EMPTY = Role(until="one"), Role(until="empty")


async def test_one_runs_one_job_and_leaves(make_app: MakeApp) -> None:
    app = make_app(embedded=False)
    ran: list[int] = []

    @app.job
    async def work(number: int) -> None:
        ran.append(number)

    jobs = await work.enqueue_many([(n,) for n in range(3)])
    async with asyncio.timeout(PATIENCE):
        await core_of(app).make_worker(ONE).run()
    assert ran == [0]
    assert [(await job.refresh()).state for job in jobs] == ["succeeded", "pending", "pending"]
    assert await app.workers.list() == []


async def test_one_leaves_when_there_is_none(make_app: MakeApp) -> None:
    app = make_app(embedded=False)

    @app.job
    async def work() -> None: ...

    async with asyncio.timeout(PATIENCE):
        await core_of(app).make_worker(ONE).run()


async def test_one_counts_a_failed_attempt(make_app: MakeApp) -> None:
    app = make_app(embedded=False)

    @app.job(retry=Retry(backoff="constant", base="0s"))
    async def work() -> None:
        raise RuntimeError

    job = await work.enqueue()
    async with asyncio.timeout(PATIENCE):
        await core_of(app).make_worker(ONE).run()
    assert await outcomes(app, job.id) == ["retried"]
    assert (await job.refresh()).state == "pending"


async def test_empty_works_everything_off_and_leaves(make_app: MakeApp) -> None:
    app = make_app(embedded=False, concurrency=3)
    ran: list[int] = []

    @app.job
    async def work(number: int) -> None:
        ran.append(number)

    await work.enqueue_many([(n,) for n in range(50)])
    async with asyncio.timeout(PATIENCE):
        await core_of(app).make_worker(EMPTY).run()
    assert sorted(ran) == list(range(50))


async def test_empty_does_what_its_jobs_start(make_app: MakeApp) -> None:
    app = make_app(embedded=False)

    @app.job
    async def child() -> int:
        return 1

    @app.job
    async def parent(ctx: JobContext) -> int:
        for _ in range(3):
            await ctx.start(child)
        return sum(one.result for one in await ctx.join())

    job = await parent.enqueue()
    async with asyncio.timeout(PATIENCE):
        await core_of(app).make_worker(EMPTY).run()
    assert await job.result() == 3


async def test_empty_leaves_what_is_not_due(make_app: MakeApp) -> None:
    app = make_app(embedded=False)

    @app.job
    async def work() -> None: ...

    job = await work.options(delay="1h").enqueue()
    async with asyncio.timeout(PATIENCE):
        await core_of(app).make_worker(EMPTY).run()
    assert (await job.refresh()).state == "scheduled"


async def test_empty_takes_what_was_enqueued_without_a_hint(make_app: MakeApp) -> None:
    app = make_app(embedded=False, poll_interval="10m")

    @app.job
    async def work() -> None: ...

    job = await work.options(notify=False).enqueue()
    async with asyncio.timeout(PATIENCE):
        await core_of(app).make_worker(EMPTY).run()
    assert (await job.refresh()).state == "succeeded"


async def test_empty_does_what_has_become_due(make_app: MakeApp, place: Place) -> None:
    app = make_app(embedded=False)

    @app.job
    async def work() -> None: ...

    job = await work.options(delay="1h").enqueue()
    query(place, "update holdfast.later set due_at = 1")
    async with asyncio.timeout(PATIENCE):
        await core_of(app).make_worker(EMPTY).run()
    assert (await job.refresh()).state == "succeeded"


async def test_empty_takes_over_a_job_whose_lease_has_lapsed(make_app: MakeApp, place: Place) -> None:
    app = make_app(embedded=False)

    @app.job
    async def work() -> None: ...

    job = await work.enqueue()
    async with app.broker(capabilities=[f"job:{work.definition.kind}"], renewal="manual") as broker:
        assert await broker.claim() is not None
        query(place, "update holdfast.lease set lease_until = 1")
        async with asyncio.timeout(PATIENCE):
            await core_of(app).make_worker(EMPTY).run()
    assert ((await job.refresh()).state, await outcomes(app, job.id)) == ("succeeded", ["lost", "succeeded"])


async def test_empty_fires_the_schedules_that_are_due(make_app: MakeApp, place: Place) -> None:
    app = make_app(embedded=False)
    ran: list[int] = []

    @app.schedule("0 0 1 1 *")
    async def yearly() -> None:
        ran.append(1)

    for _ in range(2):
        async with asyncio.timeout(PATIENCE):
            await core_of(app).make_worker(EMPTY).run()
        query(place, "update holdfast.schedule set next_at = 1")
    assert ran == [1]
