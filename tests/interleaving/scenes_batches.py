"""Batches of a provider: two that are looked for, and what the provider has may be either's."""

from __future__ import annotations

from typing import Any

from holdfast.agents.batches import steps
from holdfast.agents.batches.records import BatchesSql, NewRequest
from holdfast.agents.batches.steps import BatchDestination, gather
from holdfast.agents.system_jobs import BATCH
from holdfast.kernel.claim import claim
from holdfast.kernel.database import Transaction
from holdfast.kernel.routes import route_for
from holdfast.kernel.rows import Lease
from holdfast.workers.role import SYSTEM_QUEUE
from tests.interleaving.pausing import Call, call
from tests.interleaving.scene import TTL_US, Scene, verb

THEIRS, EMPTY = "msgbatch_theirs", "msgbatch_empty"


class Searching(Scene):
    """The provider has a batch without results, so both may take it; the worker that submitted one was overtaken."""

    name = "batches-searching"

    async def build(self) -> None:
        self.worker = await self.register()
        self.one, self.other = await self.searched("one"), await self.searched("other")

    async def searched(self, name: str) -> Lease:
        """A batch that was submitted, nobody knows with what result."""
        where = BatchDestination(name, "model", "key", self.id(name), 0)
        await self.do(gather, where)
        await self.do(self.add_request, name)
        (lease,) = await self.do(claim, self.worker, [route_for(SYSTEM_QUEUE, BATCH).id], 1, TTL_US)
        assert isinstance(lease, Lease)
        row = await self.do(steps.find_batch, self.id(name))
        assert row is not None
        await self.do(steps.close, lease, row, where)
        assert await self.do(steps.intend, lease, row.id)
        await self.do(steps.search, lease, row.id, "its answer was lost")
        return lease

    async def add_request(self, tx: Transaction, name: str) -> None:
        request = NewRequest(f"of {name}", self.id(name), self.id(name, "run"), 1, 1, 1, "{}", 2)
        await tx.run(BatchesSql.add_requests, requests=[request])

    async def look(self, tx: Transaction) -> dict[str, Any]:
        batches = await steps.list_batches(tx)
        asked = [await steps.batch_requests(tx, batch.id) for batch in batches]
        return {
            **{f"batch {batch.id}": batch._asdict() for batch in batches},
            **{f"request {each.custom_id}": each._asdict() for requests in asked for each in requests},
        }

    async def ended(self) -> list[str]:
        taken = [row.provider_id for row in await self.do(steps.list_batches) if row.provider_id is not None]
        return [] if len(set(taken)) == len(taken) else [f"one batch of the provider is taken twice: {taken}"]

    @verb
    def take(self) -> Call:
        return call(steps.take, self.one, self.id("one"), EMPTY)

    @verb
    def take_too(self) -> Call:
        return call(steps.take, self.other, self.id("other"), EMPTY)

    @verb
    def take_another(self) -> Call:
        return call(steps.take, self.other, self.id("other"), THEIRS)

    @verb
    def disown(self) -> Call:
        return call(steps.adopt_orphan, self.id("one"), EMPTY, self.id("orphan"))

    @verb
    def give_up_search(self) -> Call:
        return call(steps.give_up_search, self.one, self.id("one"))

    @verb
    def hold(self) -> Call:
        return call(steps.hold, self.one, self.id("one"), {"candidates": [EMPTY], "excluded": []})
