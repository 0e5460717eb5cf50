"""Waiting: signals, steps, progress; and a zombie, whose lease another worker has by now."""

from __future__ import annotations

from typing import Any

from holdfast.kernel.cancel import cancel
from holdfast.kernel.complete import complete, release
from holdfast.kernel.leases import beat, renew
from holdfast.kernel.rows import Resolution, Suspension
from holdfast.kernel.states import State
from holdfast.kernel.waiting import (
    list_steps,
    own_channel,
    park,
    raise_count,
    report_progress,
    resolve,
    store_step,
    suspend,
    take_signal,
    wake,
)
from holdfast.outcomes import Done, TryAgain
from tests.interleaving.pausing import Call, call
from tests.interleaving.scene import CEILING_US, SECOND, TTL_US, Scene, skipping, verb


class Signals(Scene):
    """Two jobs run and look for a signal on one channel; one signal is there already on another."""

    name = "signals"
    channels = ("news", "old")

    async def build(self) -> None:
        self.worker = await self.register()
        await self.put(self.job("reader"), self.job("listener"))
        self.reader, self.listener = await self.claimed(2)
        said = self.signalling("long ago", "news")  # and taken: the channel is known, and empty
        await self.do(said.operation, *said.args)
        await self.do(take_signal, self.listener, "news", "long ago")
        said = self.signalling("before", "old")
        await self.do(said.operation, *said.args)

    @verb
    def park(self) -> Call:
        return call(park, self.reader, channel="news", timeout_us=None)

    @verb
    def park_for_a_while(self) -> Call:
        return call(park, self.listener, channel="news", timeout_us=SECOND)

    @verb
    def park_beside_a_signal(self) -> Call:
        return call(park, self.listener, channel="old", timeout_us=None)

    @verb
    def signal(self) -> Call:
        return self.signalling("one", "news")

    @verb
    def signal_again(self) -> Call:
        return self.signalling("two", "news")

    @verb
    def take_signal(self) -> Call:
        return call(take_signal, self.reader, "news", "wait")

    @verb
    def take_old_signal(self) -> Call:
        return call(take_signal, self.reader, "old", "wait")

    @verb
    def take_it_too(self) -> Call:
        return call(take_signal, self.listener, "old", "wait")

    @verb
    def cancel(self) -> Call:
        return call(cancel, self.reader.id, reason="no more")

    @verb
    def complete(self) -> Call:
        return call(complete, [self.ending(self.reader, Done(1))])


class Parked(Scene):
    """A job waits on a channel, and its time is up."""

    name = "parked"
    channels = ("news",)

    async def build(self) -> None:
        self.worker = await self.register()
        await self.put(self.job("parked"), self.job("pending"))
        lease, self.other = await self.claimed(2)
        self.parked = lease
        await self.do(park, lease, channel="news", timeout_us=SECOND)
        await self.do(complete, [release(self.other)])
        await self.store.advance("1s")

    @verb
    def signal(self) -> Call:
        return self.signalling("one", "news")

    @verb
    def wake(self) -> Call:
        return call(wake, limit=100)

    @verb
    def claim(self) -> Call:
        return self.claiming(2)

    @verb
    def cancel(self) -> Call:
        return call(cancel, self.parked.id, reason="no more")

    @verb
    def suspend(self) -> Call:
        return call(suspend, [Suspension(self.id("pending"), own_channel("review"))])

    @verb
    def resolve(self) -> Call:
        return call(resolve, [Resolution(self.parked.seq, "news", State.SUCCEEDED, result="1")])

    @verb
    def resolve_onward(self) -> Call:
        return call(resolve, [Resolution(self.parked.seq, "news", State.PENDING, payload='"new"')])


class Zombie(Scene):
    """A worker that was frozen past its lease, and the one that has the job now."""

    name = "zombie"
    channels = ("news",)

    async def build(self) -> None:
        self.worker = await self.register()
        await self.put(self.job("job"))
        (self.stale,) = await self.claimed()
        await self.store.advance("61s")
        swept = self.sweeping()
        await self.do(swept.operation, **swept.options)
        self.heir = await self.register("heir")
        (self.lease,) = await self.claimed(worker=self.heir)
        said = self.signalling("before", "news")
        await self.do(said.operation, *said.args)

    @verb
    def store_step(self) -> Call:
        return call(store_step, self.lease, "step", '"of the heir"')

    @verb
    def stale_step(self) -> Call:
        return call(store_step, self.stale, "step", '"of the zombie"')

    @verb
    def raise_count(self) -> Call:
        return call(raise_count, self.lease.id, "count", 1)

    @verb
    def raise_more(self) -> Call:
        return call(raise_count, self.lease.id, "count", 10)

    @verb
    def take_signal(self) -> Call:
        return call(take_signal, self.lease, "news", "wait")

    @verb
    def stale_take(self) -> Call:
        return call(take_signal, self.stale, "news", "wait")

    @verb
    def complete(self) -> Call:
        return call(complete, [self.ending(self.lease, Done(1))])

    @verb
    def stale_complete(self) -> Call:
        return call(complete, [self.ending(self.stale, Done(2))])

    @verb
    def stale_park(self) -> Call:
        return call(park, self.stale, channel=None, timeout_us=None)

    @verb
    def stale_progress(self) -> Call:
        return call(report_progress, self.stale, "50")

    @verb
    def stale_renew(self) -> Call:
        return call(renew, [self.stale.held], ttl_us=TTL_US, ceiling_us=CEILING_US)


class Lapsing(Scene):
    """A lease that has just run out: its holder writes while others take it back and claim it anew."""

    name = "lapsing"
    channels = ("news",)

    async def build(self) -> None:
        self.worker = await self.register()
        await self.put(self.job("job"))
        (self.lease,) = await self.claimed()
        said = self.signalling("before", "news")
        await self.do(said.operation, *said.args)
        await self.store.advance("61s")
        self.heir = await self.register("heir")

    @verb
    def expire(self) -> Call:
        return self.sweeping()

    @verb
    def expire_and_claim(self) -> Call:
        return call(self.taken_over)

    @skipping
    async def taken_over(self, tx: Any) -> Any:
        """A sweep, a claim that nothing came between, and what the new holder is told of steps taken before."""
        sweep, claim = self.sweeping(), self.claiming(worker=self.heir)
        await sweep.operation(tx, **sweep.options)
        leases = await claim.operation(tx, *claim.args)
        return [(lease, await list_steps(tx, lease.seq)) for lease in leases]

    @verb
    def store_step(self) -> Call:
        return call(store_step, self.lease, "step", '"stored"')

    @verb
    def take_signal(self) -> Call:
        return call(take_signal, self.lease, "news", "wait")

    @verb
    def complete(self) -> Call:
        return call(complete, [self.ending(self.lease, Done(1))])

    @verb
    def retry(self) -> Call:
        return call(complete, [self.ending(self.lease, TryAgain("10s"))])

    @verb
    def park(self) -> Call:
        return call(park, self.lease, channel="later", timeout_us=None)

    @verb
    def report_progress(self) -> Call:
        return call(report_progress, self.lease, "50")

    @verb
    def renew(self) -> Call:
        return call(renew, [self.lease.held], ttl_us=TTL_US, ceiling_us=CEILING_US)

    @verb
    def beat(self) -> Call:
        return call(beat, self.worker, 1, [self.lease.held], ttl_us=TTL_US, ceiling_us=CEILING_US)

    @verb
    def cancel(self) -> Call:
        return call(cancel, self.lease.id, reason="no more")
