"""The cluster epoch: a copy, a restored backup or a promoted standby hands out no token twice."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from holdfast.kernel import epoch
from holdfast.kernel.database import Transaction
from holdfast.kernel.rows import Cluster, Token
from holdfast.kernel.statements import WorkersSql
from holdfast.kernel.states import State
from holdfast.outcomes import Done
from tests.conftest import MakeStore
from tests.support.stores import Store, sqlite_store

MoveElsewhere = Callable[[Store], Awaitable[Store]]


@pytest.fixture
async def move_elsewhere(dialect: str, make_store: MakeStore, tmp_path: Path) -> AsyncIterator[MoveElsewhere]:
    """The same data as another database holds it: a copied file, a server with another identity."""
    async with AsyncExitStack() as stack:

        async def copy(store: Store) -> Store:
            await store.database.close()
            folder = tmp_path / "elsewhere"
            folder.mkdir()
            shutil.copy(tmp_path / "store.db", folder)
            return await stack.enter_async_context(sqlite_store(folder))

        async def promote(store: Store) -> Store:
            await store.query("update holdfast.cluster set identity = 'the old primary' returning epoch")
            return await make_store()

        yield copy if dialect == "sqlite" else promote


async def cluster(store: Store) -> Cluster:
    async def read(tx: Transaction) -> Cluster | None:
        return await tx.one(WorkersSql.cluster)

    found = await store.do(read)
    assert found is not None
    return found


async def test_the_first_identity_is_only_noted(store: Store) -> None:
    noted = await cluster(store)
    assert (noted.epoch, noted.identity != "") == (1, True)


async def test_the_same_database_keeps_its_epoch(make_store: MakeStore) -> None:
    first = await cluster(await make_store())
    assert await cluster(await make_store()) == first


async def test_another_identity_begins_another_epoch(store: Store, move_elsewhere: MoveElsewhere) -> None:
    await store.enqueue()
    elsewhere = await move_elsewhere(store)
    (lease,) = await elsewhere.claim(await elsewhere.worker())
    assert lease.fence == Token(2, 1)
    assert (await cluster(elsewhere)).epoch == 2


async def test_a_token_of_the_lost_future_is_refused(store: Store, move_elsewhere: MoveElsewhere) -> None:
    """What a backup does not know of was claimed with the very numbers that it now hands out again."""
    worker = await store.worker()
    await store.enqueue()
    (of_the_future,) = await store.claim(worker)
    await store.query("delete from holdfast.lease returning seq")
    await store.query(
        "insert into holdfast.ready (route, slot, seq, token, priority, attempts, rescues)"
        " select route, slot, seq, 0, priority, 0, 0 from holdfast.job returning seq"
    )

    elsewhere = await move_elsewhere(store)
    (lease,) = await elsewhere.claim(worker)

    assert (lease.seq, lease.worker, lease.token) == (of_the_future.seq, of_the_future.worker, of_the_future.token)
    assert lease.fence > of_the_future.fence
    assert await elsewhere.end(of_the_future, Done("stale")) == []
    assert await elsewhere.state(lease.id) is State.RUNNING
    assert await elsewhere.end(lease, Done("right"))


async def test_leases_of_the_epoch_before_are_rescued_as_any_other(store: Store, move_elsewhere: MoveElsewhere) -> None:
    old = await store.claimed()
    elsewhere = await move_elsewhere(store)
    await elsewhere.advance("61s")
    await elsewhere.expire()
    (lease,) = await elsewhere.claim(old.worker)
    assert lease.fence == Token(2, 2)
    assert await elsewhere.end(old, Done()) == []


async def test_the_epoch_may_be_raised_by_hand(store: Store) -> None:
    before = await cluster(store)
    assert await store.do(epoch.bump) == Cluster(2, before.identity)
    assert (await store.claimed()).epoch == 2


async def test_two_that_notice_the_same_change_raise_the_epoch_once(store: Store) -> None:
    await store.do(epoch.adopt, "one")
    raised = await cluster(store)
    assert await store.do(epoch.adopt, "one") == raised == Cluster(2, "one")
