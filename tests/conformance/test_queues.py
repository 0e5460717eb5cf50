"""Queues: pauses that hold at the very next claim, turns between tenants, and counts."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import NotFound
from holdfast.kernel.claim import heads
from holdfast.kernel.enqueue import enqueue
from holdfast.kernel.lanes import claim_in_lanes
from holdfast.kernel.queues import list_queues, pause_queue, queue_stats, resume_queue, set_queue
from holdfast.kernel.routes import route_for
from holdfast.kernel.workers import look
from holdfast.outcomes import Done, Fail, Snooze
from tests.support.stores import TTL_US, Store


async def test_nothing_of_a_paused_queue_is_claimed(store: Store) -> None:
    worker = await store.worker()
    for queue in ("mail", "default"):
        await store.enqueue("work", queue)
    routes = [route_for(queue, "work").id for queue in ("mail", "default")]
    await store.do(pause_queue, "mail", reason="the server is down")
    sight = await store.do(look, worker, routes[:1])
    assert not sight.pending
    assert await store.do(heads, routes) == routes[1:]
    assert await store.claim(worker, queue="mail") == []
    assert len(await store.claim(worker)) == 1
    assert await store.do(resume_queue, "mail")
    assert len(await store.claim(worker, queue="mail")) == 1


async def test_a_pause_holds_for_jobs_in_lanes_too(store: Store) -> None:
    route = route_for("mail", "work", laned=True)
    job = store.job(queue="mail", route=route.id, lane="key", concurrency=1)
    await store.do(enqueue, [job], [route])
    await store.do(pause_queue, "mail", reason="")
    assert await store.do(claim_in_lanes, await store.worker(), [route.id], 1, TTL_US) == []
    await store.do(resume_queue, "mail")
    assert len(await store.do(claim_in_lanes, await store.worker(), [route.id], 1, TTL_US)) == 1


async def test_a_pause_is_nobodys_but_its_owners_to_end(store: Store) -> None:
    await store.do(pause_queue, "mail", reason="the server is down")
    await store.do(set_queue, "mail", on_orphan="fail", fair=True)
    (queue,) = await store.do(list_queues)
    assert (queue.name, queue.on_orphan, bool(queue.fair), queue.pause_reason) == (
        "mail",
        "fail",
        True,
        "the server is down",
    )
    assert queue.paused_at == store.clock.us
    assert await store.do(resume_queue, "mail")
    assert not await store.do(resume_queue, "mail")
    with pytest.raises(NotFound, match="there is no queue 'post'; there are mail"):
        await store.do(resume_queue, "post")


async def enqueue_fairly(store: Store, tenant: str, n: int, **changes: Any) -> None:
    jobs = [store.job(tenant=tenant, turn=turn, **changes) for turn in range(1, n + 1)]
    await store.do(enqueue, jobs, [route_for("default", "work")])


async def claimed_tenants(store: Store, n: int) -> str:
    worker = await store.worker()
    return "".join([(await store.claim(worker))[0].tenant for _ in range(n)])


async def test_tenants_take_turns_on_a_fair_queue(store: Store) -> None:
    await enqueue_fairly(store, "a", 5)
    await enqueue_fairly(store, "b", 2)
    await enqueue_fairly(store, "c", 1)
    assert await claimed_tenants(store, 8) == "abcabaaa"


async def test_a_late_comer_waits_one_turn_not_for_the_whole_flood(store: Store) -> None:
    await enqueue_fairly(store, "a", 6)
    assert await claimed_tenants(store, 2) == "aa"
    await enqueue_fairly(store, "b", 2)
    assert await claimed_tenants(store, 6) == "abab" + "aa"


async def test_one_by_one_is_as_fair_as_all_at_once(store: Store) -> None:
    for tenant in "aaaabb":
        await enqueue_fairly(store, tenant, 1)
    assert await claimed_tenants(store, 6) == "ababaa"


async def test_the_counts_of_a_queue(store: Store) -> None:
    worker = await store.worker()
    for _ in range(6):
        await store.enqueue()
    await store.enqueue(delay_us=1_000_000)
    done, failed, later, _running = await store.claim(worker, 4)
    await store.end(done, Done())
    await store.end(failed, Fail())
    await store.end(later, Snooze("1h"))
    (stats,) = await store.do(queue_stats)
    counted = (stats.pending, stats.running, stats.later, stats.succeeded, stats.failed, stats.cancelled)
    assert counted == (2, 1, 2, 1, 1, 0)
    await store.advance("2m")
    (stats,) = await store.do(queue_stats)
    assert (stats.succeeded, stats.failed) == (0, 0), "what finished is of the last minute"
