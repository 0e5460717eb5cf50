"""The worker inside the program: started when it is needed, once, and gone with the app."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.errors import StoreUnavailable
from tests.support.apps import MakeApp, eventually, working


async def test_run_starts_a_worker_when_there_is_none(hf: Holdfast) -> None:
    @hf.job
    async def double(number: int) -> int:
        return 2 * number

    assert await double.run(4) == 8
    assert len(await hf.workers.list()) == 1


async def test_many_runs_at_once_start_one_worker(hf: Holdfast, make_app: MakeApp) -> None:
    watcher = make_app(embedded=False)

    @hf.job
    async def double(number: int) -> int:
        return 2 * number

    assert await asyncio.gather(*(double.run(n) for n in range(10))) == [2 * n for n in range(10)]
    assert len(await watcher.workers.list(all=True)) == 1
    await hf.close()
    assert await watcher.workers.list() == []


async def test_an_app_that_may_not_embed_waits_for_another_worker(make_app: MakeApp) -> None:
    app, server = make_app(embedded=False), make_app(embedded=False)

    @app.job(name="double")
    async def double(number: int) -> int: ...  # type: ignore[empty-body]

    @server.job(name="double")
    async def really_double(number: int) -> int:
        return 2 * number

    running = asyncio.create_task(double.run(4))

    async def accepted() -> bool:
        return len(await server.jobs.list(state="pending")) == 1

    await eventually(accepted)
    assert await server.workers.list() == []
    async with working(server):
        assert await running == 8


async def test_enqueue_starts_no_worker(hf: Holdfast) -> None:
    @hf.job
    async def work() -> None: ...

    job = await work.enqueue()
    assert await hf.workers.list() == []
    assert (await job.refresh()).state == "pending"


async def test_an_app_without_jobs_starts_no_worker(hf: Holdfast) -> None:
    async with hf:
        assert await hf.workers.list() == []


async def test_an_app_can_be_opened_again(hf: Holdfast) -> None:
    @hf.job
    async def work(number: int) -> int:
        return number

    for number in range(2):
        async with hf:
            assert await (await work.enqueue(number)).result() == number


async def test_a_web_app_opens_it_by_its_lifespan(hf: Holdfast, make_app: MakeApp) -> None:
    watcher = make_app(embedded=False)

    @hf.job
    async def work() -> str:
        return "served"

    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(hf.lifespan(object()))
        assert await (await work.enqueue()).result() == "served"
        assert len(await watcher.workers.list()) == 1
    assert await watcher.workers.list() == []


async def test_a_program_with_two_loops_has_a_worker_in_each(hf: Holdfast) -> None:
    @hf.job
    async def work(number: int) -> int:
        return number

    async def elsewhere() -> int:
        async with hf:
            return await work.run(2)

    async with hf:
        assert await work.run(1) == 1
        assert await asyncio.to_thread(asyncio.run, elsewhere()) == 2
        assert await work.run(3) == 3


async def test_closing_the_app_ends_the_waits_in_it(make_app: MakeApp) -> None:
    app = make_app(embedded=False)

    @app.job
    async def work() -> None: ...

    job = await work.enqueue()
    waiting = asyncio.create_task(job.result())

    async def waits() -> bool:
        return bool(core_of(app).runtime()._awaited)

    await eventually(waits)
    await app.close()
    with pytest.raises(StoreUnavailable, match="closed while you waited for this result"):
        await waiting


async def test_a_worker_that_cannot_start_is_tried_again_by_the_next_run(make_app: MakeApp, dialect: str) -> None:
    app = make_app(store_patience="0s")

    @app.job
    async def work() -> str:
        return "done"

    place = app.settings.url
    nowhere = {"sqlite": "sqlite:////dev/null/x.db", "postgres": "postgresql://127.0.0.1:1/x"}[dialect]
    app.settings = app.settings.override({"url": nowhere})
    with pytest.raises(StoreUnavailable):
        await work.run()
    await app.close()
    app.settings = app.settings.override({"url": place})
    assert await work.run() == "done"
