"""Unique jobs: one is enough, for as long as the rule says."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from holdfast.errors import ChildNotUnique
from holdfast.kernel.cancel import cancel
from holdfast.kernel.enqueue import AcceptedJob, enqueue, enqueue_children, enqueue_unique
from holdfast.kernel.routes import route_for
from holdfast.kernel.states import State
from holdfast.kernel.waiting import list_children
from holdfast.outcomes import Done, TryAgain
from tests.support.locks import blocked_by
from tests.support.stores import Store

MINUTE = 60_000_000
ROUTE = route_for("default", "work")


async def submit(store: Store, scope: str, key: str = "k", **changes: Any) -> AcceptedJob:
    job = store.job(unique_key=key, unique_scope=scope, **changes)
    return await store.do(enqueue_unique, job, [ROUTE])


@pytest.mark.parametrize("scope", ["pending", "live", "window"])
async def test_a_second_one_is_the_first(store: Store, scope: str) -> None:
    window = MINUTE if scope == "window" else None
    first = await submit(store, scope, window_us=window)
    again = await submit(store, scope, window_us=window)
    assert (first.fresh, again.fresh) == (True, False)
    assert again.id == first.id
    assert (await submit(store, scope, "other", window_us=window)).fresh


async def test_pending_ends_with_the_first_claim(store: Store) -> None:
    first = await submit(store, "pending")
    (lease,) = await store.claim(await store.worker())
    second = await submit(store, "pending")
    assert second.fresh
    await store.end(lease, TryAgain(after="0s"))
    assert await store.state(first.id) is State.PENDING, "a job that was claimed once holds the key no more"


async def test_live_ends_with_the_job(store: Store) -> None:
    first = await submit(store, "live")
    (lease,) = await store.claim(await store.worker())
    assert (await submit(store, "live")).id == first.id
    await store.end(lease, Done())
    assert (await submit(store, "live")).fresh


async def test_a_window_ends_with_its_time_whatever_became_of_the_job(store: Store) -> None:
    await store.setting.set_clock(1000 * MINUTE)
    store.clock.us = 1000 * MINUTE
    first = await submit(store, "window", window_us=MINUTE)
    (lease,) = await store.claim(await store.worker())
    await store.end(lease, Done())
    await store.advance("59s")
    assert (await submit(store, "window", window_us=MINUTE)).id == first.id
    await store.advance("1s")
    assert (await submit(store, "window", window_us=MINUTE)).fresh


async def test_a_newer_call_may_replace_what_nobody_has_started(store: Store) -> None:
    first = await submit(store, "live", payload='{"n":1}')
    again = await submit(store, "live", payload='{"n":2}', priority=5, replaces=True)
    row = await store.find(first.id)
    assert again == (first.id, False, True)
    assert (row.payload, row.priority, row.state) == ('{"n":2}', 5, State.PENDING)
    (lease,) = await store.claim(await store.worker())
    await submit(store, "live", payload='{"n":3}', replaces=True)
    assert lease.payload == '{"n":2}'
    assert (await store.find(first.id)).payload == '{"n":2}', "what runs is not changed under its worker"


async def test_a_call_takes_its_own_place_when_the_one_it_would_replace_is_claimed_meanwhile(store: Store) -> None:
    first = await submit(store, "pending", payload='{"n":1}')
    if store.database.dialect == "sqlite":  # nothing happens in between
        await store.claim(await store.worker())
        second = await submit(store, "pending", payload='{"n":2}', replaces=True)
    else:
        async with await psycopg.AsyncConnection.connect(store.url) as claimer:
            await claimer.execute(
                "with taken as (delete from holdfast.ready returning seq, route) "
                "insert into holdfast.lease (seq, worker, epoch, token, lease_until, claimed_at, route, attempts, "
                "rescues, kind, queue) select seq, 1, 1, 1, 1, 1, route, 0, 0, 'work', 'default' from taken"
            )
            replacing = asyncio.create_task(submit(store, "pending", payload='{"n":2}', replaces=True))
            await blocked_by(store.url, claimer)
        second = await replacing
    assert (second.fresh, second.replaced, second.id == first.id) == (True, False, False)
    assert (await store.find(second.id)).payload == '{"n":2}', "what was accepted is there"


@pytest.mark.parametrize("scope", ["live", "window"])
async def test_a_call_says_that_it_replaced_nothing_when_the_holder_was_started(store: Store, scope: str) -> None:
    window: dict[str, Any] = {"window_us": 1_000_000 * MINUTE} if scope == "window" else {}
    first = await submit(store, scope, payload='{"n":1}', **window)
    again = await submit(store, scope, payload='{"n":2}', replaces=True, **window)
    assert again == (first.id, False, True)
    (lease,) = await store.claim(await store.worker())
    assert await submit(store, scope, payload='{"n":3}', replaces=True, **window) == (first.id, False, False)
    await store.end(lease, TryAgain(after="0s"))
    assert await submit(store, scope, payload='{"n":4}', replaces=True, **window) == (first.id, False, False)
    assert (await store.find(first.id)).payload == '{"n":2}'


async def test_debounced_calls_start_one_job_when_they_are_quiet(store: Store) -> None:
    for number in range(3):
        await submit(store, "pending", payload=f'{{"n":{number}}}', delay_us=5_000_000_000, replaces=True)
        await store.advance("3000s")
    ((state, payload, due_at),) = await store.query("select state, payload, due_at from holdfast.job_now")
    assert (state, str(payload).replace(" ", "").replace("'", '"')) == ("scheduled", '{"n":2}')
    assert due_at == store.clock.us + 2_000_000_000


async def test_the_same_call_repeated_is_fresh_both_times(store: Store) -> None:
    job = store.job(unique_key="k", unique_scope="live")
    assert await store.do(enqueue_unique, job, [ROUTE]) == (job.id, True, False)
    assert await store.do(enqueue_unique, job, [ROUTE]) == (job.id, True, False), "its answer was lost"


@pytest.mark.parametrize("scope", ["pending", "live"])
async def test_a_unique_child_is_launched_when_its_like_has_let_go(store: Store, scope: str) -> None:
    worker = await store.worker()
    first = await submit(store, scope)
    (lease,) = await store.claim(worker)
    if scope == "live":
        await store.end(lease, Done(1))
    parent = await store.claimed(worker)
    child = store.job(unique_key="k", unique_scope=scope)
    assert await store.do(enqueue_children, parent, [child], [ROUTE]) == 1
    assert (await store.find(child.id)).state == State.PENDING
    assert child.id != first.id


@pytest.mark.parametrize("scope", ["pending", "live", "window"])
async def test_a_child_whose_unique_key_is_taken_is_refused(store: Store, scope: str) -> None:
    """Its parent would otherwise wait for the children that it has, and take the answer of one that never was."""
    rule: dict[str, Any] = {
        "unique_key": "k",
        "unique_scope": scope,
        "window_us": MINUTE if scope == "window" else None,
    }
    parent = await store.claimed(await store.worker())
    holder = store.job(**rule)
    await store.do(enqueue_unique, holder, [ROUTE])
    child, plain = store.job(**rule), store.job()
    with pytest.raises(
        ChildNotUnique, match=rf"{parent.id} cannot start work .*: job {holder.id} has its unique key"
    ) as no:
        await store.do(enqueue_children, parent, [plain, child], [ROUTE])
    assert no.value.retry == "later"
    assert await store.do(list_children, parent.seq) == [], "all of them, or none"
    await store.do(cancel, holder.id, reason="done")
    await store.advance("2m")
    assert await store.do(enqueue_children, parent, [plain, child], [ROUTE]) == 2
    assert await store.do(enqueue_children, parent, [plain, child], [ROUTE]) == 0, "a parent that runs again"
    assert [each.id for each in await store.do(list_children, parent.seq)] == [plain.id, child.id]


async def test_a_call_repeated_after_its_window_takes_no_key_of_the_next(store: Store) -> None:
    job = store.job(unique_key="k", unique_scope="window", window_us=MINUTE)
    assert (await store.do(enqueue_unique, job, [ROUTE])).fresh
    await store.advance("61s")
    assert (await store.do(enqueue_unique, job, [ROUTE])).id == job.id
    assert (await submit(store, "window", window_us=MINUTE)).fresh


async def test_a_key_that_was_let_go_is_taken_over_by_one_statement(store: Store) -> None:
    await submit(store, "live")
    (lease,) = await store.claim(await store.worker())
    await store.end(lease, Done(1))
    job = store.job(unique_key="k", unique_scope="live")
    assert await store.do(enqueue, [job], [ROUTE]) == 1
    assert await store.query("select count(*) from holdfast.unique_key") == [(1,)]
