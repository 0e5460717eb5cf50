"""Holders that are no workers: jobs taken by id, shared out, moved to another holder, taken back."""

from __future__ import annotations

from holdfast.kernel.broker_rows import OwnerBeat, Renewal
from holdfast.kernel.brokers import Claimer, claim_for, release_by_worker, take, transfer_leases
from holdfast.kernel.leases import beat_many, renew_each
from holdfast.kernel.owners import register_owner
from holdfast.kernel.routes import route_for
from holdfast.kernel.workers import drain, lose
from holdfast.outcomes import Done, Fail
from tests.interleaving.pausing import Call, call
from tests.interleaving.scene import CEILING_US, TTL_US, Scene, verb


class Brokers(Scene):
    """A holder has one job, and two are free."""

    name = "brokers"

    async def build(self) -> None:
        self.worker = await self.register("one")
        self.other = await self.register("two")
        self.third = await self.register("three")
        await self.put(self.job("held"), self.job("free"), self.job("last"))
        (self.lease,) = await self.claimed()

    def claimer(self, worker: int) -> Claimer:
        return Claimer(worker, frozenset({route_for("default", "work").id}), 1, TTL_US)

    @verb
    def take(self) -> Call:
        return call(take, self.other, self.id("free"), TTL_US)

    @verb
    def take_too(self) -> Call:
        return call(take, self.third, self.id("free"), TTL_US)

    @verb
    def claim(self) -> Call:
        return self.claiming(worker=self.other)

    @verb
    def claim_for(self) -> Call:
        return call(claim_for, [self.claimer(self.other), self.claimer(self.third)])

    @verb
    def renew_each(self) -> Call:
        return call(renew_each, [Renewal(*self.lease.held, 2 * TTL_US)], ceiling_us=CEILING_US)

    @verb
    def transfer(self) -> Call:
        return call(transfer_leases, self.worker, self.other)

    @verb
    def release_by_worker(self) -> Call:
        return call(release_by_worker, self.worker, charge=True)

    @verb
    def complete(self) -> Call:
        return self.settling((self.lease, Done("mine")))

    @verb
    def fail(self) -> Call:
        return self.settling((self.lease, Fail("mine")))

    @verb
    def drain_other(self) -> Call:
        return call(drain, self.other)

    @verb
    def lose_other(self) -> Call:
        return call(lose, self.other, reason="given up")

    @verb
    def beat_many(self) -> Call:
        return call(beat_many, [OwnerBeat(self.worker, 1), OwnerBeat(self.other, 0)])


class Takeover(Scene):
    """A lease that has run out, which several want, and whose holder comes back."""

    name = "takeover"

    async def build(self) -> None:
        self.worker = await self.register("late")
        self.other = await self.register("next")
        self.third = await self.register("third")
        await self.put(self.job("held"))
        (self.lease,) = await self.claimed()
        await self.store.advance("61s")

    @verb
    def take(self) -> Call:
        return call(take, self.other, self.id("held"), TTL_US)

    @verb
    def take_too(self) -> Call:
        return call(take, self.third, self.id("held"), TTL_US)

    @verb
    def sweep(self) -> Call:
        return self.sweeping()

    @verb
    def renew_each(self) -> Call:
        return call(renew_each, [Renewal(*self.lease.held, 2 * TTL_US)], ceiling_us=CEILING_US)

    @verb
    def complete(self) -> Call:
        return self.settling((self.lease, Done("late")))

    @verb
    def transfer(self) -> Call:
        return call(transfer_leases, self.worker, self.other)

    @verb
    def register_owner(self) -> Call:
        return call(register_owner, self.who("owner", "a"), ttl_us=TTL_US)

    @verb
    def register_owner_too(self) -> Call:
        return call(register_owner, self.who("owner", "b"), ttl_us=TTL_US)
