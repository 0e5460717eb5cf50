"""Brokers when the store, another process or the caller does what nobody wished for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Holdfast, LeaseLost
from holdfast.app import core_of
from holdfast.brokers.hub import Hub
from holdfast.errors import BadPayload, DuplicateWorker, Unavailable, UsageError
from holdfast.kernel import workers
from holdfast.kernel.claim import heads
from tests.support.apps import MakeApp, eventually, happens
from tests.workers.test_brokers import heartbeats

SOON = "100s"  # longer than any machine needs


def hub_of(broker: Any) -> Hub:
    hub: Hub = broker._hub
    return hub


@pytest.mark.both
@pytest.mark.parametrize("how", ["drained", "given up"])
async def test_a_broker_that_the_store_has_drained_claims_nothing_though_nobody_told_it(
    make_app: MakeApp, how: str
) -> None:
    hf = make_app(heartbeat="60s", lease_ttl="200s", worker_ttl="200s")
    await hf.enqueue("work")
    first_beat = asyncio.create_task(heartbeats(hf, 1))  # it would bring a broker back that was given up
    async with hf.broker(queues=["default"]) as broker, hf.broker(queues=["default"]) as other:
        await first_beat
        database = core_of(hf).runtime().database
        if how == "drained":
            await database.transact(workers.drain, broker.seq)
        else:
            await database.transact(workers.lose, broker.seq, reason="a mistake")
        assert await broker.claim() is None
        assert await other.claim() is not None


@pytest.mark.both
async def test_a_claim_that_does_not_wait_finds_what_was_committed_before_on_a_new_route(make_app: MakeApp) -> None:
    hf, other = make_app(poll_interval="100s"), make_app(embedded=False)
    async with hf.broker(queues=["default"]) as broker:
        for number in range(5):
            job = await (hf, other)[number % 2].enqueue(f"kind_{number}")
            lease = await broker.claim()
            assert lease is not None
            assert lease.id == job.id


class Troubled:
    """A database that fails once when it is asked for heads."""

    def __init__(self, database: Any) -> None:
        self._database = database
        self._failed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    async def transact(self, operation: Any, *args: Any, **kwargs: Any) -> Any:
        if operation is heads and not self._failed:
            self._failed = True
            raise Unavailable("a moment of trouble")
        return await self._database.transact(operation, *args, **kwargs)


async def test_a_claim_that_does_not_wait_is_told_of_a_failure_and_the_next_one_works(hf: Holdfast) -> None:
    await hf.enqueue("work")
    async with hf.broker(queues=["default"]) as broker, hf.broker(queues=["default"]) as other:
        await (await _claimed(broker)).complete()
        parked = asyncio.create_task(broker.claim(block=SOON))
        await asyncio.sleep(0)
        await other.claim()  # from now on nobody has to look for the parked call
        waiters: Any = hub_of(broker).waiters
        waiters._database = Troubled(waiters._database)
        with pytest.raises(Unavailable, match="a moment of trouble"):
            await other.claim()
        assert await other.claim() is None
        await hf.enqueue("work")
        assert await parked is not None


async def test_a_claim_that_does_not_wait_says_when_the_broker_is_out_of_touch(make_app: MakeApp) -> None:
    hf = make_app()
    async with hf.broker(queues=["default"]) as broker:
        await hf.enqueue("work")
        member: Any = hub_of(broker)
        member._station._linked_until = float("-inf")
        with pytest.raises(Unavailable, match="heartbeats"):
            await broker.claim()


# The app, the broker and its leases end in any order


async def test_an_app_that_is_closed_takes_its_brokers_along(make_app: MakeApp) -> None:
    hf, watcher = make_app(), make_app(embedded=False)
    job = await hf.enqueue("work")
    broker = await hf.broker(queues=["default"]).__aenter__()
    lease = await _claimed(broker)
    parked = asyncio.create_task(broker.claim(block=SOON))
    await asyncio.sleep(0)
    await hf.close()
    assert await parked is None
    assert await watcher.workers.list() == []
    assert (await watcher.jobs.get(job.id)).state == "pending"
    for call in (broker.claim(), broker.take(job.id), lease.complete(1), lease.renew(), lease.progress(1)):
        with pytest.raises(UsageError, match="closed"):
            await call
    await broker.__aexit__(None, None, None)


async def test_a_lease_that_was_ended_in_one_way_is_not_ended_in_another(hf: Holdfast) -> None:
    await hf.enqueue("work")
    lost: list[Any] = []
    async with hf.broker(queues=["default"]) as broker:
        with hf.events("job.lost", to=lost.append):
            lease = await _claimed(broker)
            assert await lease.release() == "pending"
            assert await lease.release() == "pending"
            for call in (lease.complete(1), lease.fail("boom"), lease.renew(), lease.snooze("1h")):
                with pytest.raises(LeaseLost):
                    await call
            again = await _claimed(broker)
            assert await again.complete(1) == await again.complete(1) == "succeeded"
            with pytest.raises(LeaseLost):
                await again.complete(2)
    assert lost == []


async def test_calls_at_once_take_no_more_than_there_are_slots(hf: Holdfast) -> None:
    jobs = [await hf.enqueue("work", number) for number in range(5)]
    async with hf.broker(queues=["default"], slots=2) as broker:
        taken = await asyncio.gather(*(broker.take(job.id) for job in jobs[:3]), broker.claim(), broker.claim())
        leases = [lease for lease in taken if lease is not None]
        assert len(leases) == 2
        await leases[0].complete()
        assert await broker.take(jobs[4].id) is not None


async def test_a_take_that_is_cancelled_leaves_its_job_to_others(hf: Holdfast) -> None:
    job = await hf.enqueue("work")
    async with hf.broker(queues=["default"]) as broker, hf.broker(queues=["default"]) as other:
        taking = asyncio.create_task(broker.take(job.id))
        await asyncio.sleep(0)
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
        assert (await _claimed(other)).id == job.id


async def test_the_first_broker_leaves_nothing_behind_when_it_cannot_join(make_app: MakeApp) -> None:
    hf, other = make_app(), make_app()
    async with other.broker(id="one", queues=["default"]):
        with pytest.raises(DuplicateWorker):
            await hf.broker(id="one", queues=["default"]).__aenter__()
        assert len(await other.workers.list()) == 2  # the broker and its own hub


async def test_what_is_no_id_is_refused_on_every_database(hf: Holdfast) -> None:
    async with hf.broker(queues=["default"]) as broker:
        with pytest.raises(UsageError, match="'nope' is not a job id"):
            await broker.take("nope")


# Brokers that are given up


async def test_a_broker_that_leaves_while_it_returns_has_left(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = make_app(heartbeat="20ms")
    began, go = asyncio.Event(), asyncio.Event()
    original = Hub._enter

    async def slow(hub: Hub, broker: Any) -> None:
        began.set()
        await go.wait()
        await original(hub, broker)

    async with hf.broker(queues=["default"]) as stays:
        leaves = await hf.broker(id="leaves", queues=["default"]).__aenter__()
        monkeypatch.setattr(Hub, "_enter", slow)
        await core_of(hf).runtime().database.transact(workers.lose, leaves.seq, reason="a mistake")
        await happens(began)
        leaving = asyncio.create_task(leaves.__aexit__(None, None, None))
        await asyncio.sleep(0)
        go.set()
        await leaving
        assert "leaves" not in [row.id for row in await hf.workers.list()]
        assert len(hub_of(stays)) == 1


async def test_a_broker_returns_when_the_first_try_met_an_error(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = make_app(heartbeat="20ms")
    original, tries = workers.register, 0

    async def troubled(*args: Any, **kwargs: Any) -> int:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise BadPayload("something that nobody expects here")
        return await original(*args, **kwargs)

    async with hf.broker(queues=["default"]) as broker:
        before = broker.seq
        monkeypatch.setattr(workers, "register", troubled)
        await core_of(hf).runtime().database.transact(workers.lose, before, reason="a mistake")

        async def returned() -> bool:
            return broker.seq != before

        await eventually(returned)
        assert not broker.draining


async def test_a_broker_that_drains_and_was_given_up_still_renews_what_it_holds(make_app: MakeApp) -> None:
    hf = make_app(heartbeat="20ms")
    await hf.enqueue("work")
    async with hf.broker(queues=["default"]) as broker:
        lease = await _claimed(broker)
        database = core_of(hf).runtime().database
        await database.transact(workers.ask_to_drain, broker.id)
        await database.transact(workers.lose, broker.seq, reason="a mistake")
        await heartbeats(hf, 2)
        members: Any = hub_of(broker)
        members._members.clear()  # as if nobody were here who beats
        before = lease.lease_until

        async def renewed() -> bool:
            return bool(lease.lease_until > before)

        await eventually(renewed)
        assert await lease.complete() == "succeeded"


async def _claimed(broker: Any) -> Any:
    lease = await broker.claim(block=SOON)
    assert lease is not None
    return lease
