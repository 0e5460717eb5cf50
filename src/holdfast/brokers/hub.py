"""The hub: what all brokers on one event loop share, so that a thousand of them cost no more than one worker.

It has a row of its own in the store, without slots, and its presence stands for all of its brokers. It beats for them
in one statement, renews their leases in one, looks and sweeps as a worker does, and serves their calls together. What
a broker does not know it holds, nobody renews.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Sequence
from functools import partial
from typing import Protocol

from holdfast.brokers.waiters import BrokerRoutes, BrokerScope, Waiter, Waiters
from holdfast.clock import Ports
from holdfast.durations import microseconds
from holdfast.errors import DuplicateWorker, HoldfastError, LeaseLost, StoreUnavailable, Unavailable, UsageError
from holdfast.kernel import workers
from holdfast.kernel.broker_rows import OwnerBeat, Renewal
from holdfast.kernel.brokers import take
from holdfast.kernel.claim import LOOKED, read_note
from holdfast.kernel.complete import release
from holdfast.kernel.database import Database
from holdfast.kernel.ids import JobId, new_id
from holdfast.kernel.leases import Beat, renew_one
from holdfast.kernel.routes import serves
from holdfast.kernel.rows import Ending, Lease, RenewedLease
from holdfast.kernel.states import WorkerState
from holdfast.kernel.waiting import report_progress
from holdfast.kernel.workers import Registration
from holdfast.outcomes import Cancel, Discard, Done, Fail, Snooze, TryAgain
from holdfast.settings import Settings
from holdfast.workers.definitions import Registry
from holdfast.workers.endings import ending_after
from holdfast.workers.lifeline import Lifeline, Pulse
from holdfast.workers.role import Role
from holdfast.workers.slots import Holding
from holdfast.workers.station import Station, as_far_as_possible, registration
from holdfast.workers.telemetry import WorkerTelemetry

log = logging.getLogger("holdfast.broker")

Ends = Done | TryAgain | Fail | Cancel | Discard | Snooze
Key = tuple[int, int, int]  # of a lease: its job, epoch and token


class Member(Protocol):
    """A broker, as the hub sees it."""

    seq: int
    who: Registration
    takes: BrokerScope
    renews: bool
    ttl_us: int
    draining: bool
    idle_from: float | None
    holds: dict[Key, KeptLease]
    reserved: int  # slots for what may come of statements that are under way
    incarnation: str  # the next one, kept until its registration is answered


class KeptLease(Holding):
    """A lease that a broker holds. A call that ends it waits for `settled`: the job's state, None when it was lost."""

    def __init__(self, lease: Lease, claimed_at: float, fence_at: float, owner: Member) -> None:
        super().__init__(lease, claimed_at, fence_at)
        self.owner = owner
        self.until = lease.lease_until
        self.lost = asyncio.Event()
        self.cancel_requested = False
        self.settled: asyncio.Future[str | None] | None = None
        self.written: Ending | None = None  # how it ends


