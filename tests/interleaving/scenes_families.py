"""Parents, children and grandchildren: counted, cancelled and removed."""

from __future__ import annotations

from typing import Any

from holdfast.kernel.cancel import LIVE, CancelFilter, cancel, cancel_family, cancel_free_family, cancel_these
from holdfast.kernel.enqueue import enqueue_children
from holdfast.kernel.leases import FOREVER, renew
from holdfast.kernel.retention import BEGIN, prune, remove
from holdfast.kernel.rows import Lease, NewJob
from holdfast.kernel.waiting import overdue, park
from holdfast.outcomes import Done, Fail, TryAgain
from tests.interleaving.pausing import Call, call
from tests.interleaving.scene import CEILING_US, SECOND, TTL_US, Scene, cancel_many, verb


class Family(Scene):
    """A parent that still runs, with one child that runs and one that waits its turn."""

    name = "family"

    async def build(self) -> None:
        self.worker = await self.register()
        await self.put(self.job("parent", "parent"))
        (self.parent,) = await self.claimed(1, "parent")
        await self.launch(self.parent, self.job("elder", "child"), self.job("younger", "child"))
        (self.elder,) = await self.claimed(1, "child")

    async def launch(self, parent: Lease, *children: NewJob) -> None:
        await self.do(enqueue_children, parent, list(children), self.routes(*children))

    def launching(self, parent: Lease, *children: NewJob) -> Call:
        return call(enqueue_children, parent, list(children), self.routes(*children))

    @verb
    def enqueue_children(self) -> Call:
        return self.launching(self.parent, self.job("third", "child"))

    @verb
    def complete_child(self) -> Call:
        return self.settling((self.elder, Done(1)))

    @verb
    def fail_child(self) -> Call:
        return self.settling((self.elder, Fail("no")))

    @verb
    def retry_child(self) -> Call:
        return self.settling((self.elder, TryAgain("0s")))

    @verb
    def claim_child(self) -> Call:
        return self.claiming(1, "child")

    @verb
    def cancel_child(self) -> Call:
        return call(cancel, self.id("younger"), reason="no more")

    @verb
    def cancel_parent(self) -> Call:
        return call(cancel, self.parent.id, reason="no more")

    @verb
    def cancel_these(self) -> Call:
        return call(cancel_these, [self.parent.seq, self.elder.seq], LIVE, reason="no more")

    @verb
    def cancel_many(self) -> Call:
        return call(cancel_many, CancelFilter(kind="child"), reason="no more")

    @verb
    def cancel_family(self) -> Call:
        return call(cancel_family, limit=10)

    @verb
    def cancel_free_family(self) -> Call:
        return call(cancel_free_family, limit=10)

    @verb
    def park(self) -> Call:
        return call(park, self.parent, channel=None, timeout_us=None)

    @verb
    def complete_parent(self) -> Call:
        return self.settling((self.parent, Done(1)))


class OnlyChild(Family):
    """The parent runs, and so does its only child: when it begins to wait, that one may be ending."""

    name = "only-child"

    async def build(self) -> None:
        self.worker = await self.register()
        await self.put(self.job("parent", "parent"))
        (self.parent,) = await self.claimed(1, "parent")
        await self.launch(self.parent, self.job("elder", "child"))
        (self.elder,) = await self.claimed(1, "child")

    @classmethod
    def verbs(cls) -> Any:
        yield from ("park", "complete_child", "retry_child", "enqueue_children", "cancel_parent")


class AskedChild(OnlyChild):
    """The only child was asked to stop, so whatever ends its attempt ends the job; its lease has run out, too."""

    name = "asked-child"

    async def build(self) -> None:
        await super().build()
        await self.do(cancel, self.elder.id, reason="no more")
        await self.store.advance("30s")
        await self.do(renew, [self.parent.held], ttl_us=TTL_US, ceiling_us=CEILING_US)
        await self.store.advance("31s")

    @classmethod
    def verbs(cls) -> Any:
        yield from ("park", "retry_child", "expire")

    @verb
    def expire(self) -> Call:
        return self.sweeping()


class Childless(Family):
    """The parent runs and launches its first child: it must not begin to wait as if there were none."""

    name = "childless"

    async def build(self) -> None:
        self.worker = await self.register()
        await self.put(self.job("parent", "parent"))
        (self.parent,) = await self.claimed(1, "parent")

    @classmethod
    def verbs(cls) -> Any:
        yield from ("enqueue_children", "park", "complete_parent", "cancel_parent")


class LastChild(Family):
    """The parent waits for its last child."""

    name = "last-child"

    async def build(self) -> None:
        self.worker = await self.register()
        await self.put(self.job("parent", "parent", deadline_us=30 * SECOND))
        (self.parent,) = await self.claimed(1, "parent")
        await self.launch(self.parent, self.job("elder", "child"))
        (self.elder,) = await self.claimed(1, "child")
        await self.do(park, self.parent, channel=None, timeout_us=90 * SECOND)
        await self.store.advance("61s")

    @classmethod
    def verbs(cls) -> Any:
        yield from ("complete_child", "retry_child", "cancel_parent", "cancel_family", "claim_parent", "expire")
        yield from ("overdue", "cancel_elder")

    def claim_parent(self) -> Call:
        return self.claiming(1, "parent")

    def expire(self) -> Call:
        return self.sweeping()

    def overdue(self) -> Call:
        return call(overdue, limit=100)

    def cancel_elder(self) -> Call:
        return call(cancel, self.elder.id, reason="no more")


class Generations(Family):
    """A cancelled parent whose family is being told, level by level."""

    name = "generations"

    async def build(self) -> None:
        await super().build()
        await self.launch(self.elder, self.job("grandchild", "other"))
        await self.do(cancel, self.parent.id, reason="no more")

    @classmethod
    def verbs(cls) -> Any:
        yield from ("cancel_family", "enqueue_children", "complete_child", "claim_child", "complete_parent")
        yield from ("launch_grandchild", "claim_grandchild")

    def launch_grandchild(self) -> Call:
        return self.launching(self.elder, self.job("grandchild 2", "other"))

    def claim_grandchild(self) -> Call:
        return self.claiming(2, "other")


class Ended(Family):
    """A parent that has ended before its children: it stays until they have ended too, and they until it is gone."""

    name = "ended-parent"
    removes = True

    async def build(self) -> None:
        await super().build()
        ending = self.settling((self.parent, Done(1)))
        await self.do(ending.operation, *ending.args)
        await self.store.advance("1s")

    @classmethod
    def verbs(cls) -> Any:
        yield from ("prune", "remove_parent", "remove_child", "complete_child", "claim_child", "cancel_child")
        yield from ("enqueue_children", "cancel_family")

    def prune(self) -> Call:
        return call(prune, "default", after=BEGIN, before=FOREVER, look=10)

    def remove_parent(self) -> Call:
        return call(remove, [self.parent.seq])

    def remove_child(self) -> Call:
        return call(remove, [self.elder.seq])
