"""Trouble of the store is never the fault of the job that meets it: no attempt is counted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import apsw
import psycopg
import pytest

from holdfast import Discard, Holdfast, JobContext, Retry, RunFailed
from holdfast.errors import NoWorker, StoreBusy, StoreUnavailable
from holdfast.models.script import call, calls, say
from tests.conftest import Place
from tests.support.agents import scripted
from tests.support.apps import attempts, eventually, happens, outcomes, settings_with
from tests.support.proxy import Proxy
from tests.workers import isolated_functions as functions

ONE = Retry.none()
# A call is given up after (lease_ttl - heartbeat - fence_margin) / 2 on PostgreSQL.
HASTY: dict[str, Any] = {
    "lease_ttl": "4s",
    "heartbeat": "1s",
    "fence_margin": "1s",
    "store_patience": "100ms",
    "busy_timeout": "100ms",
    "reconnect_cap": "100ms",
    "drain_grace": "5s",
}
Outage = Callable[[], AbstractAsyncContextManager[None]]


@pytest.fixture
async def unsteady(place: Place, dialect: str) -> AsyncIterator[tuple[Holdfast, Outage]]:
    """An app that works once it is entered, and what takes its store away for a while."""
    async with contextlib.AsyncExitStack() as stack:
        if dialect == "sqlite":
            url, outage = place.url, lambda: locked(Path(place.url.removeprefix("sqlite:///")))
        else:
            proxy = await stack.enter_async_context(Proxy(place.direct))
            url, outage = proxy.url, lambda: refusing(proxy)
        app = Holdfast(url, settings=settings_with(**HASTY))
        stack.push_async_callback(app.close)
        yield app, outage


@asynccontextmanager
async def locked(file: Path) -> AsyncIterator[None]:
    """Somebody else writes to the file, and takes long."""
    with contextlib.closing(apsw.Connection(str(file))) as connection:
        connection.set_busy_timeout(10_000)
        connection.execute("begin immediate")
        yield
        connection.execute("rollback")


@asynccontextmanager
async def refusing(proxy: Proxy) -> AsyncIterator[None]:
    proxy.refusing = True
    proxy.cut()
    yield
    proxy.refusing = False


class Meeting:
    """Where a handler waits for the outage, and says what it met there."""

    def __init__(self) -> None:
        self.waits, self.go_on, self.met = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def during(self, outage: Outage) -> None:
        """Let the handler meet an outage, which ends after that."""
        await happens(self.waits)
        async with outage():
            self.go_on.set()
            await happens(self.met)

    async def reached(self) -> None:
        self.waits.set()
        await happens(self.go_on)


async def test_a_step_that_the_store_does_not_take_costs_no_attempt(unsteady: tuple[Holdfast, Outage]) -> None:
    app, outage = unsteady
    meeting = Meeting()

    @app.job(name="work", retry=ONE)
    async def work(ctx: JobContext) -> str:
        await meeting.reached()
        try:
            return await ctx.step("effect", str, "done")
        except (StoreBusy, StoreUnavailable):
            meeting.met.set()
            raise

    async with app:
        job = await work.enqueue()
        await meeting.during(outage)
        assert await job.result() == "done"
        ended = await outcomes(app, job.id)
    assert set(ended[:-1]) == {"snoozed"}
    assert ended[-1] == "succeeded"


async def test_an_enqueue_that_the_store_does_not_take_costs_its_caller_no_attempt(
    unsteady: tuple[Holdfast, Outage],
) -> None:
    """Of a handler on a thread, which calls the app and not its context."""
    app, outage = unsteady
    meeting, loop = Meeting(), asyncio.get_running_loop()

    @app.job(name="child")
    async def child() -> None: ...

    @app.job(name="work", retry=ONE)
    def work() -> str:
        asyncio.run_coroutine_threadsafe(meeting.reached(), loop).result()
        try:
            return child.options(key="one").enqueue_sync().id
        except (StoreBusy, StoreUnavailable):
            loop.call_soon_threadsafe(meeting.met.set)
            raise

    async with app:
        job = await work.enqueue()
        await meeting.during(outage)
        assert await job.result() == (await child.options(key="one").enqueue()).id
        ended = await outcomes(app, job.id)
    assert set(ended[:-1]) == {"snoozed"}


async def test_a_job_in_its_own_process_pays_nothing_either(unsteady: tuple[Holdfast, Outage], tmp_path: Path) -> None:
    app, outage = unsteady
    work = app.job(name="work", isolate="process", retry=ONE)(functions.stores_a_step)
    async with app:
        job = await work.enqueue(str(tmp_path))
        await there(tmp_path / "begun")
        async with outage():
            (tmp_path / "go on").touch()
            await there(tmp_path / "met")
        assert await job.result() == "stored"
        ended = await outcomes(app, job.id)
    assert set(ended[:-1]) == {"snoozed"}


async def there(file: Path) -> None:
    async def look() -> bool:
        return file.exists()  # noqa: ASYNC240  in memory

    await eventually(look)


def raises() -> NoReturn:
    raise StoreBusy("the store is busy.")


def raises_because_of_it() -> NoReturn:
    try:
        raises()
    except StoreBusy as problem:
        raise RuntimeError("the order could not be stored") from problem


def raises_while_it_is_handled() -> NoReturn:
    try:
        raises()
    except StoreBusy:
        raise RuntimeError("the order could not be stored")  # noqa: B904  as most programs are written


def raises_in_a_group() -> NoReturn:
    raise ExceptionGroup("two tasks", [StoreUnavailable("away."), StoreBusy("busy.")])


def raises_because_of_a_group() -> NoReturn:
    try:
        raises_in_a_group()
    except ExceptionGroup as problems:
        raise RuntimeError("two tasks failed") from problems


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "fails",
    [raises, raises_because_of_it, raises_while_it_is_handled, raises_in_a_group, raises_because_of_a_group],
    ids=lambda fails: fails.__name__,
)
async def test_what_a_handler_raises_because_of_the_store_costs_nothing(
    hf: Holdfast, fails: Callable[[], NoReturn]
) -> None:
    @hf.job(name="work", retry=ONE)
    async def work(ctx: JobContext) -> int:
        if len(await attempts(hf, ctx.id)) == 0:
            fails()
        return ctx.attempt

    async with hf:
        job = await work.enqueue()
        assert await job.result() == 1
        first, _ = await attempts(hf, job.id)
        assert first.outcome == "snoozed"
        assert first.error is not None, "it says what the store was asked and answered"


def raises_something_else() -> NoReturn:
    with contextlib.suppress(StoreBusy):
        raises()
    raise RuntimeError("its own mistake")


def hides_it() -> NoReturn:
    try:
        raises()
    except StoreBusy:
        raise RuntimeError("its own decision") from None


def gives_up() -> NoReturn:
    try:
        raises()
    except StoreBusy as problem:
        raise Discard("nobody needs it any more") from problem


def raises_both_in_a_group() -> NoReturn:
    raise ExceptionGroup("two tasks", [StoreBusy("busy."), RuntimeError("its own mistake")])


def lacks_a_worker() -> NoReturn:
    raise NoWorker("no worker serves it.")


@pytest.mark.parametrize(
    "fails",
    [raises_something_else, hides_it, gives_up, raises_both_in_a_group, lacks_a_worker],
    ids=lambda fails: fails.__name__,
)
async def test_what_a_handler_does_wrong_itself_is_counted(hf: Holdfast, fails: Callable[[], NoReturn]) -> None:
    @hf.job(name="work", retry=ONE)
    async def work() -> None:
        fails()

    async with hf:
        job = await work.enqueue()
        with pytest.raises(RunFailed):
            await job.result()
        assert await outcomes(hf, job.id) == ["failed"]


async def test_a_tool_that_may_start_once_is_not_started_again_for_the_store(hf: Holdfast) -> None:
    starts: list[str] = []

    @hf.tool(effect="once", unknown="report")
    async def pay() -> str:
        """Pay."""
        starts.append("pay")
        raise StoreBusy("the store is busy.")

    cashier = hf.agent("cashier", model=scripted(hf, calls(call("pay")), say("Sorry.")), tools=[pay])
    async with hf:
        assert (await cashier.run("Pay.")).text == "Sorry."
    assert starts == ["pay"]


async def test_a_signal_in_an_open_transaction_costs_those_who_wait_for_it_nothing(postgres_url: str) -> None:
    app = Holdfast(postgres_url, settings=settings_with(**HASTY))

    @app.job(name="work", retry=ONE)
    async def work(ctx: JobContext) -> Any:
        return await ctx.wait("approval")

    async with app:
        async with await psycopg.AsyncConnection.connect(postgres_url) as connection:
            await app.signal("approval", "yes", tx=connection)
            job = await work.enqueue()
            await eventually(lambda: outcomes(app, job.id))
            await connection.commit()
        assert await job.result() == "yes"
        assert set((await outcomes(app, job.id))[:-1]) <= {"snoozed", "parked"}
