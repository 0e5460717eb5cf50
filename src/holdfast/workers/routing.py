"""Which routes a worker serves, and which of them are worth asking now.

A claim probes at most 32 hot routes: those that lately gave work or were named by a wake-up. A probe over all
served routes refreshes them, whenever a claim comes back short.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

from holdfast.kernel.claim import claim
from holdfast.kernel.database import Transaction
from holdfast.kernel.lanes import claim_in_lanes
from holdfast.kernel.records import Lease, Route
from holdfast.kernel.routes import is_laned, serves

Claim = Callable[[Transaction, int, Sequence[int], int, int], Awaitable[list[Lease]]]

MOST_HOT = 32


class Routing:
    def __init__(self, queues: Collection[str] | None, capabilities: Collection[str]) -> None:
        self._queues = queues
        self._capabilities = frozenset(capabilities)
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

    def turns(self) -> list[tuple[Claim, list[int]]]:
        """The hot routes by how they are claimed: those without lanes, those with. Who comes first takes turns."""
        plain = [route for route in self._hot if route not in self._laned]
        laned = [route for route in self._hot if route in self._laned]
        turns: list[tuple[Claim, list[int]]] = [(claim, plain), (claim_in_lanes, laned)]
        self._lanes_first = not self._lanes_first
        return [turn for turn in (reversed(turns) if self._lanes_first else turns) if turn[1]]

    def learn(self, routes: Iterable[Route], changed_at: int | None = None) -> bool:
        """Remember routes read from the store, and serve those this worker can; True when there are new ones."""
        before = len(self._served)
        for route in routes:
            if route.id in self._known:
                continue
            self._known.add(route.id)
            if serves(route, self._queues, self._capabilities):
                self._served[route.id] = None
                if is_laned(route):
                    self._laned.add(route.id)
        self.changed_at = max(self.changed_at, changed_at or 0)
        return len(self._served) > before

    def knows(self, routes: Iterable[int]) -> bool:
        return all(route in self._known for route in routes)

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
