"""Claims: asking the store for what there is room for, group by group, the hot routes first."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from holdfast.clock import Ports
from holdfast.durations import microseconds
from holdfast.kernel.claim import LOOKED, claim, heads, read_note
from holdfast.kernel.database import Database, Transaction, urgent
from holdfast.kernel.lanes import claim_in_lanes
from holdfast.kernel.routes import is_laned, serves
from holdfast.kernel.rows import Lease, Observation, Route
from holdfast.kernel.workers import learn_routes
from holdfast.settings import Settings
from holdfast.workers.definitions import Registry
from holdfast.workers.duties import Duties
from holdfast.workers.layer import Layer, hear
from holdfast.workers.poll import Poller
from holdfast.workers.telemetry import WorkerTelemetry

# Which routes a worker serves, and which of them are worth asking now.
#
# A claim probes at most 32 hot routes: those that lately gave work or were named by a wake-up. A probe over all
# served routes refreshes them, whenever a claim comes back short.


Claim = Callable[[Transaction, int, Sequence[int], int, int], Awaitable[list[Lease]]]
Turn = tuple[str, Claim, list[int]]

MOST_HOT = 32


class RouteTable:
    def __init__(
        self,
        queues: Collection[str] | None,
        capabilities: Collection[str],
        slots_of: Callable[[Iterable[str]], str] = lambda _: "jobs",
    ) -> None:
        """`slots_of` says whose slots the jobs of a route take, by its capabilities."""
        self._queues = queues
        self._capabilities = frozenset(capabilities)
        self._slots_of = slots_of
        self._refused: dict[int, Route] = {}
        self._slots: dict[int, str] = {}
        self._known: set[int] = set()
        self._served: dict[int, None] = {}
        self._laned: set[int] = set()
        self._hot: dict[int, None] = {}
        self._lanes_first = False
        self.changed_at = 0

    @property
    def served(self) -> list[int]:
        return list(self._served)

    @property
    def hot(self) -> list[int]:
        return list(self._hot)

    def turns(self) -> list[Turn]:
        """The hot routes by slots and by how they are claimed, without lanes or with. Who comes first takes turns."""
        sorts: dict[tuple[str, bool], list[int]] = {}
        for route in self._hot:
            sorts.setdefault((self._slots[route], route in self._laned), []).append(route)
        turns: list[Turn] = [
            (slots, claim_in_lanes if laned else claim, routes) for (slots, laned), routes in sorted(sorts.items())
        ]
        self._lanes_first = not self._lanes_first
        return turns[::-1] if self._lanes_first else turns

    def learn(self, routes: Iterable[Route], changed_at: int | None = None) -> bool:
        """Remember routes read from the store, and serve those this worker can; True when there are new ones."""
        before = len(self._served)
        for route in routes:
            if route.id in self._known:
                continue
            self._known.add(route.id)
            self._judge(route)
        self.changed_at = max(self.changed_at, changed_at or 0)
        return len(self._served) > before

    def offer(self, capabilities: Collection[str]) -> None:
        """The worker can do more than it could: routes that it had to leave to others may be its own now."""
        if not self._capabilities.issuperset(capabilities):
            self._capabilities |= set(capabilities)
            for route in list(self._refused.values()):
                self._judge(route)

    def _judge(self, route: Route) -> None:
        if not serves(route, self._queues, self._capabilities):
            self._refused[route.id] = route
            return
        self._refused.pop(route.id, None)
        self._served[route.id] = None
        self._slots[route.id] = self._slots_of(json.loads(route.capabilities))
        if is_laned(route):
            self._laned.add(route.id)

    def knows(self, routes: Iterable[int]) -> bool:
        return all(route in self._known for route in routes)

    def serves(self, routes: Iterable[int]) -> bool:
        return any(route in self._served for route in routes)

    def heat(self, routes: Iterable[int]) -> bool:
        """Mark routes as worth asking; False when none of them is served here."""
        ours = [route for route in routes if route in self._served]
        for route in ours:
            self._hot.pop(route, None)
            self._hot[route] = None
        self._trim()
        return bool(ours)

    def cool(self, heads: Sequence[int]) -> None:
        """Keep hot what has work, the first of them if there are too many: the others' turn comes as these move on."""
        self._hot = dict.fromkeys([route for route in heads if route in self._served][:MOST_HOT])

    def _trim(self) -> None:
        while len(self._hot) > MOST_HOT:
            del self._hot[next(iter(self._hot))]


