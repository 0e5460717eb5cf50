"""Cancel: what is not running ends at once, what runs is asked, and a family follows in bounded steps."""

from __future__ import annotations

import json

import pytest

from holdfast.errors import NotFound
from holdfast.kernel.cancel import cancel, cancel_family
from holdfast.kernel.ids import JobId, new_id
from holdfast.kernel.rows import Lease
from holdfast.kernel.states import State
from holdfast.kernel.waiting import park, signal
from holdfast.outcomes import Done, Fail
from tests.support.stores import Store


async def stop(store: Store, id: str, reason: str = "unwanted") -> State:
    return await store.do(cancel, JobId(id), reason=reason)


async def finish(store: Store, *, limit: int = 100, most: int = 100) -> int:
    """Sweep until no family is left to cancel; how many steps that took."""
    steps = 0
    while await store.do(cancel_family, limit=limit):
        steps += 1
        assert steps < most
    return steps


async def test_a_job_that_does_not_run_ends_at_once_under_a_new_token(store: Store) -> None:
    worker = await store.worker()
    waiting = await store.claimed(worker)
    await store.do(park, waiting, channel="door", timeout_us=5)
    pending, scheduled = await store.enqueue(), await store.enqueue(delay_us=5)
    for id in (pending, scheduled, waiting.id):
        token = (await store.find(id)).token
        assert await stop(store, id) is State.CANCELLED
        row = await store.find(id)
        assert (row.state, row.token, row.attempts) == (State.CANCELLED, token + 1, 0)
        assert row.finished_at == row.cancel_requested_at == store.clock.us
        assert (row.due_at, row.channel) == (None, None)
        assert json.loads(row.error or "") == {"type": "cancelled", "message": "unwanted"}


async def test_a_cancelled_job_is_never_claimed_or_woken(store: Store) -> None:
    worker = await store.worker()
    lease = await store.claimed(worker)
    await store.do(park, lease, channel="door", timeout_us=None)
    await stop(store, lease.id)
    await stop(store, await store.enqueue())
    assert await store.do(signal, new_id(store.ports), "door", "1") == []
    assert await store.claim(worker, 10) == []


async def test_a_running_job_is_asked_and_goes_on_until_its_worker_ends_it(store: Store) -> None:
    lease = await store.claimed()
    before = await store.find(lease.id)
    assert await stop(store, lease.id) is State.RUNNING
    row = await store.find(lease.id)
    assert row == before._replace(cancel_requested_at=store.clock.us, error=row.error)
    assert json.loads(row.error or "") == {"type": "cancelled", "message": "unwanted"}
    assert await store.end(lease, Done())
    assert await store.state(lease.id) is State.CANCELLED


async def test_asking_twice_changes_nothing(store: Store) -> None:
    lease = await store.claimed()
    await stop(store, lease.id, reason="first")
    before = await store.find(lease.id)
    await store.advance("5s")
    assert await stop(store, lease.id, reason="second") is State.RUNNING
    assert await store.find(lease.id) == before


@pytest.mark.parametrize("outcome", [Done(1), Fail()])
async def test_a_finished_job_stays_as_it_is(store: Store, outcome: Done | Fail) -> None:
    lease = await store.claimed()
    await store.end(lease, outcome)
    before = await store.find(lease.id)
    assert await stop(store, lease.id) == before.state
    assert await store.find(lease.id) == before


async def test_there_is_nothing_to_cancel_under_an_unknown_id(store: Store) -> None:
    with pytest.raises(NotFound, match="there is no job"):
        await stop(store, new_id(store.ports))


async def test_a_job_without_children_leaves_nothing_to_sweep(store: Store) -> None:
    await stop(store, await store.enqueue())
    await stop(store, (await store.claimed()).id)
    assert await store.do(cancel_family, limit=10) is False


