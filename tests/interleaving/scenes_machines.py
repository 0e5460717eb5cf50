"""A machine that waits for the first of its children, looks how they stand, stores checkpoints, and is signalled."""

from __future__ import annotations

from typing import Any

from holdfast.kernel.rows import NewJob
from holdfast.kernel.waiting import overdue, store_step
from holdfast.machines import family
from holdfast.machines.family import checkpoint_name
from holdfast.outcomes import Done, Fail
from tests.interleaving.pausing import Call, call
from tests.interleaving.scene import SECOND, Scene, verb


class Machines(Scene):
    """Two children of a machine are played; it is about to wait for the first that ends."""

    name = "machines"

    async def build(self) -> None:
        self.worker = await self.register()
        await self.put(self.played("whole"))
        (self.lease,) = await self.claimed(1, "machine:whole")
        children = [self.played(name, parent=self.lease.seq) for name in ("one", "other")]
        await self.do(family._start, self.lease, children, self.routes(*children), None)
        (self.one,) = await self.claimed(1, "machine:one")
        (self.other,) = await self.claimed(1, "machine:other")

    def played(self, name: str, **changes: Any) -> NewJob:
        return self.job(name, f"machine:{name}", layer="machines", **changes)

    @verb
    def wait_for_first(self) -> Call:
        return call(family._park_unless_ended, self.lease, [self.one.id, self.other.id], None)

    @verb
    def wait_for_a_while(self) -> Call:
        return call(family._park_unless_ended, self.lease, [self.one.id], SECOND)

    @verb
    def end_one(self) -> Call:
        return self.settling((self.one, Done(1)))

    @verb
    def fail_other(self) -> Call:
        return self.settling((self.other, Fail("no")))

    @verb
    def checkpoint(self) -> Call:
        return call(store_step, self.lease, checkpoint_name(1), '"here"')

    @verb
    def launch(self) -> Call:
        launched = self.played("launched")
        return call(family._launch, self.lease, [launched], self.routes(launched), None)

    @verb
    def overdue(self) -> Call:
        return call(overdue, limit=10)

    @verb
    def end_whole(self) -> Call:
        return self.settling((self.lease, Done("all")))
