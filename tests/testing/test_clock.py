"""Time in a lab stands still until the test moves it, for the database and for the workers."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from holdfast import Holdfast, JobContext, Queue, Retry
from holdfast.app import core_of
from holdfast.errors import BadPayload, RunFailed, UsageError
from holdfast.testing import Lab, LabClock, Labs, Stuck

NEW_YEAR = datetime(2030, 1, 1, tzinfo=UTC)


async def test_advancing_makes_a_scheduled_job_due(hf: Holdfast, labs: Labs) -> None:
    @hf.job
    async def work() -> str:
        return "done"

    lab = await labs.use(hf)
    job = await work.options(delay="1h").enqueue()
    await lab.clock.advance("59m")
    await lab.drain()
    assert (await job.refresh()).state == "scheduled"
    await lab.clock.advance("1m")
    await lab.drain()
    assert await job.result() == "done"


async def test_a_retry_waits_for_its_time(hf: Holdfast, labs: Labs) -> None:
    @hf.job(retry=Retry(attempts=2, base="10m", jitter=0))
    async def flaky(ctx: JobContext) -> int:
        if ctx.attempt == 1:
            raise ConnectionError("try again")
        return ctx.attempt

    lab = await labs.use(hf)
    job = await flaky.enqueue()
    await lab.drain()
    row = await job.refresh()
    assert (row.state, row.attempts) == ("scheduled", 1)
    await lab.clock.advance("1h")
    await lab.drain()
    assert await job.result() == 2


async def test_a_deadline_passes_when_the_test_lets_it(hf: Holdfast, labs: Labs) -> None:
    @hf.job(deadline="1h")
    async def work() -> None: ...

    lab = await labs.use(hf)
    job = await work.enqueue()
    await lab.clock.advance("2h")
    await lab.drain()
    with pytest.raises(RunFailed, match="deadline"):
        await job.result()


async def test_a_rate_limit_holds_until_time_passes(hf: Holdfast, labs: Labs) -> None:
    hf.queue("slow", Queue(rate="1/min"))

    @hf.job(queue="slow")
    async def call() -> str:
        return "done"

    lab = await labs.use(hf)
    first, second = await call.enqueue_many([{}, {}])
    assert await first.result() == "done"
    with pytest.raises(Stuck, match="holds it back"):
        await second.result()
    await lab.clock.advance("1m")
    assert await second.result() == "done"


async def test_a_schedule_ticks_as_time_passes(hf: Holdfast, labs: Labs) -> None:
    nights: list[datetime] = []
    at: list[Lab] = []

    @hf.schedule("0 3 * * *", timezone="UTC")
    async def nightly() -> None:
        nights.append(at[0].clock.now())

    at.append(await labs.use(hf, now=NEW_YEAR))
    for _ in range(3):
        await at[0].clock.advance("23h")
        await at[0].drain()
    assert nights == [NEW_YEAR + timedelta(hours=hours) for hours in (23, 46, 69)]
    assert len(at[0].enqueued(nightly)) == 3


async def test_time_stands_still_while_a_handler_really_sleeps(hf: Holdfast, labs: Labs) -> None:
    @hf.job
    async def nap() -> float:
        begun = time.monotonic()
        await asyncio.sleep(0.05)
        return time.monotonic() - begun

    lab = await labs.use(hf, now=NEW_YEAR)
    job = await nap.enqueue()
    await lab.drain()
    assert await job.result() >= 0.05
    row = await job.refresh()
    assert lab.clock.now() == NEW_YEAR
    assert row.created_at == row.finished_at == NEW_YEAR


async def test_a_lab_begins_now(hf: Holdfast, labs: Labs) -> None:
    lab = await labs.use(hf)
    assert abs(lab.clock.now() - datetime.now(UTC)) < timedelta(minutes=1)  # noqa: TID251  it is compared with
    with pytest.raises(UsageError, match="has no time zone"):
        LabClock(datetime(2030, 1, 1))


async def test_a_job_that_takes_an_hour_keeps_its_lease(hf: Holdfast, labs: Labs) -> None:
    at: list[Lab] = []

    @hf.job
    async def long(ctx: JobContext) -> str:
        await at[0].clock.advance("1h")
        await ctx.step("late", str, "still here")
        return "done"

    at.append(await labs.use(hf, now=NEW_YEAR))
    job = await long.enqueue()
    await at[0].drain()
    row = await job.refresh()
    assert (row.state, row.attempts, row.rescues) == ("succeeded", 1, 0)
    assert row.finished_at == NEW_YEAR + timedelta(hours=1)


async def test_whoever_sleeps_is_woken_by_time_that_passes() -> None:
    clock = LabClock(NEW_YEAR)
    sleeper = asyncio.create_task(clock.sleep(3_600))
    await asyncio.sleep(0)
    await clock.advance("59m")
    assert not sleeper.done()
    await clock.advance("1m")
    await sleeper


async def test_only_what_was_slept_passes_on_the_workers_clock() -> None:
    clock = LabClock(NEW_YEAR)
    before = clock.monotonic()
    time.sleep(0.02)  # noqa: ASYNC251  as a breakpoint would
    assert clock.monotonic() == before
    await clock.sleep(0.01)
    assert clock.monotonic() == pytest.approx(before + 0.01)
    assert clock.now() == NEW_YEAR


async def test_a_scheduled_job_knows_its_tick(hf: Holdfast, labs: Labs) -> None:
    """However late it starts, and each of those that are caught up its own."""
    ticks: list[tuple[datetime, datetime | None]] = []

    @hf.schedule("0 7 * * *", timezone="Europe/Athens", catch_up="all")
    async def report(ctx: JobContext, scheduled_for: datetime) -> str:
        assert ctx.metadata == {}, "which is the caller's own"
        ticks.append((scheduled_for, ctx.scheduled_for))
        return scheduled_for.isoformat()

    (declared,) = core_of(hf).registry.schedules
    assert declared.job.payload == "{}", "a release that knows no ticks would pass on whatever stands here"
    lab = await labs.use(hf, now=NEW_YEAR)
    await lab.clock.advance("60h")
    await lab.drain()
    assert [each.isoformat() for each, _ in ticks] == [f"2030-01-0{day}T07:00:00+02:00" for day in (1, 2, 3)]
    assert all(given == known for given, known in ticks)
    job = await hf.schedules.run(report.definition.kind)
    await lab.drain()
    assert await job.result() == "2030-01-03T14:00:00+02:00"


async def test_a_job_that_no_schedule_made_has_no_tick(hf: Holdfast, labs: Labs) -> None:
    seen: list[Any] = []

    @hf.schedule("@daily")
    async def report(ctx: JobContext, scheduled_for: datetime | None = None) -> None:
        seen.extend([scheduled_for, ctx.scheduled_for, ctx.metadata])

    with pytest.raises(BadPayload, match="scheduled_for"):

        @hf.schedule("@daily")
        async def on_a_day(scheduled_for: date) -> None: ...

    lab = await labs.use(hf)
    await report.enqueue()
    mine = {"scheduled_for": NEW_YEAR.isoformat()}
    await report.options(metadata=mine).enqueue()
    await report.enqueue(NEW_YEAR)
    await lab.drain()
    assert seen == [None, None, {}, None, None, mine, NEW_YEAR, None, {}]
    with pytest.raises(UsageError, match=r"'holdfast\.scheduled_for' in a job's metadata is reserved"):
        await report.options(metadata={"holdfast.scheduled_for": NEW_YEAR.isoformat()}).enqueue()
