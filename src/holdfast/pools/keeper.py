"""The keeper of a pool: it looks at the store, decides, and has workers started and retired.

Any number of processes may keep the same pool. Each decision is a turn in the store, so it does not matter which of
them makes it; what one starts, all count. All judge by the policy that was declared last, which is in the store: two
that differed would start and retire the same workers in turn. While the store is away nothing is decided, and the
workers stay as they are, except for one that is frozen: perhaps the store is away because of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from holdfast.clock import Ports
from holdfast.errors import HoldfastError, Unavailable
from holdfast.kernel import pools
from holdfast.kernel.claim import LOOKED
from holdfast.kernel.database import LOOK, Database
from holdfast.kernel.demand import SeenRoutes
from holdfast.kernel.ids import new_id
from holdfast.kernel.pools import PoolScope, PoolSnapshot, PoolTerms, ResizePlan
from holdfast.kernel.states import WorkerState
from holdfast.pools.launchers import Freezable, Launcher, Place, StartedWorker
from holdfast.pools.size import WorkerPool, judge, policy_of
from holdfast.settings import Settings
from holdfast.text import shown
from holdfast.workers.duties import sleep_unless
from holdfast.workers.station import survive
from holdfast.workers.sweeper import Sweeper

# The workers that this process started for a pool, from the call of the launcher until nothing of each is left.


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


_TURN = 0.1  # seconds between two decisions about one pool
_BREATH = 0.05  # between two looks of one keeper
_GOODBYE = 5.0  # beyond the grace of a drain, after which a worker is killed


@dataclass(frozen=True, slots=True)
class KeptPool:
    """A pool that is to be kept. `policy.slots` is set; `serves` says what workers of a policy take by now."""

    name: str
    policy: WorkerPool
    serves: Callable[[WorkerPool], PoolScope]
    naming: Callable[[Ports], str] = new_id  # the ids of workers that are to start

    @property
    def terms(self) -> PoolTerms:
        policy = self.policy
        assert policy.slots is not None
        return PoolTerms(self.name, policy.slots, policy.boot_us, policy.idle_us, round(_TURN * 1e6))

    def as_declared(self, sight: PoolSnapshot) -> KeptPool:
        """The same pool by the policy that the store has for it."""
        if sight.settings is None:
            return self
        declared = policy_of(sight.settings).with_slots(self.terms.slots)
        return self if declared == self.policy else replace(self, policy=declared)

    def judge(self, sight: PoolSnapshot) -> ResizePlan:
        return judge(self.policy, sight).resize

    def place(self, id: str) -> Place:
        policy = self.policy
        assert policy.slots is not None
        return Place(self.name, id, policy.slots, policy.queues, policy.capabilities)


class Keeper:
    def __init__(
        self, pool: KeptPool, database: Database, settings: Settings, ports: Ports, launcher: Launcher
    ) -> None:
        self._pool = pool
        self._database = database
        self._settings = settings
        self._ports = ports
        self._sweeper = Sweeper(database, ports, settings)
        self._wanted = asyncio.Event()
        self._routes = SeenRoutes(frozenset(), frozenset())
        self._full = False  # it has as many workers as it may: work alone changes nothing
        self._stopping = False
        self.crew = Crew(launcher, ports, pool.policy.boot_us / 1e6, self._wanted.set)

    def heard(self, note: str) -> None:
        """A hint: there may be work for this pool, or something else to see. What is others' does not wake it."""
        subject, _, rest = note.partition(" ")
        if subject in ("route", LOOKED):
            routes = {int(part) for part in rest.split(",") if part.isdigit()}
            if not self._full and (routes & self._routes.served or routes - self._routes.known):
                self._wanted.set()
        elif subject in (LOOK, ""):
            self._wanted.set()

    async def run(self) -> None:
        """Keep the pool until cancelled."""
        longest = self._settings.reconnect_cap.total_seconds()
        await self._database.listen(self.heard)
        try:
            await survive(self._keep, f"of pool {self._pool.name}", self._ports, longest_pause=longest)
        finally:
            self._database.unlisten(self.heard)

    async def _keep(self) -> None:
        while True:
            self._wanted.clear()
            pause = await self.look()
            await self._ports.clock.sleep(_BREATH)
            await sleep_unless(self._wanted, self._ports, pause)

    async def look(self) -> float:
        """Look once, and do what follows; returns for how long nothing more is to be done, unless something changes."""
        self.crew.end_frozen(self._settings.worker_ttl.total_seconds())  # first: the rest may fail because of one
        await self.report_deaths()
        serves = self._pool.serves(self._pool.policy)
        sight = await self._database.transact(pools.look_at_pool, self._pool.name, serves)
        pool = self._follow(sight)
        await self._end_strays(sight)
        await self._give_up_gone(sight)
        wanted = pool.judge(sight)
        if not wanted.changes:
            return self._settings.poll_interval.total_seconds()
        ids = [pool.naming(self._ports) for _ in range(wanted.start)]
        resized = await self._database.transact(
            pools.resize, pool.terms, serves=serves, judge=partial(_at_most, pool, wanted.start), ids=ids
        )
        if resized is None:  # another keeper has just decided
            return _TURN
        for id in resized.started:
            self.crew.launch(pool.place(id))
        self._tell(len(resized.started), len(resized.retired), sight)
        return 0.0 if resized.started or resized.retired else self._settings.poll_interval.total_seconds()

    def _follow(self, sight: PoolSnapshot) -> KeptPool:
        """Keep in mind what a look showed."""
        before, self._pool = self._pool, self._pool.as_declared(sight)
        policy = self._pool.policy
        if policy != before.policy:
            told = (before.name, policy.min, policy.max)
            log.warning("pool %s has other limits now, %d to %d workers, by another process; this one follows", *told)
        self._routes, self._full = sight.routes, len(sight.workers) >= policy.max
        return self._pool

    async def report_deaths(self) -> None:
        """Give up the places of workers whose end this process saw, and what they held."""
        for id, why in list(self.crew.deaths.items()):
            reason = why or "its process left without a word"
            lost = await self._database.transact(
                pools.give_place_up, self._pool.name, id, reason=reason, lost=not self._stopping
            )
            self.crew.deaths.pop(id, None)  # another look may have told it meanwhile
            if lost is not None and not self._stopping:
                log.warning("pool %s: worker %s ended: %s", self._pool.name, id, shown(reason))
                await self._sweeper.expire({lost})

    async def stop(self, *, drain: bool = True) -> None:
        """Stop all that this process started: they finish what they run, or with `drain=False` hand it back at once."""
        self._stopping = True
        within = self._settings.drain_grace.total_seconds() + _GOODBYE
        await self.crew.stop(hurry=not drain, within=within)
        with suppress(Unavailable):
            await self.report_deaths()

    async def _end_strays(self, sight: PoolSnapshot) -> None:
        counted = {worker.id for worker in sight.workers}
        missing = self.crew.members.keys() - counted
        if missing:
            standing = await self._database.transact(pools.standing_of_places, self._pool.name, missing)
            lost = {id for id in missing if id not in standing or standing[id].status == WorkerState.LOST}
            self.crew.end_strays(counted, lost)

    async def _give_up_gone(self, sight: PoolSnapshot) -> None:
        """Workers of other keepers whose process is dead, though they held no job for which anybody would ask."""
        if any(
            worker.status != WorkerState.STARTING and worker.id not in self.crew.members for worker in sight.workers
        ):
            await self._sweeper.give_up_gone()

    def _tell(self, started: int, retired: int, sight: PoolSnapshot) -> None:
        if started or retired:
            log.info(
                "pool %s starts %d and retires %d: it has %d workers, %d jobs wait and %d run",
                self._pool.name,
                *(started, retired, len(sight.workers), sight.pending, sight.running),
            )


def _at_most(pool: KeptPool, most: int, sight: PoolSnapshot) -> ResizePlan:
    """The decision by what is seen under the turn, with as many starts as names were made for.

    None by a policy that has been replaced since.
    """
    wanted = pool.judge(sight) if pool.as_declared(sight) is pool else ResizePlan(0, ())
    return wanted._replace(start=min(wanted.start, most))
