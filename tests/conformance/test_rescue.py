"""Expire: what becomes of a job whose worker is silent or gone."""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.kernel.cancel import cancel
from holdfast.kernel.database import Transaction
from holdfast.kernel.leases import ERRORS, FOREVER, expire, renew
from holdfast.kernel.queues import set_queue
from holdfast.kernel.rows import JobRow, Lease
from holdfast.kernel.statements import LeasesSql
from holdfast.kernel.states import State
from holdfast.kernel.waiting import wake
from holdfast.outcomes import Done
from holdfast.workers.sweeper import Sweeper
from tests.support.stores import TTL_US, Store

BACKOFF_US = 5_000_000

Meanwhile = Callable[[Store, Lease], Awaitable[None]]


def error_type(row: JobRow) -> str:
    kind: str = json.loads(row.error or "{}")["type"]
    return kind


async def test_a_lease_that_holds_is_left_alone(store: Store) -> None:
    lease = await store.claimed()
    await store.advance("59s")
    before = await store.find(lease.id)
    assert await store.expire() == []
    assert await store.find(lease.id) == before


async def test_the_first_loss_is_pending_at_once(store: Store) -> None:
    lease = await store.claimed()
    await store.advance("60s")
    (moved,) = await store.expire()
    row = await store.find(lease.id)
    assert moved == (row.seq, row.id, State.PENDING, moved.route, None, None, row.kind, None)
    assert (row.state, row.rescues, row.attempts, row.due_at) == (State.PENDING, 1, 0, None)
    assert (row.worker, row.lease_until, row.error, row.finished_at) == (None, None, None, None)
    assert row.token == lease.token


async def test_later_losses_wait_twice_as_long_each_time_give_or_take_a_quarter(store: Store) -> None:
    worker = await store.worker()
    lease = await store.claimed(worker, max_rescues=20)
    for loss in range(1, 16):
        await store.advance("60s")
        await store.expire()
        row = await store.find(lease.id)
        assert row.rescues == loss
        if loss == 1:
            assert row.state == State.PENDING
        else:
            assert row.state == State.SCHEDULED
            assert row.due_at is not None
            pause = row.due_at - store.clock.us
            base = BACKOFF_US << min(loss - 2, 12)
            assert 0.75 * base <= pause <= 1.25 * base
            await store.advance(f"{pause}us")
            assert await store.do(wake, limit=10) == 1
        assert len(await store.claim(worker)) == 1


async def test_jobs_lost_together_do_not_come_back_together(store: Store) -> None:
    worker = await store.worker()
    for _ in range(20):
        await store.enqueue()
    for _ in range(2):
        await store.claim(worker, 20)
        await store.advance("60s")
        await store.expire()
    ((spread,),) = await store.query("select count(distinct due_at) from holdfast.later where state = 'scheduled'")
    assert spread == 20


async def test_at_the_limit_the_job_fails(store: Store) -> None:
    worker = await store.worker()
    lease = await store.claimed(worker, max_rescues=1)
    await store.advance("60s")
    await store.expire()
    await store.claim(worker)
    await store.advance("60s")
    (moved,) = await store.expire()
    row = await store.find(lease.id)
    assert (moved.state, row.state, row.rescues, row.attempts) == (State.FAILED, State.FAILED, 1, 1)
    assert (error_type(row), row.finished_at, row.due_at) == ("rescue_failed", store.clock.us, None)


async def test_a_queue_may_fail_its_orphans(store: Store) -> None:
    await store.do(set_queue, "default", on_orphan="fail")
    lease = await store.claimed()
    await store.advance("60s")
    await store.expire()
    row = await store.find(lease.id)
    assert (row.state, error_type(row)) == (State.FAILED, "instance_disconnected")


async def test_a_queue_may_go_back_to_requeueing(store: Store) -> None:
    await store.do(set_queue, "default", on_orphan="fail")
    await store.do(set_queue, "default", on_orphan="requeue")
    lease = await store.claimed()
    await store.advance("60s")
    await store.expire()
    assert await store.state(lease.id) is State.PENDING


async def test_an_orphan_past_its_deadline_fails(store: Store) -> None:
    lease = await store.claimed(deadline_us=30_000_000)
    await store.advance("60s")
    await store.expire()
    row = await store.find(lease.id)
    assert (row.state, error_type(row)) == (State.FAILED, "deadline_exceeded")


async def test_an_orphan_whose_cancel_was_requested_is_cancelled(store: Store) -> None:
    lease = await store.claimed(deadline_us=30_000_000, max_rescues=0)
    await store.do(cancel, lease.id, reason="stop")
    await store.advance("60s")
    await store.expire()
    row = await store.find(lease.id)
    assert (row.state, error_type(row), row.finished_at) == (State.CANCELLED, "cancelled", store.clock.us)
    assert (row.rescues, row.attempts) == (0, 1), "a loss that ends a job is its last attempt, and no rescue"


@pytest.mark.parametrize("orphan", ["fail", "requeue"])
async def test_the_log_names_the_reason_for_which_a_lost_job_failed(
    store: Store, orphan: str, caplog: pytest.LogCaptureFixture
) -> None:
    await store.do(set_queue, "default", on_orphan=orphan)
    late = await store.claimed(deadline_us=30_000_000)
    lost = await store.claimed(max_rescues=0)
    await store.advance("60s")
    with caplog.at_level("ERROR", "holdfast.attempts"):
        await Sweeper(store.database, store.ports, store.settings).expire(set(), until=FOREVER)
    said = {record.job: record.getMessage() for record in caplog.records}  # type: ignore[attr-defined]
    rescues = "lost its lease more often than max_rescues allows"
    died = "its worker died or lost contact, and its queue says on_orphan=fail"
    assert said == {
        late.id: f"job {late.id} (work) failed: its deadline passed before it ended",
        lost.id: f"job {lost.id} (work) failed: {died if orphan == 'fail' else rescues}",
    }


