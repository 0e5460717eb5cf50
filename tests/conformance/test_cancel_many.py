"""Bulk cancel: everything that a filter selects, in bounded transactions, found by index and never twice.

`HOLDFAST_TEST_LOAD=10` cancels a queue of 200,000 jobs.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import pytest

from holdfast.kernel.cancel import CancelFilter, cancel_family, cancel_many, cancel_these, count_wanted
from holdfast.kernel.enqueue import enqueue, enqueue_batch
from holdfast.kernel.ids import new_id
from holdfast.kernel.lanes import claim_in_lanes
from holdfast.kernel.routes import route_for
from holdfast.kernel.rows import Batch
from holdfast.kernel.states import State
from holdfast.kernel.waiting import park
from holdfast.outcomes import Done
from tests.support.stores import TTL_US, Store

MANY = 2_500
FULL = 200_000 if int(os.environ.get("HOLDFAST_TEST_LOAD", "1")) >= 10 else MANY
PART = 10_000


async def fill(store: Store, n: int, kind: str = "work", queue: str = "default", **changes: Any) -> None:
    for begin in range(0, n, PART):
        ids = [new_id(store.ports) for _ in range(min(PART, n - begin))]
        job = store.job(kind, queue, id=ids[0], **changes)
        await store.do(enqueue_batch, Batch(job, ids, ["{}"] * len(ids)), [route_for(queue, kind)])


async def cancelled(store: Store, **wanted: Any) -> tuple[int, int]:
    parts = [part async for part in cancel_many(store.database, CancelFilter(**wanted), reason="unwanted")]
    assert all(sum(part) <= 1_000 for part in parts)
    return sum(part.ended for part in parts), sum(part.asked for part in parts)


async def states(store: Store, column: str = "kind") -> dict[tuple[str, str], int]:
    rows = await store.query(f"select {column}, state, count(*) from holdfast.job_now group by {column}, state")
    return {(value, state): n for value, state, n in rows}


async def test_all_jobs_of_a_queue_end_and_no_others(store: Store) -> None:
    await fill(store, FULL)
    await fill(store, 3, queue="other")
    assert await store.do(count_wanted, CancelFilter(queue="default"), cap=1_000) == 1_000
    assert await store.do(count_wanted, CancelFilter(queue="default"), cap=2 * FULL) == FULL
    assert await cancelled(store, queue="default") == (FULL, 0)
    assert await states(store, "queue") == {("default", "cancelled"): FULL, ("other", "pending"): 3}
    ((error,),) = await store.query("select distinct cast(error as text) from holdfast.job_now where queue = 'default'")
    assert json.loads(error) == {"type": "cancelled", "message": "unwanted"}
    assert await cancelled(store, queue="default") == (0, 0), "it may be repeated"


async def test_kind_tenant_and_state_select(store: Store) -> None:
    await fill(store, 3, "mail", tenant="acme")
    await fill(store, 3, "mail", tenant="other")
    await fill(store, 3, "mail", delay_us=TTL_US, tenant="acme")
    await fill(store, 3, "page", tenant="acme")
    assert await cancelled(store, kind="mail", tenant="acme", states=("pending",)) == (3, 0)
    assert await cancelled(store, kind="mail", tenant="acme", states=("waiting", "running")) == (0, 0)
    assert await cancelled(store, kind="mail", tenant="acme", states=("scheduled",)) == (3, 0)
    assert await cancelled(store, tenant="acme", kept=("page",)) == (0, 0)
    assert await states(store) == {("mail", "cancelled"): 6, ("mail", "pending"): 3, ("page", "pending"): 3}


async def test_every_live_state_is_found_and_what_runs_is_asked_once(store: Store) -> None:
    worker = await store.worker()
    running, waiting, ended = [await store.claimed(worker) for _ in range(3)]
    await store.do(park, waiting, channel="door", timeout_us=None)
    await store.end(ended, Done())
    await store.enqueue()
    await store.enqueue(delay_us=TTL_US)
    assert await cancelled(store, queue="default") == (3, 1)
    assert await cancelled(store, queue="default") == (0, 0)
    assert (await store.find(running.id)).cancel_requested_at == store.clock.us
    assert await states(store) == {("work", "cancelled"): 3, ("work", "running"): 1, ("work", "succeeded"): 1}


async def test_what_a_lane_holds_back_is_found_and_the_lane_is_free_again(store: Store) -> None:
    route = route_for("default", "work", laned=True)
    limits: dict[str, Any] = {"lane": "job:work", "concurrency": 1, "burst": 1}
    jobs = [store.job(**limits)._replace(route=route.id) for _ in range(5)]
    await store.do(enqueue, jobs, [route])
    worker = await store.worker()
    (held,) = await store.do(claim_in_lanes, worker, [route.id], 5, TTL_US)
    assert await store.query("select count(*) from holdfast.job_now where gate is not null") == [(4,)]
    assert await cancelled(store, kind="work", states=("pending",)) == (4, 0)
    await store.end(held, Done())
    await store.do(enqueue, [store.job(**limits)._replace(route=route.id)], [route])
    assert len(await store.do(claim_in_lanes, worker, [route.id], 5, TTL_US)) == 1


async def test_families_go_with_their_heads_and_parents_hear_of_their_children(store: Store) -> None:
    worker = await store.worker()
    head, parent = await store.claimed(worker), await store.claimed(worker)
    await store.launch(head, 3)
    await store.do(park, head, channel=None, timeout_us=None)
    await store.launch(parent, 2, tenant="acme")
    await store.do(park, parent, channel=None, timeout_us=None)
    assert await cancelled(store, tenant="acme") == (2, 0)
    assert await store.state(parent.id) is State.PENDING, "its children have all ended"
    assert await cancelled(store, kind="work") == (2, 0)
    assert await states(store) == {("work", "cancelled"): 2, ("child", "cancelled"): 5}
    assert await store.query("select count(*) from holdfast.cancellation") == [(0,)]


@pytest.mark.long
async def test_many_families_take_few_transactions(store: Store) -> None:
    worker = await store.worker()
    await fill(store, 300)
    for lease in await store.claim(worker, 300):
        await store.launch(lease, 1)
        await store.do(park, lease, channel=None, timeout_us=None)
    seqs = [seq for (seq,) in await store.query("select seq from holdfast.job where kind = 'work'")]
    assert await store.do(cancel_these, seqs, ["waiting"], reason="unwanted") == (300, 0)
    steps = 0
    while await store.do(cancel_family, limit=1_000, families=200):
        steps += 1
    assert await states(store) == {("work", "cancelled"): 300, ("child", "cancelled"): 300}
    assert steps <= 4, "two hundred families at a time: their children, and then what is left of them"


@pytest.mark.long
async def test_several_cancellers_and_a_claimer_beside_each_other(store: Store) -> None:
    await fill(store, MANY)
    worker = await store.worker()
    leases = []

    async def claimer() -> None:
        while taken := await store.claim(worker, 20):
            leases.extend(taken)

    claiming = asyncio.create_task(claimer())
    counts = await asyncio.gather(*(cancelled(store, kind="work") for _ in range(3)))
    await claiming
    assert sum(ended for ended, _ in counts) + len(leases) == MANY
    assert sum(asked for _, asked in counts) <= len(leases)
    await cancelled(store, kind="work")
    assert all([(await store.find(lease.id)).cancel_requested_at for lease in leases])


async def test_what_is_enqueued_meanwhile_stays(store: Store) -> None:
    await fill(store, MANY)
    going = cancel_many(store.database, CancelFilter(queue="default"), reason="unwanted")
    await anext(going)
    late = await store.enqueue()
    assert sum([part.ended async for part in going]) == MANY - 1_000
    assert await store.state(late) is State.PENDING
