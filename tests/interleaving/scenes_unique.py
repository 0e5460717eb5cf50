"""Keys: one job for many calls, and calls that take the place of the job that is there."""

from __future__ import annotations

from typing import Any

from holdfast.kernel.cancel import cancel
from holdfast.kernel.enqueue import enqueue_once, enqueue_unique, retry
from holdfast.kernel.leases import FOREVER
from holdfast.kernel.queues import pause_queue, resume_queue
from holdfast.kernel.retention import BEGIN, prune
from holdfast.kernel.rows import NewJob
from holdfast.kernel.waiting import overdue, wake
from holdfast.outcomes import Done
from tests.interleaving.pausing import Call, call
from tests.interleaving.scene import SECOND, Scene, verb


class Unique(Scene):
    """One job that nobody has claimed under a key, and calls for the same key."""

    name = "unique-pending"
    scope = "pending"

    def unique(self, name: str, key: str = "key", **changes: Any) -> NewJob:
        return self.job(name, unique_key=key, unique_scope=self.scope, **changes)

    def submitting(self, job: NewJob) -> Call:
        return call(enqueue_unique, job, self.routes(job))

    async def build(self) -> None:
        self.worker = await self.register()
        job = self.unique("holder")
        await self.do(enqueue_unique, job, self.routes(job))

    @verb
    def enqueue_again(self) -> Call:
        return self.submitting(self.unique("one more"))

    @verb
    def enqueue_other(self) -> Call:
        return self.submitting(self.unique("other", "another key"))

    @verb
    def replace(self) -> Call:
        return self.submitting(self.unique("newer", replaces=True))

    @verb
    def replace_later(self) -> Call:
        return self.submitting(self.unique("newer, later", replaces=True, delay_us=SECOND))

    @verb
    def claim(self) -> Call:
        return self.claiming(2)

    @verb
    def cancel(self) -> Call:
        return call(cancel, self.id("holder"), reason="no more")

    @verb
    def pause_queue(self) -> Call:
        return call(pause_queue, "default", reason="a test")


class UniqueLater(Unique):
    """The same while the holder waits for its time, which has come, and its deadline too."""

    name = "unique-due"

    async def build(self) -> None:
        self.worker = await self.register()
        job = self.unique("holder", delay_us=SECOND, deadline_us=SECOND)
        await self.do(enqueue_unique, job, self.routes(job))
        await self.store.advance("1s")

    @verb
    def wake(self) -> Call:
        return call(wake, limit=100)

    @verb
    def overdue(self) -> Call:
        return call(overdue, limit=100)


class UniqueLive(Unique):
    """A key that a running job holds until it ends."""

    name = "unique-live"
    scope = "live"

    async def build(self) -> None:
        await super().build()
        (self.lease,) = await self.claimed()

    @verb
    def complete(self) -> Call:
        return self.settling((self.lease, Done(1)))


class Window(Unique):
    """A key that is taken for an hour; its job has ended, and may be removed."""

    name = "unique-window"
    scope = "window"
    removes = True

    def unique(self, name: str, key: str = "key", **changes: Any) -> NewJob:
        return super().unique(name, key, window_us=3_600 * SECOND, **changes)

    async def build(self) -> None:
        await super().build()
        (lease,) = await self.claimed()
        ending = self.settling((lease, Done(1)))
        await self.do(ending.operation, *ending.args)
        await self.do(pause_queue, "other", reason="a test")

    @verb
    def retry(self) -> Call:
        return call(retry, self.id("holder"), self.id("again"))

    @verb
    def prune(self) -> Call:
        return call(prune, "default", after=BEGIN, before=FOREVER, look=10)

    @verb
    def resume_queue(self) -> Call:
        return call(resume_queue, "other")


class Keys(Scene):
    """Idempotency keys: one that names a job, and one that two calls ask for at once."""

    name = "keys"

    async def build(self) -> None:
        self.worker = await self.register()
        job = self.job("named")
        await self.do(enqueue_once, job, self.routes(job), key="old")

    def once(self, name: str, key: str, payload: str) -> Call:
        job = self.job(name, payload=payload)
        return call(enqueue_once, job, self.routes(job), key=key)

    @verb
    def repeat(self) -> Call:
        return self.once("repeat", "old", '"named"')

    @verb
    def contradict(self) -> Call:
        return self.once("contradict", "old", '"something else"')

    @verb
    def first_come(self) -> Call:
        return self.once("first come", "new", "1")

    @verb
    def second_come(self) -> Call:
        return self.once("second come", "new", "1")

    @verb
    def other_come(self) -> Call:
        return self.once("other come", "new", "2")

    @verb
    def claim(self) -> Call:
        return self.claiming(2)

    @verb
    def cancel(self) -> Call:
        return call(cancel, self.id("named"), reason="no more")