async def test_a_gone_worker_loses_its_leases_at_once(store: Store) -> None:
    gone, alive = await store.worker(), await store.worker()
    lost, kept = await store.claimed(gone), await store.claimed(alive)
    assert [moved.seq for moved in await store.expire(gone=[gone])] == [lost.seq]
    assert await store.state(lost.id) is State.PENDING
    assert await store.state(kept.id) is State.RUNNING


async def test_a_lost_attempt_is_recorded(store: Store) -> None:
    lease = await store.claimed()
    await store.advance("75s")
    await store.expire()
    (attempt,) = await store.attempts(lease)
    assert (attempt.outcome, attempt.worker, attempt.epoch, attempt.token) == ("lost", lease.worker, *lease.fence)
    assert (attempt.started_at, attempt.ended_at) == (lease.claimed_at, store.clock.us)


@pytest.mark.parametrize("fatal", [False, True])
async def test_a_lost_attempt_is_recorded_in_one_place(store: Store, fatal: bool) -> None:
    """With the job, when the loss ended it."""
    lease = await store.claimed(max_rescues=0 if fatal else 5)
    await store.advance("60s")
    await store.expire()
    recorded = [("lost", lease.worker, *lease.fence)]
    columns = "outcome, worker, epoch, token"
    assert await store.query(f"select {columns} from holdfast.attempt") == ([] if fatal else recorded)
    assert await store.query(f"select {columns} from holdfast.ended") == (recorded if fatal else [])
    assert [(row.outcome, row.worker, row.epoch, row.token) for row in await store.attempts(lease)] == recorded


async def test_what_is_handed_back_is_what_was_asked_for(store: Store) -> None:
    """A lease knows little of its job: lane, cost, deadline, priority and tenant are those of the job again."""
    asked: dict[str, Any] = {"priority": 7, "deadline_us": 3_600_000_000, "lane": "key", "cost": 3, "tenant": "t"}
    columns = "route, priority, slot, attempts, cost, deadline_at, lane, tenant"
    lease = await store.claimed(**asked)
    for _ in range(2):
        await store.advance("60s")
        await store.expire()
        where = "ready" if (await store.find(lease.id)).state == State.PENDING else "later"
        (row,) = await store.query(f"select {columns} from holdfast.{where}")
        assert row[1:] == (7, 0, 0, 3, lease.deadline_at, "key", None)
        await store.claim(lease.worker)


async def test_a_sweep_rescues_no_more_than_its_limit_oldest_first(store: Store) -> None:
    worker = await store.worker()
    ids = [await store.enqueue() for _ in range(5)]
    await store.claim(worker, 5)
    await store.advance("60s")
    assert [moved.id for moved in await store.expire(limit=3)] == ids[:3]
    assert [moved.id for moved in await store.expire(limit=3)] == ids[3:]
    assert await store.expire(limit=3) == []


async def renew_it(store: Store, lease: Lease) -> None:
    """As if the renewal had come just before the lease ran out."""
    await store.query(f"update holdfast.lease set lease_until = {store.clock.us + TTL_US} returning seq")


async def complete_it(store: Store, lease: Lease) -> None:
    assert await store.end(lease, Done())


async def lose_and_reclaim_it(store: Store, lease: Lease) -> None:
    await store.expire()
    assert await store.claim(await store.worker())


@pytest.mark.parametrize("meanwhile", [renew_it, complete_it, lose_and_reclaim_it])
async def test_what_changed_after_it_was_found_is_left_alone(store: Store, meanwhile: Meanwhile) -> None:
    lease = await store.claimed()
    await store.advance("60s")

    async def find(tx: Transaction) -> list[int]:
        return [row.seq for row in await tx.many(LeasesSql.find_lapsed, gone=[], until=FOREVER, limit=10)]

    found = await store.do(find)
    assert found == [lease.seq]
    await meanwhile(store, lease)
    before, attempts = await store.find(lease.id), await store.attempts(lease)

    async def rescue(tx: Transaction) -> int:
        return len(
            await tx.many(LeasesSql.expire, seqs=found, gone=[], backoff_us=1, jitter=0, at_once=0, charge=0, **ERRORS)
        )

    assert await store.do(rescue) == 0
    assert (await store.find(lease.id), await store.attempts(lease)) == (before, attempts)


async def test_nothing_is_rescued_twice(store: Store) -> None:
    await store.claimed()
    await store.advance("60s")
    chance = random.Random(1)

    async def twice(tx: Transaction) -> tuple[int, int]:
        first = await expire(tx, gone=[], limit=10, backoff_us=1, chance=chance)
        return len(first), len(await expire(tx, gone=[], limit=10, backoff_us=1, chance=chance))

    assert await store.do(twice) == (1, 0)


async def test_a_rescued_lease_cannot_be_renewed(store: Store) -> None:
    worker = await store.worker()
    lease = await store.claimed(worker)
    await store.expire(gone=[worker])
    assert await store.do(renew, [lease.held], ttl_us=TTL_US, ceiling_us=10 * TTL_US) == ([], [lease.held])
