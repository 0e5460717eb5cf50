"""Upkeep: dead rows are cleared away before they slow the claim."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.outcomes import Done
from tests.support.stores import Store


@pytest.mark.parametrize("dialect", ["postgres"], indirect=True)
async def test_dead_rows_are_vacuumed_when_there_are_enough(store: Store) -> None:
    worker = await store.worker()
    for _ in range(50):
        await store.enqueue()
    for lease in await store.claim(worker, 50):
        await store.end(lease, Done())

    async def dead() -> int:
        ((rows,),) = await store.query("select n_dead_tup from pg_stat_user_tables where relname = 'job'")
        return int(rows)

    while await dead() < 50:  # noqa: ASYNC110  the server counts in its own time
        await asyncio.sleep(0.05)
    assert not await store.database.tidy(1_000_000)
    assert await store.database.tidy(10)
    while await dead() >= 50:  # noqa: ASYNC110
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
async def test_sqlite_has_none(store: Store) -> None:
    assert not await store.database.tidy(0)
