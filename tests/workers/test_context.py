"""What a handler is told about its job, and what it can store while it runs."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from holdfast import Holdfast, JobContext, Retry, RunFailed, Snooze
from holdfast.errors import UsageError
from tests.support.apps import MakeApp, eventually, happens, outcomes, working

QUICK = Retry(attempts=3, backoff="constant", base="10ms", jitter=0)


async def test_a_handler_knows_its_job(hf: Holdfast) -> None:
    told: dict[str, Any] = {}

    @hf.job(name="shop.refund", queue="money")
    async def refund(ctx: JobContext, order: str) -> None:
        told.update(
            id=ctx.id, kind=ctx.kind, queue=ctx.queue, tenant=ctx.tenant, metadata=ctx.metadata, cancelled=ctx.cancelled
        )

    async with hf:
        job = await refund.options(tenant="acme", metadata={"by": "Ann"}).enqueue("A1")
        await job.result()
        assert told == {
            "id": job.id,
            "kind": "shop.refund",
            "queue": "money",
            "tenant": "acme",
            "metadata": {"by": "Ann"},
            "cancelled": False,
        }


async def test_attempts_are_counted_and_the_key_stays(hf: Holdfast) -> None:
    seen: list[tuple[int, str, str]] = []

    @hf.job(retry=QUICK)
    async def work(ctx: JobContext) -> None:
        seen.append((ctx.attempt, ctx.idempotency_key, ctx.token))
        if len(seen) == 1:
            raise Snooze("1ms")
        if len(seen) < 4:
            raise RuntimeError

    async with hf:
        job = await work.enqueue()
        await job.result()
        assert [attempt for attempt, _, _ in seen] == [1, 1, 2, 3], "a snooze is no attempt"
        assert len({key for _, key, _ in seen}) == 1
        counters = [int(token.split(".")[1]) for _, _, token in seen]
        assert counters == sorted(set(counters)), "the token rises with every claim"


async def test_the_log_names_the_job(hf: Holdfast, caplog: pytest.LogCaptureFixture) -> None:
    @hf.job(name="noisy")
    async def work(ctx: JobContext) -> str:
        ctx.log.info("half way")
        return ctx.token

    with caplog.at_level(logging.INFO, "holdfast.job"):
        async with hf:
            job = await work.enqueue()
            token = await job.result()
    (record,) = [record for record in caplog.records if record.name == "holdfast.job.noisy"]
    assert record.getMessage() == "half way"
    assert {name: getattr(record, name) for name in ("job", "kind", "attempt", "token")} == {
        "job": job.id,
        "kind": "noisy",
        "attempt": 1,
        "token": token,
    }


async def test_a_step_runs_once_across_retries(hf: Holdfast) -> None:
    calls: list[str] = []

    async def fetch(place: str) -> list[str]:
        calls.append(place)
        return [place, "page"]

    def shrink(size: int, *, quality: int) -> int:
        calls.append(f"{size}/{quality}")
        return size // 2

    @hf.job(retry=QUICK)
    async def work(ctx: JobContext) -> list[Any]:
        page = await ctx.step("fetch", fetch, "here")
        if ctx.attempt == 1:
            raise ConnectionError
        small = await ctx.step("shrink", shrink, 80, quality=9)
        if ctx.attempt == 2:
            raise ConnectionError
        return [page, small]

    async with hf:
        job = await work.enqueue()
        assert await job.result() == [["here", "page"], 40]
        assert calls == ["here", "80/9"]
        assert await outcomes(hf, job.id) == ["retried", "retried", "succeeded"]


async def test_what_a_step_returns_is_what_the_store_would_return(hf: Holdfast) -> None:
    """So that a handler meets the same value in its first attempt and in its second."""

    def pair() -> tuple[int, int]:
        return 1, 2

    @hf.job(retry=QUICK)
    async def work(ctx: JobContext) -> str:
        value = await ctx.step("pair", pair)
        if ctx.attempt == 1:
            raise RuntimeError(repr(value))
        return repr(value)

    async with hf:
        job = await work.enqueue()
        assert await job.result() == "[1, 2]"
        first = (await hf.jobs.attempts(job.id))[0]
        assert first.error["message"] == "RuntimeError: [1, 2]"


async def test_a_step_that_fails_is_not_stored(hf: Holdfast) -> None:
    calls: list[int] = []

    def sometimes() -> str:
        calls.append(1)
        if len(calls) == 1:
            raise OSError("down")
        return "up"

    @hf.job(retry=QUICK)
    async def work(ctx: JobContext) -> str:
        return await ctx.step("sometimes", sometimes)

    async with hf:
        assert await (await work.enqueue()).result() == "up"
        assert len(calls) == 2


async def test_a_step_is_not_repeated_by_the_worker_that_takes_over(make_app: MakeApp) -> None:
    app = make_app(embedded=False, drain_grace="10ms")
    fetched: list[int] = []
    reached = asyncio.Event()
    gate = asyncio.Event()

    def fetch() -> str:
        fetched.append(1)
        return "page"

    @app.job
    async def work(ctx: JobContext) -> str:
        page = await ctx.step("fetch", fetch)
        reached.set()
        await gate.wait()
        return page

    job = await work.enqueue()
    async with working(app):
        await happens(reached)
    gate.set()
    async with working(app):
        assert await job.result() == "page"
    assert fetched == [1]
    assert await outcomes(app, job.id) == ["released", "succeeded"]


async def test_steps_of_other_jobs_are_other_steps(hf: Holdfast) -> None:
    @hf.job
    async def work(ctx: JobContext, number: int) -> int:
        return await ctx.step("same name", int, number)

    async with hf:
        jobs = await work.enqueue_many([(1,), (2,)])
        assert [await job.result() for job in jobs] == [1, 2]


async def test_a_step_result_that_cannot_be_stored_fails_the_job(hf: Holdfast) -> None:
    calls: list[int] = []

    def make() -> object:
        calls.append(1)
        return object()

    @hf.job(retry=QUICK)
    async def work(ctx: JobContext) -> None:
        await ctx.step("make", make)

    async with hf:
        job = await work.enqueue()
        with pytest.raises(RunFailed, match="the result of step 'make' is not JSON"):
            await job.result()
        assert (await job.refresh()).error["type"] == "result_error"
        assert calls == [1], "the effect must not be repeated for nothing"


async def test_progress_is_seen_while_the_job_runs(hf: Holdfast) -> None:
    gate = asyncio.Event()

    @hf.job
    async def work(ctx: JobContext) -> None:
        await ctx.progress({"done": 3, "of": 10})
        await gate.wait()

    async with hf:
        job = await work.enqueue()

        async def shown() -> dict[str, int] | None:
            found: dict[str, int] | None = (await job.refresh()).progress
            return found

        assert await eventually(shown) == {"done": 3, "of": 10}
        assert job.state == "running"
        gate.set()
        await job.result()
        assert (await job.refresh()).progress is not None, "the last word stays"


async def test_progress_has_a_cap(make_app: MakeApp) -> None:
    hf = make_app(progress_cap=20)

    @hf.job
    async def work(ctx: JobContext) -> None:
        await ctx.progress("x" * 50)

    async with hf:
        job = await work.enqueue()
        with pytest.raises(RunFailed, match="progress is 52 bytes of JSON, over the cap of 20"):
            await job.result()


async def test_a_sync_handler_has_the_same_calls(hf: Holdfast) -> None:
    calls: list[str] = []

    def fetch(place: str) -> str:
        calls.append(threading.current_thread().name)
        return f"page of {place}"

    @hf.job(retry=QUICK)
    def work(ctx: JobContext) -> list[Any]:
        page = ctx.step_sync("fetch", fetch, "Oslo")
        ctx.progress_sync("fetched")
        if ctx.attempt == 1:
            raise RuntimeError
        return [page, ctx.attempt]

    async with hf:
        job = await work.enqueue()
        assert await job.result() == ["page of Oslo", 2]
        assert len(calls) == 1
        assert (await job.refresh()).progress == "fetched"


async def test_an_async_handler_is_told_to_await(hf: Holdfast) -> None:
    @hf.job
    async def work(ctx: JobContext) -> str:
        with pytest.raises(UsageError, match=r"Write `await ctx.progress\(...\)` here"):
            ctx.progress_sync(1)
        return "told"

    async with hf:
        assert await (await work.enqueue()).result() == "told"


async def test_the_context_is_not_an_argument(hf: Holdfast) -> None:
    @hf.job
    async def work(ctx: JobContext, a: int, b: int = 2) -> int:
        return a + b

    async with hf:
        job = await work.enqueue(1)
        assert (await job.refresh()).payload == {"a": 1, "b": 2}
        assert await job.result() == 3
