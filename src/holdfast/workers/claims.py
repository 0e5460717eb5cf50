"""Claims: asking the store for what there is room for, group by group, the hot routes first."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.clock import Ports
from holdfast.durations import microseconds
from holdfast.kernel.bounds import urgent
from holdfast.kernel.claim import heads
from holdfast.kernel.database import Database
from holdfast.kernel.rows import Lease
from holdfast.settings import Settings
from holdfast.workers.served_routes import Routing, Turn
from holdfast.workers.telemetry import WorkerTelemetry

_TRIES = 3  # claims in a row, before those who hold what there is seem to take their time
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.25  # seconds


class Claiming:
    def __init__(
        self,
        database: Database,
        ports: Ports,
        settings: Settings,
        routing: Routing,
        telling: WorkerTelemetry,
        *,
        room: Callable[[str], int],
        accept: Callable[[list[Lease], float, str], None],
    ) -> None:
        """`room` says how many more a group of slots may take, `accept` is given what was claimed."""
        self._database = database
        self._ports = ports
        self._settings = settings
        self._routing = routing
        self._telling = telling
        self._room = room
        self._accept = accept
        self._probed_at = float("-inf")
        self._filled = False  # the last claim brought as many as it asked for: nobody has looked at the other routes
        self._seen_elsewhere = False
        self._fruitless = 0  # claims in a row that brought nothing though there is something: others hold it
        self.full = False  # the last claim left something for want of room
        self.empty = False  # the last claim left nothing that this worker could have taken

    @property
    def probed(self) -> bool:
        return self._probed_at > float("-inf")

    async def once(self, worker: int) -> bool:
        """Take what there is room for; True when it is worth asking again at once."""
        self.empty = False
        if self._seen_elsewhere or self._is_probe_due():
            await self._probe()  # however busy the hot routes are, the others get their look
        self._filled = False
        taken, open_turns = 0, self._open_turns()
        for slots, operation, routes in open_turns:
            room = min(self._room(slots), self._settings.batch)
            if room <= 0:
                continue
            sent_at = self._ports.clock.monotonic()
            ttl_us = microseconds(self._settings.lease_ttl)
            with urgent():
                leases = await self._database.transact(operation, worker, routes, room, ttl_us)
            self._telling.timed("claim.done", sent_at, worker, jobs=len(leases))
            self._accept(leases, sent_at, slots)
            taken += len(leases)
            self._filled = self._filled or len(leases) == room
        if self.full and not open_turns and self._routing.hot:
            return False
        if self._filled:
            return True
        await self._probe()
        self.empty = not self._routing.hot
        waiting = self._open_turns()
        self._fruitless = self._fruitless + 1 if waiting and open_turns and not taken else 0
        if self._fruitless > _TRIES:
            return False
        if self._fruitless:  # others hold what we saw: let them finish
            await self._ports.clock.sleep(0.002 + 0.004 * self._ports.random.random())
        return bool(waiting)

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

    def _open_turns(self) -> list[Turn]:
        """The hot routes of groups that have room; `full` when there are others."""
        turns = self._routing.turns()
        roomy = [turn for turn in turns if self._room(turn[0]) > 0]
        self.full = len(roomy) < len(turns)
        return roomy

    async def _probe(self) -> None:
        """Which of the served routes have work now, the best first."""
        self._probed_at = self._ports.clock.monotonic()
        self._seen_elsewhere = False
        with urgent():
            first = await self._database.transact(heads, self._routing.served)
        self._routing.cool(first)
