"""A claim whose answer was lost: its heartbeat tells the worker what it has without knowing, and it hands that back.
A broker knows what its claim had taken before the commit, and hands back what no answer named."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.brokers.broker import Broker
from holdfast.errors import StoreUnavailable
from holdfast.kernel import brokers, claim
from holdfast.kernel.leases import return_unnamed
from holdfast.kernel.rows import Lease
from tests.support.apps import MakeApp, eventually, happens, outcomes, settings_with, working
from tests.support.proxy import Proxy

BRISK: dict[str, Any] = {"heartbeat": "100ms", "drain_grace": "5s"}  # a lease lasts for a minute
CLAIM = claim.claim
MARK = 987_654_321


class Wire:
    """Between a worker and its store: where answers are lost, or on their way for long."""

    def __init__(self, app: Holdfast) -> None:
        self.loses: Callable[..., Any] | None = None  # the answer to the next call of this operation that brings any
        self.lost: list[Any] = []
        self.holds: Callable[..., Any] | None = None  # the same
        self.gives_up = False  # and the driver asks no second time
        self.held, self.go_on = asyncio.Event(), asyncio.Event()
        self.asked: list[str] = []
        database: Any = core_of(app).runtime().database
        self._transact: Callable[..., Awaitable[Any]] = database.transact
        database.transact = self.transact

    async def transact(self, operation: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        self.asked.append(operation.__name__)
        answer = await self._transact(operation, *args, **kwargs)
        if operation is self.loses and answer:
            self.loses, self.lost = None, answer
            if self.gives_up:
                raise StoreUnavailable("the store does not answer.")
            return await self.transact(operation, *args, **kwargs)  # as drivers do
        if operation is self.holds and answer:
            self.holds = None
            self.held.set()
            await happens(self.go_on)
        return answer


async def test_jobs_of_a_claim_whose_answer_was_lost_run_with_the_next_heartbeat(make_app: MakeApp) -> None:
    app = make_app(embedded=False, **BRISK)

    @app.job(name="work")
    async def work() -> str:
        return "done"

    jobs = [await work.enqueue() for _ in range(3)]
    wire = Wire(app)
    wire.loses = CLAIM
    async with working(app):
        assert [await job.result() for job in jobs] == ["done"] * 3
    assert len(wire.lost) == 3
    for job in jobs:
        assert await outcomes(app, job.id) == ["released", "succeeded"]
        assert (await app.jobs.get(job.id)).rescues == 0


async def test_a_claim_whose_answer_is_on_its_way_keeps_what_it_took(make_app: MakeApp) -> None:
    app = make_app(embedded=False, **BRISK)
    let_go = asyncio.Event()

    @app.job(name="work")
    async def work() -> str:
        await let_go.wait()
        return "done"

    job = await work.enqueue()
    wire = Wire(app)
    wire.holds = CLAIM
    async with working(app) as worker:
        await happens(wire.held)
        await beats(app, worker.id, 3)
        assert "return_unnamed" not in wire.asked
        wire.go_on.set()
        await eventually(lambda: holds(worker, 1))
        await beats(app, worker.id, 3)
        let_go.set()
        assert await job.result() == "done"
    assert await outcomes(app, job.id) == ["succeeded"]


async def test_a_worker_that_agrees_with_the_store_asks_it_nothing_more(make_app: MakeApp) -> None:
    app = make_app(embedded=False, **BRISK)
    let_go = asyncio.Event()

    @app.job(name="work")
    async def work() -> None:
        await let_go.wait()

    async with working(app) as worker:
        await beats(app, worker.id, 3)
        job = await work.enqueue()
        await eventually(lambda: holds(worker, 1))
        await beats(app, worker.id, 2)  # one of them may have been sent before the claim
        wire = Wire(app)
        await beats(app, worker.id, 3)
        assert "return_unnamed" not in wire.asked
        let_go.set()
        await job.result()


async def test_what_a_worker_dropped_itself_is_left_to_the_sweep(make_app: MakeApp) -> None:
    """Its loss counts as a rescue; else a job that freezes its worker would do so for ever."""
    app = make_app(embedded=False, **BRISK)

    @app.job(name="work")
    async def work() -> None:
        await asyncio.Event().wait()

    job = await work.enqueue()
    async with working(app) as worker:
        await eventually(lambda: holds(worker, 1))
        (holding,) = worker.holdings.all()
        wire = Wire(app)

        async def asked() -> bool:
            holding.fence_at = 0.0  # its lease could not be renewed in time
            return return_unnamed.__name__ in wire.asked

        await eventually(asked)
        assert (await app.jobs.get(job.id)).state == "running"
    assert "released" not in await outcomes(app, job.id)


@pytest.mark.both
@pytest.mark.parametrize("gives_up", [False, True])
@pytest.mark.parametrize("call", ["claim", "take"])
async def test_a_job_that_a_broker_took_without_hearing_of_it_goes_back(
    make_app: MakeApp, call: str, gives_up: bool
) -> None:
    app = make_app(embedded=False)
    job = await app.enqueue("work")
    async with app.broker(queues=["default"]) as broker:
        wire = Wire(app)
        wire.loses, wire.gives_up = (brokers.claim_for if call == "claim" else brokers.take), gives_up
        if call == "take":
            with contextlib.suppress(StoreUnavailable):
                assert await broker.take(job.id) is None
        lease = await broker.claim(block="25s")
        assert lease is not None
        await lease.complete("done")
    assert wire.lost
    assert await outcomes(app, job.id) == ["released", "succeeded"]
    assert (await app.jobs.get(job.id)).rescues == 0


@pytest.mark.both
async def test_what_another_call_took_meanwhile_stays_its_own(make_app: MakeApp) -> None:
    app = make_app(embedded=False)
    lost, kept = await app.enqueue("work"), await app.enqueue("work")
    async with app.broker(queues=["default"], slots=3) as broker:
        wire = Wire(app)
        wire.holds = brokers.take
        taking = asyncio.create_task(broker.take(kept.id))
        await happens(wire.held)
        wire.loses = brokers.claim_for
        again = await broker.claim(block="100s")
        assert (again is not None and again.id, wire.asked.count("release_unanswered")) == (lost.id, 1)
        wire.go_on.set()
        taken = await taking
        assert taken is not None
        await taken.complete("mine")
    assert await outcomes(app, kept.id) == ["succeeded"]


@pytest.mark.both
async def test_a_claim_that_was_never_committed_costs_nobody_the_job(make_app: MakeApp) -> None:
    """Somebody else has it since, under the same token."""
    app = make_app(embedded=False)
    job = await app.enqueue("work")
    async with app.broker(queues=["default"]) as broker:
        lease = await broker.claim()
        assert lease is not None
        database = core_of(app).runtime().database
        (row,) = await database.transact(brokers.leases_of, broker.seq)
        lost_answers = brokers.LostAnswers()
        with lost_answers.claiming() as notes:
            notes.add([row.lease._replace(claimed_at=row.lease.claimed_at - 1)])
        assert await lost_answers.give_back(database) == 0
        await lease.complete("mine")
    assert await outcomes(app, job.id) == ["succeeded"]


async def claimed_by_broker(app: Holdfast, broker: Broker) -> Lease:
    await app.enqueue("work")
    assert await broker.claim() is not None
    (row,) = await core_of(app).runtime().database.transact(brokers.leases_of, broker.seq)
    lease: Lease = row.lease
    return lease


async def test_what_a_cancelled_claim_takes_afterwards_goes_back(make_app: MakeApp) -> None:
    """SQLite's thread runs a claim to its end although its caller was cancelled meanwhile."""
    app = make_app(embedded=False)
    async with app.broker(queues=["default"]) as broker:
        lease, lost = await claimed_by_broker(app, broker), brokers.LostAnswers()
        with pytest.raises(asyncio.CancelledError), lost.claiming() as notes:
            raise asyncio.CancelledError
        notes.add([lease])
        assert await lost.give_back(core_of(app).runtime().database) == 1
        assert not lost


