"""Every (state, verb) pair of a worker: what the table allows happens, and everything else leaves the row as it was."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from holdfast.errors import DuplicateWorker, PlaceLost
from holdfast.kernel import pools, workers
from holdfast.kernel.broker_rows import WorkerRow
from holdfast.kernel.database import Transaction
from holdfast.kernel.ids import new_id
from holdfast.kernel.leases import beat
from holdfast.kernel.pools import PoolScope, PoolSnapshot, PoolTerms, ResizePlan
from holdfast.kernel.statements import WorkersSql
from holdfast.kernel.states import WORKER, WorkerState, WorkerVerb
from holdfast.kernel.workers import Registration
from tests.support.stores import TTL_US, Store

ID, POOL = "place-1", "mill"
HOUR_US = 3_600_000_000

Apply = Callable[[Store, int], Awaitable[object]]


def process(store: Store) -> Registration:
    """A process that was started for the place."""
    return Registration(
        incarnation=new_id(store.ports),
        id=ID,
        name="miller",
        hostname="host-1",
        pid=17,
        version="0",
        capabilities=(),
        queues=None,
        slots=1,
        pool=POOL,
    )


async def resize(store: Store, *, start: int = 0, retire: tuple[int, ...] = ()) -> None:
    def judge(_: PoolSnapshot) -> ResizePlan:
        return ResizePlan(start, retire)

    terms = PoolTerms(POOL, 1, HOUR_US, 0, 0)
    assert await store.do(pools.resize, terms, serves=PoolScope(None, ()), judge=judge, ids=[ID]) is not None


async def occupy(store: Store, _: int) -> None:
    try:
        await store.do(pools.occupy, process(store), [], ttl_us=TTL_US)
    except PlaceLost:
        return


async def heartbeat(store: Store, worker: int) -> None:
    await store.advance("1s")
    await store.do(beat, worker, 0, [], ttl_us=TTL_US, ceiling_us=TTL_US)


async def replace(store: Store, _: int) -> None:
    await store.advance("10m")
    try:
        await store.do(workers.register, process(store), [], ttl_us=TTL_US, gone=[])
    except DuplicateWorker:
        return


async def lose(store: Store, worker: int) -> None:
    await store.advance("2h")
    await store.do(workers.lose_workers, gone=[worker], reason="silent")


async def prune(tx: Transaction, worker: int) -> None:
    await tx.run(WorkersSql.prune_workers, seqs=[worker])


# Each applies its verb under the best conditions the verb could wish for.
OPERATIONS: dict[WorkerVerb, Apply] = {
    WorkerVerb.OCCUPY: occupy,
    WorkerVerb.HEARTBEAT: heartbeat,
    WorkerVerb.DRAIN: lambda store, worker: store.do(workers.drain, worker),
    WorkerVerb.RETIRE: lambda store, worker: resize(store, retire=(worker,)),
    WorkerVerb.UNREGISTER: lambda store, worker: store.do(workers.unregister, worker, reason="stopped"),
    WorkerVerb.REPLACE: replace,
    WorkerVerb.LOSE: lose,
    WorkerVerb.GIVE_UP: lambda store, _: store.do(pools.give_place_up, POOL, ID, reason="it ended"),
    WorkerVerb.PRUNE: lambda store, worker: store.do(prune, worker),
}
PREPARATIONS: dict[WorkerState, tuple[Apply, ...]] = {
    WorkerState.STARTING: (),
    WorkerState.ACTIVE: (occupy,),
    WorkerState.DRAINING: (occupy, OPERATIONS[WorkerVerb.DRAIN]),
    WorkerState.STOPPED: (occupy, OPERATIONS[WorkerVerb.UNREGISTER]),
    WorkerState.LOST: (occupy, OPERATIONS[WorkerVerb.GIVE_UP]),
}


async def find(store: Store, worker: int) -> WorkerRow | None:
    """Its row, without the time at which it was read."""
    rows = await store.do(workers.list_workers, all=True, limit=100)
    return next((row._replace(now=0) for row in rows if row.seq == worker), None)


async def worker_in(store: Store, state: WorkerState) -> WorkerRow:
    await resize(store, start=1)
    (place,) = await store.do(workers.list_workers, all=True, limit=100)
    for step in PREPARATIONS[state]:
        await step(store, place.seq)
    row = await find(store, place.seq)
    assert row is not None
    assert row.status == state
    return row


@pytest.mark.parametrize("verb", WorkerVerb)
@pytest.mark.parametrize("source", WorkerState)
async def test_only_what_the_table_allows_happens(store: Store, source: WorkerState, verb: WorkerVerb) -> None:
    before = await worker_in(store, source)
    await OPERATIONS[verb](store, before.seq)
    after = await find(store, before.seq)
    allowed = WORKER.move(source, verb)
    if allowed is None:
        assert after == before
    elif not allowed.targets:
        assert after is None
    else:
        assert after is not None
        assert after != before
        assert after.status in allowed.targets


@pytest.mark.parametrize("source", [move.source for move in WORKER.moves if move.verb is WorkerVerb.GIVE_UP])
async def test_a_place_that_was_given_back_on_purpose_is_stopped(store: Store, source: WorkerState) -> None:
    row = await worker_in(store, source)
    await store.do(partial(pools.give_place_up, lost=False), POOL, ID, reason="retired")
    after = await find(store, row.seq)
    assert after is not None
    assert after.status == WorkerState.STOPPED
