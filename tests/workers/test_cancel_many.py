"""`hf.jobs.cancel`: what a program says when it wants none of them any more."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.errors import RunFailed, UsageError
from holdfast.kernel.cancel import Cancelled
from holdfast.kernel.ownership import cancel_advice
from tests.conftest import Place
from tests.support.apps import working


async def test_a_program_cancels_what_it_names_and_hears_how_it_goes(place: Place) -> None:
    hf = Holdfast(place.url, embedded=False)

    @hf.job(name="mail", queue="mails")
    async def mail(number: int) -> None: ...

    @hf.job(name="page")
    async def page() -> None: ...

    async with hf:
        mails = await mail.enqueue_many([(n,) for n in range(1_500)])
        other = await page.enqueue()
        parts: list[Cancelled] = []
        assert await hf.jobs.cancel(queue="mails", reason="too many", done=parts.append) == (1_500, 0)
        assert [part.ended for part in parts] == [1_000, 500]
        assert (await mails[-1].refresh()).state == "cancelled"
        assert (await other.refresh()).state == "pending"
        assert await hf.jobs.cancel(all=True) == (1, 0)


async def test_jobs_that_run_stop_when_they_are_asked(place: Place) -> None:
    hf = Holdfast(place.url, embedded=False)
    started, stopped = asyncio.Event(), asyncio.Event()

    @hf.job(name="long")
    async def long() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with working(hf):
        job = await long.enqueue()
        await started.wait()
        assert await hf.jobs.cancel(kind="long") == (0, 1)
        with pytest.raises(RunFailed, match="cancelled"):
            await job.result(timeout="60s")
        assert stopped.is_set()
    await hf.close()


async def test_a_filter_must_say_something(place: Place) -> None:
    hf = Holdfast(place.url, embedded=False)
    async with hf:
        with pytest.raises(UsageError, match="all=True"):
            await hf.jobs.cancel()
        with pytest.raises(UsageError, match="'failed' cannot be cancelled"):
            await hf.jobs.cancel(state="failed")
        ((kind, instead),) = list(cancel_advice(core_of(hf).registry.layers).items())[:1]
        with pytest.raises(UsageError, match=instead):
            await hf.jobs.cancel(kind=kind)
