"""Brokers: leases for code that is no handler, many of them in one process, beside workers and other processes."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Holdfast, LeaseLost, Queue, Settings
from holdfast.app import core_of
from holdfast.brokers.broker import Broker, BrokerLease
from holdfast.brokers.waiters import BrokerScope, Waiter, Waiters
from holdfast.errors import BadPayload, BadSetting, DuplicateWorker, RunFailed, UsageError
from holdfast.kernel import workers
from holdfast.kernel.leases import expire
from holdfast.kernel.queues import pause_queue
from tests.support.apps import PATIENCE, MakeApp, eventually, happens, in_state, outcomes, working
from tests.support.sent import Statements

SOON = "100s"  # longer than any machine needs


async def claimed(broker: Broker) -> BrokerLease:
    lease = await broker.claim(block=SOON)
    assert lease is not None
    return lease


async def test_a_job_by_name_is_done_by_a_broker(hf: Holdfast) -> None:
    job = await hf.enqueue("mail:send", {"to": "ann"}, queue="mail", metadata={"by": "test"})
    named = await hf.enqueue("resize", [1, 2], queue="mail")
    async with hf.broker(
        name="post", id="broker-1", queues=["mail"], capabilities=["job:resize", "mail:send"]
    ) as broker:
        first, second = await claimed(broker), await claimed(broker)
        assert (first.id, first.kind, first.queue, first.payload, first.attempt) == (
            job.id,
            "mail:send",
            "mail",
            {"to": "ann"},
            1,
        )
        assert (first.metadata, first.token, first.cancel_requested, first.lost) == (
            {"by": "test"},
            "1.1",
            False,
            False,
        )
        assert second.payload == [1, 2]
        await first.progress({"sent": 1})
        assert await first.complete({"sent": True}) == "succeeded"
        assert await second.complete() == "succeeded"
        (row,) = [row for row in await hf.workers.list() if row.id == "broker-1"]
        assert (row.name, row.status) == ("post", "active")
    assert await job.result() == {"sent": True}
    assert await named.result() is None
    assert await hf.workers.list() == []


async def test_nothing_to_claim_is_none_or_an_empty_list(hf: Holdfast) -> None:
    async with hf.broker(queues=["mail"]) as broker:
        assert await broker.claim() is None
        assert await broker.claim(5) == []
        assert await broker.claim(block="1ms") is None


async def test_many_are_claimed_at_once_and_no_more_than_there_are_slots(hf: Holdfast) -> None:
    for number in range(5):
        await hf.enqueue("work", number)
    async with hf.broker(queues=["default"], slots=3) as broker:
        leases = await broker.claim(10)
        assert [lease.payload for lease in leases] == [0, 1, 2]
        assert await broker.claim() is None
        waiting = asyncio.create_task(broker.claim(block=SOON))
        await leases[0].complete()
        lease = await waiting
        assert lease is not None
        assert lease.payload == 3


@pytest.mark.both
async def test_a_parked_claim_hears_of_a_new_job_of_a_new_route(hf: Holdfast) -> None:
    async with hf.broker(queues=["default"]) as broker:
        parked = asyncio.create_task(broker.claim(block=SOON))
        await asyncio.sleep(0)
        await hf.enqueue("never_seen_before", 1)
        lease = await parked
        assert lease is not None
        assert (lease.kind, lease.payload) == ("never_seen_before", 1)


async def test_a_claim_that_is_cancelled_leaves_its_job_to_others(hf: Holdfast) -> None:
    async with hf.broker(queues=["default"]) as broker:
        parked = [asyncio.create_task(broker.claim(block=SOON)) for _ in range(20)]
        await asyncio.sleep(0)
        job = await hf.enqueue("work")
        for task in parked[:19]:
            task.cancel()
        lease = await parked[19]
        assert lease is not None
        assert lease.id == job.id


async def test_a_job_is_taken_by_its_id_if_the_broker_serves_it(hf: Holdfast) -> None:
    job, other = await hf.enqueue("work"), await hf.enqueue("work", queue="other")
    async with hf.broker(queues=["default"]) as broker:
        assert await broker.take(other.id) is None
        lease = await broker.take(job.id)
        assert lease is not None
        assert await broker.take(job.id) is None
        await lease.complete("mine")
    assert await job.result() == "mine"


async def test_an_attempt_that_fails_is_tried_again_until_its_limit(hf: Holdfast) -> None:
    job = await hf.enqueue("work", attempts=2)
    async with hf.broker(queues=["default"]) as broker:
        first = await claimed(broker)
        assert await first.fail("boom") == "pending"
        second = await claimed(broker)
        assert (second.attempt, second.token) == (2, "1.2")
        assert await second.fail("boom again", type="bad_luck") == "failed"
    with pytest.raises(RunFailed, match="boom again"):
        await job.result()


async def test_how_else_an_attempt_may_end(hf: Holdfast) -> None:
    final, later, back = [await hf.enqueue("work", number) for number in range(3)]
    async with hf.broker(queues=["default"]) as broker:
        leases = await broker.claim(3)
        assert await leases[0].fail("never", retry=False) == "failed"
        assert await leases[1].snooze("1h", "not now") == "scheduled"
        assert await leases[2].release() == "pending"
        again = await claimed(broker)
        assert (again.id, again.attempt) == (back.id, 1)
        assert await again.fail("later", retry="1h") == "scheduled"
    assert [(await hf.jobs.get(job.id)).attempts for job in (final, later, back)] == [1, 0, 1]


async def test_a_late_write_is_refused_and_counted(hf: Holdfast) -> None:
    job = await hf.enqueue("work")
    lost: list[Any] = []
    async with (
        hf.broker(queues=["default"], renewal="manual", lease_ttl="1ms") as broker,
        hf.broker(queues=["default"]) as other,
    ):
        with hf.events("job.lost", to=lost.append):
            late = await claimed(broker)

            async def taken() -> BrokerLease | None:
                return await other.take(job.id)

            lease = await eventually(taken)
            with pytest.raises(LeaseLost):
                await late.renew("1m")
            assert late.lost
            with pytest.raises(LeaseLost):
                await late.complete("late")
            with pytest.raises(LeaseLost):
                await late.progress(1)
        await lease.complete("mine")
    assert len(lost) == 1
    assert await job.result() == "mine"
    assert await outcomes(hf, job.id) == ["lost", "succeeded"]


async def test_manual_leases_are_renewed_by_the_caller_alone(hf: Holdfast) -> None:
    await hf.enqueue("work")
    async with hf.broker(queues=["default"], renewal="manual", lease_ttl="10s") as broker:
        lease = await claimed(broker)
        before = lease.lease_until
        assert await lease.renew("10m") >= before + timedelta(minutes=9)
        assert lease.lease_until > before


@pytest.mark.parametrize(("ttl", "says"), [("0s", "at least 1ms"), ("365d", "lease_ceiling"), (60, "a duration")])
async def test_a_renewal_that_cannot_be_kept_is_refused(hf: Holdfast, ttl: Any, says: str) -> None:
    await hf.enqueue("work")
    async with hf.broker(queues=["default"], renewal="manual", lease_ttl="10s") as broker:
        lease = await claimed(broker)
        before = lease.lease_until
        with pytest.raises(BadSetting, match=says):
            await lease.renew(ttl)
        assert lease.lease_until == before


@pytest.mark.both
async def test_a_manual_lease_that_ran_out_is_known_to_be_lost_and_gives_its_slot_back(hf: Holdfast) -> None:
    job = await hf.enqueue("work")
    lost: list[Any] = []
    async with (
        hf.broker(queues=["default"], renewal="manual", lease_ttl="1ms", slots=1) as broker,
        hf.broker(queues=["default"]) as other,
    ):
        with hf.events("job.lost", to=lost.append):
            late = await claimed(broker)
            async with asyncio.timeout(PATIENCE):
                await late.wait_lost()

            async def taken() -> BrokerLease | None:
                return await other.take(job.id)

            await (await eventually(taken)).complete("mine")
            with pytest.raises(LeaseLost):
                await late.complete("late")
        again = await hf.enqueue("work")
        assert (await claimed(broker)).id == again.id
    assert len(lost) == 1
    assert await job.result() == "mine"


async def test_a_manual_lease_that_its_holder_lost_sight_of_may_still_be_ended(hf: Holdfast) -> None:
    """The store has the last word: nobody took the job in the meantime."""
    job = await hf.enqueue("work")
    async with hf.broker(queues=["default"], renewal="manual", lease_ttl="10m") as broker:
        lease = await claimed(broker)
        lease._kept.fence_at = float("-inf")
        async with asyncio.timeout(PATIENCE):
            await lease.wait_lost()
        assert await lease.complete("after all") == "succeeded"
    assert await job.result() == "after all"


@pytest.mark.both
async def test_leases_are_renewed_while_they_are_held(make_app: MakeApp) -> None:
    hf = make_app(heartbeat="20ms", lease_ttl="10s")
    await hf.enqueue("work")
    async with hf.broker(queues=["default"]) as broker:
        lease = await claimed(broker)
        before = lease.lease_until

        async def renewed() -> bool:
            return lease.lease_until > before

        await eventually(renewed)
        await lease.complete()


@pytest.mark.both
async def test_a_job_over_its_time_limit_is_lost_to_its_broker_though_that_renews_it(make_app: MakeApp) -> None:
    """The limit is far below the time of a lease; before it is over the attempt may end as any other."""
    hf = make_app(heartbeat="20ms", lease_ttl="60s")
    job = await hf.enqueue("work", timeout="2s")
    async with hf.broker(queues=["default"]) as broker:
        slow = await claimed(broker)
        assert not slow.lost

        async def lost() -> bool:
            return slow.lost

        await eventually(lost)
        again = await claimed(broker)
        assert (again.id, again.token) == (job.id, "1.2")
        with pytest.raises(LeaseLost):
            await slow.complete()
        await again.release()
    assert (await outcomes(hf, job.id))[0] == "lost"


async def test_a_cancel_is_seen_by_the_holder_and_wins(make_app: MakeApp) -> None:
    hf = make_app(heartbeat="20ms")
    job = await hf.enqueue("work")
    async with hf.broker(queues=["default"]) as broker:
        lease = await claimed(broker)
        assert await job.cancel() == "running"

        async def seen() -> bool:
            return lease.cancel_requested

        await eventually(seen)
        assert await lease.complete("too late") == "cancelled"


async def test_a_broker_that_is_drained_claims_nothing_more(make_app: MakeApp) -> None:
    hf = make_app(heartbeat="20ms")
    await hf.enqueue("work")
    async with hf.broker(id="tired", queues=["default"]) as broker:
        lease = await claimed(broker)
        await hf.enqueue("work")
        await core_of(hf).runtime().database.transact(workers.ask_to_drain, "tired")

        async def drains() -> bool:
            return broker.draining

        await eventually(drains)
        assert await broker.claim(block=SOON) is None
        assert await lease.complete() == "succeeded"


async def test_what_a_broker_holds_when_it_leaves_is_handed_back(hf: Holdfast) -> None:
    job = await hf.enqueue("work")
    async with hf.broker(queues=["default"]) as broker:
        await claimed(broker)
    assert (await hf.jobs.get(job.id)).state == "pending"
    assert await outcomes(hf, job.id) == ["released"]


async def test_a_broker_that_was_given_up_returns_under_another_number(make_app: MakeApp) -> None:
    hf = make_app(heartbeat="20ms")
    async with hf.broker(id="phoenix", queues=["default"]) as broker:
        before = broker.seq
        database = core_of(hf).runtime().database
        await database.transact(workers.lose, before, reason="a mistake")

        async def returned() -> bool:
            return broker.seq != before

        await eventually(returned)
        await hf.enqueue("work")
        assert await (await claimed(broker)).complete() == "succeeded"


async def test_two_brokers_cannot_have_one_id(hf: Holdfast) -> None:
    async with hf.broker(id="one", queues=["default"]):
        with pytest.raises(DuplicateWorker):
            async with hf.broker(id="one", queues=["default"]):
                pass


async def test_a_worker_that_knows_the_kind_runs_a_job_that_was_enqueued_by_name(make_app: MakeApp) -> None:
    hf, caller = make_app(), make_app(embedded=False)

    @hf.job(name="greet")
    async def greet(name: str) -> str:
        return f"hello {name}"

    async with working(hf):
        job = await caller.enqueue("greet", {"name": "ann"})
        assert await job.result() == "hello ann"


async def test_a_broker_of_every_kind_leaves_alone_what_it_cannot_do(hf: Holdfast) -> None:
    await hf.enqueue("work", requires=["tag:gpu=yes"])
    await hf.enqueue("mail:send")
    async with hf.broker(queues=["default"]) as broker:
        assert await broker.claim() is None
        assert "tag:gpu" in str(await hf.why((await hf.jobs.list())[1].id))
    async with hf.broker(queues=["default"], capabilities=["tag:gpu=yes"]) as broker:
        lease = await broker.claim()
        assert lease is not None
        assert lease.kind == "work"


@pytest.mark.parametrize("value", [b"", b"\x00\xff raw", bytes(range(256)) * 10])
async def test_bytes_come_out_as_they_went_in(hf: Holdfast, value: bytes) -> None:
    job = await hf.enqueue("work", value)
    async with hf.broker(queues=["default"]) as broker:
        lease = await claimed(broker)
        assert lease.payload == value
        await lease.complete(value[::-1])
    assert await job.result() == value[::-1]


async def test_what_would_be_taken_for_bytes_is_refused(hf: Holdfast) -> None:
    with pytest.raises(BadPayload, match=r"\$bytes"):
        await hf.enqueue("work", {"$bytes": "aGk="})
    job = await hf.enqueue("work", {"$bytes": "aGk=", "more": 1})
    async with hf.broker(queues=["default"]) as broker:
        assert (await claimed(broker)).payload == {"$bytes": "aGk=", "more": 1}
    assert job.id


async def test_where_a_lost_lease_counts_a_job_that_is_lost_too_often_fails(hf: Holdfast) -> None:
    hf.queue("poison", Queue(lost_counts=True))
    job = await hf.enqueue("work", queue="poison", attempts=2)
    async with hf.broker(queues=["poison"], renewal="manual", lease_ttl="1ms") as broker:
        for _ in range(2):
            await claimed(broker)
        await in_state(hf, job.id, "failed")
    with pytest.raises(RunFailed, match="last attempt"):
        await job.result()


@pytest.mark.parametrize(
    ("options", "problem", "says"),
    [
        ({}, UsageError, "queues="),
        ({"queues": "mail"}, UsageError, "list of names"),
        ({"queues": ["a"], "slots": 0}, UsageError, "slots"),
        ({"queues": ["a"], "renewal": "never"}, UsageError, "renewal"),
        ({"queues": ["a"], "lease_ttl": "0s"}, BadSetting, "lease_ttl"),
        ({"queues": ["a"], "lease_ttl": "365d"}, BadSetting, "lease_ceiling"),
        ({"queues": ["a"], "lease_ttl": "1us", "renewal": "manual"}, BadSetting, "at least 1ms"),
        ({"queues": ["a"], "lease_ttl": 60}, BadSetting, "duration"),
        ({"queues": ["a"], "lease_ttl": "1s"}, BadSetting, "two heartbeats"),
        ({"queues": ["a"], "id": "x" * 10_000}, BadPayload, "200"),
    ],
)
def test_a_broker_that_could_not_work_is_refused(options: dict[str, Any], problem: type[Exception], says: str) -> None:
    with pytest.raises(problem, match=says):
        Holdfast(settings=Settings()).broker(**options)


async def test_a_broker_that_is_not_open_says_so(hf: Holdfast) -> None:
    broker = hf.broker(queues=["default"])
    with pytest.raises(UsageError, match="async with"):
        await broker.claim()
    async with broker:
        pass
    with pytest.raises(UsageError, match="async with"):
        await broker.take("x")


@pytest.mark.both
async def test_a_broker_that_has_left_cannot_be_entered_again(hf: Holdfast) -> None:
    broker = hf.broker(id="broker-1", queues=["default"])
    async with broker:
        pass
    with pytest.raises(UsageError, match="broker-1 has left"):
        await broker.__aenter__()
    assert await hf.workers.list() == []
    await hf.enqueue("work")
    async with hf.broker(id="broker-1", queues=["default"]) as another:
        assert await another.claim() is not None


@pytest.mark.both
async def test_a_broker_that_could_not_join_may_be_entered_again(hf: Holdfast) -> None:
    await hf.enqueue("work")
    waiting = hf.broker(id="broker-1", queues=["default"])
    async with hf.broker(id="broker-1", queues=["default"]):
        with pytest.raises(DuplicateWorker):
            await waiting.__aenter__()
    async with waiting:
        assert await waiting.claim() is not None


async def test_an_option_that_does_not_exist_is_named(hf: Holdfast) -> None:
    with pytest.raises(UsageError, match="'prio' is not an option"):
        await hf.enqueue("work", prio=1)  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="belong to"):
        await hf.enqueue("agent:x")


async def test_brokers_and_workers_share_the_jobs_of_a_queue(make_app: MakeApp) -> None:
    hf = make_app()
    done: Counter[int] = Counter()

    @hf.job(name="count")
    async def count(n: int) -> None:
        done[n] += 1

    await count.enqueue_many([{"n": n} for n in range(200)])

    async def drain(broker: Broker) -> None:
        while lease := await broker.claim():
            done[lease.payload["n"]] += 1
            await lease.complete()

    async with AsyncExitStack() as stack:
        brokers = [await stack.enter_async_context(hf.broker(queues=["default"])) for _ in range(8)]
        await stack.enter_async_context(working(hf))
        await asyncio.gather(*(drain(broker) for broker in brokers))

        async def all_done() -> bool:
            return len(done) == 200

        await eventually(all_done, lambda: len(done))
    assert set(done.values()) == {1}


async def heartbeats(app: Holdfast, n: int) -> None:
    """Until so many heartbeats of this app were answered."""
    beaten, seen = 0, asyncio.Event()

    def beat(_: Any) -> None:
        nonlocal beaten
        beaten += 1
        if beaten >= n:
            seen.set()

    with app.events("heartbeat.done", to=beat):
        await happens(seen)


@pytest.mark.both
@pytest.mark.parametrize("many", [100, pytest.param(1_000, marks=pytest.mark.long)])
async def test_many_idle_brokers_send_no_more_statements_than_few(
    make_app: MakeApp, dialect: str, monkeypatch: pytest.MonkeyPatch, many: int
) -> None:
    statements = Statements(monkeypatch, dialect)
    spent = {}
    for size in (2, many):
        hf = make_app(heartbeat="100ms", poll_interval="100ms", sweep_interval="100ms")
        async with AsyncExitStack() as stack:
            brokers = [await stack.enter_async_context(hf.broker(queues=["default"])) for _ in range(size)]
            parked = [asyncio.create_task(broker.claim(block="1h")) for broker in brokers]
            await heartbeats(hf, 2)
            statements.sent.clear()
            await heartbeats(hf, 5)
            spent[size] = sum(
                statements.sent[name] for name in ("heartbeat", "beat_many", "renew_each", "heads", "claim")
            )
            for task in parked:
                task.cancel()
            await asyncio.gather(*parked, return_exceptions=True)
        await hf.close()
    assert spent[many] <= spent[2] + 6, spent


async def test_the_leases_of_a_hub_that_is_gone_are_rescued(make_app: MakeApp) -> None:
    hf = make_app()
    job = await hf.enqueue("work")
    async with hf.broker(queues=["default"]) as broker:
        await claimed(broker)
        database = core_of(hf).runtime().database
        host = next(
            row for row in await database.transact(workers.list_workers, all=False, limit=9) if row.host is None
        )
        await database.transact(workers.lose, host.seq, reason="its presence is gone")
        (lost,) = await database.transact(
            expire, gone=[host.seq], limit=10, backoff_us=0, chance=core_of(hf).ports.random, until=0
        )
        assert (lost.id, lost.state) == (job.id, "pending")


async def test_nothing_of_a_paused_queue_is_claimed(hf: Holdfast) -> None:
    await hf.enqueue("work")
    async with hf.broker(queues=["default"]) as broker:
        await core_of(hf).runtime().database.transact(pause_queue, "default", reason="lunch")
        assert await broker.claim() is None


@pytest.mark.parametrize("end", ["its time", "its caller"])
async def test_an_answer_that_comes_as_a_claim_ends_is_not_forgotten(end: str) -> None:
    """A process that stood still finds in one moment that the time of a call is over and that its answer is there."""
    returned: list[Any] = []
    ports: Any = None
    waiters = Waiters(ports, ports, ports, accept=lambda *_: None, give_back=returned.append, returned=lambda _: None)
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()
    waiter = Waiter(
        lambda: 1, BrokerScope(None, frozenset()), 1, 1, lambda: 1, lambda _: None, patient=True, answer=answer
    )
    waiting: asyncio.Task[Any] = asyncio.create_task(waiters.wait(waiter, 0.01 if end == "its time" else 60))
    await asyncio.sleep(0)
    until = loop.time() + 0.05
    while loop.time() < until:
        pass
    answer.set_result(["a lease"])
    if end == "its time":
        assert await waiting == ["a lease"]
        assert returned == []
    else:
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert returned == ["a lease"]
