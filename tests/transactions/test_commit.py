"""What is enqueued or signalled in the caller's transaction is there when it commits, and was never there if not."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Holdfast, JobContext
from holdfast.errors import IdempotencyConflict, NotFound, SignalConflict
from holdfast.observe import Event
from tests.support.apps import MakeApp, in_state
from tests.transactions.conftest import Query
from tests.transactions.libraries import Library

NEVER: dict[str, Any] = {"poll_interval": "10m", "sweep_interval": "10m"}
SOON = "30s"  # far below ten minutes, far above what it takes
# A caller's transaction leaves notes about routes on PostgreSQL, and writes them on SQLite.
ROUTES = "select id, queue from holdfast.route union select route, queue from holdfast.route_note"
TABLES = ("job", "route", "route_note", "idempotency", "signal", "channel")


async def test_a_committed_job_is_there_with_the_callers_own_row(library: Library, hf: Holdfast, query: Query) -> None:
    @hf.job(queue="images", priority=7, timeout="2m")
    async def resize(url: str, width: int = 800) -> None: ...

    job = await library.enqueue(resize, "50% :a 'q' $1", width=400, tenant="acme", metadata={"by": "Ann"})
    row = await job.refresh()
    assert (row.id, row.kind, row.queue, row.priority) == (job.id, resize.definition.kind, "images", 7)
    assert row.payload == {"url": "50% :a 'q' $1", "width": 400}
    assert (row.state, row.tenant, row.metadata) == ("pending", "acme", {"by": "Ann"})
    assert (row.timeout, row.deadline_at, row.parent) == (timedelta(minutes=2), None, None)
    assert query("select note from ledger") == [("written by the caller",)]
    assert query(f"select queue from ({ROUTES}) as r") == [("images",)]


async def test_nothing_is_left_of_what_is_rolled_back(library: Library, hf: Holdfast, query: Query) -> None:
    @hf.job
    async def work(number: int) -> None: ...

    await library.enqueue(work, 1, commit=False)
    await library.enqueue(work, 1, key="once", commit=False)
    await library.enqueue_many(work, [(2,), {"number": 3}], commit=False)
    await library.signal(hf, "door", "open", commit=False)
    for table in TABLES:
        assert query(f"select count(*) from holdfast.{table}") == [(0,)], table
    assert query("select count(*) from ledger") == [(0,)]


async def test_listeners_are_told_that_it_is_not_committed_yet(library: Library, hf: Holdfast) -> None:
    told: list[tuple[str, bool]] = []

    @hf.job
    async def work(number: int) -> None: ...

    def tell(event: Event) -> None:
        told.append((event.metadata["job"], event.metadata["committed"]))

    with hf.events("job.enqueued", to=tell):
        mine = await library.enqueue(work, 1)
        others = await library.enqueue_many(work, [(2,), (3,)])
        own = await work.enqueue(4)
    assert told == [(mine.id, False), *((other.id, False) for other in others), (own.id, True)]


async def test_nobody_sees_the_job_before_the_commit(library: Library, hf: Holdfast, query: Query) -> None:
    @hf.job
    async def work() -> None: ...

    seen: list[Any] = []

    def enqueue_and_look(tx: Any, suffix: str) -> Any:
        job = getattr(work.options(tx=tx), f"enqueue{suffix}")()
        if suffix:
            seen.extend(query("select id from holdfast.job"))
            return job

        async def look() -> Any:
            made = await job
            seen.extend(await asyncio.to_thread(query, "select id from holdfast.job"))
            return made

        return look()

    job = await library.call(enqueue_and_look)
    assert seen == []
    assert (await job.refresh()).state == "pending"


async def test_a_waiting_worker_hears_of_it_at_the_commit(library: Library, make_app: MakeApp) -> None:
    """By hint: its polls are ten minutes away."""
    hf = make_app(**NEVER)

    @hf.job
    async def work(number: int) -> int:
        return number

    async with hf:
        assert await (await work.enqueue(0)).result(timeout=SOON) == 0
        assert await (await library.enqueue(work, 1)).result(timeout=SOON) == 1
        assert await (await library.enqueue(work, 2, key="two")).result(timeout=SOON) == 2
        many = await library.enqueue_many(work, [(3,), (4,)])
        assert [await job.result(timeout=SOON) for job in many] == [3, 4]


async def test_a_waiting_worker_hears_of_a_signal_at_the_commit(library: Library, make_app: MakeApp) -> None:
    hf = make_app(**NEVER)

    @hf.job
    async def work(ctx: JobContext) -> Any:
        return await ctx.wait("door")

    async with hf:
        job = await work.enqueue()
        await in_state(hf, job.id, "waiting")
        await library.signal(hf, "door", "never sent", commit=False)
        assert (await job.refresh()).state == "waiting"
        await library.signal(hf, "door", {"by": "Ann"})
        assert await job.result(timeout=SOON) == {"by": "Ann"}


async def test_a_signal_with_the_same_key_is_one_signal(library: Library, hf: Holdfast, query: Query) -> None:
    await library.signal(hf, "door", "open", key="webhook 17")
    await library.signal(hf, "door", "open", key="webhook 17")
    with pytest.raises(SignalConflict):
        await library.signal(hf, "door", "shut", key="webhook 17")
    assert query("select channel from holdfast.signal") == [("door",)]


async def test_the_same_key_in_two_transactions_is_one_job(library: Library, hf: Holdfast, query: Query) -> None:
    @hf.job
    async def pay(order: str) -> None: ...

    undone = await library.enqueue(pay, "A1", key="order-1", commit=False)
    first = await library.enqueue(pay, "A1", key="order-1")
    assert first.id != undone.id
    assert (await library.enqueue(pay, "A1", key="order-1")).id == first.id
    assert (await pay.options(key="order-1").enqueue("A1")).id == first.id, "also outside of any transaction"
    with pytest.raises(IdempotencyConflict, match=f"already belongs to job {first.id}"):
        await library.enqueue(pay, "A2", key="order-1")
    assert query("select count(*) from holdfast.job") == [(1,)]
    with pytest.raises(NotFound):
        await undone.refresh()


async def test_many_are_accepted_together(library: Library, hf: Holdfast, query: Query) -> None:
    @hf.job
    async def work(number: int) -> None: ...

    jobs = await library.enqueue_many(work, [(number,) for number in range(2_500)])
    assert len({job.id for job in jobs}) == 2_500
    assert query("select count(*) from holdfast.job") == [(2_500,)]
    assert await library.enqueue_many(work, []) == []


async def test_a_route_that_was_rolled_back_is_written_again(library: Library, hf: Holdfast, query: Query) -> None:
    """Nothing is remembered of a route that a transaction wrote, nor of one that another process may have."""

    @hf.job
    async def work() -> None: ...

    await library.enqueue(work, commit=False)
    await library.enqueue(work)
    query("delete from holdfast.route")
    query("delete from holdfast.route_note")
    await work.enqueue()
    assert query(f"select count(*) from ({ROUTES}) as r") == [(1,)]
    query("delete from holdfast.route")
    query("delete from holdfast.route_note")
    await library.enqueue(work)
    assert query(f"select count(*) from ({ROUTES}) as r") == [(1,)]


async def test_later_and_quiet_are_options_here_too(library: Library, hf: Holdfast) -> None:
    @hf.job
    async def work() -> None: ...

    row = await (await library.enqueue(work, delay="5m", notify=False)).refresh()
    assert (row.state, row.due_at) == ("scheduled", row.created_at + timedelta(minutes=5))


async def test_a_unique_job_may_be_replaced_in_a_transaction(library: Library, hf: Holdfast, query: Query) -> None:
    @hf.job(unique="pending", on_duplicate="replace")
    async def index(page: str, text: str) -> None: ...

    first = await library.enqueue(index, "home", "old", unique_key="home", delay="10m")
    undone = await library.enqueue(index, "home", "lost", unique_key="home", commit=False)
    later = await library.enqueue(index, "home", "new", unique_key="home", delay="20m")
    assert {undone.id, later.id} == {first.id}
    row = await first.refresh()
    assert (row.payload["text"], row.state) == ("new", "scheduled")
    await library.enqueue(index, "home", "newest", unique_key="home")
    row = await first.refresh()
    assert (row.payload["text"], row.state, row.due_at) == ("newest", "pending", None)


async def test_a_unique_job_stays_as_it_is(library: Library, hf: Holdfast) -> None:
    @hf.job
    async def index(page: str) -> None: ...

    for scope in ("pending", "live", "10m"):
        first = await library.enqueue(index, scope, unique=scope)
        assert (await library.enqueue(index, scope, unique=scope)).id == first.id
