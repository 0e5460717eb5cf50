"""Parents and children: the parent's counter changes in the transaction that ends a child."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.errors import LeaseLost, ParentCancelled
from holdfast.kernel.cancel import cancel
from holdfast.kernel.complete import complete_and_settle, release
from holdfast.kernel.database import Transaction
from holdfast.kernel.ids import derived_id
from holdfast.kernel.rows import Lease
from holdfast.kernel.states import State
from holdfast.kernel.waiting import list_children, overdue, park
from holdfast.outcomes import Cancel, Discard, Done, Fail, Snooze, TryAgain
from tests.support.stores import Ends, Store

MINUTE_US = 60_000_000


async def parent_of(store: Store, n: int, **changes: Any) -> tuple[Lease, list[Lease]]:
    """A parent parked on its children, all of them running."""
    worker = await store.worker()
    parent = await store.claimed(worker)
    await store.launch(parent, n, **changes)
    await store.do(park, parent, channel=None, timeout_us=None)
    return parent, await store.claim(worker, n, kind="child")


async def open_children(store: Store, parent: Lease) -> int:
    return (await store.find(parent.id)).open_children


def outcome(value: Ends) -> Callable[[Store, Lease], Awaitable[object]]:
    return lambda store, child: store.end(child, value)


async def cancel_pending(store: Store, child: Lease) -> None:
    await store.complete(child, release(child))
    assert await store.do(cancel, child.id, reason="stop") is State.CANCELLED


async def cancel_running(store: Store, child: Lease) -> None:
    assert await store.do(cancel, child.id, reason="stop") is State.RUNNING
    await store.end(child, Done())


async def lose(store: Store, child: Lease) -> None:
    await store.advance("60s")
    assert [moved.state for moved in await store.expire()] == [State.FAILED]


async def miss_the_deadline(store: Store, child: Lease) -> None:
    await store.complete(child, release(child))
    await store.advance("60s")
    assert len(await store.do(overdue, limit=10)) == 1


@pytest.mark.parametrize(
    "end",
    [
        outcome(Done()),
        outcome(Fail()),
        outcome(Discard()),
        outcome(Cancel()),
        outcome(TryAgain()),
        cancel_pending,
        cancel_running,
        lose,
        miss_the_deadline,
    ],
    ids=["done", "fail", "discard", "cancel", "last-retry", "cancel-pending", "cancel-running", "lost", "overdue"],
)
async def test_however_a_child_ends_its_parent_wakes(store: Store, end: Callable[..., Awaitable[object]]) -> None:
    parent, (child,) = await parent_of(store, 1, max_attempts=1, max_rescues=0, deadline_us=MINUTE_US)
    assert (await store.state(parent.id), await open_children(store, parent)) == (State.WAITING, 1)
    await end(store, child)
    assert (await store.state(parent.id), await open_children(store, parent)) == (State.PENDING, 0)


@pytest.mark.parametrize("value", [TryAgain(after="0s"), TryAgain(after="1m"), Snooze("1m")])
async def test_a_child_that_comes_back_has_not_ended(store: Store, value: Ends) -> None:
    parent, (child,) = await parent_of(store, 1)
    await store.end(child, value)
    assert (await store.state(parent.id), await open_children(store, parent)) == (State.WAITING, 1)


async def test_a_released_parked_or_rescued_child_has_not_ended(store: Store) -> None:
    parent, (a, b, c) = await parent_of(store, 3)
    await store.complete(a, release(a))
    await store.do(park, b, channel="c", timeout_us=None)
    await store.expire(gone=[c.worker])
    assert [await store.state(child.id) for child in (a, b, c)] == ["pending", "waiting", "pending"]
    assert await open_children(store, parent) == 3


async def test_the_parent_wakes_with_the_last_child_and_not_before(store: Store) -> None:
    parent, children = await parent_of(store, 4)
    for left, child in zip((3, 2, 1), children, strict=False):
        await store.end(child, Done())
        assert (await store.state(parent.id), await open_children(store, parent)) == (State.WAITING, left)
    await store.end(children[3], Done())
    assert (await store.state(parent.id), await open_children(store, parent)) == (State.PENDING, 0)


async def test_children_that_end_together_are_counted_together(store: Store) -> None:
    parent, children = await parent_of(store, 3)
    other, (cousin,) = await parent_of(store, 1)
    family = [*children[:2], cousin]
    endings = [store.ending(child, Done()) for child in family]
    answer = await store.do(complete_and_settle, endings, [parent.seq, other.seq])
    assert {(ended.seq, ended.parent) for ended in answer} == {(child.seq, child.parent) for child in family}
    assert (await store.state(parent.id), await open_children(store, parent)) == (State.WAITING, 1)
    assert (await store.state(other.id), await open_children(store, other)) == (State.PENDING, 0)


async def test_children_that_end_at_the_same_time_are_all_counted(store: Store) -> None:
    parent, children = await parent_of(store, 12)
    await asyncio.gather(*(store.end(child, Done()) for child in children))
    assert (await store.state(parent.id), await open_children(store, parent)) == (State.PENDING, 0)


async def test_a_lost_child_in_a_batch_is_not_counted(store: Store) -> None:
    parent, children = await parent_of(store, 2)
    endings = [store.ending(child, Done()) for child in children]
    endings[0] = endings[0]._replace(token=9)
    assert len(await store.do(complete_and_settle, endings, [parent.seq])) == 1
    assert await open_children(store, parent) == 1


async def test_parent_and_child_may_end_in_one_batch(store: Store) -> None:
    worker = await store.worker()
    parent = await store.claimed(worker)
    await store.launch(parent)
    (child,) = await store.claim(worker, kind="child")
    endings = [store.ending(lease, Done()) for lease in (child, parent)]
    assert len(await store.do(complete_and_settle, endings, [parent.seq])) == 2
    row = await store.find(parent.id)
    assert (row.state, row.open_children) == (State.SUCCEEDED, 0)


async def test_a_parent_that_waits_for_a_signal_is_not_woken_by_its_children(store: Store) -> None:
    worker = await store.worker()
    parent = await store.claimed(worker)
    await store.launch(parent)
    await store.do(park, parent, channel="door", timeout_us=None)
    (child,) = await store.claim(worker, kind="child")
    await store.end(child, Done())
    assert (await store.state(parent.id), await open_children(store, parent)) == (State.WAITING, 0)


async def test_a_running_parent_goes_on_while_its_children_end(store: Store) -> None:
    worker = await store.worker()
    parent = await store.claimed(worker)
    await store.launch(parent)
    (child,) = await store.claim(worker, kind="child")
    before = await store.find(parent.id)
    await store.end(child, Done())
    assert await store.find(parent.id) == before._replace(open_children=0)


async def test_a_wake_up_by_children_ends_the_time_out_too(store: Store) -> None:
    worker = await store.worker()
    parent = await store.claimed(worker)
    await store.launch(parent)
    await store.do(park, parent, channel=None, timeout_us=MINUTE_US)
    (child,) = await store.claim(worker, kind="child")
    await store.end(child, Done())
    row = await store.find(parent.id)
    assert (row.state, row.due_at) == (State.PENDING, None)


async def test_launching_twice_is_one_launch(store: Store) -> None:
    worker = await store.worker()
    parent = await store.claimed(worker)
    first = await store.launch(parent, 2)
    await store.expire(gone=[worker])
    (parent,) = await store.claim(worker)
    assert await store.launch(parent, 3) == [*first, derived_id(parent.id, "launch", 2)]
    assert await open_children(store, parent) == 3
    assert len(await store.do(list_children, parent.seq)) == 3


async def test_a_launch_of_ended_children_does_not_wait_for_them_again(store: Store) -> None:
    worker = await store.worker()
    parent = await store.claimed(worker)
    await store.launch(parent)
    (child,) = await store.claim(worker, kind="child")
    await store.end(child, Done())
    await store.launch(parent)
    assert await store.do(park, parent, channel=None, timeout_us=None) == State.PENDING


async def test_the_parent_reads_how_its_children_ended(store: Store) -> None:
    parent, (good, bad, cut) = await parent_of(store, 3)
    await store.end(good, Done({"n": 1}))
    await store.end(bad, Fail("broken"))
    await store.end(cut, Cancel("unwanted"))
    children = await store.do(list_children, parent.seq)
    assert [(child.id, child.kind, child.state, child.result) for child in children] == [
        (good.id, "child", State.SUCCEEDED, '{"n":1}'),
        (bad.id, "child", State.FAILED, None),
        (cut.id, "child", State.CANCELLED, None),
    ]
    assert ["broken" in (children[1].error or ""), "unwanted" in (children[2].error or "")] == [True, True]


async def test_a_parent_being_cancelled_takes_no_new_children(store: Store) -> None:
    parent = await store.claimed()
    await store.do(cancel, parent.id, reason="stop")
    with pytest.raises(ParentCancelled, match=parent.id):
        await store.launch(parent)
    assert await store.query("select count(*) from holdfast.job") == [(1,)]


async def test_an_ended_parent_takes_no_new_children(store: Store) -> None:
    parent = await store.claimed()
    await store.end(parent, Done())
    with pytest.raises(LeaseLost):
        await store.launch(parent)


async def test_the_end_and_the_count_are_one_transaction(store: Store) -> None:
    parent, (child,) = await parent_of(store, 1)

    async def end_then_fail(tx: Transaction) -> None:
        await complete_and_settle(tx, [store.ending(child, Done())], [parent.seq])
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await store.do(end_then_fail)
    assert (await store.state(child.id), await open_children(store, parent)) == (State.RUNNING, 1)