class Hub:
    def __init__(
        self,
        registry: Registry,
        database: Database,
        settings: Settings,
        ports: Ports,
        *,
        name: str = "brokers",
        lifeline: Lifeline | None = None,
    ) -> None:
        """`name`: what lists of workers call it."""
        self._name = name
        self._registry = registry
        self._database = database
        self.settings = settings
        self.ports = ports
        self.id = f"hub-{new_id(ports)}"
        self._ceiling_us = microseconds(settings.lease_ceiling)
        self._members: dict[int, Member] = {}
        self._kept: dict[Key, KeptLease] = {}
        self.routes = BrokerRoutes(database, settings)
        self.telemetry = WorkerTelemetry(ports, self.id)
        self.waiters = Waiters(
            database, ports, self.routes, accept=self._accept, give_back=self._give_back, returned=self._on_returned
        )
        self._station = Station(
            database,
            ports,
            settings,
            self.telemetry,
            chores=registry.chores,
            routing=self.routes,
            known_routes=self.routes,
            claims=self.waiters,
            work=self.waiters.work,
            settled=self._on_settled,
            lifeline=lifeline,
        )
        self._look = self._station.polling.wanted
        self._ticked = 0.0
        self._moving = asyncio.Lock()  # one broker at a time comes, leaves or returns
        self.closed = False  # with the app: nothing of it works any more

    def __len__(self) -> int:
        return len(self._members)

    # Life cycle

    async def start(self) -> None:
        await self._database.open()
        await self._station.enter(self._register, self.routes.begin)
        self._ticked = self.ports.clock.monotonic()
        await self._database.listen(self._on_hint)
        self._station.begin(self._compose, self._on_beat, tick=self._tick, claim=self.waiters.run)

    async def close(self) -> None:
        """Stop with the app, also while brokers are open."""
        self.closed = True
        await self.stop()

    async def stop(self) -> None:
        self._database.unlisten(self._on_hint)
        self.waiters.dismiss()
        await self._station.halt()
        with contextlib.suppress(Unavailable):  # they come back when their leases end
            await self.waiters.release_unanswered()
        async with self._moving:
            await self._let_go(list(self._members.values()))
        await self._station.finish()
        self._give_up_endings()
        await self._station.leave()
        self.telemetry.stopped(self._station.seq, self.telemetry.tally.finished, left=len(self._kept))

    def _give_up_endings(self) -> None:
        for kept in self._kept.values():
            if kept.settled is not None and not kept.settled.done():
                kept.settled.set_exception(
                    StoreUnavailable(f"the app was closed before the store had taken the end of job {kept.lease.id}.")
                )
                kept.settled.exception()  # perhaps nobody waits for it

    async def _register(self) -> None:
        await self._station.register(registration(self.id, Role(name=self._name), (), 0), [])

    # Brokers

    async def join(self, broker: Member) -> None:
        """Give the broker a row, which lives as long as this process shows itself."""
        async with self._moving:
            await self._enter(broker)

    async def _enter(self, broker: Member) -> None:
        broker.incarnation = broker.incarnation or new_id(self.ports)
        who = broker.who._replace(incarnation=broker.incarnation, code=self._station.code, host=self._station.seq)
        namesake = await self._database.transact(workers.live_namesake, who.id, who.incarnation)
        gone = await self._database.presence.absent([namesake]) if namesake is not None else set()
        ttl_us = microseconds(self.settings.worker_ttl)
        broker.seq = await self._database.transact(workers.register, who, [], ttl_us=ttl_us, gone=gone)
        broker.incarnation = ""
        self._members[broker.seq] = broker
        self.routes.of(broker.takes)
        self._look.set()

    async def leave(self, broker: Member) -> None:
        """Hand back what the broker renewed by itself, and take its row away."""
        async with self._moving:
            await self._let_go([broker])

    async def _let_go(self, brokers: Sequence[Member]) -> None:
        for broker in brokers:
            broker.draining = True
            for kept in list(broker.holds.values()):
                if broker.renews and kept.settled is None:
                    self._give_back(kept.lease)
                elif not broker.renews:
                    self._forget(kept)
        with contextlib.suppress(TimeoutError):  # the leases of what the store does not take run out
            async with asyncio.timeout(self.settings.drain_grace.total_seconds()):
                await self._station.endings.flushed()
        for broker in brokers:
            self._members.pop(broker.seq, None)
        self.routes.keep({each.takes for each in self._members.values()})
        leaving = [partial(self._database.transact, workers.unregister, b.seq, reason="stopped") for b in brokers]
        await as_far_as_possible(self.id, *leaving)

    # Leases

    async def claim(self, broker: Member, n: int, seconds: float) -> list[KeptLease]:
        if broker.draining:
            return []
        if seconds <= 0 and not self._station.linked:
            raise StoreUnavailable(
                f"broker {broker.who.id} takes nothing now: the store has not answered its heartbeats for so long that "
                f"others may count it as lost. Try again later, or wait with block=."
            )
        waiter = Waiter(
            worker=lambda: broker.seq,
            takes=broker.takes,
            n=n,
            ttl_us=broker.ttl_us,
            room=lambda: _room(broker) if self._station.linked else 0,
            reserve=partial(_reserve, broker),
            patient=seconds > 0,
            answer=asyncio.get_running_loop().create_future(),
        )
        leases = await self.waiters.wait(waiter, seconds)
        return [kept for lease in leases if (kept := self._kept.get(_key(lease))) is not None]

    async def take(self, broker: Member, id: JobId) -> KeptLease | None:
        if _room(broker) < 1:
            return None
        _reserve(broker, 1)
        taking = asyncio.create_task(self._take(broker, id))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(self._unwanted)
            raise

    async def _take(self, broker: Member, id: JobId) -> KeptLease | None:
        sent_at = self.ports.clock.monotonic()
        judge = partial(serves, queues=broker.takes.queues, capabilities=broker.takes.capabilities)
        try:
            with self.waiters.lost_answers.claiming() as notes:
                lease = await self._database.transact(take, broker.seq, id, broker.ttl_us, serves=judge, notes=notes)
                notes.answered([] if lease is None else [lease.held])
            return None if lease is None else self._accept(lease, sent_at)
        finally:
            _reserve(broker, -1)
            if self.waiters.lost_answers:
                self.waiters.work.set()  # before the next claim they go back

    def _on_returned(self, jobs: int) -> None:
        self.telemetry.returned(self._station.seq, jobs)

    def _unwanted(self, taking: asyncio.Task[KeptLease | None]) -> None:
        """Who wanted it has gone."""
        if not taking.cancelled() and taking.exception() is None and (kept := taking.result()) is not None:
            self._give_back(kept.lease)

    async def renew(self, kept: KeptLease, ttl_us: int) -> None:
        self._check_open(kept)
        if kept.settled is not None:  # it has ended, by our own hand
            raise LeaseLost(kept.lease.id, kept.lease.fence)
        sent_at = self.ports.clock.monotonic()
        renewal = Renewal(*kept.lease.held, ttl_us)
        renewed = await self._database.transact(renew_one, renewal, ceiling_us=self._ceiling_us)
        if renewed is None:
            self._lose(kept)
            raise LeaseLost(kept.lease.id, kept.lease.fence)
        self._on_renewed(kept, renewed, sent_at, ttl_us)

    async def end(self, kept: KeptLease, outcome: Ends) -> str:
        return await self._put(kept, ending_after(kept.lease, outcome, None, self.settings, self.ports.random))

    async def release(self, kept: KeptLease) -> str:
        return await self._put(kept, release(kept.lease))

    async def _put(self, kept: KeptLease, ending: Ending) -> str:
        """Write an end under the lease's token; returns the state of the job. A refused write is counted.

        The same end again is the same answer. After another end the lease is lost.
        """
        self._check_open(kept)
        if kept.settled is None:
            self._keep(kept)  # if it was given up for lost, the store has the last word
            self._hand_in(kept, ending)
        elif not _same(kept.written, ending):
            raise LeaseLost(kept.lease.id, kept.lease.fence)
        assert kept.settled is not None
        state = await asyncio.shield(kept.settled)
        if state is None:
            raise LeaseLost(kept.lease.id, kept.lease.fence)
        return state

    def _hand_in(self, kept: KeptLease, ending: Ending) -> None:
        kept.ending = True
        kept.written = ending
        kept.settled = asyncio.get_running_loop().create_future()
        self._station.endings.put(kept.lease, ending)

    def _check_open(self, kept: KeptLease) -> None:
        if self.closed:
            raise UsageError(f"the app that held job {kept.lease.id} for a broker was closed, which handed it back.")

    def _accept(self, lease: Lease, sent_at: float) -> KeptLease | None:
        self._station.duties.stirred = True
        owner = self._members.get(lease.worker)
        if owner is None:  # it was given up, and has another number now
            self._station.endings.put(lease, release(lease))
            return None
        kept = KeptLease(lease, sent_at, self._fence(owner, lease, sent_at, sent_at, owner.ttl_us), owner)
        self._keep(kept)
        return kept

    def _keep(self, kept: KeptLease) -> None:
        self._kept[_key(kept.lease)] = kept.owner.holds[_key(kept.lease)] = kept
        kept.owner.idle_from = None

    def _give_back(self, lease: Lease) -> None:
        if (kept := self._kept.get(_key(lease))) is not None and kept.settled is None:
            self._hand_in(kept, release(lease))

    def _on_settled(self, lease: Lease, ending: Ending, state: str | None) -> None:
        if (kept := self._kept.get(_key(lease))) is None:
            return
        self._forget(kept)
        if state is not None or not kept.lost.is_set():  # a loss is told once
            self.telemetry.settled(kept, ending, state)
        if state is None:
            kept.lost.set()
        elif state == "scheduled":
            self._look.set()  # for when it is due
        if kept.settled is not None and not kept.settled.done():
            kept.settled.set_result(state)

    def _forget(self, kept: KeptLease) -> None:
        self._kept.pop(_key(kept.lease), None)
        kept.owner.holds.pop(_key(kept.lease), None)
        if not kept.owner.holds:
            kept.owner.idle_from = self.ports.clock.monotonic()
        self.waiters.work.set()  # it has room again

    def _lose(self, kept: KeptLease) -> None:
        if not kept.lost.is_set():
            self.telemetry.lost(kept)
        kept.lost.set()
        self._forget(kept)

    async def report(self, kept: KeptLease, text: str) -> None:
        self._check_open(kept)
        await self._database.transact(report_progress, kept.lease, text)

    # Heartbeats and hints

    def _fence(self, owner: Member, lease: Lease, sent_at: float, claimed_at: float, ttl_us: int) -> float:
        """When a lease counts as lost. Who renews by hand may do so until its very end."""
        longest_us = min(self._ceiling_us, lease.timeout_us or self._ceiling_us)
        until = min(sent_at + ttl_us / 1e6, claimed_at + longest_us / 1e6)
        return until - min(self.settings.fence_margin.total_seconds(), ttl_us / 4e6, longest_us / 4e6) * owner.renews

    async def _tick(self) -> None:
        while True:
            now = self._ticked = self.ports.clock.monotonic()
            for kept in list(self._kept.values()):
                if now >= kept.fence_at and not kept.ending:
                    self._lose(kept)
            await self.ports.clock.sleep(self.settings.tick.total_seconds())

    def _compose(self) -> Pulse | None:
        """On the lifeline's thread."""
        now = self.ports.clock.monotonic()
        if now - self._ticked > self.settings.lease_ttl.total_seconds():
            return None
        seq, me = self._station.own_row()
        beats = [OwnerBeat(each.seq, len(each.holds), _idle_us(each, now)) for each in list(self._members.values())]
        kept = [kept for kept in list(self._kept.values()) if kept.owner.renews and not kept.ending]
        renewals = tuple(Renewal(*each.lease.held, each.owner.ttl_us) for each in kept)
        ttl_us = microseconds(self.settings.lease_ttl)
        return Pulse(seq, len(self._kept), [], ttl_us, self._ceiling_us, me, tuple(beats), renewals)

    def _on_beat(self, sent_at: float, beat: Beat) -> None:
        refused = self._station.is_refused(sent_at, beat)
        if beat.draining or beat.oldest_code > self._station.code:
            for broker in self._members.values():
                broker.draining = True
        if refused:
            self._station.repair(self._register_again)
        for row in beat.hosted:
            if row.status == WorkerState.DRAINING and row.seq in self._members:
                self._members[row.seq].draining = True
        if beat.given_up:
            self._station.repair(partial(self._join_again, beat.given_up))
        for renewed in beat.renewed:
            if (kept := self._kept.get((renewed.seq, renewed.epoch, renewed.token))) is not None:
                self._on_renewed(kept, renewed, sent_at, kept.owner.ttl_us)
        for held in beat.lost:
            if (lost := self._kept.get((held.seq, held.epoch, held.token))) is not None and not lost.ending:
                self._lose(lost)

    def _on_renewed(self, kept: KeptLease, row: RenewedLease, sent_at: float, ttl_us: int) -> None:
        kept.until = row.lease_until
        kept.fence_at = max(kept.fence_at, self._fence(kept.owner, kept.lease, sent_at, kept.claimed_at, ttl_us))
        kept.cancel_requested = row.cancel_requested_at is not None

    async def _register_again(self) -> None:
        """The hub was given up, and with it its brokers: all of them begin again."""
        try:
            if not (await self._station.judge()).live:
                await self._register()
        except Unavailable:
            pass  # the next heartbeat finds out again
        self._station.poke()

    async def _join_again(self, given_up: Collection[int]) -> None:
        """Brokers that were given up get new rows; what they still hold they may end under the old ones.

        One that takes nothing more needs no row. One that cannot return now is given up again by the next heartbeat.
        """
        async with self._moving:
            for seq in given_up:
                broker = self._members.get(seq)
                if broker is None or broker.draining:
                    continue
                try:
                    await self._enter(broker)
                except (HoldfastError, OSError) as problem:
                    log.warning("broker %s was given up and could not return: %s", broker.who.id, problem)
                    broker.draining = isinstance(problem, DuplicateWorker)
                else:
                    self._members.pop(seq)

    def _on_hint(self, note: str) -> None:
        subject, _, rest = note.partition(" ")
        numbers = [int(part) for part in rest.split(",") if part.isdigit()]
        if subject in ("route", LOOKED):
            if not self.routes.knows(numbers):
                self._look.set()
            if self.routes.heat(numbers) and len(self.waiters):
                self.waiters.work.set()
            if subject == LOOKED:
                self._station.polling.heard(read_note(rest))
        elif subject == "cancel":
            if not self._members.keys().isdisjoint(numbers):
                self._station.poke()
        elif not any(subject in layer.hints for layer in self._registry.layers):
            self._look.set()
            self.waiters.work.set()


def _key(lease: Lease) -> Key:
    return lease.seq, lease.epoch, lease.token


def _idle_us(broker: Member, now: float) -> int | None:
    return None if broker.idle_from is None else round((now - broker.idle_from) * 1e6)


def _room(broker: Member) -> int:
    return 0 if broker.draining else broker.who.slots - len(broker.holds) - broker.reserved


def _reserve(broker: Member, slots: int) -> None:
    broker.reserved += slots


def _same(written: Ending | None, ending: Ending) -> bool:
    """Whether both say the same. When the next attempt begins may differ by chance."""
    return written is not None and written._replace(delay_us=0) == ending._replace(delay_us=0)
