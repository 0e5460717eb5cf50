"""A step that is stored in the handler's own transaction is there when that commits, and never was if it does not."""

from __future__ import annotations

import contextlib
from typing import Any

import apsw
import pytest

from holdfast import JobContext, Retry
from holdfast.errors import LeaseLost, UsageError
from tests.support.apps import MakeApp
from tests.transactions.conftest import Query
from tests.transactions.libraries import LEDGER, ApswAwaited, Library, file_connection

AT_ONCE = Retry(attempts=2, base="0s")


async def step(library: Library, ctx: JobContext, *args: Any, commit: bool = True) -> Any:
    """The step `book` in a transaction of this library."""
    return await library.call(lambda tx, suffix: getattr(ctx, f"step{suffix}")("book", *args, tx=tx), commit)


async def test_a_committed_step_is_not_repeated(library: Library, make_app: MakeApp, query: Query) -> None:
    hf, booked = make_app(), list[str]()

    def book(order: str) -> int:
        booked.append(order)
        return 7

    @hf.job(retry=AT_ONCE)
    async def work(ctx: JobContext) -> int:
        await step(library, ctx, book, "A1")
        again: int = await step(library, ctx, book, "A1")
        if ctx.attempt == 1:
            raise RuntimeError("after the commit")
        return again

    assert await work.run() == 7
    assert booked == ["A1"]
    assert query("select name from holdfast.step") == [("book",)]


async def test_a_step_that_is_rolled_back_is_done_again(library: Library, make_app: MakeApp, query: Query) -> None:
    hf, booked = make_app(), list[str]()

    def book() -> int:
        booked.append("A1")
        return len(booked)

    @hf.job
    async def work(ctx: JobContext) -> list[int]:
        return [await step(library, ctx, book, commit=commit) or 0 for commit in (False, True, True)]

    assert (await work.run())[1:] == [2, 2]
    assert booked == ["A1", "A1"]
    assert query("select count(*) from ledger") == [(2,)]


async def test_an_attempt_that_lost_its_lease_stores_no_step(library: Library, make_app: MakeApp, query: Query) -> None:
    hf, told = make_app(), list[str]()

    @hf.job(retry=AT_ONCE)
    async def work(ctx: JobContext) -> None:
        if ctx.attempt == 1:
            query("update holdfast.lease set token = token + 1")
        try:
            await step(library, ctx, lambda: 7)
        except LeaseLost:
            told.append("lost")
        finally:
            query("update holdfast.lease set token = token - 1")

    await work.run()
    assert told == ["lost"]
    assert query("select count(*) from ledger") == [(0,)]
    assert query("select count(*) from holdfast.step") == [(0,)]


async def test_a_function_that_asks_for_it_is_given_the_connection(library: Library, make_app: MakeApp) -> None:
    hf = make_app()

    def book(order: str, *, tx: object) -> str:
        return f"{order} in {type(tx).__name__}"

    @hf.job
    async def work(ctx: JobContext) -> str:
        booked: str = await step(library, ctx, book, "A1")
        return booked

    assert (await work.run()).startswith("A1 in ")


async def test_a_stored_step_is_known_without_the_transaction_too(library: Library, make_app: MakeApp) -> None:
    hf, booked = make_app(), list[str]()

    @hf.job
    async def work(ctx: JobContext) -> None:
        await ctx.step("before", str)  # what is stored has been read by now
        await step(library, ctx, booked.append, "A1")
        await ctx.step("book", booked.append, "A2")

    await work.run()
    assert booked == ["A1"]


async def test_a_connection_without_a_transaction_is_refused(library: Library, make_app: MakeApp) -> None:
    hf, booked = make_app(), list[str]()
    refusals: list[str] = []

    @hf.job
    async def work(ctx: JobContext) -> None:
        try:
            await library.alone(lambda tx, suffix: getattr(ctx, f"step{suffix}")("book", booked.append, "A1", tx=tx))
        except NotImplementedError:  # this library opens one by itself
            refusals.append("no open transaction")
        except UsageError as refusal:
            refusals.append(str(refusal))

    await work.run()
    assert not booked
    assert "no open transaction" in refusals[0]


@pytest.mark.parametrize("library", [ApswAwaited], indirect=True)
async def test_a_step_on_sqlite_may_write_whoever_else_wants_to(url: str, make_app: MakeApp, query: Query) -> None:
    """A transaction that began by reading could not write any more once another one has committed."""
    hf = make_app()
    refusals: list[str] = []

    def book(tx: apsw.Connection) -> str:
        other = apsw.Connection(url.removeprefix("sqlite:///"))
        with contextlib.closing(other), contextlib.suppress(apsw.BusyError):
            other.execute(LEDGER)
            refusals.append("none: another writer was faster")
        tx.execute(LEDGER)
        return "booked"

    @hf.job(retry=Retry(attempts=1))
    async def work(ctx: JobContext) -> str:
        with contextlib.closing(file_connection(url)) as db:
            with db:
                booked: str = await ctx.step("book", book, tx=db)
            return booked

    assert await work.run() == "booked"
    assert not refusals
    assert query("select count(*) from ledger") == [(1,)]