async def test_giving_back_waits_for_no_row_that_somebody_holds(postgres_url: str) -> None:
    async with Holdfast(postgres_url, settings=settings_with(), embedded=False) as app:
        app.job(name="work")(lambda: None)
        async with app.broker(queues=["default"], slots=2) as broker:
            database, lost = core_of(app).runtime().database, brokers.LostAnswers()
            lease = await claimed_by_broker(app, broker)
            with lost.claiming() as notes:
                notes.add([lease])
            with psycopg.connect(postgres_url) as other:
                other.execute("select 1 from holdfast.lease where seq = %s for update", [lease.seq])
                assert (await lost.give_back(database), bool(lost)) == (0, True)
            assert (await lost.give_back(database), bool(lost)) == (1, False)


@pytest.fixture
async def proxied(postgres_url: str) -> AsyncIterator[tuple[Holdfast, Proxy]]:
    async with Proxy(postgres_url) as proxy:
        app = Holdfast(proxy.url, settings=settings_with(**BRISK), embedded=False)
        yield app, proxy
        await app.close()


async def test_a_connection_that_is_cut_after_a_claim_costs_its_jobs_nothing(proxied: tuple[Holdfast, Proxy]) -> None:
    app, proxy = proxied

    @app.job(name="work")
    async def work(number: int) -> int:
        return number + 1

    jobs = [await work.enqueue(MARK) for _ in range(3)]
    proxy.lose_news(str(MARK).encode())
    async with working(app):
        await happens(proxy.lost)
        assert [await job.result() for job in jobs] == [MARK + 1] * 3
    assert {(await app.jobs.get(job.id)).rescues for job in jobs} == {0}
    assert "released" in await outcomes(app, jobs[0].id)


async def test_a_connection_that_is_cut_at_a_brokers_commit_costs_its_jobs_nothing(
    proxied: tuple[Holdfast, Proxy],
) -> None:
    app, proxy = proxied
    job = await app.enqueue("work", MARK)
    async with app.broker(queues=["default"]) as broker:
        proxy.lose_commit(str(MARK).encode())
        lease = await broker.claim(block="100s")
        assert lease is not None
        assert proxy.lost.is_set()
        await lease.complete("done")
    assert await outcomes(app, job.id) == ["released", "succeeded"]


async def holds(worker: Any, number: int) -> bool:
    return len(worker.holdings) == number


async def beats(app: Holdfast, id: str, number: int) -> None:
    """Until the store has taken so many more heartbeats of this worker."""
    for _ in range(number):
        before = (await app.workers.get(id)).heartbeat_at

        async def later(before: Any = before) -> bool:
            return bool((await app.workers.get(id)).heartbeat_at > before)

        await eventually(later)
