"""What one worker asks for a whole crowd: where there is work, and which duties are taken."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.kernel import duties
from holdfast.kernel.claim import LOOKED, MOST_ROUTES, LookNote, SharedLook, read_note, tell_look
from holdfast.kernel.duties import CLEANUP, SCHEDULES, acquire
from holdfast.kernel.flow_rows import HeldDuty
from holdfast.kernel.queues import pause_queue, resume_queue
from holdfast.kernel.routes import route_for
from holdfast.kernel.workers import advertise_presence, look, lose_workers, unregister
from tests.support.apps import PATIENCE
from tests.support.stores import TTL_US, Store

WORK, OTHER = route_for("default", "work").id, route_for("default", "other").id
SEEN = SharedLook(1_234, leased=True)


async def told_by(store: Store, routes: int = 0) -> LookNote:
    """What everybody hears of a look. So many routes may take several notes on SQLite, where workers tell of none."""
    notes: asyncio.Queue[str] = asyncio.Queue()
    await store.database.listen(notes.put_nowait)
    await store.do(tell_look, SEEN)
    names: list[str] = []
    async with asyncio.timeout(PATIENCE):
        while not names or len(read_note(",".join(names)).routes) < routes:
            subject, _, rest = (await notes.get()).partition(" ")
            names += [rest] if subject == LOOKED else []
    store.database.unlisten(notes.put_nowait)
    return read_note(",".join(names))


async def test_where_nothing_waits_only_the_look_is_told(store: Store) -> None:
    assert await told_by(store) == LookNote([SEEN], [], many=False)


async def test_each_route_with_something_to_claim_is_told_once(store: Store) -> None:
    for _ in range(3):
        await store.enqueue("work")
        await store.enqueue("other")
    await store.enqueue("later", delay_us=5)
    await store.enqueue("taken")
    assert await store.claim(await store.worker(), kind="taken")
    assert await told_by(store) == LookNote([SEEN], sorted((WORK, OTHER)), many=False)


async def test_a_paused_queue_has_nothing_to_claim(store: Store) -> None:
    await store.enqueue("work")
    await store.enqueue("work", queue="side")
    await store.do(pause_queue, "side", reason="")
    assert (await told_by(store)).routes == [WORK]
    await store.do(resume_queue, "side")
    assert (await told_by(store)).routes == sorted((WORK, route_for("side", "work").id))


@pytest.mark.long
async def test_no_more_routes_are_told_than_a_note_should_carry(store: Store) -> None:
    for number in range(MOST_ROUTES):
        await store.enqueue(f"work {number}")
    assert len((await told_by(store, MOST_ROUTES)).routes) == MOST_ROUTES
    await store.enqueue("one more")
    assert await told_by(store) == LookNote([SEEN], [], many=True)


async def test_duties_are_shown_with_what_became_of_their_holders(store: Store) -> None:
    one, two = await store.worker(), await store.worker()
    await store.do(advertise_presence, two, presence=True)
    assert await store.do(duties.held) == []
    await store.do(acquire, CLEANUP, one, ttl_us=TTL_US, gone=[])
    await store.do(acquire, SCHEDULES, two, ttl_us=TTL_US, gone=[])
    assert await store.do(duties.held) == [
        HeldDuty(CLEANUP, one, alive=True, present=False),
        HeldDuty(SCHEDULES, two, alive=True, present=True),
    ]
    await store.do(lose_workers, gone=[two], reason="test")
    assert [(duty.name, duty.alive, duty.present) for duty in await store.do(duties.held)] == [
        (CLEANUP, True, False),
        (SCHEDULES, False, False),
    ]
    await store.advance("1m")
    assert await store.do(duties.held) == []


async def test_a_look_shows_how_many_duties_the_living_hold(store: Store) -> None:
    one, two, observer = [await store.worker() for _ in range(3)]

    async def held() -> int:
        return (await store.do(look, observer, [])).duties_held

    assert await held() == 0
    await store.do(acquire, CLEANUP, one, ttl_us=TTL_US, gone=[])
    await store.do(acquire, SCHEDULES, two, ttl_us=2 * TTL_US, gone=[])
    assert await held() == 2
    await store.do(unregister, two, reason="test")
    assert await held() == 1
    await store.advance("1m")
    assert await held() == 0
