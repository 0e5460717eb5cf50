"""Retention: what has finished leaves by age and by number, and nothing else does."""

from __future__ import annotations

import pytest

from holdfast.errors import NotFound
from holdfast.kernel.duties import CLEANUP, DutyLost, acquire, release
from holdfast.kernel.enqueue import enqueue_unique
from holdfast.kernel.queues import set_queue
from holdfast.kernel.retention import KeepRule, Pruner, remove
from holdfast.kernel.rows import Lease, Term
from holdfast.kernel.waiting import report_progress, store_step, wake
from holdfast.outcomes import Done, Fail, Snooze, TryAgain
from tests.support.stores import Store

DAY = 86_400_000_000
WEEK = KeepRule(7 * DAY, 1_000_000)


async def finished(store: Store, n: int = 1, queue: str = "default") -> list[Lease]:
    for _ in range(n):
        await store.enqueue(queue=queue)
    leases = await store.claim(await store.worker(), n, queue=queue)
    for lease in leases:
        await store.end(lease, Done())
    return leases


async def prune(store: Store, keep: KeepRule, *, look: int = 100, pruner: Pruner | None = None) -> list[int]:
    """What a duty does in one round: how many jobs each transaction removed, of those that removed any."""
    worker = await store.worker()
    term = await store.do(acquire, CLEANUP, worker, ttl_us=DAY, gone=[])
    assert term is not None
    pruner = pruner or Pruner(store.database, keep, look=look)
    removed = [gone async for gone in pruner.round(under=(term, worker))]
    await store.do(release, term, worker)
    return [gone for gone in removed if gone]


async def count(store: Store, table: str = "job") -> int:
    ((number,),) = await store.query(f"select count(*) from holdfast.{table}")
    return int(number)


async def test_what_finished_long_ago_leaves_with_all_that_was_its(store: Store) -> None:
    worker = await store.worker()
    await store.do(enqueue_unique, store.job(unique_key="k", unique_scope="live"), [])
    (lease,) = await store.claim(worker)
    await store.do(store_step, lease, "one", "1")
    await store.do(report_progress, lease, "50")
    await store.launch(lease)
    await store.end(lease, TryAgain("1s"))
    await store.advance("1s")
    await store.do(wake, limit=1)
    (lease,) = await store.claim(worker)
    (young,) = await store.claim(worker, kind="child")
    await store.end(young, Done())
    await store.end(lease, Done())
    theirs = ("job", "ended", "attempt", "step", "family", "progress", "unique_key")
    assert [await count(store, table) for table in theirs] == [2, 2, 1, 1, 1, 1, 1], "else there is nothing to remove"
    await store.advance("6d")
    assert await prune(store, WEEK) == []
    await store.advance("1d")
    assert await prune(store, WEEK) == [1, 1], "its child after it"
    assert [await count(store, table) for table in theirs] == [0] * len(theirs)
    with pytest.raises(NotFound):
        await store.find(lease.id)


async def test_what_lives_stays_however_old(store: Store) -> None:
    for _ in range(3):
        await store.enqueue()
    worker = await store.worker()
    running, sleeping = await store.claim(worker, 2)
    await store.end(sleeping, Snooze("52w"))
    await store.advance("30d")
    assert await prune(store, KeepRule(0, 0)) == []
    await store.end(running, Fail())
    await store.advance("1s")
    assert await prune(store, KeepRule(0, 0)) == [1]


async def test_a_parent_stays_while_a_child_of_it_lives(store: Store) -> None:
    parent = await store.claimed()
    await store.launch(parent)
    await store.end(parent, Done())
    await store.advance("1s")
    assert await prune(store, KeepRule(0, 0)) == []
    assert await store.do(remove, [parent.seq]) == 0
    (child,) = await store.claim(await store.worker(), kind="child")
    await store.end(child, Done())
    await store.advance("1s")
    assert await prune(store, KeepRule(0, 0)) == [1, 1]


async def test_what_has_not_ended_is_not_removed_though_it_was_named(store: Store) -> None:
    lease = await store.claimed()
    assert await store.do(remove, [lease.seq]) == 0
    assert await store.end(lease, Done())
    assert await store.do(remove, [lease.seq]) == 1


async def test_no_more_are_kept_than_the_number_says(store: Store) -> None:
    leases = []
    for _ in range(5):
        leases += await finished(store)
        await store.advance("1s")
    assert await prune(store, KeepRule(DAY, 2)) == [3]
    assert [(await store.find(lease.id)).id for lease in leases[3:]] == [lease.id for lease in leases[3:]]


async def test_a_queue_may_have_its_own_rule(store: Store) -> None:
    await store.do(set_queue, "short", on_orphan="requeue", keep_us=DAY)
    await finished(store, 2, "short")
    await finished(store, 2, "default")
    await store.advance("2d")
    assert await prune(store, WEEK) == [2]
    assert await store.query("select distinct queue from holdfast.job") == [("default",)]


async def test_one_call_prunes_no_more_than_its_limit(store: Store) -> None:
    await finished(store, 5)
    await store.advance("8d")
    assert await prune(store, WEEK, look=2) == [2, 2, 1]


async def test_a_child_goes_after_its_parent(store: Store) -> None:
    parent = await store.claimed()
    (child,) = await store.launch(parent)
    (lease,) = await store.claim(await store.worker(), kind="child")
    await store.end(lease, Done())
    await store.advance("8d")
    assert await prune(store, WEEK) == [], "its parent may still read how it ended"
    await store.end(parent, Done())
    await store.advance("8d")
    assert await prune(store, WEEK) == [1, 1], "its parent first"
    with pytest.raises(NotFound):
        await store.find(child)


