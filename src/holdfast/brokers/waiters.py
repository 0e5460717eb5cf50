"""Waiters: calls that wait for a lease, and how they are served together.

One claim is under way at a time; calls that come meanwhile are served by the next. So a thousand parked calls cost one
claim when something arrives for them, and nothing while nothing does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.clock import Ports
from holdfast.kernel.brokers import Claimer, LostAnswers, claim_for
from holdfast.kernel.claim import heads
from holdfast.kernel.database import Database
from holdfast.kernel.routes import serves
from holdfast.kernel.rows import Lease, Observation, Route
from holdfast.kernel.workers import learn_routes
from holdfast.settings import Settings

# Which routes the brokers of a process serve, and on which of them there may be something to claim.
#
# Brokers that take the same jobs share one list. A route is hot when a hint or a probe has named it, until a claim on
# it
# comes back short.


class BrokerScope(NamedTuple):
    """What a broker takes."""

    queues: tuple[str, ...] | None
    capabilities: frozenset[str]


class BrokerRoutes:
    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._refresh = settings.route_refresh.total_seconds()
        self._known: dict[int, Route] = {}
        self._served: dict[BrokerScope, set[int]] = {}
        self._changed_at = 0
        self._learned_at = float("-inf")
        self.hot: dict[int, None] = {}

    @property
    def served(self) -> list[int]:
        return sorted(set[int]().union(*self._served.values()))

    @property
    def due_at(self) -> float:
        return self._learned_at + self._refresh

    def of(self, takes: BrokerScope) -> set[int]:
        """The routes on which somebody who takes this is served."""
        if takes not in self._served:
            self._served[takes] = {route.id for route in self._known.values() if serves(route, *takes)}
        return self._served[takes]

    def keep(self, wanted: Collection[BrokerScope]) -> None:
        """Forget the lists that nobody needs any more."""
        self._served = {takes: routes for takes, routes in self._served.items() if takes in wanted}

    def forget(self) -> None:
        self._learned_at = float("-inf")
        self._changed_at = 0

    async def begin(self) -> None:
        await self._learn(0)

    async def after(self, sight: Observation, now: float) -> bool:
        """Read what a look showed to be new; True when there is more to serve than before."""
        changed_at = sight.routes_changed or 0
        if now - self._learned_at >= self._refresh:
            self._learned_at = now
            return await self._learn(0, changed_at)
        return changed_at > self._changed_at and await self._learn(self._changed_at, changed_at)

    async def learn(self) -> None:
        """Read what is new, before somebody is told that there is nothing."""
        await self._learn(self._changed_at)

    def knows(self, routes: Collection[int]) -> bool:
        return all(route in self._known for route in routes)

    def heat(self, routes: Iterable[int]) -> bool:
        """Mark routes as worth asking; False when nobody here serves one of them."""
        ours = [route for route in routes if any(route in served for served in self._served.values())]
        self.hot.update(dict.fromkeys(ours))
        return bool(ours)

    def cool(self, asked: Iterable[int], heads: Sequence[int]) -> None:
        """Of the routes that were asked for, only these have something."""
        for route in asked:
            self.hot.pop(route, None)
        self.hot.update(dict.fromkeys(heads))

    async def _learn(self, since: int, changed_at: int | None = None) -> bool:
        new = [r for r in await learn_routes(self._database, since=since) if r.id not in self._known]
        self._known.update({route.id: route for route in new})
        self._changed_at = max(self._changed_at, changed_at or 0)
        found = False
        for takes, served in self._served.items():
            ours = {route.id for route in new if serves(route, *takes)}
            served.update(ours)
            self.hot.update(dict.fromkeys(ours))
            found = found or bool(ours)
        return found


_TOGETHER = 200  # calls that one claim serves
_MOST_ROUTES = 32  # that a call asks for by itself; of more, a probe says first which have something
_TRIES = 3  # of a call that does not wait, while there is something that it does not get: others may hold it


@dataclass(eq=False)
class Waiter:
    """One call for up to `n` leases. `room` says for how many its broker has slots now, `reserve` keeps some free."""

    worker: Callable[[], int]
    takes: BrokerScope
    n: int
    ttl_us: int
    room: Callable[[], int]
    reserve: Callable[[int], None]
    patient: bool
    answer: asyncio.Future[list[Lease]]
    fresh: bool = field(default=True, init=False)  # nobody has looked for it yet
    served: bool = field(default=False, init=False)  # a claim for it is under way
    tries: int = field(default=_TRIES, init=False)  # that are left, once it does not wait


class Waiters:
    def __init__(
        self,
        database: Database,
        ports: Ports,
        routes: BrokerRoutes,
        *,
        accept: Callable[[Lease, float], object],
        give_back: Callable[[Lease], None],
        returned: Callable[[int], None],
    ) -> None:
        """`accept` is told each lease before its call is answered, `give_back` is given those whose call has gone, and
        `returned` is told how many jobs went back because the answer to a claim was lost."""
        self._database = database
        self._ports = ports
        self._routes = routes
        self._accept = accept
        self._give_back = give_back
        self._returned = returned
        self.lost_answers = LostAnswers()
        self._waiting: dict[Waiter, None] = {}
        self.work = asyncio.Event()  # somebody may be served
        self.probed = True

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(self, waiter: Waiter, seconds: float) -> list[Lease]:
        """What the store gives within so many seconds; with 0, what it gives at once."""
        self._waiting[waiter] = None
        self.work.set()
        try:
            return await self._answer_to(waiter, seconds)
        except asyncio.CancelledError:
            answer = waiter.answer
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                for lease in answer.result():  # it came in the same moment, and nobody reads it
                    self._give_back(lease)
            raise
        finally:
            self._waiting.pop(waiter, None)
            waiter.answer.cancel()

    async def _answer_to(self, waiter: Waiter, seconds: float) -> list[Lease]:
        try:
            async with asyncio.timeout(seconds or None):
                return await asyncio.shield(waiter.answer)
        except TimeoutError:
            # A claim for it may be under way, and then says what it brought, or has just said it: after a process has
            # stood still its time is over in the moment in which the answer comes.
            waiter.patient = False
            return await asyncio.shield(waiter.answer) if waiter.served or waiter.answer.done() else []

    def dismiss(self) -> None:
        """Answer all calls: there will be nothing more."""
        for waiter in list(self._waiting):
            _answer(waiter, [])

    async def run(self) -> None:
        while True:
            await self.work.wait()
            self.work.clear()
            try:
                await self.release_unanswered()
                await self._look_around()
                while ready := self._ready():
                    await self._serve(ready)
            except Exception as problem:
                self._refuse(problem)
                raise

    async def release_unanswered(self) -> None:
        if given := await self.lost_answers.give_back(self._database):
            self._returned(given)

    def _refuse(self, problem: Exception) -> None:
        """The store did not answer: who does not wait is told so, the others wait on."""
        for waiter in self._waiting:
            if not waiter.patient and not waiter.answer.done():
                waiter.answer.set_exception(problem)
        self.work.set()

    async def _look_around(self) -> None:
        """For those who wait for routes that nobody has named: a poll has seen that there is something."""
        cold = {
            route for w in self._waiting if not w.fresh for route in self._routes.of(w.takes)
        } - self._routes.hot.keys()
        if cold:
            self._routes.cool(cold, await self._database.transact(heads, sorted(cold)))

    def _ready(self) -> list[tuple[Waiter, int]]:
        """Those for whom there may be something, each with how many it may have. Answers others that do not wait."""
        ready: list[tuple[Waiter, int]] = []
        promised: dict[int, int] = {}
        for waiter in list(self._waiting):
            if len(ready) == _TOGETHER:
                break
            worker, hot = waiter.worker(), not self._routes.hot.keys().isdisjoint(self._routes.of(waiter.takes))
            wants = min(waiter.n, waiter.room() - promised.get(worker, 0))
            if wants > 0 and (waiter.fresh or hot) and not waiter.answer.done():
                promised[worker] = promised.get(worker, 0) + wants
                ready.append((waiter, wants))
            elif not waiter.patient:
                _answer(waiter, [])
        return ready

    async def _serve(self, ready: Sequence[tuple[Waiter, int]]) -> None:
        for waiter, wants in ready:
            waiter.served = True
            waiter.reserve(wants)
        sent_at = self._ports.clock.monotonic()
        try:
            claimers = await self._claimers(ready)
            with self.lost_answers.claiming() as notes:
                asked = [claimer for claimer in claimers if claimer.routes]
                leases = await self._database.transact(claim_for, asked, notes)
                notes.answered(lease.held for lease in leases)
        finally:
            for waiter, wants in ready:
                waiter.served = waiter.fresh = False
                waiter.reserve(-wants)
        for lease in leases:
            self._accept(lease, sent_at)
        if self.lost_answers:
            self.work.set()  # before the next claim they go back
        self._hand_out([(waiter, claimer) for (waiter, _), claimer in zip(ready, claimers, strict=True)], leases)
        if len(leases) < sum(claimer.n for claimer in claimers):
            await self._probe({route for claimer in claimers for route in claimer.routes}, idle=not leases)
        if any(not waiter.patient and not waiter.answer.done() for waiter, _ in ready):
            await self._routes.learn()  # nobody is told that there is nothing before it was asked on every route

    async def _claimers(self, ready: Sequence[tuple[Waiter, int]]) -> list[Claimer]:
        wide = [routes for w, _ in ready if w.fresh and len(routes := self._routes.of(w.takes)) > _MOST_ROUTES]
        if wide:
            asked = set[int]().union(*wide)
            self._routes.cool(asked, await self._database.transact(heads, sorted(asked)))
        claimers: list[Claimer] = []
        for waiter, wants in ready:
            routes = self._routes.of(waiter.takes)
            if not waiter.fresh or len(routes) > _MOST_ROUTES:
                routes = set([route for route in self._routes.hot if route in routes][:_MOST_ROUTES])
            claimers.append(Claimer(waiter.worker(), frozenset(routes), wants, waiter.ttl_us))
        return claimers

    async def _probe(self, asked: set[int], *, idle: bool) -> None:
        """A short answer does not mean that nothing is left; others may hold what is there."""
        self._routes.cool(asked, await self._database.transact(heads, sorted(asked)) if asked else [])
        if idle and not self._routes.hot.keys().isdisjoint(asked):
            await self._ports.clock.sleep(0.002 + 0.004 * self._ports.random.random())

    def _hand_out(self, ready: Sequence[tuple[Waiter, Claimer]], leases: Sequence[Lease]) -> None:
        left: dict[int, list[Lease]] = {}
        for lease in leases:
            left.setdefault(lease.worker, []).append(lease)
        for waiter, claimer in ready:
            mine = left.get(claimer.worker, [])
            given, mine[: claimer.n] = mine[: claimer.n], []
            waiter.tries -= not waiter.patient
            if (given or not waiter.tries) and not _answer(waiter, given):
                for lease in given:
                    self._give_back(lease)


def _answer(waiter: Waiter, leases: list[Lease]) -> bool:
    """False when nobody waits for it any more."""
    if waiter.answer.done():
        return False
    waiter.answer.set_result(leases)
    return True
