"""Retention: what has finished leaves by age and by number, and nothing else does."""

from __future__ import annotations

import pytest

from holdfast.errors import NotFound
from holdfast.kernel.duties import CLEANUP, DutyLost, acquire
from holdfast.kernel.queues import set_queue
from holdfast.kernel.records import Lease, Term
from holdfast.kernel.retention import Keep, prunable, prune
from holdfast.kernel.waiting import store_step
from holdfast.outcomes import Done, Fail, Snooze
from tests.support.stores import Store

DAY = 86_400_000_000
WEEK = Keep(7 * DAY, 1_000_000)


async def finished(store: Store, n: int = 1, queue: str = "default") -> list[Lease]:
    for _ in range(n):
        await store.enqueue(queue=queue)
    leases = await store.claim(await store.worker(), n, queue=queue)
    for lease in leases:
        await store.end(lease, Done())
    return leases


async def count(store: Store, table: str = "job") -> int:
    ((number,),) = await store.query(f"select count(*) from holdfast.{table}")
    return int(number)


async def test_what_finished_long_ago_leaves_with_all_that_was_its(store: Store) -> None:
    await store.enqueue()
    (lease,) = await store.claim(await store.worker())
    await store.do(store_step, lease, "one", "1")
    await store.end(lease, Done())
    await store.advance("6d")
    assert await store.do(prune, WEEK, limit=100) == 0
    await store.advance("1d")
    assert await store.do(prune, WEEK, limit=100) == 1
    assert [await count(store, table) for table in ("job", "attempt", "step")] == [0, 0, 0]
    with pytest.raises(NotFound):
        await store.find(lease.id)


async def test_what_lives_stays_however_old(store: Store) -> None:
    for _ in range(3):
        await store.enqueue()
    worker = await store.worker()
    running, sleeping = await store.claim(worker, 2)
    await store.end(sleeping, Snooze("52w"))
    await store.advance("30d")
    assert await store.do(prune, Keep(0, 0), limit=100) == 0
    await store.end(running, Fail())
    await store.advance("1s")
    assert await store.do(prune, Keep(0, 0), limit=100) == 1


async def test_no_more_are_kept_than_the_number_says(store: Store) -> None:
    leases = []
    for _ in range(5):
        leases += await finished(store)
        await store.advance("1s")
    assert await store.do(prune, Keep(DAY, 2), limit=100) == 3
    assert [(await store.find(lease.id)).id for lease in leases[3:]] == [lease.id for lease in leases[3:]]


async def test_a_queue_may_have_its_own_rule(store: Store) -> None:
    await store.do(set_queue, "short", on_orphan="requeue", keep_us=DAY)
    await finished(store, 2, "short")
    await finished(store, 2, "default")
    await store.advance("2d")
    assert await store.do(prune, WEEK, limit=100) == 2
    assert await store.query("select distinct queue from holdfast.job") == [("default",)]


async def test_one_call_prunes_no_more_than_its_limit(store: Store) -> None:
    await finished(store, 5)
    await store.advance("8d")
    assert [await store.do(prune, WEEK, limit=2) for _ in range(4)] == [2, 2, 1, 0]


async def test_a_child_goes_after_its_parent(store: Store) -> None:
    parent = await store.claimed()
    (child,) = await store.launch(parent)
    (lease,) = await store.claim(await store.worker(), kind="child")
    await store.end(lease, Done())
    await store.advance("8d")
    assert await store.do(prune, WEEK, limit=100) == 0, "its parent may still read how it ended"
    await store.end(parent, Done())
    await store.advance("8d")
    assert await store.do(prune, WEEK, limit=100) == 1
    assert (await store.find(child)).id == child
    assert await store.do(prune, WEEK, limit=100) == 1


async def test_a_holder_whose_term_is_over_prunes_nothing(store: Store) -> None:
    await finished(store)
    await store.advance("8d")
    worker = await store.worker()
    term = await store.do(acquire, CLEANUP, worker, ttl_us=DAY, gone=[])
    assert term is not None
    with pytest.raises(DutyLost):
        await store.do(prune, WEEK, limit=10, under=(Term(CLEANUP, term.term + 1), worker))
    assert await store.do(prune, WEEK, limit=10, under=(term, worker)) == 1


async def test_what_ended_together_stays_together(store: Store) -> None:
    """One commit may end a whole batch: none of those beside the last one kept is thrown away."""
    for _ in range(3):
        await store.enqueue()
    leases = await store.claim(await store.worker(), 3)
    for lease in leases:  # the clock of a test stands still
        await store.end(lease, Done())
    assert await store.do(prune, Keep(7 * DAY, 1), limit=100) == 0
    await store.advance("1s")
    await finished(store)
    assert await store.do(prune, Keep(7 * DAY, 1), limit=100) == 3


async def test_what_someone_asks_for_comes_before_the_policy(store: Store) -> None:
    await store.do(set_queue, "default", on_orphan="requeue", keep_us=30 * DAY, keep_jobs=50)
    await finished(store, 2)
    await store.advance("1d")
    assert await store.do(prunable, Keep(0, 0), cap=100) == {}
    assert await store.do(prunable, Keep(0, 0, firm=True), cap=100) == {"default": 2}
    assert await store.do(prunable, Keep(0, 0, firm=True), cap=1) == {"default": 1}
    assert await store.do(prunable, Keep(0, 0, firm=True), cap=100, queue="other") == {}
    assert await store.do(prune, Keep(0, 0, firm=True), limit=100) == 2
