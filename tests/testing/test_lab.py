"""A lab binds an app to a fresh database, runs its jobs when told to, and gives it back as it was."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from holdfast import Holdfast, JobContext, Queue, Settings
from holdfast.app import core_of
from holdfast.errors import UsageError
from holdfast.testing import Labs, lab
from tests.conftest import Place
from tests.support.apps import eventually
from tests.support.commands import python
from tests.support.postgres import Cluster


@pytest.mark.both
async def test_jobs_run_when_the_test_says_so(hf: Holdfast, labs: Labs) -> None:
    @hf.job
    async def greet(name: str) -> str:
        return f"hello, {name}"

    lab = await labs.use(hf)
    job = await greet.enqueue("Oslo")
    assert (await job.refresh()).state == "pending"
    await lab.drain()
    assert (await job.refresh()).state == "succeeded"
    assert await job.result() == "hello, Oslo"


async def test_a_drain_runs_whatever_the_app_declares(hf: Holdfast, labs: Labs) -> None:
    hf.queue("images", Queue(timeout="1m"))

    @hf.job(queue="images", requires=["tag:gpu=yes"])
    def paint(color: str) -> str:
        return color.upper()

    @hf.job
    async def family(ctx: JobContext) -> list[str]:
        await ctx.start(paint, "red")
        await ctx.start(paint, "blue")
        return [child.result for child in await ctx.join()]

    lab = await labs.use(hf)
    job = await family.enqueue()
    await lab.drain()
    assert await job.result() == ["RED", "BLUE"]
    assert lab.enqueued(paint) == [{"color": "red"}, {"color": "blue"}]


async def test_no_worker_is_embedded(hf: Holdfast, labs: Labs) -> None:
    @hf.job
    async def work() -> None: ...

    await labs.use(hf)
    async with hf:
        await work.enqueue()
        assert await hf.workers.list() == []


async def test_whoever_waits_for_a_result_gets_it(hf: Holdfast, labs: Labs) -> None:
    @hf.job
    async def double(n: int) -> int:
        return 2 * n

    await labs.use(hf)
    assert await double.run(1) == 2
    assert await asyncio.gather(*(double.run(n) for n in range(4))) == [0, 2, 4, 6]
    assert await asyncio.to_thread(double.run_sync, 6) == 12


async def test_a_handler_may_wait_for_another_job(hf: Holdfast, labs: Labs) -> None:
    @hf.job
    async def inner() -> int:
        return 1

    @hf.job
    async def outer() -> int:
        return await inner.run() + 1

    lab = await labs.use(hf)
    job = await outer.enqueue()
    await lab.drain()
    assert await job.result() == 2


async def test_drains_follow_each_other(hf: Holdfast, labs: Labs) -> None:
    @hf.job
    async def work() -> None: ...

    lab = await labs.use(hf)
    jobs = await work.enqueue_many([{}] * 5)
    await asyncio.gather(lab.drain(), lab.drain(), lab.drain())
    assert [(await job.refresh()).attempts for job in jobs] == [1] * 5


async def test_what_was_enqueued_is_asserted_by_some_of_its_arguments(hf: Holdfast, labs: Labs) -> None:
    @hf.job(name="refund")
    async def refund(order: str, amount: Decimal = Decimal(5)) -> str:
        return f"{order}: {amount}"

    lab = await labs.use(hf)
    await refund.enqueue("A1")
    await refund.enqueue("A2", amount=Decimal("80.50"))
    lab.assert_enqueued(refund)
    lab.assert_enqueued(refund, amount=5)
    lab.assert_enqueued(refund, amount="80.50")
    job = lab.assert_enqueued(refund, order="A2", amount=Decimal("80.50"))
    assert lab.enqueued(refund) == [
        {"order": "A1", "amount": Decimal(5)},
        {"order": "A2", "amount": Decimal("80.50")},
    ]
    await lab.drain()
    assert await job.result() == "A2: 80.50"
    assert len(lab.enqueued(refund)) == 2


async def test_an_assertion_that_fails_lists_what_was_enqueued_instead(hf: Holdfast, labs: Labs) -> None:
    @hf.job(name="resize")
    async def resize(url: str, width: int = 800) -> None: ...

    @hf.job(name="greet")
    async def greet(name: str) -> None: ...

    lab = await labs.use(hf)
    with pytest.raises(AssertionError) as nothing:
        lab.assert_enqueued(resize)
    assert str(nothing.value) == "resize() was not enqueued. Nothing was."
    await resize.enqueue("a.png")
    await greet.enqueue("Oslo")
    with pytest.raises(AssertionError) as other:
        lab.assert_enqueued(resize, url="b.png")
    assert str(other.value).splitlines() == [
        "resize(url='b.png') was not enqueued. These were:",
        "  resize(url='a.png', width=800), pending",
        "  greet(name='Oslo'), pending",
    ]


async def test_a_misspelt_assertion_is_refused(hf: Holdfast, labs: Labs) -> None:
    @hf.job(name="greet")
    async def greet(name: str) -> None: ...

    @Holdfast("sqlite:///other.db").job(name="stranger")
    async def stranger() -> None: ...

    lab = await labs.use(hf)
    with pytest.raises(UsageError, match="'greet' has no argument 'nmae'"):
        lab.assert_enqueued(greet, nmae="Oslo")
    with pytest.raises(UsageError, match="'stranger' does not belong to the app of this lab"):
        lab.enqueued(stranger)


async def test_an_app_has_one_lab_at_a_time(hf: Holdfast, labs: Labs) -> None:
    first = await labs.use(hf)
    runtime = core_of(hf).runtime()
    with pytest.raises(UsageError, match="one lab at a time"):
        await labs.use(hf)
    assert hf.settings.url == first.url
    assert core_of(hf).runtime() is runtime
    assert await hf.jobs.list() == []
    await labs.close_lab(first)
    second = await labs.use(hf)
    assert second.url != first.url


@pytest.mark.both
async def test_the_app_is_given_back_as_it_was(labs: Labs, place: Place) -> None:
    hf = Holdfast(place.url, settings=Settings(max_attempts=7), embedded=False)

    @hf.job
    async def work() -> None: ...

    async with hf:
        own = await work.enqueue()
        before = dict(vars(hf))
        lab = await labs.use(hf)
        assert hf.settings.max_attempts == 7
        assert await hf.jobs.list() == []
        await work.enqueue()
        await asyncio.to_thread(work.enqueue_sync)
        await lab.drain()
        await labs.close_lab(lab)
        assert vars(hf) == before
        assert [(job.id, job.state) for job in await hf.jobs.list()] == [(own.id, "pending")]


@pytest.mark.both
async def test_nothing_is_left_behind(hf: Holdfast, labs: Labs, dialect: str, cluster: Cluster) -> None:
    @hf.job
    def work() -> None: ...

    before = set(threading.enumerate())

    async def no_thread_of_ours() -> bool:
        return not [each for each in set(threading.enumerate()) - before if each.name.startswith("holdfast")]

    lab = await labs.use(hf)
    await work.enqueue()
    await lab.drain()
    place = urlsplit(lab.url).path
    await labs.close_lab(lab)
    await eventually(no_thread_of_ours)
    if dialect == "sqlite":
        assert not Path(place.removeprefix("/")).parent.exists()
    else:
        with pytest.raises(Exception, match="does not exist"):
            async with Holdfast(cluster.url(place.removeprefix("/")), embedded=False):
                pass


def test_a_lab_is_closed_with_its_event_loop(hf: Holdfast, labs: Labs) -> None:
    own = hf.settings.url

    async def fail() -> None:
        await labs.use(hf)
        assert hf.settings.url != own
        raise LookupError

    with pytest.raises(LookupError):
        asyncio.run(fail())
    assert hf.settings.url == own
    labs.close()


def test_a_lab_is_closed_before_its_event_loop(hf: Holdfast, labs: Labs) -> None:
    own = hf.settings.url
    with closing(asyncio.new_event_loop()) as loop:
        loop.run_until_complete(labs.use(hf))
        assert hf.settings.url != own
        labs.close()
        assert hf.settings.url == own
        assert asyncio.all_tasks(loop) == set()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # nobody closed what was open
def test_an_app_is_given_back_even_when_its_loop_was_torn_away(hf: Holdfast, labs: Labs) -> None:
    own = hf.settings.url
    with closing(asyncio.new_event_loop()) as loop:
        loop.run_until_complete(labs.use(hf))
    labs.close()
    assert hf.settings.url == own


@pytest.mark.both
async def test_a_lab_without_the_plugin(hf: Holdfast, dialect: str, cluster: Cluster) -> None:
    @hf.job
    async def work() -> int:
        return 1

    own = hf.settings.url
    async with lab(hf, database="sqlite" if dialect == "sqlite" else cluster.url()) as opened:
        job = await work.enqueue()
        await opened.drain()
        assert await job.result() == 1
    assert hf.settings.url == own


def test_labs_do_not_need_pytest(tmp_path: Path) -> None:
    said = python("-c", "import sys, holdfast.testing; print('pytest' in sys.modules)", cwd=tmp_path)
    assert said == (0, "False\n", "")
