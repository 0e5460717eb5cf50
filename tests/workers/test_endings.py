"""Endings that the database does not take: the others go on, and the one that cannot be stored says so."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Mapping, Sequence, Set

import pytest

from holdfast.kernel.database import Database, Transaction
from holdfast.kernel.drivers import connect
from holdfast.kernel.rows import EndedLease, Ending, Lease, MovedJob
from holdfast.kernel.states import State
from holdfast.outcomes import Done
from holdfast.workers.endings import Endings
from holdfast.workers.telemetry import WorkerTelemetry
from tests.support.stores import Store


class Settled(dict[str, str | None]):
    def __init__(self) -> None:
        super().__init__()
        self.changed = asyncio.Event()

    def __call__(self, lease: Lease, ending: Ending, state: str | None) -> None:
        assert lease.id not in self, "each job is settled once"
        self[lease.id] = state
        self.changed.set()

    async def reach(self, jobs: int) -> None:
        while len(self) < jobs:
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), 60)


def endings_of(store: Store, settled: Settled, database: Database | None = None) -> Endings:
    return Endings(
        database or store.database, store.ports, WorkerTelemetry(store.ports, "w"), batch=100, settled=settled
    )


async def claimed(store: Store, n: int, kind: str = "work", layer: str | None = None) -> list[Lease]:
    for _ in range(n):
        await store.enqueue(kind, layer=layer)
    return await store.claim(await store.worker(), n, kind=kind)


async def test_one_that_the_database_refuses_fails_alone(store: Store) -> None:
    """Not a bad payload: whatever the database says no to, here an outcome that its tables do not know."""
    leases = await claimed(store, 5)
    settled = Settled()
    endings = endings_of(store, settled)
    for lease in leases:
        ending = store.ending(lease, Done(1))
        endings.put(lease, ending._replace(outcome="odd") if lease is leases[2] else ending)
    await settled.reach(5)
    assert list(settled.values()).count(State.SUCCEEDED) == 4
    row = await store.find(leases[2].id)
    assert (row.state, settled[row.id]) == (State.FAILED, State.FAILED)
    error = json.loads(row.error or "")
    assert error["type"] == "result_error"
    assert "ended_state" in error["message"], "in the database's words"
    await endings.close()


class Clumsy:
    """A layer above that cannot bear the end of one of its jobs, until it is mended."""

    name = "clumsy"
    kinds = ("a:",)
    retry_advice = "Mend it first."
    cancel_advice: Mapping[str, str] = {}
    own_failures = False

    def __init__(self) -> None:
        self.bad = ""
        self.raised = 0

    async def held_up(self, tx: Transaction, seqs: Sequence[int]) -> Set[int]:
        return frozenset()

    async def ended(self, tx: Transaction, jobs: Sequence[EndedLease | MovedJob]) -> None:
        for row in jobs:
            if row.kind == self.bad:
                self.raised += 1
                raise LookupError("what it is looking for is gone")


async def test_one_that_nothing_gets_past_holds_up_no_other_and_is_not_tried_in_a_hot_loop(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    clumsy = Clumsy()
    async with followed_by(store, clumsy) as database:
        caplog.set_level(logging.WARNING)
        (bad,) = await claimed(store, 1, "a:bad", Clumsy.name)
        good = await claimed(store, 3, "a:good", Clumsy.name)
        settled = Settled()
        endings = endings_of(store, settled, database)
        clumsy.bad = "a:bad"
        for lease in [bad, *good]:
            endings.put(lease, store.ending(lease, Done(1)))
        await settled.reach(3)
        assert set(settled) == {lease.id for lease in good}
        more = await claimed(store, 3, "a:good", Clumsy.name)
        for lease in more:
            endings.put(lease, store.ending(lease, Done(1)))
        await settled.reach(6)
        assert endings.backlog == 1
        assert bad.id in caplog.text
        clumsy.bad = ""
        await settled.reach(7)
        assert settled[bad.id] in (State.SUCCEEDED, State.FAILED)
        assert endings.backlog == 0
        await endings.close()


async def test_it_is_tried_later_and_later(store: Store) -> None:
    clumsy = Clumsy()
    async with followed_by(store, clumsy) as database:
        (bad,) = await claimed(store, 1, "a:bad", Clumsy.name)
        settled = Settled()
        pauses: list[float] = []
        enough = asyncio.Event()

        async def sleep(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 14:
                clumsy.bad = ""
                enough.set()
            await asyncio.sleep(0)

        store.clock.sleep = sleep  # type: ignore[method-assign]
        clumsy.bad = "a:bad"
        endings = endings_of(store, settled, database)
        endings.put(bad, store.ending(bad, Done(1)))
        await asyncio.wait_for(enough.wait(), 60)
        await settled.reach(1)
        assert pauses[-1] >= 10
        await endings.close()


@contextlib.asynccontextmanager
async def followed_by(store: Store, layer: Clumsy) -> AsyncIterator[Database]:
    """The same store, opened by a program with such a layer."""
    database = connect(store.url, store.settings, store.ports, [layer])
    await database.open()
    try:
        yield database
    finally:
        await database.close()
