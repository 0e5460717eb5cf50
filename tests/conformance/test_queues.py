"""Queues: pauses that hold at the very next claim, turns between tenants, and counts."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from holdfast.errors import NotFound
from holdfast.kernel.claim import claim, heads
from holdfast.kernel.complete import complete_and_settle
from holdfast.kernel.duties import CLEANUP, ROUTE_AGE_US, acquire, clean_up
from holdfast.kernel.enqueue import enqueue
from holdfast.kernel.lanes import claim_in_lanes, open_lanes
from holdfast.kernel.queues import count_blocked, list_queues, pause_queue, queue_stats, resume_queue, set_queue
from holdfast.kernel.routes import route_for
from holdfast.kernel.sql import catalogue
from holdfast.kernel.statements import WorkersSql
from holdfast.kernel.workers import look, prune_routes
from holdfast.outcomes import Done, Fail, Snooze
from tests.support.lanes import block
from tests.support.plans import postgres_plan
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


async def test_a_pause_holds_for_blocked_jobs_however_long_it_lasts(store: Store) -> None:
    route = route_for("mail", "work", laned=True)
    jobs = [store.job(queue="mail", route=route.id, lane="key", concurrency=1) for _ in range(2)]
    await store.do(enqueue, jobs, [route])
    worker = await store.worker()
    (lease,) = await store.do(claim_in_lanes, worker, [route.id], 2, TTL_US)
    await store.do(pause_queue, "mail", reason="")
    await store.do(complete_and_settle, [store.ending(lease, Done())], [])
    await block(store, "key")
    await store.advance("2d")
    term = await store.do(acquire, CLEANUP, worker, ttl_us=TTL_US, gone=[])
    assert term is not None
    await store.do(clean_up, term, worker, key_age_us=1, worker_age_us=10 * ROUTE_AGE_US)
    await store.advance("2m")
    await store.do(open_lanes, limit=10)
    assert await store.do(claim_in_lanes, worker, [route.id], 1, TTL_US) == []
    await store.do(resume_queue, "mail")
    assert len(await store.do(claim_in_lanes, worker, [route.id], 1, TTL_US)) == 1


async def test_routes_nobody_uses_are_forgotten_oldest_first_and_some_at_a_time(store: Store) -> None:
    for queue in ("a", "b", "c"):
        await store.do(enqueue, [], [route_for(queue, "work")])
        await store.advance("1s")
    await store.advance("2d")
    await store.do(prune_routes, age_us=ROUTE_AGE_US, limit=2)
    assert await store.query("select queue from holdfast.route") == [("c",)]


def test_routes_are_forgotten_without_a_join_with_every_job(postgres_url: str) -> None:
    """Each is asked after by itself, however few jobs the database believes there are."""
    statement = catalogue((WorkersSql,), "postgres", "holdfast")[WorkersSql.prune_routes]
    with psycopg.connect(postgres_url, autocommit=True) as server:
        plans = [postgres_plan(server, statement, generic=generic).text for generic in (True, False)]
    assert [plan for plan in plans if "Anti" in plan] == []


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
    with pytest.raises(NotFound, match="there is no queue 'post'; the only queue is 'mail'"):
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


async def test_tenants_take_turns_within_one_claim(store: Store) -> None:
    for tenant, n in (("a", 5), ("b", 2), ("c", 1)):
        await enqueue_fairly(store, tenant, n)
    leases = await store.claim(await store.worker(), 8)
    assert "".join(lease.tenant for lease in leases) == "abcabaaa"


async def test_tenants_take_turns_within_one_claim_in_lanes(store: Store) -> None:
    route = route_for("default", "work", laned=True)
    for tenant, n in (("a", 5), ("b", 2), ("c", 1)):
        limits: dict[str, Any] = {"lane": "key", "concurrency": 8, "route": route.id}
        jobs = [store.job(tenant=tenant, turn=turn, **limits) for turn in range(1, n + 1)]
        await store.do(enqueue, jobs, [route])
    leases = await store.do(claim_in_lanes, await store.worker(), [route.id], 8, TTL_US)
    assert "".join(lease.tenant for lease in leases) == "abcabaaa"


async def test_tenants_take_turns_across_the_kinds_of_a_fair_queue(store: Store) -> None:
    kinds = {"a": "work", "b": "other", "c": "third"}
    for tenant, n in (("a", 5), ("b", 2), ("c", 1)):
        route = route_for("default", kinds[tenant])
        jobs = [store.job(kinds[tenant], tenant=tenant, turn=turn) for turn in range(1, n + 1)]
        await store.do(enqueue, jobs, [route])
    routes = [route_for("default", kind).id for kind in kinds.values()]
    worker = await store.worker()
    claims = [await store.do(claim, worker, routes, n, TTL_US) for n in (3, 2, 3)]
    assert ["".join(lease.tenant for lease in leases) for leases in claims] == ["abc", "ab", "aaa"]


async def test_a_fair_queue_is_not_starved_by_one_that_is_not_fair(store: Store) -> None:
    """Between queues the order of arrival counts: a turn of one queue says nothing about the other."""
    for turn in (1, 2):
        await store.do(enqueue, [store.job(tenant="a", turn=turn)], [route_for("default", "work")])
        await store.enqueue("work", "mail")
    routes = [route_for(queue, "work").id for queue in ("default", "mail")]
    claims = [await store.do(claim, await store.worker(), routes, 2, TTL_US) for _ in range(2)]
    assert [sorted(lease.queue for lease in leases) for leases in claims] == [["default", "mail"]] * 2


async def test_a_fair_queue_in_lanes_is_not_starved_by_one_that_is_not_fair(store: Store) -> None:
    """However many jobs the other queue has: the first to come is among the first to be claimed."""
    fair, plain = route_for("fair", "work", laned=True), route_for("plain", "work", laned=True)
    limits: dict[str, Any] = {"concurrency": 1000, "burst": 1}
    first = store.job(queue="fair", route=fair.id, lane="f", turn=1, **limits)
    await store.do(enqueue, [first], [fair])
    crowd = [store.job(queue="plain", route=plain.id, lane="p", **limits) for _ in range(150)]
    await store.do(enqueue, crowd, [plain])
    second = store.job(queue="fair", route=fair.id, lane="f", turn=1, priority=1, **limits)
    await store.do(enqueue, [second], [fair])
    worker, routes = await store.worker(), [plain.id, fair.id]
    claims = [await store.do(claim_in_lanes, worker, routes, 2, TTL_US) for _ in range(2)]
    assert {lease.id for lease in claims[0]} == {first.id, second.id}
    assert {lease.id for lease in claims[1]} == {job.id for job in crowd[:2]}


async def test_queues_in_lanes_share_by_arrival_and_each_queue_by_turns(store: Store) -> None:
    fair, plain = route_for("fair", "work", laned=True), route_for("plain", "work", laned=True)
    limits: dict[str, Any] = {"lane": "key", "concurrency": 1000, "burst": 1}
    for tenant, turn in (("a", 1), ("a", 1), ("b", 1)):  # a, plain, a, plain, b, plain: b is before a's second
        await store.do(enqueue, [store.job(queue="fair", route=fair.id, tenant=tenant, turn=turn, **limits)], [fair])
        await store.do(enqueue, [store.job(queue="plain", route=plain.id, tenant="-", **limits)], [plain])
    routes = [fair.id, plain.id]
    worker = await store.worker()
    claims = [await store.do(claim_in_lanes, worker, routes, n, TTL_US) for n in (1, 2, 3)]
    assert ["".join(sorted(lease.tenant for lease in leases)) for leases in claims] == ["a", "-b", "--a"]


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


async def test_what_lanes_hold_back_is_counted_by_queue_and_as_nothing_else(store: Store) -> None:
    for queue, lane, n in (("default", "a", 2), ("default", "b", 1), ("mail", "a", 3)):
        route = route_for(queue, "work", laned=True)
        await store.do(enqueue, [store.job(queue=queue, route=route.id, lane=lane) for _ in range(n)], [route])
    assert await store.do(count_blocked) == {}
    for lane in ("a", "b"):
        await block(store, lane)
    stats = {row.queue.name: (row.pending, row.blocked, row.later) for row in await store.do(queue_stats)}
    assert stats == {"default": (0, 3, 0), "mail": (0, 3, 0)}
    assert await store.do(count_blocked) == {"default": 3, "mail": 3}
