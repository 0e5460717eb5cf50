"""Pops: claims under a lease, for all connections of this server together.

Clients that wait for jobs wait here. One claim is under way at a time. It serves those who have just come, and those
who wait for a route on which a hint or a look has seen something: a thousand connections that wait cost as many
statements as one. A job that was claimed for somebody who left meanwhile goes back at once; what cannot be given back
comes back when its lease ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.brokers.waiters import BrokerRoutes, BrokerScope
from holdfast.clock import Ports
from holdfast.errors import StoreBusy, Unavailable
from holdfast.kernel.broker_rows import Asker, OwnerBeat
from holdfast.kernel.brokers import Claimer, ClaimNotes, LostAnswers, claim_each, claim_for
from holdfast.kernel.claim import LOOKED, heads
from holdfast.kernel.complete import complete_and_settle, release
from holdfast.kernel.database import LOOK, Database, Transaction, short, single
from holdfast.kernel.ids import JobId
from holdfast.kernel.leases import beat_many
from holdfast.kernel.rows import Lease, LeaseRef, Observation
from holdfast.resp import jobs, plans, workers
from holdfast.resp.client import Client
from holdfast.resp.endings import Deliveries, PoppedJob
from holdfast.resp.options import RespOptions
from holdfast.resp.plans import KIND
from holdfast.resp.records import Epoch, HoldersSql, PlansSql
from holdfast.settings import Settings
from holdfast.text import plural

# Claims for those who wait at this server: one transaction serves many of them.
#
# Mostly all of them ask for one job of the same queue, and there is one for each: then one statement serves them,
# which
# commits by itself (`claim_at_once`). For all others, and for who got nothing by it, `claim_asked` goes step by step.
# Two
# servers may claim for one worker at the same time. Each claim locks the worker's row, counts what it holds, and
# changes
# the row if it gave something, by which the other notices that its count is old.


class QueueTurn(NamedTuple):
    """A queue that somebody waits for, and the routes on which it is served there."""

    queue: str
    routes: frozenset[int]


class ClaimRequest(NamedTuple):
    """How many jobs a worker asks for, of its first queue, then of its second …"""

    epoch: Epoch
    jobs: int
    turns: tuple[QueueTurn, ...]
    tenant: str  # of the connection's key: it gets no job of another


class Claimed(NamedTuple):
    """What each of those who asked got, in their order."""

    leases: list[list[Lease]]
    names: dict[JobId, str]  # the public ids of jobs of actions
    room: dict[Epoch, int]  # the places that each has left; who is not among them may take nothing
    left_us: dict[Epoch, int]  # for how long each counts as alive if it stays silent, in the order of those who asked
    locked: frozenset[Epoch] = frozenset()  # those whose row somebody else holds: ask again for them

    def completed(self, left: Sequence[ClaimRequest], later: Claimed) -> Claimed:
        """With what these got later. Each is of another worker."""
        given = dict(zip((ask.epoch for ask in left), later.leases, strict=True))
        leases = [mine or given[epoch] for mine, epoch in zip(self.leases, self.left_us, strict=True)]
        return Claimed(leases, self.names | later.names, later.room, self.left_us | later.left_us, later.locked)


def is_alike(asks: Sequence[ClaimRequest]) -> bool:
    """Whether `claim_at_once` can serve them: each is of another worker and asks for one job, all of the same queue."""
    first = asks[0]
    alike = all(ask.jobs == 1 and ask.turns == first.turns and ask.tenant == first.tenant for ask in asks)
    return alike and len(first.turns) == 1 and len({ask.epoch.worker for ask in asks}) == len(asks)


@short
@single
async def claim_at_once(
    tx: Transaction, asks: Sequence[ClaimRequest], notes: ClaimNotes | None = None, *, ttl_us: int
) -> Claimed:
    """Claim for those who are alike, as far as that is possible at once. Ask `claim_asked` for who got nothing.

    No lease is longer than its holder lives if it stays silent.
    """
    askers = [Asker(*ask.epoch) for ask in asks]
    first = asks[0]
    routes = sorted(first.turns[0].routes)
    leases = await claim_each(tx, askers, routes, first.tenant, ttl_us=ttl_us, notes=notes) if routes else []
    by_worker = {lease.worker: lease for lease in leases}
    given = [[by_worker[ask.epoch.worker]] if ask.epoch.worker in by_worker else [] for ask in asks]
    return Claimed(given, await _names(tx, leases), {}, {ask.epoch: ttl_us for ask in asks})


@short
async def claim_asked(
    tx: Transaction, asks: Sequence[ClaimRequest], notes: ClaimNotes | None = None, *, ttl_us: int
) -> Claimed:
    """Claim for each as many as it asks for and has places for. A worker may ask more than once.

    Who asks is alive. A heartbeat for all who wait leaves out the rows that claims have locked, and so a worker that
    never waits long would never be heard of.
    """
    epochs = {ask.epoch for ask in asks}
    holders = await tx.many(HoldersSql.lock_holders, workers=sorted({epoch.worker for epoch in epochs}))
    counted = await tx.many(HoldersSql.count_held, workers=[holder.seq for holder in holders])
    held = {row.worker: row.leases for row in counted}
    room = {holder.epoch: holder.slots - held.get(holder.seq, 0) for holder in holders if holder.epoch in epochs}
    missing = {epoch.worker for epoch in epochs} - {holder.seq for holder in holders}
    others = await tx.many(HoldersSql.find_holders, workers=sorted(missing)) if missing else []
    locked = frozenset(other.epoch for other in others) & epochs
    claimed = Claimed([[] for _ in asks], {}, room, {holder.epoch: holder.left_us for holder in holders}, locked)
    for turn in range(max((len(ask.turns) for ask in asks), default=0)):
        claimers = _claimers(asks, claimed, turn, ttl_us)
        for lease in await claim_for(tx, claimers, notes) if claimers else []:
            _give(lease, asks, claimed, turn)
    leases = [lease for given in claimed.leases for lease in given]
    claimed.names.update(await _names(tx, leases))
    quiet = {holder.seq for holder in holders if holder.left_us < ttl_us - ttl_us // 4}
    taken = Counter(lease.worker for lease in leases)
    await beat_many(tx, [OwnerBeat(seq, held.get(seq, 0) + taken[seq]) for seq in quiet | taken.keys()])
    return claimed


async def _names(tx: Transaction, leases: Sequence[Lease]) -> dict[JobId, str]:
    planned = [lease.id for lease in leases if lease.kind == KIND]
    rows = await tx.many(PlansSql.names_of_jobs, jobs=planned) if planned else []
    return {row.job: row.id for row in rows}


def _claimers(asks: Sequence[ClaimRequest], claimed: Claimed, turn: int, ttl_us: int) -> list[Claimer]:
    """Those who still want something, each with no more than its worker has room for."""
    room = dict(claimed.room)
    claimers: list[Claimer] = []
    for ask, given in zip(asks, claimed.leases, strict=True):
        n = min(ask.jobs - len(given), room.get(ask.epoch, 0))
        if n > 0 and turn < len(ask.turns) and ask.turns[turn].routes:
            claimers.append(Claimer(ask.epoch.worker, ask.turns[turn].routes, n, ttl_us, ask.tenant))
            room[ask.epoch] -= n
    return claimers


def _give(lease: Lease, asks: Sequence[ClaimRequest], claimed: Claimed, turn: int) -> None:
    """To the first who asked for it: several connections of one worker may wait for different queues."""
    for ask, given in zip(asks, claimed.leases, strict=True):
        named = turn < len(ask.turns) and ask.turns[turn].queue == lease.queue
        named = named and ask.tenant == lease.tenant
        if named and ask.epoch.worker == lease.worker and ask.epoch in claimed.room and len(given) < ask.jobs:
            claimed.room[ask.epoch] -= 1
            given.append(lease)
            return


log = logging.getLogger("holdfast.resp")

_PAUSE = 1.0  # seconds, while the store is away
_LOCKED = 10.0  # seconds that a pop which does not wait has patience with the row of its worker
_AGAIN = 0.005  # seconds, while others hold what there is; twice as long whenever a claim brings nothing
_TOGETHER = 32  # of those who wait, that one claim serves; it locks their workers' rows
_BEATS = 1_000  # workers whose heartbeats are one transaction
_REMEMBERED = 10_000
_SURE = 0.9  # of the time that a lease and its silent holder have: clocks differ a little
_LONGEST_SURE = 5.0  # seconds; not much, because a restored store may give the same token out again
_US = 1_000_000


class Identity(NamedTuple):
    """An epoch of a worker, and what it said when it began. Neither changes until the next one begins."""

    epoch: Epoch
    capabilities: frozenset[str]


@dataclass(eq=False, slots=True)
class PopWaiter:
    """Somebody who waits for jobs of these queues, the first first. `epoch`: the one its connection has begun."""

    id: str
    epoch: Epoch | None
    who: Identity
    queues: tuple[str, ...]
    count: int
    tenant: str = ""
    patient: bool = True
    fresh: bool = True  # nobody has looked for it yet
    served: bool = False  # a claim for it is under way
    over: bool = False  # its time is
    locked_since: float | None = None  # when somebody else was first seen to hold the row of its worker
    pause: float = _AGAIN  # before it is tried again then
    pausing: bool = False
    answer: asyncio.Future[list[PoppedJob]] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    takes: tuple[BrokerScope, ...] = ()

    def __post_init__(self) -> None:
        self.become(self.who)

    def become(self, who: Identity) -> None:
        """From now on, wait for this epoch of the worker."""
        self.who = who
        self.takes = tuple(workers.takes(queue, who.capabilities) for queue in self.queues)
        self.fresh = True


class Pops:
    def __init__(self, database: Database, options: RespOptions, settings: Settings, ports: Ports) -> None:
        self._database = database
        self._ports = ports
        self._clock = ports.clock
        self._beat_every = options.heartbeat.total_seconds()
        self._ttl_us = int(options.dead_after.total_seconds() * _US)
        self._waiting: dict[PopWaiter, None] = {}
        self._work = asyncio.Event()  # somebody may be served
        self._again = _AGAIN
        self._giving: set[int] = set()  # routes of the claims that brought something last
        self._unknown = False  # a hint has named a route that is not known yet
        self._routes = BrokerRoutes(database, settings)
        self._identities: dict[str, Identity] = {}
        self._lost_answers = LostAnswers()
        self._returning: set[asyncio.Task[None]] = set()
        self.look_wanted = asyncio.Event()  # hints may have been missed
        self.delivered = Deliveries()

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    async def begin(self) -> None:
        await self._routes.begin()
        await self._database.listen(self._hear)

    async def close(self) -> None:
        self._database.unlisten(self._hear)
        if self._returning:
            await asyncio.wait(self._returning)
        with contextlib.suppress(Unavailable):  # they come back when their leases end
            await self._release_unanswered()

    # Who somebody is.

    async def identify(self, id: str, epoch: Epoch | None) -> Identity:
        """The worker's epoch, from memory if it is known: the claim tests it. `NotRegistered` if it has none."""
        who = self._identities.get(id)
        if who is None or epoch not in (None, who.epoch):
            row = await self._database.transact(workers.current, id, epoch)
            who = Identity(row.epoch, workers.capabilities_of(row))
            self.introduce(id, who)
        return who

    def introduce(self, id: str, who: Identity) -> None:
        """The worker has begun this epoch. Those who wait for it without one of their own wait for this one."""
        if len(self._identities) >= _REMEMBERED:
            self._identities.clear()
        if self._identities.get(id) == who:
            return
        self._identities[id] = who
        for waiter in self._waiting:
            if waiter.id == id and waiter.who.epoch != who.epoch:
                if waiter.epoch is None:
                    waiter.become(who)
                waiter.fresh = True  # the next claim refuses it if it stands for an older epoch
                self._work.set()

    # Those who wait.

    async def take(self, waiter: PopWaiter, seconds: float | None) -> list[PoppedJob]:
        """Jobs for somebody within this time: None waits for ever, 0 does not wait. Empty: there were none."""
        waiter.patient = seconds != 0
        self._waiting[waiter] = None
        self._work.set()
        timer = asyncio.get_running_loop().call_later(seconds, self._time_is_over, waiter) if seconds else None
        try:
            return await waiter.answer
        except asyncio.CancelledError:
            if waiter.answer.done() and not waiter.answer.cancelled() and waiter.answer.exception() is None:
                self.give_back(waiter.answer.result())
            raise
        finally:
            self._waiting.pop(waiter, None)
            if timer is not None:
                timer.cancel()

    @staticmethod
    def _time_is_over(waiter: PopWaiter) -> None:
        waiter.patient, waiter.over = False, True
        if not waiter.served and not waiter.answer.done():  # else a claim for it is under way, and says what it brings
            waiter.answer.set_result([])

    def freed(self, worker: str) -> None:
        """A worker has ended a job here: it may have a place for another."""
        for waiter in self._waiting:
            if waiter.id == worker:
                waiter.fresh = True
                self._work.set()

    def deliver(self, popped: Sequence[PoppedJob], client: Client) -> None:
        """Their replies are going out over this connection."""
        self.delivered.add(popped, client.worker_id, client.id)

    def give_back(self, popped: Sequence[PoppedJob]) -> None:
        """Release what reached nobody."""
        if popped:
            task = asyncio.get_running_loop().create_task(self._give_back([each.lease for each in popped]))
            self._returning.add(task)
            task.add_done_callback(self._returning.discard)

    async def _release_unanswered(self) -> None:
        """Give back what claims took whose answers were lost: no client has received it."""
        if given := await self._lost_answers.give_back(self._database):
            log.warning("%s went back: the answer to a claim was lost", plural(given, "job"))

    async def _give_back(self, leases: Sequence[Lease]) -> None:
        parents = sorted({lease.parent for lease in leases if lease.parent is not None})
        try:
            await self._database.transact(complete_and_settle, [release(lease) for lease in leases], parents)
        except Unavailable as problem:
            back = "comes back when its lease ends" if len(leases) == 1 else "come back when their leases end"
            log.warning("%s %s: %s", plural(len(leases), "job"), back, problem)

    # When there may be something.

    def _hear(self, note: str) -> None:
        subject, _, rest = note.partition(" ")
        if subject in ("route", LOOKED):
            routes = [int(part) for part in rest.split(",") if part.isdigit()]
            self._unknown = self._unknown or not self._routes.knows(routes)
            if self._waiting and (self._routes.heat(routes) or self._unknown):
                self._again = _AGAIN
                self._work.set()
        elif subject in ("", LOOK):
            self.look_wanted.set()

    def served(self) -> list[int]:
        """The routes for which somebody waits."""
        return sorted(set[int]().union(*(self._routes.of(takes) for takes in self._awaited())))

    def _awaited(self) -> set[BrokerScope]:
        return {takes for waiter in self._waiting for takes in waiter.takes}

    async def looked(self, sight: Observation) -> None:
        """A look has shown this: it finds whatever a hint could have said."""
        self._routes.keep(self._awaited())
        if await self._routes.after(sight, self._clock.monotonic()):
            self._work.set()
        if sight.pending and self._waiting:
            served = self.served()
            self._routes.cool(served, await self._database.transact(heads, served))
            self._work.set()

    # Claims.

    async def run(self) -> None:
        """Claim for those who wait, until cancelled."""
        while True:
            await self._work.wait()
            self._work.clear()
            try:
                await self._release_unanswered()
                if self._unknown:
                    self._unknown = False
                    await self._routes.learn()
                for waiters in self._chunks():
                    await self._serve(waiters)
            except Exception as problem:  # the edge of those who wait: they wait on
                if isinstance(problem, Unavailable):
                    self._ports.try_again(problem)
                else:
                    log.exception("cannot look for jobs")
                self._refuse(problem)
                await self._clock.sleep(_PAUSE)
                self._work.set()

    def _refuse(self, problem: Exception) -> None:
        """Nobody could look: who does not wait is told so."""
        for waiter in self._waiting:
            if not waiter.patient and not waiter.answer.done():
                waiter.answer.set_exception(copy.copy(problem))

    def _chunks(self) -> Iterator[list[PopWaiter]]:
        """Those for whom there may be something, some at a time, each once."""
        chunk: list[PopWaiter] = []
        for waiter in [*self._waiting]:
            if not waiter.answer.done() and not waiter.pausing and (waiter.fresh or self._is_hot(waiter)):
                chunk.append(waiter)
            if len(chunk) == _TOGETHER:
                yield chunk
                chunk = []
        if chunk:
            yield chunk

    def _is_hot(self, waiter: PopWaiter) -> bool:
        hot = self._routes.hot.keys()
        return any(not hot.isdisjoint(self._routes.of(takes)) for takes in waiter.takes)

    async def _serve(self, waiters: Sequence[PopWaiter]) -> None:
        routes = {takes: frozenset(self._routes.of(takes)) for waiter in waiters for takes in waiter.takes}
        asks = [_ask(waiter, routes) for waiter in waiters]
        for waiter in waiters:
            waiter.served, waiter.fresh = True, False
        asked_at = self._clock.monotonic()
        try:
            with self._lost_answers.claiming() as notes:
                claimed = await self._claim(asks, notes)
                notes.answered(lease.held for given in claimed.leases for lease in given)
        except BaseException:
            for waiter in waiters:
                waiter.fresh = True
            raise
        finally:
            for waiter in waiters:
                waiter.served = False
        for waiter, ask, leases in zip(waiters, asks, claimed.leases, strict=True):
            if leases:
                left_us = claimed.left_us[ask.epoch]
                self._answer(waiter, [_popped(lease, ask.epoch, claimed.names, asked_at, left_us) for lease in leases])
        if self._lost_answers:
            self._work.set()  # before the next claim they go back
        await self._probe(set[int]().union(*routes.values()), asks, claimed)
        await self._turn_away([waiter for waiter in waiters if not waiter.answer.done()], claimed)

    async def _claim(self, asks: Sequence[ClaimRequest], notes: ClaimNotes) -> Claimed:
        """At once where that is possible, and step by step for the others."""
        if not is_alike(asks) or self._giving.isdisjoint(asks[0].turns[0].routes):
            return await self._database.transact(claim_asked, asks, notes, ttl_us=self._ttl_us)
        claimed = await self._database.transact(claim_at_once, asks, notes, ttl_us=self._ttl_us)
        left = [ask for ask, given in zip(asks, claimed.leases, strict=True) if not given]
        if not left:
            return claimed
        return claimed.completed(left, await self._database.transact(claim_asked, left, notes, ttl_us=self._ttl_us))

    async def _turn_away(self, waiters: Iterable[PopWaiter], claimed: Claimed) -> None:
        """They got nothing: somebody holds the row of their worker, or it has ended, or there is no job."""
        left: list[PopWaiter] = []
        for waiter in waiters:
            if waiter.who.epoch in claimed.locked:
                self._ask_again_later(waiter)
                continue
            waiter.locked_since, waiter.pause = None, _AGAIN
            left.append(waiter)
            if waiter.who.epoch not in claimed.room:
                await self._identify_again(waiter)
        await self._tell_nothing([waiter for waiter in left if not waiter.patient and not waiter.answer.done()])

    def _answer(self, waiter: PopWaiter, popped: list[PoppedJob]) -> None:
        if waiter.answer.done():  # it has left
            self.give_back(popped)
        else:
            waiter.answer.set_result(popped)
            self._waiting.pop(waiter, None)

    def _ask_again_later(self, waiter: PopWaiter) -> None:
        """Somebody else holds the row of its worker. Nobody waits for that but this one."""
        now = self._clock.monotonic()
        since = waiter.locked_since = now if waiter.locked_since is None else waiter.locked_since
        if waiter.over:
            self._answer(waiter, [])
        elif not waiter.patient and now - since >= _LOCKED:
            waiter.answer.set_exception(StoreBusy(f"somebody holds the row of worker {waiter.id} for too long."))
        else:
            waiter.pausing = True
            asyncio.get_running_loop().call_later(waiter.pause, self._ask_again, waiter)
            waiter.pause = min(2 * waiter.pause, _PAUSE)

    def _ask_again(self, waiter: PopWaiter) -> None:
        waiter.pausing, waiter.fresh = False, True
        self._work.set()

    async def _probe(self, asked: Collection[int], asks: Sequence[ClaimRequest], claimed: Claimed) -> None:
        """A short answer does not mean that nothing is left: others may hold what is there, or it is of a tenant for
        whom nobody waits."""
        self._again = _AGAIN if any(claimed.leases) else min(self._again * 2, _PAUSE)
        self._giving = self._giving.union(asked) if any(claimed.leases) else self._giving.difference(asked)
        hot = sorted(self._routes.hot.keys() & asked)
        answers = zip(asks, claimed.leases, strict=True)
        if hot and any(len(given) < ask.jobs and claimed.room.get(ask.epoch, 0) for ask, given in answers):
            self._routes.cool(hot, await self._database.transact(heads, hot))
            if not self._routes.hot.keys().isdisjoint(hot):
                asyncio.get_running_loop().call_later(self._again, self._work.set)

    async def _identify_again(self, waiter: PopWaiter) -> None:
        """Its worker may take nothing: it was given up, has begun another epoch elsewhere, or drains."""
        self._identities.pop(waiter.id, None)
        try:
            who = await self.identify(waiter.id, waiter.epoch)
        except workers.NotRegistered as refused:
            if not waiter.answer.done():
                waiter.answer.set_exception(refused)
            return
        if waiter.who.epoch != who.epoch:
            waiter.become(who)
            self._work.set()

    async def _tell_nothing(self, waiters: Sequence[PopWaiter]) -> None:
        """To those who do not wait. Nobody is told that there is nothing before it was asked on every route."""
        if not waiters:
            return
        asked = {waiter: self._width(waiter) for waiter in waiters}
        await self._routes.learn()
        for waiter in waiters:
            if waiter.fresh or self._width(waiter) > asked[waiter]:
                waiter.fresh = True
                self._work.set()
            else:
                self._answer(waiter, [])

    def _width(self, waiter: PopWaiter) -> int:
        return sum(len(self._routes.of(takes)) for takes in waiter.takes)

    # Heartbeats.

    async def beat_always(self) -> None:
        """A worker that waits here is alive: its connection is."""
        while True:
            await self._clock.sleep(self._beat_every / 2)
            try:
                await self.beat()
            except Unavailable as problem:
                self._ports.try_again(problem)
            except Exception:  # the edge of a task that all who wait need: it continues
                log.exception("heartbeats of workers that wait could not be sent")

    async def beat(self) -> None:
        waiting = {waiter.who.epoch: waiter.id for waiter in self._waiting}
        for begin in range(0, len(waiting), _BEATS):
            some = dict([*waiting.items()][begin : begin + _BEATS])
            delivered = self.delivered.of(some.values())
            beats = await self._database.transact(
                workers.beat_all, sorted(some), ttl_us=self._ttl_us, delivered=delivered
            )
            self.note_heartbeat(delivered, beats)
            for waiter in self._waiting:
                if waiter.who.epoch in some and waiter.who.epoch not in beats.alive:
                    waiter.fresh = True  # the next claim says why
                    self._work.set()

    def note_heartbeat(self, asked: Collection[LeaseRef], beats: workers.Beats) -> None:
        """A heartbeat has said what these workers hold: what else went out to them has ended, or was lost."""
        alive = {epoch.worker for epoch in beats.alive}
        self.delivered.forget_others([held for held in asked if held.worker in alive], beats.held)


def _ask(waiter: PopWaiter, routes: Mapping[BrokerScope, frozenset[int]]) -> ClaimRequest:
    turns = (QueueTurn(queue, routes[takes]) for queue, takes in zip(waiter.queues, waiter.takes, strict=True))
    return ClaimRequest(waiter.who.epoch, waiter.count, tuple(turns), waiter.tenant)


def _popped(lease: Lease, epoch: Epoch, names: Mapping[JobId, str], asked_at: float, left_us: int) -> PoppedJob:
    """`left_us`: for how long its holder counts as alive if it stays silent."""
    seconds = min(lease.lease_until - lease.claimed_at, left_us) / _US
    sure_until = asked_at + min(_SURE * seconds, _LONGEST_SURE)
    element = jobs.raw_bytes(json.loads(lease.payload)) if lease.kind == jobs.RAW else None
    public = names.get(lease.id) or plans.public_id(lease.id)
    return PoppedJob(lease, public, epoch.incarnation, element, sure_until)
