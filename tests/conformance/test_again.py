"""Again: an ended job enqueued once more is a new job that says what the old one said."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import NotFound, StoreRefused
from holdfast.kernel.enqueue import AcceptedJob, retry
from holdfast.kernel.ids import JobId
from holdfast.outcomes import Done, Fail
from tests.support.stores import Store

AGAIN = JobId("01890000-0000-7000-8000-00000000000a")
MISSING = JobId("01890000-0000-7000-8000-00000000000b")


async def failed(store: Store, **changes: Any) -> JobId:
    await store.enqueue(**changes)
    (lease,) = await store.claim(await store.worker())
    await store.end(lease, Fail("broken"))
    return lease.id


async def test_the_new_job_says_what_the_old_one_said_and_names_it(store: Store) -> None:
    old = await failed(store, tenant="acme", priority=7, deadline_us=60_000_000, timeout_us=5, max_attempts=9)
    await store.advance("1h")
    assert await store.do(retry, old, AGAIN) == AcceptedJob(AGAIN, fresh=True)
    before, after = await store.find(old), await store.find(AGAIN)
    assert (after.state, after.retry_of, after.attempts, after.rescues) == ("pending", old, 0, 0)
    assert (after.token, after.error, after.result, after.parent) == (0, None, None, None)
    for name in (
        "kind",
        "queue",
        "tenant",
        "priority",
        "timeout_us",
        "max_attempts",
        "max_rescues",
        "payload",
        "metadata",
    ):
        assert getattr(after, name) == getattr(before, name), name
    assert after.deadline_at is not None
    assert after.deadline_at - after.created_at == 60_000_000, "as far away as the old one's was"
    assert before.state == "failed"


async def test_a_worker_takes_it(store: Store) -> None:
    old = await failed(store)
    await store.do(retry, old, AGAIN)
    (lease,) = await store.claim(await store.worker())
    assert lease.id == AGAIN
    await store.end(lease, Done())
    assert (await store.find(AGAIN)).state == "succeeded"


async def test_repeated_with_the_same_id_it_is_the_same_job(store: Store) -> None:
    old = await failed(store)
    assert await store.do(retry, old, AGAIN) == AcceptedJob(AGAIN, fresh=True)
    assert await store.do(retry, old, AGAIN) == AcceptedJob(AGAIN, fresh=False)


async def test_what_has_not_ended_is_refused(store: Store) -> None:
    id = await store.enqueue()
    with pytest.raises(StoreRefused, match="is pending: only an ended job"):
        await store.do(retry, id, AGAIN)
    with pytest.raises(NotFound):
        await store.do(retry, MISSING, AGAIN)


async def test_a_forgotten_route_is_written_again(store: Store) -> None:
    old = await failed(store)
    await store.query("delete from holdfast.route")
    await store.do(retry, old, AGAIN)
    ((routes,),) = await store.query("select count(*) from holdfast.route")
    assert routes == 1