class Family:
    """A parked root, its three children, and their six children: two parked, two running, two pending."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.leaves: list[JobId] = []
        self.running: list[Lease] = []

    async def grow(self) -> Family:
        worker = await self.store.worker()
        self.root = await self.store.claimed(worker)
        await self.store.launch(self.root, 3)
        await self.store.do(park, self.root, channel=None, timeout_us=None)
        self.children = await self.store.claim(worker, 3, kind="child")
        for child in self.children:
            self.leaves += await self.store.launch(child, 2, step="below")
            await self.store.do(park, child, channel=None, timeout_us=None)
        parked, *self.running = await self.store.claim(worker, 3, kind="child")
        await self.store.do(park, parked, channel="door", timeout_us=None)
        return self

    async def open(self) -> int:
        ((live,),) = await self.store.query(
            "select count(*) from holdfast.job_now where state in ('scheduled', 'pending', 'running', 'waiting')"
        )
        return int(live)


async def test_a_family_of_three_levels_ends_in_bounded_steps(store: Store) -> None:
    family = await Family(store).grow()
    assert await stop(store, family.root.id) is State.CANCELLED
    assert await family.open() == 9
    await finish(store, limit=2)
    assert await family.open() == len(family.running) == 2
    for lease in family.running:
        row = await store.find(lease.id)
        assert (row.state, row.cancel_requested_at) == (State.RUNNING, store.clock.us)
        await store.end(lease, Done())
    assert await family.open() == 0
    assert await store.query("select count(*), max(open_children) from holdfast.job_now where state = 'cancelled'") == [
        (10, 0)
    ]
    assert await store.do(cancel_family, limit=2) is False


async def test_no_step_cancels_more_than_its_limit(store: Store) -> None:
    family = await Family(store).grow()
    await stop(store, family.root.id)
    while await store.do(cancel_family, limit=1):
        live = await family.open()
        assert live >= 2
        await store.do(cancel_family, limit=1)
        assert live - await family.open() <= 1


async def test_what_runs_below_is_cancelled_by_the_sweep_if_its_worker_dies(store: Store) -> None:
    family = await Family(store).grow()
    await stop(store, family.root.id)
    await finish(store)
    await store.advance("60s")
    assert [moved.state for moved in await store.expire()] == [State.CANCELLED, State.CANCELLED]
    assert await family.open() == 0


async def test_a_branch_is_cancelled_without_its_relatives(store: Store) -> None:
    family = await Family(store).grow()
    last = family.children[-1]
    await stop(store, last.id)
    await finish(store)
    assert [await store.state(id) for id in family.leaves[-2:]] == [State.CANCELLED, State.CANCELLED]
    assert await store.state(family.root.id) is State.WAITING
    assert (await store.find(family.root.id)).open_children == 2
    assert await family.open() == 7


async def test_a_running_parent_is_asked_and_its_children_follow(store: Store) -> None:
    worker = await store.worker()
    parent = await store.claimed(worker)
    children = await store.launch(parent, 2)
    assert await stop(store, parent.id) is State.RUNNING
    await finish(store)
    assert [await store.state(id) for id in children] == [State.CANCELLED, State.CANCELLED]
    assert (await store.find(parent.id)).open_children == 0


async def test_a_second_cancel_while_the_family_is_in_progress_loses_nothing(store: Store) -> None:
    family = await Family(store).grow()
    await stop(store, family.root.id)
    await store.do(cancel_family, limit=1)
    await stop(store, family.root.id)
    await stop(store, family.children[0].id)
    await stop(store, family.leaves[-1])
    await finish(store, limit=1)
    assert await family.open() == 2
    for lease in family.running:
        await store.end(lease, Done())
    assert await family.open() == 0


async def test_two_families_are_cancelled_side_by_side(store: Store) -> None:
    worker = await store.worker()
    parents = [await store.claimed(worker) for _ in range(2)]
    children = [id for parent in parents for id in await store.launch(parent, 3)]
    for parent in parents:
        await stop(store, parent.id)
    await finish(store, limit=2)
    assert {await store.state(id) for id in children} == {State.CANCELLED}
