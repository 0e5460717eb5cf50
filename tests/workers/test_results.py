"""Waiting for results: many at once, for a while, without being the job."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from pydantic import BaseModel

from holdfast import Discard, Holdfast, RunFailed
from holdfast.app import core_of
from holdfast.errors import NotFound, ResultTimeout, SchemaTooOld, UsageError
from holdfast.kernel.ids import new_id
from holdfast.kernel.migrate import code_version
from holdfast.kernel.sql import Dialect
from tests.support.apps import MakeApp, eventually, happens, working


async def test_many_are_awaited_at_once(hf: Holdfast) -> None:
    @hf.job
    async def work(number: int) -> int:
        return number

    async with hf:
        jobs = await work.enqueue_many([(number,) for number in range(300)])
        results = await asyncio.gather(*(job.result() for job in jobs), *(job.result() for job in jobs[:10]))
        assert results == [*range(300), *range(10)]
        assert {job.state for job in jobs} == {"succeeded"}


async def test_a_wait_may_end_before_the_job(hf: Holdfast) -> None:
    let_go = asyncio.Event()

    @hf.job
    async def work() -> str:
        await let_go.wait()
        return "done"

    async with hf:
        job = await work.enqueue()
        with pytest.raises(ResultTimeout, match=f"job {job.id} has not ended within 0.05 s") as caught:
            await job.result(timeout="50ms")
        assert caught.value.retry == "later"
        let_go.set()
        assert await job.result() == "done"


async def test_cancelling_the_wait_does_not_cancel_the_job(hf: Holdfast) -> None:
    begun, let_go = asyncio.Event(), asyncio.Event()

    @hf.job
    async def work() -> str:
        begun.set()
        await let_go.wait()
        return "done"

    async with hf:
        job = await work.enqueue()
        first, second = asyncio.create_task(job.result()), asyncio.create_task(job.result())
        await happens(begun)
        first.cancel()
        await asyncio.wait([first])
        assert first.cancelled()
        let_go.set()
        assert await second == "done"
        assert (await job.refresh()).cancel_requested_at is None


async def test_a_job_that_is_not_there_is_not_found(hf: Holdfast) -> None:
    missing = new_id(core_of(hf).ports)
    with pytest.raises(NotFound, match=missing):
        await hf.jobs[missing].result()
    with pytest.raises(UsageError, match="'seven' is not a job id"):
        hf.jobs["seven"]


@pytest.mark.parametrize("state", ["failed", "cancelled"])
async def test_a_job_without_a_result_raises(hf: Holdfast, state: str) -> None:
    @hf.job
    async def work() -> None:
        raise Discard("no use")

    async with hf:
        job = await (work if state == "failed" else work.options(delay="1h")).enqueue()
        if state == "cancelled":
            await job.cancel("no use")
        with pytest.raises(RunFailed) as caught:
            await job.result()
        assert (caught.value.job, caught.value.state, caught.value.error) == (job.id, state, "no use")
        assert caught.value.retry == "never"


@dataclass
class Point:
    x: int
    at: datetime


class Invoice(BaseModel):
    number: str
    total: Decimal


async def test_arguments_and_results_keep_their_types(hf: Holdfast) -> None:
    @hf.job
    async def move(point: Point, on: date) -> Point:
        assert isinstance(point, Point)
        assert isinstance(on, date)
        return Point(point.x + 1, point.at)

    @hf.job
    def pay(invoice: Invoice) -> list[Invoice]:
        return [Invoice(number=invoice.number, total=-invoice.total)]

    async with hf:
        noon = datetime(2026, 1, 2, 12, tzinfo=UTC)
        moved = await move.enqueue(Point(1, noon), on=date(2026, 1, 2))
        assert await moved.result() == Point(2, noon)
        paid = await pay.enqueue(Invoice(number="A1", total=Decimal("0.10")))
        assert await paid.result() == [Invoice(number="A1", total=Decimal("-0.10"))]
        assert await hf.jobs[paid.id].result() == [{"number": "A1", "total": "-0.10"}], "without the type: its JSON"


async def test_a_handle_made_from_an_id_waits_too(make_app: MakeApp) -> None:
    server, client = make_app(embedded=False), make_app(embedded=False)

    @server.job
    async def work() -> dict[str, int]:
        return {"a": 1}

    job = await work.enqueue()
    waiting = asyncio.create_task(client.jobs[job.id.upper()].result())
    async with working(server):
        assert await waiting == {"a": 1}


async def test_a_store_that_breaks_ends_the_wait(make_app: MakeApp, dialect: Dialect) -> None:
    """It must not hang: what it reads is gone, and no other look will find it."""
    version = code_version(dialect)
    app, other = make_app(embedded=False), make_app(embedded=False)

    @app.job
    async def work() -> None: ...

    job = await work.enqueue()
    waiting = asyncio.create_task(job.result())

    async def waits() -> bool:
        return bool(core_of(app).runtime()._awaited)

    await eventually(waits)
    await core_of(other).runtime().open()
    hide = "drop view job_now" if dialect == "sqlite" else "alter view holdfast.job_now rename to hidden"
    await core_of(other).runtime().database.script([hide], at=version)
    try:
        with pytest.raises(SchemaTooOld):
            await asyncio.wait_for(waiting, 60)
    finally:  # on PostgreSQL others use this database after us
        if dialect == "postgres":
            await core_of(other).runtime().database.script(["alter view holdfast.hidden rename to job_now"], at=version)