# Which routes there are: read from the store whenever it has new ones, and all of them now and then.


class KnownRoutes:
    def __init__(
        self,
        database: Database,
        settings: Settings,
        registry: Registry,
        routing: RouteTable,
        capabilities: Callable[[], Sequence[str]],
    ) -> None:
        """`capabilities` says what the worker can do by now."""
        self._database = database
        self._settings = settings
        self._registry = registry
        self._routing = routing
        self._capabilities = capabilities
        self._learned_at = float("-inf")

    @property
    def due_at(self) -> float:
        """When all of them are to be read again, by our own clock."""
        return self._learned_at + self._settings.route_refresh.total_seconds()

    async def begin(self) -> None:
        await self._learn(0)

    def forget(self) -> None:
        """The clock by which new routes are known has gone back: read all of them at the next look."""
        self._learned_at = float("-inf")
        self._routing.changed_at = 0

    async def after(self, sight: Observation, now: float) -> bool:
        """Read what a look showed to be new; True when this worker serves some that it did not serve before."""
        changed_at = sight.routes_changed or 0
        if now - self._learned_at >= self._settings.route_refresh.total_seconds():
            self._learned_at = now
            return await self._learn(0, changed_at)
        return changed_at > self._routing.changed_at and await self._learn(self._routing.changed_at, changed_at)

    async def _learn(self, since: int, changed_at: int | None = None) -> bool:
        routes = await learn_routes(self._database, since=since)
        for layer in self._registry.layers if self._registry.adopts else ():
            await layer.adopt(self._database, routes)
        self._routing.offer(self._capabilities())  # what was declared since counts too
        return self._routing.learn(routes, changed_at)


_TRIES = 3  # claims in a row, before those who hold what there is seem to take their time
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.25  # seconds


class Claimed(NamedTuple):
    """What one claim brought."""

    leases: list[Lease]
    sent_at: float  # this process's clock, before the claim was sent
    slots: str  # the group that takes them


