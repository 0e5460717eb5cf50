"""Enqueue: what is accepted is stored as it was given, once."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from holdfast.errors import IdempotencyConflict
from holdfast.kernel.database import Transaction
from holdfast.kernel.enqueue import AcceptedJob, enqueue, enqueue_once
from holdfast.kernel.ids import new_id
from holdfast.kernel.routes import route_for
from holdfast.kernel.rows import NewJob
from holdfast.kernel.states import State
from holdfast.outcomes import Done
from tests.support.stores import Store

HOUR_US = 3_600_000_000
ROUTE = route_for("default", "work")


async def test_a_job_is_pending_at_once(store: Store) -> None:
    row = await store.find(await store.enqueue())
    assert row.state == State.PENDING
    assert (row.due_at, row.deadline_at, row.finished_at) == (None, None, None)
    assert (row.epoch, row.token, row.attempts, row.rescues, row.open_children) == (0, 0, 0, 0, 0)
    assert row.created_at == store.clock.us


async def test_a_delayed_job_is_scheduled(store: Store) -> None:
    row = await store.find(await store.enqueue(delay_us=HOUR_US))
    assert (row.state, row.due_at) == (State.SCHEDULED, store.clock.us + HOUR_US)


async def test_a_job_due_at_a_given_time_is_scheduled(store: Store) -> None:
    row = await store.find(await store.enqueue(due_at=store.clock.us + 1))
    assert (row.state, row.due_at) == (State.SCHEDULED, store.clock.us + 1)


@pytest.mark.parametrize("early_us", [0, 1, HOUR_US])
async def test_a_job_whose_time_is_past_is_pending(store: Store, early_us: int) -> None:
    row = await store.find(await store.enqueue(due_at=store.clock.us - early_us))
    assert (row.state, row.due_at) == (State.PENDING, None)


async def test_no_delay_is_pending(store: Store) -> None:
    row = await store.find(await store.enqueue(delay_us=0))
    assert (row.state, row.due_at) == (State.PENDING, None)


async def test_a_relative_deadline_counts_from_the_databases_clock(store: Store) -> None:
    await store.advance("5m")
    row = await store.find(await store.enqueue(deadline_us=HOUR_US))
    assert row.deadline_at == store.clock.us + HOUR_US


async def test_an_absolute_deadline_is_stored_as_given(store: Store) -> None:
    row = await store.find(await store.enqueue(deadline_at=store.clock.us - 1))
    assert row.deadline_at == store.clock.us - 1
    assert row.state == State.PENDING


async def test_what_the_caller_says_about_a_job_is_kept(store: Store) -> None:
    older = new_id(store.ports)
    said: dict[str, Any] = {
        "priority": 7,
        "tenant": "acme",
        "timeout_us": 5_000_000,
        "max_attempts": 9,
        "max_rescues": 2,
        "retry_of": older,
    }
    row = await store.find(await store.enqueue(queue="mail", metadata='{"user":{"id":1,"name":"Zoë"}}', **said))
    assert {name: getattr(row, name) for name in said} == said
    assert (row.kind, row.queue) == ("work", "mail")
    assert json.loads(row.metadata) == {"user": {"id": 1, "name": "Zoë"}}


@pytest.mark.parametrize(
    "payload",
    ["{}", "null", '{"b":1,"a":[1.0,2e3,"x"]}', '"\\\\u0000 as text"', '"日本 🙂 \\"quoted\\" \\n"', '{"a":{"a":{}}}'],
)
async def test_a_payload_comes_back_byte_for_byte(store: Store, payload: str) -> None:
    id = await store.enqueue(payload=payload)
    assert (await store.find(id)).payload == payload
    (lease,) = await store.claim(await store.worker())
    assert lease.payload == payload


async def test_two_thousand_jobs_in_one_call(store: Store) -> None:
    jobs = [store.job(payload=json.dumps({"n": n})) for n in range(2_000)]
    assert await store.do(enqueue, jobs, [ROUTE]) == 2_000
    leases = await store.claim(await store.worker(), 3_000)
    assert [json.loads(lease.payload)["n"] for lease in leases] == list(range(2_000))


async def test_nothing_to_enqueue_is_no_error(store: Store) -> None:
    assert await store.do(enqueue, [], []) == 0


async def test_a_repeated_enqueue_inserts_nothing_twice(store: Store) -> None:
    job = store.job()
    assert await store.do(enqueue, [job], [ROUTE]) == 1
    before = await store.find(job.id)
    assert await store.do(enqueue, [job, store.job()], [ROUTE]) == 1
    assert await store.find(job.id) == before


async def test_one_id_twice_in_a_call_is_one_job(store: Store) -> None:
    job = store.job()
    assert await store.do(enqueue, [job, job], [ROUTE]) == 1


async def test_a_route_is_written_once_and_kept_fresh(store: Store) -> None:
    await store.enqueue()
    await store.advance("1h")
    await store.enqueue()
    assert await store.query("select id, queue, capabilities, used_at from holdfast.route") == [
        (*ROUTE, store.clock.us)
    ]


async def test_a_known_route_need_not_be_named_again(store: Store) -> None:
    assert await store.do(enqueue, [store.job()], []) == 1
    assert await store.query("select count(*) from holdfast.route") == [(0,)]


async def submit(store: Store, key: str, job: NewJob | None = None) -> AcceptedJob:
    return await store.do(enqueue_once, job or store.job(payload="[1]"), [ROUTE], key=key)


async def test_same_key_and_payload_is_the_same_job(store: Store) -> None:
    first = await submit(store, "order-1")
    again = await submit(store, "order-1")
    assert first.fresh
    assert again == AcceptedJob(first.id, fresh=False)
    assert await store.query("select count(*) from holdfast.job") == [(1,)]


async def test_submits_at_the_same_time_are_the_same_job(store: Store) -> None:
    answers = await asyncio.gather(*(submit(store, "order-1") for _ in range(6)))
    assert [answer.fresh for answer in answers].count(True) == 1
    assert len({answer.id for answer in answers}) == 1


async def test_another_key_is_another_job(store: Store) -> None:
    assert (await submit(store, "order-1")).id != (await submit(store, "order-2")).id


@pytest.mark.parametrize("changes", [{"payload": "[2]"}, {"kind": "other", "payload": "[1]"}])
async def test_same_key_for_other_work_is_refused(store: Store, changes: dict[str, str]) -> None:
    first = await submit(store, "order-1")
    with pytest.raises(IdempotencyConflict, match=first.id) as refusal:
        await submit(store, "order-1", store.job(**changes))
    assert refusal.value.job == first.id
    assert await store.query("select count(*) from holdfast.job") == [(1,)]


async def test_same_key_of_another_tenant_is_another_job(store: Store) -> None:
    mine = await submit(store, "order-1", store.job(tenant="mine"))
    yours = await submit(store, "order-1", store.job(tenant="yours", payload="[2]"))
    assert mine.fresh
    assert yours.fresh


async def test_a_key_outlives_its_job(store: Store) -> None:
    first = await submit(store, "order-1")
    (lease,) = await store.claim(await store.worker())
    await store.end(lease, Done())
    await store.advance("3d")
    assert await submit(store, "order-1") == AcceptedJob(first.id, fresh=False)


async def test_a_keyed_enqueue_repeated_after_a_lost_answer_is_the_same_job(store: Store) -> None:
    job = store.job()
    assert await submit(store, "order-1", job) == AcceptedJob(job.id, fresh=True)
    assert await submit(store, "order-1", job) == AcceptedJob(job.id, fresh=True)
    assert await store.query("select count(*) from holdfast.job") == [(1,)]


async def test_what_fails_later_in_its_transaction_was_never_accepted(store: Store) -> None:
    async def accept_then_fail(tx: Transaction) -> None:
        await enqueue_once(tx, store.job(), [ROUTE], key="order-1")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await store.do(accept_then_fail)
    for table in ("job", "route", "idempotency"):
        assert await store.query(f"select count(*) from holdfast.{table}") == [(0,)]
