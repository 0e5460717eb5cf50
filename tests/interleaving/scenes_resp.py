"""Operations behind commands of the gateway: workers behind connections pop, report, beat and register again."""

from __future__ import annotations

from typing import Any

from holdfast.kernel.database import Transaction
from holdfast.kernel.leases import beat_many
from holdfast.kernel.routes import route_for
from holdfast.kernel.statements import WorkersSql
from holdfast.outcomes import Done
from holdfast.resp import server, workers
from holdfast.resp.client import KeyPrincipal
from holdfast.resp.endings import ReportedEnd, SentLease, end_at_once, end_together
from holdfast.resp.pops import ClaimRequest, QueueTurn, claim_asked, claim_at_once
from holdfast.resp.records import Epoch
from holdfast.resp.workers import WorkerDescription
from tests.interleaving.pausing import Call, call
from tests.interleaving.scene import TTL_US, Scene, verb

_PRINCIPAL = KeyPrincipal("all", "0" * 64, ("*",))


def _who(name: str) -> WorkerDescription:
    return WorkerDescription(name, name, "0", (), (), 2, (), {})


class Gateway(Scene):
    """One worker has popped a job, another waits; two jobs are free."""

    name = "resp"

    async def build(self) -> None:
        self.one, self.other = await self.enter("one"), await self.enter("other")
        self.worker = self.one.worker
        await self.put(self.job("held"), self.job("free"), self.job("last"))
        (self.lease,) = await self.claimed(worker=self.one.worker)

    async def enter(self, name: str) -> Epoch:
        unique = str(self.id("incarnation", name))
        number = await self.do(workers.register, _who(name), _PRINCIPAL, unique, ttl_us=TTL_US, release=False)
        return Epoch(number, unique)

    def registering(self, incarnation: str, *, release: bool = False) -> Call:
        return call(self.entered, str(self.id("incarnation", incarnation)), release=release)

    async def entered(self, tx: Transaction, incarnation: str, *, release: bool) -> None:
        """Its number is not looked at: numbers of workers are given out in any order."""
        await workers.register(tx, _who("one"), _PRINCIPAL, incarnation, ttl_us=TTL_US, release=release)

    def popping(self, epoch: Epoch, *, at_once: bool = False) -> Call:
        ask = ClaimRequest(epoch, 1, (QueueTurn("default", frozenset({route_for("default", "work").id})),), "")
        return call(self.popped, ask, at_once=at_once)

    async def popped(self, tx: Transaction, ask: ClaimRequest, *, at_once: bool) -> Any:
        """Asks again when the row of its worker is free, as the gateway does."""
        if at_once:
            claimed = await claim_at_once(tx, [ask], ttl_us=TTL_US)
            if claimed.leases[0]:
                return claimed.leases[0]
        claimed = await claim_asked(tx, [ask], ttl_us=TTL_US)
        if claimed.locked:
            await tx.many(WorkersSql.lock_worker, seq=ask.epoch.worker)
            claimed = await claim_asked(tx, [ask], ttl_us=TTL_US)
        return claimed.leases[0]

    def reported(self) -> list[ReportedEnd]:
        sent = SentLease(self.lease, self.one.incarnation)
        return [ReportedEnd(sent, lambda _: self.ending(self.lease, Done("mine")))]

    async def renewed(self, tx: Transaction, epoch: Epoch) -> None:
        """What it says is kept in memory alone, until the next time."""
        await server.keep(tx, epoch, [self.lease.held], ttl_us=2 * TTL_US)

    async def beaten(self, tx: Transaction) -> None:
        """The same; as a client asks for it, so that it waits for the row."""
        delivered = frozenset([self.lease.held])
        await workers.beat_all(tx, [self.one], ttl_us=TTL_US, delivered=delivered, beat=beat_many)

    @verb
    def pop(self) -> Call:
        return self.popping(self.other)

    @verb
    def pop_again(self) -> Call:
        return self.popping(self.one)

    @verb
    def pop_at_once(self) -> Call:
        return self.popping(self.other, at_once=True)

    @verb
    def pop_again_at_once(self) -> Call:
        return self.popping(self.one, at_once=True)

    @verb
    def complete(self) -> Call:
        return call(end_together, self.reported())

    @verb
    def complete_at_once(self) -> Call:
        return call(end_at_once, self.reported())

    @verb
    def renew(self) -> Call:
        return call(self.renewed, self.one)

    @verb
    def beat(self) -> Call:
        return call(self.beaten)

    @verb
    def register_again(self) -> Call:
        return self.registering("second")

    @verb
    def register_and_release(self) -> Call:
        return self.registering("third", release=True)