class ClaimLoop:
    def __init__(
        self,
        database: Database,
        ports: Ports,
        settings: Settings,
        routing: RouteTable,
        telemetry: WorkerTelemetry,
    ) -> None:
        self._database = database
        self._ports = ports
        self._settings = settings
        self._routing = routing
        self._telemetry = telemetry
        self._ttl_us = microseconds(settings.lease_ttl)
        self._probed_at = float("-inf")
        self._filled = False  # the last claim brought as many as it asked for: nobody has looked at the other routes
        self._seen_elsewhere = False
        self._fruitless = 0  # claims in a row that brought nothing though there is something: others hold it
        self.again = False  # it is worth asking again at once
        self.full = False  # the last claim left something for want of room
        self.empty = False  # the last claim left nothing that this worker could have taken

    @property
    def probed(self) -> bool:
        return self._probed_at > float("-inf")

    async def take(self, worker: int, room: Callable[[str], int], hold: Callable[[Claimed], None]) -> None:
        """Claim what there is room for; `room` says how many more a group of slots may take. `hold` is given whatever
        one claim brings, before the next is made. Afterwards `again`, `full` and `empty` say what is left.

        It calls `hold` rather than yield: a generator that a dead loop leaves behind would be closed by another task.
        """
        self.again = self.empty = False
        if self._seen_elsewhere or self._is_probe_due():
            await self._probe()  # however busy the hot routes are, the others get their look
        self._filled = False
        taken, open_turns = 0, self._open_turns(room)
        for slots, operation, routes in open_turns:
            n = min(room(slots), self._settings.batch)
            if n <= 0:
                continue
            sent_at = self._ports.clock.monotonic()
            with urgent():
                leases = await self._database.transact(operation, worker, routes, n, self._ttl_us)
            self._telemetry.timed("claim.done", sent_at, worker, jobs=len(leases))
            if leases:
                hold(Claimed(leases, sent_at, slots))
            taken += len(leases)
            self._filled = self._filled or len(leases) == n
        if self.full and not open_turns and self._routing.hot:
            return
        if self._filled:
            self.again = True
            return
        await self._probe()
        self.empty = not self._routing.hot
        waiting = self._open_turns(room)
        self._fruitless = self._fruitless + 1 if waiting and open_turns and not taken else 0
        if self._fruitless > _TRIES:
            return
        if self._fruitless:  # others hold what we saw: let them finish
            await self._ports.clock.sleep(0.002 + 0.004 * self._ports.random.random())
        self.again = bool(waiting)

    @property
    def pause(self) -> float | None:
        """Seconds after which to ask again, though nothing says so: somebody holds what could be claimed."""
        late = self._fruitless - _TRIES
        return min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(late, 10)) if late > 0 else None

    def look_around(self) -> None:
        """Before the next claim, ask which routes have work: somebody has seen some."""
        self._seen_elsewhere = True

    def _is_probe_due(self) -> bool:
        """Not where a claim that leaves room follows at once: it ends with a probe anyway."""
        if self._routing.hot and not self._filled and not self.full:
            return False
        return self._ports.clock.monotonic() - self._probed_at >= self._settings.poll_interval.total_seconds()

    def _open_turns(self, room: Callable[[str], int]) -> list[Turn]:
        """The hot routes of groups that have room; `full` when there are others."""
        turns = self._routing.turns()
        roomy = [turn for turn in turns if room(turn[0]) > 0]
        self.full = len(roomy) < len(turns)
        return roomy

    async def _probe(self) -> None:
        """Which of the served routes have work now, the best first."""
        self._probed_at = self._ports.clock.monotonic()
        self._seen_elsewhere = False
        with urgent():
            first = await self._database.transact(heads, self._routing.served)
        self._routing.cool(first)


# Hints: what a worker does about a hint. A hint may be lost, late or wrong; it only makes the worker look sooner.


class Hints:
    def __init__(
        self,
        routing: RouteTable,
        claims: ClaimLoop,
        polling: Poller,
        duties: Duties,
        *,
        layers: Sequence[Layer],
        work: asyncio.Event,
        cancelled: Callable[[list[int]], None],
    ) -> None:
        """`work` is set when there may be something to claim; `cancelled` is told which workers should renew now."""
        self._routing = routing
        self._claims = claims
        self._polling = polling
        self._duties = duties
        self._layers = layers
        self._work = work
        self._cancelled = cancelled

    def take(self, note: str) -> None:
        subject, _, rest = note.partition(" ")
        numbers = [int(part) for part in rest.split(",") if part.isdigit()]
        if subject == "route":
            self._duties.stirred = True
            self._heat(numbers)
        elif subject == LOOKED:
            if not self._routing.hot:
                self._heat(numbers)
            elif self._routing.serves(numbers):  # the hot ones have an order, which this list would spoil
                self._claims.look_around()
                self._work.set()
            self._polling.heard(read_note(rest))
        elif subject == "cancel":
            self._cancelled(numbers)
        elif not hear(self._layers, subject, rest):
            self._polling.wanted.set()
            self._work.set()

    def _heat(self, routes: Sequence[int]) -> None:
        """There may be something to claim there."""
        if not self._routing.knows(routes):
            self._polling.wanted.set()
        if self._routing.heat(routes):
            self._work.set()
