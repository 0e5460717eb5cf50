"""The workers that this process started for a pool, from the call of the launcher until nothing of each is left."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from holdfast.clock import Ports
from holdfast.errors import HoldfastError
from holdfast.pools.launchers import Freezable, Launcher, Place, StartedWorker
from holdfast.shown_text import shown

log = logging.getLogger("holdfast.pool")

_FAREWELL = 5.0  # seconds a process may take from its last word to the store until it is gone


class Crew:
    def __init__(self, launcher: Launcher, ports: Ports, boot: float, changed: Callable[[], None]) -> None:
        """`changed` is called whenever a worker has ended."""
        self._launcher = launcher
        self._ports = ports
        self._boot = boot
        self._changed = changed
        self._started: dict[str, StartedWorker] = {}
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._unlisted: dict[str, float] = {}  # since when the store does not count a worker any more
        self._frozen: dict[str, float] = {}  # since when a worker is seen to be frozen
        self.deaths: dict[str, str] = {}  # by id, why; until the store was told

    @property
    def members(self) -> dict[str, StartedWorker]:
        """Those whose launcher has returned."""
        return dict(self._started)

    def launch(self, place: Place) -> None:
        life = asyncio.create_task(self._live(place), name=f"worker {place.id} of pool {place.pool}")
        self._lives[place.id] = life

    async def _live(self, place: Place) -> None:
        try:
            self.deaths[place.id] = await self._from_start_to_end(place)
        except asyncio.CancelledError:
            self.deaths[place.id] = "the pool was stopped"
        finally:
            self._started.pop(place.id, None)
            self._unlisted.pop(place.id, None)
            self._frozen.pop(place.id, None)
            del self._lives[place.id]
            self._changed()

    async def _from_start_to_end(self, place: Place) -> str:
        try:
            async with asyncio.timeout(self._boot):
                worker = self._started[place.id] = await self._launcher.launch(place)
        except TimeoutError:
            return f"its launcher did not return within {self._boot:g} s"
        except HoldfastError as problem:
            return f"it could not be launched: {problem}"
        except Exception as problem:  # noqa: BLE001  a launcher may raise anything; the pool continues
            return f"it could not be launched: {type(problem).__name__}: {problem}"
        return (await worker.ended()).why

    def end_strays(self, counted: set[str], lost: set[str]) -> None:
        """End workers that the store gave up, and those that said goodbye and stay. `counted` have their places."""
        now = self._ports.clock.monotonic()
        for id, worker in self.members.items():
            if id in counted:
                self._unlisted.pop(id, None)
            elif id in lost or now - self._unlisted.setdefault(id, now) > _FAREWELL:
                log.warning("worker %s was given up and is still there; it is killed", shown(id))
                worker.kill()

    def end_frozen(self, after: float) -> None:
        """Kill workers that have been frozen for so long, in seconds, without asking the store.

        One that is frozen inside a write on SQLite keeps everybody from writing, so nobody can give it up there.
        """
        now = self._ports.clock.monotonic()
        for id, worker in self.members.items():
            if not isinstance(worker, Freezable) or not worker.is_frozen():
                self._frozen.pop(id, None)
            elif now - self._frozen.setdefault(id, now) >= after:
                log.warning(
                    "worker %s has been stopped for %.0f s, and perhaps holds a lock of the database; it is killed",
                    shown(id),
                    now - self._frozen[id],
                )
                worker.kill()

    async def stop(self, *, hurry: bool, within: float) -> None:
        """Drain all, or let them hand back what they run; what is left after the time is killed."""
        for id, life in list(self._lives.items()):
            worker = self._started.get(id)
            if worker is None:
                life.cancel()
            else:
                self._ask(worker, hurry=hurry)
        if await self._left(within):
            for worker in self.members.values():
                worker.kill()
            await self._left(_FAREWELL)

    def hurry(self) -> None:
        """Let all hand back at once what they run."""
        for worker in self.members.values():
            worker.stop()

    @staticmethod
    def _ask(worker: StartedWorker, *, hurry: bool) -> None:
        worker.stop()
        if hurry:
            worker.stop()

    async def _left(self, within: float) -> bool:
        lives = list(self._lives.values())
        return bool(lives and (await asyncio.wait(lives, timeout=within))[1])
