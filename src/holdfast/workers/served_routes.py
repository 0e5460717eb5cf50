"""Which routes a worker serves, and which of them are worth asking now.

A claim probes at most 32 hot routes: those that lately gave work or were named by a wake-up. A probe over all
served routes refreshes them, whenever a claim comes back short.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

from holdfast.kernel.claim import claim
from holdfast.kernel.database import Transaction
from holdfast.kernel.lanes import claim_in_lanes
from holdfast.kernel.routes import is_laned, serves
from holdfast.kernel.rows import Lease, Route

Claim = Callable[[Transaction, int, Sequence[int], int, int], Awaitable[list[Lease]]]
Turn = tuple[str, Claim, list[int]]

MOST_HOT = 32


class Routing:
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