async def test_a_holder_whose_term_is_over_prunes_nothing(store: Store) -> None:
    await finished(store)
    await store.advance("8d")
    worker = await store.worker()
    term = await store.do(acquire, CLEANUP, worker, ttl_us=DAY, gone=[])
    assert term is not None
    pruner = Pruner(store.database, WEEK)
    with pytest.raises(DutyLost):
        await anext(pruner.round(under=(Term(CLEANUP, term.term + 1), worker)))
    assert await anext(pruner.round(under=(term, worker))) == 1


async def test_what_ended_together_stays_together(store: Store) -> None:
    """One commit may end a whole batch: none of those beside the last one kept is thrown away."""
    for _ in range(3):
        await store.enqueue()
    leases = await store.claim(await store.worker(), 3)
    for lease in leases:  # the clock of a test stands still
        await store.end(lease, Done())
    assert await prune(store, KeepRule(7 * DAY, 1)) == []
    await store.advance("1s")
    await finished(store)
    assert await prune(store, KeepRule(7 * DAY, 1)) == [3]


async def test_what_someone_asks_for_comes_before_the_policy(store: Store) -> None:
    await store.do(set_queue, "default", on_orphan="requeue", keep_us=30 * DAY, keep_jobs=50)
    await finished(store, 2)
    await store.advance("1d")
    policy, firm = Pruner(store.database, KeepRule(0, 0)), Pruner(store.database, KeepRule(0, 0, firm=True))
    assert await policy.prunable(cap=100) == {}
    assert await firm.prunable(cap=100) == {"default": 2}
    assert await firm.prunable(cap=1) == {"default": 1}
    assert await firm.prunable(cap=100, queue="other") == {}
    assert [gone async for gone in firm.thoroughly(queue="other")] == []
    assert sum([gone async for gone in firm.thoroughly()]) == 2


async def family(store: Store, children: int) -> Lease:
    """A parent that runs, and children of it that have ended."""
    worker = await store.worker()
    parent = await store.claimed(worker)
    await store.launch(parent, children)
    for lease in await store.claim(worker, children, kind="child"):
        await store.end(lease, Done())
        await store.advance("1ms")
    return parent


async def test_what_must_stay_is_passed_once_and_then_looked_at_some_at_a_time(store: Store) -> None:
    parent = await family(store, 60)
    await finished(store, 3)
    await store.advance("8d")
    pruner = Pruner(store.database, WEEK, look=5)
    removed, transactions = await looks(store, pruner)
    assert removed == 3
    assert transactions > 20, "all of it the first time, and then some of it again"
    await finished(store, 3)
    await store.advance("8d")
    removed, transactions = await looks(store, pruner)
    assert removed == 3
    assert transactions <= 10 + 4, "what had to stay does not count any more"
    await store.end(parent, Done())
    await store.advance("8d")
    total = 0
    for _ in range(5):
        total += (await looks(store, pruner))[0]
    assert total == 61, "its turn comes"


async def looks(store: Store, pruner: Pruner) -> tuple[int, int]:
    """How many jobs a round removed, and in how many transactions."""
    worker = await store.worker()
    term = await store.do(acquire, CLEANUP, worker, ttl_us=DAY, gone=[])
    assert term is not None
    removed = [gone async for gone in pruner.round(under=(term, worker))]
    await store.do(release, term, worker)
    return sum(removed), len(removed)


async def ended_together(store: Store, kept: int, free: int) -> None:
    """So many children of a parent that lives, and then so many without a parent, all ended at one moment."""
    worker = await store.worker()
    parent = await store.claimed(worker)
    await store.launch(parent, kept)
    for _ in range(free):
        await store.enqueue()
    leases = await store.claim(worker, kept, kind="child") + await store.claim(worker, free)
    for lease in leases:  # the clock of a test stands still
        await store.end(lease, Done())
    await store.advance("8d")


async def test_what_ended_at_the_same_moment_as_many_that_must_stay_is_found(store: Store) -> None:
    await ended_together(store, 12, 7)
    pruner = Pruner(store.database, WEEK, look=5)
    assert await pruner.prunable(cap=100) == {"default": 7}
    assert sum([gone async for gone in pruner.thoroughly()]) == 7
    assert await count(store) == 13


async def test_a_round_finds_what_ended_at_the_same_moment_as_many_that_must_stay(store: Store) -> None:
    await ended_together(store, 12, 7)
    assert sum(await prune(store, WEEK, look=5)) == 7
    assert await count(store) == 13


async def test_many_that_are_kept_are_counted_over_several_rounds(store: Store) -> None:
    for _ in range(45):
        await finished(store)
        await store.advance("1ms")
    pruner = Pruner(store.database, KeepRule(DAY, 40), count=3)
    assert await prune(store, WEEK, pruner=pruner) == [], "thirty have been counted"
    assert sum(await prune(store, WEEK, pruner=pruner)) == 5
    assert await count(store) == 40
    assert await Pruner(store.database, KeepRule(DAY, 30, firm=True), count=7).prunable(cap=100) == {"default": 10}


async def test_a_person_gets_all_of_it_at_once(store: Store) -> None:
    parent = await family(store, 12)
    await store.end(parent, Done())
    await store.advance("8d")
    removed = [gone async for gone in Pruner(store.database, WEEK, look=5).thoroughly()]
    assert sum(removed) == 13
    assert max(removed) <= 5
