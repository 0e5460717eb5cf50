"""Which routes there are: read from the store whenever it has new ones, and all of them now and then."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.kernel.database import Database
from holdfast.kernel.rows import Sight
from holdfast.kernel.workers import learn_routes
from holdfast.settings import Settings
from holdfast.workers.definitions import Registry
from holdfast.workers.served_routes import Routing


class KnownRoutes:
    def __init__(
        self,
        database: Database,
        settings: Settings,
        registry: Registry,
        routing: Routing,
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

    async def after(self, sight: Sight, now: float) -> bool:
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
