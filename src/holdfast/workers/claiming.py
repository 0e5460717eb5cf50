"""Claiming: asking the store for what there is room for, line by line, the hot routes first."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.clock import Ports
from holdfast.durations import microseconds
from holdfast.kernel.claim import heads
from holdfast.kernel.database import Database
from holdfast.kernel.records import Lease
from holdfast.settings import Settings
from holdfast.workers.routing import Routing, Turn
from holdfast.workers.telling import Telling


class Claiming:
    def __init__(
        self,
        database: Database,
        ports: Ports,
        settings: Settings,
        routing: Routing,
        telling: Telling,
        *,
        room: Callable[[str], int],
        accept: Callable[[list[Lease], float, str], None],
    ) -> None:
        """`room` says how many more a line may take, `accept` is given what was claimed."""
        self._database = database
        self._ports = ports
        self._settings = settings
        self._routing = routing
        self._telling = telling
        self._room = room
        self._accept = accept
        self._probed_at = float("-inf")
        self.full = False  # the last claim left something for want of room
        self.empty = False  # the last claim left nothing that this worker could have taken

    @property
    def probed(self) -> bool:
        return self._probed_at > float("-inf")

    async def once(self, worker: int) -> bool:
        """Take what there is room for; True when it is worth asking again at once."""
        self.empty = False
        if self._ports.clock.monotonic() - self._probed_at >= self._settings.poll_interval.total_seconds():
            await self._probe()  # however busy the hot routes are, the others get their look
        taken, filled, open_turns = 0, False, self._open_turns()
        for line, operation, routes in open_turns:
            room = min(self._room(line), self._settings.batch)
            if room <= 0:
                continue
            sent_at = self._ports.clock.monotonic()
            ttl_us = microseconds(self._settings.lease_ttl)
            leases = await self._database.transact(operation, worker, routes, room, ttl_us)
            self._telling.timed("claim.done", sent_at, worker, jobs=len(leases))
            self._accept(leases, sent_at, line)
            taken += len(leases)
            filled = filled or len(leases) == room
        if self.full and not open_turns and self._routing.hot:
            return False
        if filled:
            return True
        await self._probe()
        self.empty = not self._routing.hot
        waiting = self._open_turns()
        if waiting and open_turns and not taken:  # others hold what we saw: let them finish
            await self._ports.clock.sleep(0.002 + 0.004 * self._ports.random.random())
        return bool(waiting)

    def _open_turns(self) -> list[Turn]:
        """The hot routes of lines that have room; `full` when there are others."""
        turns = self._routing.turns()
        roomy = [turn for turn in turns if self._room(turn[0]) > 0]
        self.full = len(roomy) < len(turns)
        return roomy

    async def _probe(self) -> None:
        """Which of the served routes have work now, the best first."""
        self._probed_at = self._ports.clock.monotonic()
        self._routing.cool(await self._database.transact(heads, self._routing.served))
