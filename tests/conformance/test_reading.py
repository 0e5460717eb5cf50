"""Reading jobs: for handles, commands and people."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import BadPayload, NotFound
from holdfast.kernel.ids import JobId, new_id
from holdfast.kernel.queries import JobFilters, find_ended, find_job, list_attempts, list_jobs
from holdfast.kernel.states import State
from holdfast.outcomes import Done, Fail, TryAgain
from tests.support.stores import Store


async def listed(store: Store, **filters: Any) -> list[JobId]:
    page = {name: filters.pop(name) for name in ("limit", "before") if name in filters}
    return [row.id for row in await store.do(list_jobs, JobFilters(**filters), **page)]


async def test_a_job_is_found_by_its_id(store: Store) -> None:
    id = await store.enqueue(kind="mail")
    row = await store.do(find_job, id)
    assert (row.id, row.kind, row.state) == (id, "mail", State.PENDING)


async def test_an_id_that_nobody_has_is_not_found(store: Store) -> None:
    id = new_id(store.ports)
    with pytest.raises(NotFound, match=f"there is no job {id} in this database"):
        await store.do(find_job, id)


async def test_jobs_are_listed_newest_first_page_by_page(store: Store) -> None:
    ids = [await store.enqueue() for _ in range(5)]
    page = await store.do(list_jobs, limit=2)
    assert [row.id for row in page] == [ids[4], ids[3]]
    assert await listed(store, limit=2, before=page[-1].seq) == [ids[2], ids[1]]
    assert await listed(store) == ids[::-1]


async def test_jobs_are_listed_by_what_they_are(store: Store) -> None:
    plain = await store.enqueue()
    other_kind = await store.enqueue(kind="other")
    other_queue = await store.enqueue(queue="other")
    other_tenant = await store.enqueue(tenant="acme")
    later = await store.enqueue(delay_us=5)
    assert await listed(store, kind="other") == [other_kind]
    assert await listed(store, queue="other") == [other_queue]
    assert await listed(store, tenant="acme") == [other_tenant]
    assert await listed(store, state="scheduled") == [later]
    assert await listed(store, state="pending", kind="work", queue="default", tenant="") == [plain]
    assert await listed(store, state="failed") == []


async def test_of_many_jobs_those_that_ended_are_told(store: Store) -> None:
    worker = await store.worker()
    done, failed, running = [await store.claimed(worker) for _ in range(3)]
    await store.end(done, Done({"n": 1}))
    await store.end(failed, Fail("broken"))
    answers = await store.do(find_ended, [done.id, failed.id, running.id, new_id(store.ports)])
    found = {row.id: (row.state, row.result, row.error) for row in answers}
    assert found == {
        done.id: (State.SUCCEEDED, '{"n":1}', None),
        failed.id: (State.FAILED, None, '{"message":"broken","type":"processing_error"}'),
    }
    assert await store.do(find_ended, []) == []


async def test_attempts_are_listed_in_the_order_they_began(store: Store) -> None:
    worker = await store.worker()
    lease = await store.claimed(worker, max_attempts=9)
    for _ in range(3):
        await store.end(lease, TryAgain(after="0s"))
        (lease,) = await store.claim(worker)
    rows = await store.do(list_attempts, lease.seq)
    assert [row.token for row in rows] == [1, 2, 3]
    assert {row.job for row in rows} == {lease.seq}


async def test_a_value_that_a_column_cannot_hold_is_refused_and_not_taken_for_an_outage(store: Store) -> None:
    with pytest.raises(BadPayload, match="cannot store a value"):
        await store.enqueue(priority=2**63)
    assert await listed(store) == []


async def test_a_filter_looks_at_so_many_jobs_and_says_where_to_go_on(store: Store) -> None:
    rare = await store.enqueue(kind="rare")
    for _ in range(5):
        await store.enqueue()
    page = await store.do(list_jobs, JobFilters(kind="rare"), look=3, limit=2)
    assert page == []
    assert page.before is not None, "older jobs may fit"
    again = await store.do(list_jobs, JobFilters(kind="rare"), look=3, limit=2, before=page.before)
    assert ([row.id for row in again], again.before) == ([rare], None)
    whole = await store.do(list_jobs, JobFilters(kind="rare"))
    assert ([row.id for row in whole], whole.before) == ([rare], None)


async def test_pages_that_follow_each_other_give_each_job_once(store: Store) -> None:
    ids = [await store.enqueue(kind=("odd", "even")[n % 2]) for n in range(20)]
    found: list[JobId] = []
    page = await store.do(list_jobs, JobFilters(kind="odd"), look=5, limit=3)
    while page.before is not None:
        found += [row.id for row in page]
        page = await store.do(list_jobs, JobFilters(kind="odd"), look=5, limit=3, before=page.before)
    assert [*found, *(row.id for row in page)] == ids[::-1][1::2]


async def test_what_runs_is_found_however_old_it_is(store: Store) -> None:
    lease = await store.claimed()
    for _ in range(5):
        await store.enqueue()
    page = await store.do(list_jobs, JobFilters(state="running", queue="default"), look=2, limit=1)
    assert [row.id for row in page] == [lease.id]
    assert await listed(store, state="running", before=lease.seq) == []
    assert await listed(store, state="running", tenant="acme") == []


async def test_a_listing_reads_no_more_than_it_may_look_at(store: Store) -> None:
    """Without matches an unbounded listing would read the whole table, which is what its plan says it may not."""
    for _ in range(30):
        await store.enqueue()
    page = await store.do(list_jobs, JobFilters(tenant="nobody"), look=10)
    ((oldest,),) = await store.query("select max(seq) - 10 from holdfast.job")
    assert (page, page.before) == ([], oldest + 1)
