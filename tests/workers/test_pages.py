"""Lists of lanes and workers come in pages, however many there are."""

from __future__ import annotations

import pytest

from holdfast import Holdfast
from holdfast.errors import NotFound, UsageError
from tests.conftest import Place
from tests.support.past_kernel import query

MANY = 10_050  # more than the lists used to read at once
NUMBERS = f"with recursive n (i) as (select 1 union all select i + 1 from n where i < {MANY})"
LANES = f"""
insert into holdfast.lane (name, concurrency, burst, updated_at) {NUMBERS} select 'job:far/' || i, 1, 1, 0 from n
"""
WORKERS = f"""
insert into holdfast.worker (incarnation, id, name, hostname, pid, version, status, capabilities, queues, slots,
    started_at, heartbeat_at, ttl_us)
{NUMBERS} select 'i' || i, 'w' || i, 'w', 'h', 1, '0', 'stopped', '[]', 'null', 1, 0, 0, 1 from n
"""


async def test_no_lane_is_left_out(hf: Holdfast, place: Place) -> None:
    @hf.job(name="near_by", queue="mail", concurrency=1)
    def near() -> None: ...

    @hf.job(name="nearXby", queue="other", concurrency=1)
    def alike() -> None: ...

    for lane in ("a", "b", "c"):
        await near.options(lane=lane).enqueue()
        await alike.options(lane=lane).enqueue()
    query(place, LANES)
    assert len(await hf.queues.lanes(limit=20_000)) == MANY + 6

    found = await hf.queues.lanes(queue="mail", limit=2)
    assert ([lane.name for lane in found], found[0].concurrency) == (["job:near_by/a", "job:near_by/b"], 1)
    rest = await hf.queues.lanes(queue="mail", limit=2, after=found.next)
    assert ([lane.name for lane in rest], rest.next) == (["job:near_by/c"], None)
    assert await hf.queues.lanes(queue="nowhere") == []


@pytest.mark.long
async def test_no_worker_is_left_out(hf: Holdfast, place: Place) -> None:
    await hf.jobs.list()
    query(place, WORKERS)
    assert await hf.workers.list() == []
    newest, *_ = page = await hf.workers.list(all=True, limit=10_000)
    rest = await hf.workers.list(all=True, limit=10_000, after=page.next)
    assert (newest.id, rest[-1].id, len(page) + len(rest), rest.next) == (f"w{MANY}", "w1", MANY, None)
    assert (await hf.workers.get("w1")).seq == rest[-1].seq
    with pytest.raises(NotFound, match="'w0'"):
        await hf.workers.get("w0")
    with pytest.raises(UsageError, match="after must be what a page of the same list has"):
        await hf.workers.list(after="w1")
