"""Which routes the brokers of a process serve, and on which of them there may be something to claim.

Brokers that take the same jobs share one list. A route is hot when a hint or a probe has named it, until a claim on it
comes back short.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from holdfast.kernel.database import Database
from holdfast.kernel.routes import serves
from holdfast.kernel.rows import Route, Sight
from holdfast.kernel.workers import learn_routes
from holdfast.settings import Settings


class Takes(NamedTuple):
    """What a broker takes."""

    queues: tuple[str, ...] | None
    capabilities: frozenset[str]


class BrokerRoutes:
    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._refresh = settings.route_refresh.total_seconds()
        self._known: dict[int, Route] = {}
        self._served: dict[Takes, set[int]] = {}
        self._changed_at = 0
        self._learned_at = float("-inf")
        self.hot: dict[int, None] = {}

    @property
    def served(self) -> list[int]:
        return sorted(set[int]().union(*self._served.values()))

    @property
    def due_at(self) -> float:
        return self._learned_at + self._refresh

    def of(self, takes: Takes) -> set[int]:
        """The routes on which somebody who takes this is served."""
        if takes not in self._served:
            self._served[takes] = {route.id for route in self._known.values() if serves(route, *takes)}
        return self._served[takes]

    def keep(self, wanted: Collection[Takes]) -> None:
        """Forget the lists that nobody needs any more."""
        self._served = {takes: routes for takes, routes in self._served.items() if takes in wanted}

    def forget(self) -> None:
        self._learned_at = float("-inf")
        self._changed_at = 0

    async def begin(self) -> None:
        await self._learn(0)

    async def after(self, sight: Sight, now: float) -> bool:
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
