"""Lanes to a provider: jobs begin to wait behind one while it is closed, opened, tried and forgotten."""

from __future__ import annotations

from typing import Any

from holdfast.agents.lanes import OpenLanes, close_lane, let_through, wait_for_lane
from holdfast.agents.statements import ProviderLanesSql
from holdfast.kernel.cancel import cancel
from holdfast.kernel.complete import complete
from holdfast.kernel.database import Transaction
from holdfast.kernel.waiting import wake
from holdfast.outcomes import Done
from tests.interleaving.pausing import Call, call
from tests.interleaving.scene import SECOND, Scene, skipping, verb

LANE = "anthropic#12345678/claude"


class Closed(Scene):
    """A lane waits for a person; one job waits behind it, and two are about to."""

    name = "provider-lane"

    async def build(self) -> None:
        self.worker = await self.register()
        await self.put(self.job("behind"), self.job("one"), self.job("two"))
        self.behind, self.one, self.two = await self.claimed(3)
        await self.close()
        await self.do(wait_for_lane, self.behind, LANE)

    async def close(self) -> None:
        await self.do(close_lane, LANE, None, person=True, reason="no money")

    async def look(self, tx: Transaction) -> dict[str, Any]:
        return {f"provider lane {lane.name}": lane._asdict() for lane in await tx.many(ProviderLanesSql.lanes)}

    @verb
    def wait(self) -> Call:
        return call(wait_for_lane, self.one, LANE)

    @verb
    def wait_too(self) -> Call:
        return call(wait_for_lane, self.two, LANE, left_us=5 * SECOND)

    @verb
    def close_again(self) -> Call:
        return call(close_lane, LANE, None, person=True, reason="no money yet")

    @verb
    def close_for_a_while(self) -> Call:
        return call(close_lane, LANE, 10 * SECOND, person=False, reason="too many")

    @skipping
    async def opened(self, tx: Transaction) -> int:
        return await let_through(tx, LANE, opened=True)

    @verb
    def open(self) -> Call:
        return call(self.opened)

    @skipping
    async def followed(self, tx: Transaction) -> int:
        return await let_through(tx, LANE, limit=1)

    @verb
    def follow(self) -> Call:
        return call(self.followed)

    @skipping
    async def tended(self, tx: Transaction) -> None:
        await OpenLanes().tend(tx, self.store.settings)

    @verb
    def tend(self) -> Call:
        return call(self.tended)

    @verb
    def wake(self) -> Call:
        return call(wake, limit=10)

    @verb
    def cancel(self) -> Call:
        return call(cancel, self.id("behind"), reason="no more")

    @verb
    def cancel_one(self) -> Call:
        return call(cancel, self.id("one"), reason="no more")

    @verb
    def complete(self) -> Call:
        return call(complete, [self.ending(self.two, Done(1))])


class Reopened(Closed):
    """The time of a lane is over, and one still waits behind it."""

    name = "provider-lane-reopened"

    async def close(self) -> None:
        await self.do(close_lane, LANE, 10 * SECOND, person=False, reason="too many")

    async def build(self) -> None:
        await super().build()
        await self.store.advance("30s")
