"""Limits of time: for one attempt, and for all of them together."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Holdfast, JobContext, Queue, Retry, RunFailed
from holdfast.app import core_of
from tests.support.apps import MakeApp, attempts, eventually, happens, in_state, outcomes

ONCE_MORE = Retry(attempts=2, backoff="constant", base="10ms", jitter=0)


def type_of(error: dict[str, Any] | None) -> str:
    return str((error or {}).get("type"))


async def test_an_async_handler_is_cancelled_and_tried_again(hf: Holdfast) -> None:
    cancelled: list[bool] = []

    @hf.job(timeout="50ms", retry=ONCE_MORE)
    async def work() -> str:
        if cancelled:
            return "in time"
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise
        raise AssertionError

    async with hf:
        job = await work.enqueue()
        assert await job.result() == "in time"
        first, _ = await attempts(hf, job.id)
        assert (first.outcome, type_of(first.error)) == ("retried", "timeout")
        assert first.error["message"] == "timed out after 50ms"


async def test_the_last_attempt_fails_as_timeout(hf: Holdfast) -> None:
    @hf.job(timeout="20ms", retry=ONCE_MORE)
    async def work() -> None:
        await asyncio.Event().wait()

    async with hf:
        job = await work.enqueue()
        with pytest.raises(RunFailed, match="timed out after 20ms"):
            await job.result()
        assert await outcomes(hf, job.id) == ["retried", "failed"]
        assert type_of((await job.refresh()).error) == "timeout"


async def test_a_timeout_error_of_the_handlers_own_is_an_ordinary_failure(hf: Holdfast) -> None:
    @hf.job(timeout="1m", retry=Retry(attempts=1))
    async def work() -> None:
        raise TimeoutError("the other side is slow")

    async with hf:
        job = await work.enqueue()
        with pytest.raises(RunFailed, match="TimeoutError: the other side is slow"):
            await job.result()
        assert type_of((await job.refresh()).error) == "processing_error"


async def test_the_queue_gives_a_timeout_and_the_caller_may_give_another(hf: Holdfast) -> None:
    hf.queue("slow", Queue(timeout="2m"))

    @hf.job(queue="slow")
    async def work() -> None: ...

    @hf.job(queue="slow", timeout="3m")
    async def patient() -> None: ...

    assert (await (await work.enqueue()).refresh()).timeout == timedelta(minutes=2)
    assert (await (await patient.enqueue()).refresh()).timeout == timedelta(minutes=3)
    assert (await (await work.options(timeout="1s").enqueue()).refresh()).timeout == timedelta(seconds=1)


async def test_a_sync_handler_is_abandoned_but_keeps_its_slot(make_app: MakeApp) -> None:
    """A thread cannot be stopped: its lease goes on, its late result is dropped, its slot stays taken."""
    hf = make_app(concurrency=1)
    gate, seen = threading.Event(), []

    @hf.job(timeout="50ms", retry=Retry(attempts=1))
    def stuck() -> str:
        gate.wait(60)
        return "too late"

    @hf.job
    async def other() -> str:
        seen.append("other")
        return "done"

    async with hf:
        try:
            job = await stuck.enqueue()
            with pytest.raises(RunFailed, match="timed out"):
                await job.result()
            waiting = await other.enqueue()
            assert (await hf.jobs.get(waiting.id)).state == "pending"
            assert seen == []
        finally:
            gate.set()
        assert await waiting.result() == "done"
        row = await job.refresh()
        assert (row.state, row.result) == ("failed", None)
        assert await outcomes(hf, job.id) == ["failed"]


async def test_a_sync_handler_can_see_that_its_time_is_over(hf: Holdfast) -> None:
    noticed = threading.Event()

    @hf.job(timeout="50ms", retry=Retry(attempts=1))
    def polite(ctx: JobContext) -> None:
        while not ctx.cancelled:
            noticed.wait(0.005)
        noticed.set()

    async with hf:
        job = await polite.enqueue()
        with pytest.raises(RunFailed, match="timed out"):
            await job.result()
        assert await asyncio.to_thread(noticed.wait, 60)


async def test_time_spent_waiting_for_a_thread_is_not_the_attempts(make_app: MakeApp) -> None:
    """With fewer threads than slots, a handler's time starts when a thread takes it."""
    hf = make_app(concurrency=2, threads=1)
    gate, started = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    @hf.job
    def first() -> None:
        loop.call_soon_threadsafe(started.set)
        gate.wait(60)

    @hf.job(timeout="200ms", retry=Retry(attempts=1))
    def second() -> str:
        return "had its time"

    async with hf:
        try:
            blocking = await first.enqueue()
            await happens(started)
            job = await second.enqueue()
            claimed = await in_state(hf, job.id, "running")

            async def overdue() -> bool:
                (worker,) = await hf.workers.list()
                assert claimed.claimed_at is not None
                return worker.now - claimed.claimed_at > timedelta(milliseconds=400)

            await eventually(overdue)
            assert (await job.refresh()).state == "running"
        finally:
            gate.set()
        assert await job.result() == "had its time"
        await blocking.result()


@pytest.mark.long
async def test_the_deadline_ends_a_running_attempt_for_good(hf: Holdfast) -> None:
    @hf.job(deadline="4s", retry=Retry(attempts=10))
    async def work() -> None:
        await asyncio.Event().wait()

    async with hf:
        job = await work.enqueue()
        with pytest.raises(RunFailed, match="deadline passed while it ran"):
            await job.result()
        row = await job.refresh()
        assert (type_of(row.error), row.attempts) == ("deadline_exceeded", 1)


async def test_the_deadline_counts_over_all_attempts(hf: Holdfast) -> None:
    @hf.job(deadline="200ms", retry=Retry(attempts=1000, backoff="constant", base="20ms"))
    async def work() -> None:
        raise RuntimeError("again")

    async with hf:
        job = await work.enqueue()
        with pytest.raises(RunFailed):
            await job.result()
        row = await job.refresh()
        assert type_of(row.error) == "deadline_exceeded"
        assert row.attempts < 1000


async def test_a_job_nobody_started_fails_at_its_deadline(hf: Holdfast) -> None:
    @hf.job
    async def work() -> None: ...

    async with hf:
        job = await work.options(delay="1h", deadline="50ms").enqueue()
        with pytest.raises(RunFailed, match="deadline"):
            await job.result()
        assert await outcomes(hf, job.id) == []


async def test_an_attempt_that_would_start_late_does_not_start(make_app: MakeApp) -> None:
    app = make_app(embedded=False)
    seen: list[int] = []

    @app.job
    async def work() -> None:
        seen.append(1)

    job = await work.options(deadline="0s").enqueue()
    worker = core_of(app).make_worker()
    await worker.start()
    try:
        with pytest.raises(RunFailed, match="deadline"):
            await job.result()
        assert seen == []
    finally:
        await worker.stop()
