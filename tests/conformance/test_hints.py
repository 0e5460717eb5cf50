"""Hints: whoever listens hears, after the commit, where there is work; nobody relies on it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from holdfast.kernel.cancel import cancel
from holdfast.kernel.complete import release
from holdfast.kernel.database import Transaction
from holdfast.kernel.enqueue import enqueue
from holdfast.kernel.ids import new_id
from holdfast.kernel.routes import route_for
from holdfast.kernel.waiting import park, signal, wake
from holdfast.outcomes import Done, TryAgain
from tests.support.stores import Store

WORK, CHILD = route_for("default", "work").id, route_for("default", "child").id
LAST = "the last note of this test"


class Listener:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.notes: asyncio.Queue[str] = asyncio.Queue()

    async def notes_so_far(self) -> set[str]:
        """What was heard up to now: everything before a hint of our own, as hints keep their order."""
        if not self.store.hears:
            assert self.notes.empty()
            return set()
        route = route_for("default", LAST)
        await self.store.do(enqueue, [self.store.job(LAST)], [route])
        heard: set[str] = set()
        while (note := await asyncio.wait_for(self.notes.get(), 10)) != f"route {route.id}":
            heard.add(note)
        return heard - {""}

    def expected(self, *notes: str) -> set[str]:
        return set(notes) if self.store.hears else set()


async def listening(store: Store) -> Listener:
    listener = Listener(store)
    await store.database.listen(listener.notes.put_nowait)
    return listener


def routes(ids: Iterable[int]) -> str:
    return "route " + ",".join(str(id) for id in sorted(ids))


async def test_new_work_is_hinted_by_its_route(store: Store) -> None:
    listener = await listening(store)
    await store.enqueue()
    assert await listener.notes_so_far() == listener.expected(routes([WORK]))


async def test_work_that_is_not_due_or_not_to_be_told_is_not_hinted(store: Store) -> None:
    listener = await listening(store)
    await store.enqueue(delay_us=5)
    await store.enqueue(due_at=store.clock.us + 5)
    await store.do(enqueue, [store.job()], [], notify=False)
    assert await listener.notes_so_far() == set()


async def test_what_was_rolled_back_is_not_hinted(store: Store) -> None:
    listener = await listening(store)

    async def enqueue_then_fail(tx: Transaction) -> None:
        await enqueue(tx, [store.job()], [])
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await store.do(enqueue_then_fail)
    assert await listener.notes_so_far() == set()


async def test_jobs_that_become_pending_again_are_hinted(store: Store) -> None:
    worker = await store.worker()
    listener = await listening(store)
    lease = await store.claimed(worker)
    assert await listener.notes_so_far() == listener.expected(routes([WORK]))
    for ending in (store.ending(lease, TryAgain(after="0s")), release(lease)):
        await store.complete(lease, ending._replace(token=lease.token))
        (lease,) = await store.claim(worker)
        assert await listener.notes_so_far() == listener.expected(routes([WORK]))
    await store.expire(gone=[worker])
    assert await listener.notes_so_far() == listener.expected(routes([WORK]))


async def test_jobs_that_ended_are_not_hinted(store: Store) -> None:
    lease = await store.claimed()
    listener = await listening(store)
    await store.end(lease, Done())
    assert await listener.notes_so_far() == set()


async def test_woken_and_signalled_jobs_are_hinted(store: Store) -> None:
    worker = await store.worker()
    await store.enqueue(delay_us=5)
    await store.advance("1s")
    listener = await listening(store)
    await store.do(wake, limit=10)
    assert await listener.notes_so_far() == listener.expected(routes([WORK]))
    (lease,) = await store.claim(worker)
    await store.do(park, lease, channel="door", timeout_us=None)
    assert await listener.notes_so_far() == set()
    await store.do(signal, new_id(store.ports), "door", "1")
    assert await listener.notes_so_far() == listener.expected(routes([WORK]))


async def test_a_parent_that_its_last_child_wakes_is_hinted(store: Store) -> None:
    worker = await store.worker()
    parent = await store.claimed(worker)
    listener = await listening(store)
    await store.launch(parent)
    assert await listener.notes_so_far() == listener.expected(routes([CHILD]))
    await store.do(park, parent, channel=None, timeout_us=None)
    (child,) = await store.claim(worker, kind="child")
    await store.end(child, Done())
    assert await listener.notes_so_far() == listener.expected(routes([WORK]))


async def test_the_worker_of_a_running_job_is_told_of_its_cancel(store: Store) -> None:
    lease = await store.claimed()
    listener = await listening(store)
    await store.do(cancel, lease.id, reason="stop")
    assert await listener.notes_so_far() == listener.expected(f"cancel {lease.worker}")
    await store.do(cancel, lease.id, reason="stop")
    assert await listener.notes_so_far() == set()
