"""The checker of `holdfast doctor`: it finds rows that only SQL written by hand can make."""

from __future__ import annotations

import pytest

from holdfast.kernel.watch import misplaced
from tests.conftest import MakeStore
from tests.support.places import assert_well_placed
from tests.support.stores import Store


@pytest.fixture
async def spoilt(make_store: MakeStore) -> Store:
    """A store that need not be in order when the test ends."""
    return await make_store()


@pytest.mark.parametrize("change", ["route = route + 1", "priority = priority + 1", "slot = slot + 1", "lane = 'x'"])
@pytest.mark.parametrize("table", ["ready", "later"])
async def test_a_row_that_names_another_place_than_its_job_is_found(spoilt: Store, table: str, change: str) -> None:
    job = await spoilt.enqueue(delay_us=None if table == "ready" else 60_000_000)
    await spoilt.enqueue()
    assert await spoilt.do(misplaced) == []
    await spoilt.query(
        f"update holdfast.{table} set {change} where seq = (select min(seq) from holdfast.job) returning seq"
    )
    (found,) = await spoilt.do(misplaced)
    assert (found.id, found.places, found.astray) == (job, 1, 1)
    with pytest.raises(AssertionError, match=f"{table} rows that differ from their job"):
        await assert_well_placed(spoilt.query)


async def test_a_second_row_in_the_wrong_place_is_found(spoilt: Store) -> None:
    lease = await spoilt.claimed()
    assert await spoilt.do(misplaced) == []
    await spoilt.query(
        "insert into holdfast.ready (route, slot, seq, token, priority, attempts, rescues) "
        f"select route + 1, 0, {lease.seq}, 0, 100, 0, 0 from holdfast.lease returning seq"
    )
    (found,) = await spoilt.do(misplaced)
    assert (found.id, found.places, found.astray) == (lease.id, 2, 1)


async def test_a_job_that_stands_nowhere_and_a_row_without_a_job_are_found(spoilt: Store) -> None:
    job = await spoilt.enqueue()
    await spoilt.query("delete from holdfast.ready returning seq")
    await spoilt.query(
        "insert into holdfast.ready (route, slot, seq, token, priority, attempts, rescues) "
        "values (1, 0, 999999, 0, 100, 0, 0) returning seq"
    )
    assert [(row.id, row.places) for row in await spoilt.do(misplaced)] == [(job, 0), (None, 0)]
