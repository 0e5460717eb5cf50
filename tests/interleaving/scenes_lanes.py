"""Lanes: with room for some, with a pace, and with jobs that take each other's place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.kernel.cancel import LIVE, CancelFilter, cancel, cancel_these
from holdfast.kernel.complete import release
from holdfast.kernel.enqueue import enqueue_unique
from holdfast.kernel.lanes import open_lanes
from holdfast.kernel.leases import renew
from holdfast.kernel.queries import find_job
from holdfast.kernel.queues import pause_queue
from holdfast.kernel.rows import NewJob
from holdfast.kernel.waiting import park, wake
from holdfast.outcomes import Done, Snooze, TryAgain
from tests.interleaving.pausing import Call, call
from tests.interleaving.scene import CEILING_US, SECOND, TTL_US, Scene, cancel_many, verb


class Narrow(Scene):
    """A lane with room for one: one runs, one is blocked, one has just come."""

    name = "narrow-lane"
    limit = ("narrow", 1)
    channels = ("news",)

    def laned(self, name: str, **changes: Any) -> NewJob:
        return self.job(name, lane="narrow", concurrency=1, **changes)

    async def build(self) -> None:
        self.worker = await self.register()
        await self.put(self.laned("runs"), self.laned("blocked"))
        (self.runs,) = await self.claimed(2, laned=True)
        await self.put(self.laned("new"))
        self.blocked = (await self.do(find_job, self.id("blocked"))).seq

    @verb
    def enqueue(self) -> Call:
        return self.enqueuing(self.laned("another"))

    @verb
    def claim(self) -> Call:
        return self.claiming(2, laned=True)

    @verb
    def complete(self) -> Call:
        return self.settling((self.runs, Done(1)))

    @verb
    def snooze(self) -> Call:
        return self.settling((self.runs, Snooze("10s")))

    @verb
    def retry(self) -> Call:
        return self.settling((self.runs, TryAgain("0s")))

    @verb
    def release(self) -> Call:
        return self.settling((self.runs, release(self.runs)))

    @verb
    def park(self) -> Call:
        return call(park, self.runs, channel="news", timeout_us=None)

    @verb
    def renew(self) -> Call:
        return call(renew, [self.runs.held], ttl_us=TTL_US, ceiling_us=CEILING_US)

    @verb
    def cancel_blocked(self) -> Call:
        return call(cancel, self.id("blocked"), reason="no more")

    @verb
    def cancel_new(self) -> Call:
        return call(cancel, self.id("new"), reason="no more")

    @verb
    def cancel_running(self) -> Call:
        return call(cancel, self.runs.id, reason="no more")

    @verb
    def cancel_these(self) -> Call:
        return call(cancel_these, [self.runs.seq, self.blocked], LIVE, reason="no more")

    @verb
    def cancel_many(self) -> Call:
        return call(cancel_many, CancelFilter(queue="default"), reason="no more")

    @verb
    def open_lanes(self) -> Call:
        return call(open_lanes, limit=100)

    @verb
    def pause_queue(self) -> Call:
        return call(pause_queue, "default", reason="a test")


class Lapsed(Scene):
    """The same after its worker fell silent: the lease has run out, and the lane is looked at again."""

    name = "lapsed-lane"
    limit = ("narrow", 1)

    async def build(self) -> None:
        self.worker = await self.register()
        narrow: dict[str, Any] = {"lane": "narrow", "concurrency": 1}
        await self.put(self.job("runs", **narrow), self.job("blocked", **narrow))
        (self.runs,) = await self.claimed(2, laned=True)
        await self.put(self.job("new", **narrow))
        await self.store.advance("61s")

    @verb
    def claim(self) -> Call:
        return self.claiming(2, laned=True)

    @verb
    def complete(self) -> Call:
        return self.settling((self.runs, Done(1)))

    @verb
    def renew(self) -> Call:
        return call(renew, [self.runs.held], ttl_us=TTL_US, ceiling_us=CEILING_US)

    @verb
    def cancel_running(self) -> Call:
        return call(cancel, self.runs.id, reason="no more")

    @verb
    def open_lanes(self) -> Call:
        return call(open_lanes, limit=100)

    @verb
    def expire(self) -> Call:
        return self.sweeping()


class Roomy(Scene):
    """A lane with room for two, of which one runs: two claims must not both take the other place."""

    name = "roomy-lane"
    limit = ("roomy", 2)

    def laned(self, name: str, **changes: Any) -> NewJob:
        return self.job(name, lane="roomy", concurrency=2, **changes)

    async def build(self) -> None:
        self.worker = await self.register()
        self.other = await self.register("v")
        await self.put(self.laned("runs"))
        (self.runs,) = await self.claimed(1, laned=True)
        await self.put(self.laned("b"), self.laned("c"), self.laned("d", kind="other"))

    @verb
    def claim_one(self) -> Call:
        return self.claiming(1, laned=True)

    @verb
    def claim_many(self) -> Call:
        return self.claiming(3, laned=True, worker=self.other)

    @verb
    def claim_of_another_kind(self) -> Call:
        """Of another route, where a claim that is under way has locked no job."""
        return self.claiming(3, "other", laned=True, worker=self.other)

    @verb
    def complete(self) -> Call:
        return self.settling((self.runs, Done(1)))

    @verb
    def cancel_next(self) -> Call:
        return call(cancel, self.id("b"), reason="no more")

    @verb
    def enqueue_urgent(self) -> Call:
        return self.enqueuing(self.laned("urgent", priority=1))


class Paced(Scene):
    """A lane that starts one a second: one has run, one is held back until its time, which has come."""

    name = "paced-lane"
    limit = ("paced", 2)

    def laned(self, name: str, **changes: Any) -> NewJob:
        return self.job(name, lane="paced", concurrency=2, interval_us=SECOND, **changes)

    async def build(self) -> None:
        self.worker = await self.register()
        await self.put(self.laned("runs"), self.laned("held back"))
        (self.runs,) = await self.claimed(2, laned=True)
        await self.store.advance("1s")
        await self.put(self.laned("new"))

    @verb
    def enqueue(self) -> Call:
        return self.enqueuing(self.laned("another"))

    @verb
    def claim(self) -> Call:
        return self.claiming(2, laned=True)

    @verb
    def complete(self) -> Call:
        return self.settling((self.runs, Done(1)))

    @verb
    def cancel_held_back(self) -> Call:
        return call(cancel, self.id("held back"), reason="no more")

    @verb
    def open_lanes(self) -> Call:
        return call(open_lanes, limit=100)


class SetBack(Paced):
    """The same after somebody has set the clock back by an hour: the lane and the lease are ahead of it."""

    name = "set-back-lane"

    async def build(self) -> None:
        await super().build()
        await self.store.set_back("1h")

    @verb
    def bring_back(self) -> Call:
        return self.bringing_back()

    @verb
    def renew(self) -> Call:
        return call(renew, [self.runs.held], ttl_us=TTL_US, ceiling_us=CEILING_US)


class Debounced(Scene):
    """`debounce` with a limit: a blocked job that the next call replaces, now or later."""

    name = "debounced-lane"
    limit = ("narrow", 1)
    declared = 1

    def unique(self, name: str, **changes: Any) -> NewJob:
        shared: dict[str, Any] = {
            "lane": "narrow",
            "concurrency": self.declared,
            "unique_scope": "pending",
            "replaces": True,
            **changes,
        }
        return self.job(name, **{"unique_key": name, **shared})

    async def build(self) -> None:
        self.worker = await self.register()
        for name in ("runs", "blocked"):
            job = self.unique(name)
            await self.do(enqueue_unique, job, self.routes(job))
        (self.runs,) = await self.claimed(2, laned=True)
        job = self.unique("new")
        await self.do(enqueue_unique, job, self.routes(job))

    def submitting(self, job: NewJob) -> Call:
        return call(enqueue_unique, job, self.routes(job))

    @verb
    def replace_blocked(self) -> Call:
        return self.submitting(self.unique("in place of blocked", unique_key="blocked"))

    @verb
    def replace_blocked_later(self) -> Call:
        return self.submitting(self.unique("in place of blocked, later", unique_key="blocked", delay_us=SECOND))

    @verb
    def replace_new(self) -> Call:
        return self.submitting(self.unique("in place of new", unique_key="new"))

    @verb
    def replace_new_later(self) -> Call:
        return self.submitting(self.unique("in place of new, later", unique_key="new", delay_us=SECOND))

    @verb
    def enqueue_fresh(self) -> Call:
        return self.submitting(self.unique("fresh"))

    @verb
    def claim(self) -> Call:
        return self.claiming(2, laned=True)

    @verb
    def complete(self) -> Call:
        return self.settling((self.runs, Done(1)))

    @verb
    def cancel_blocked(self) -> Call:
        return call(cancel, self.id("blocked"), reason="no more")

    @verb
    def open_lanes(self) -> Call:
        return call(open_lanes, limit=100)

    @verb
    def wake(self) -> Call:
        return call(wake, limit=100)


class Redeclared(Debounced):
    """The same after a release that declares another limit: the next call that makes a job writes it down."""

    name = "redeclared-lane"
    limit = ("narrow", 2)

    async def build(self) -> None:
        await super().build()
        self.declared = 2


class Alone(Debounced):
    """The same where nobody else is in the lane: who is passed over now is found by nobody later."""

    name = "lonely-lane"

    async def build(self) -> None:
        self.worker = await self.register()
        for name in ("runs", "blocked"):
            job = self.unique(name)
            await self.do(enqueue_unique, job, self.routes(job))
        (self.runs,) = await self.claimed(2, laned=True)

    @classmethod
    def verbs(cls) -> Iterator[str]:
        yield from ("replace_blocked", "replace_blocked_later", "claim", "complete", "cancel_blocked", "open_lanes")
