"""A worker: takes jobs it can run, runs them under leases, and leaves nothing behind when it goes.

Five loops share one set of holdings: claiming, polling (look and sweep), ticking (self-fencing), duties, and the
lifeline on its thread. Attempts are tasks. Nothing here decides a transition; the kernel's statements do.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import statistics
from collections import deque
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from holdfast.clock import Clock, Ports
from holdfast.durations import microseconds, next_tick
from holdfast.errors import DuplicateWorker, LeaseLost, PlaceLost, Unavailable
from holdfast.kernel.complete import release
from holdfast.kernel.database import Database, ignore_change
from holdfast.kernel.ids import JobId, new_id
from holdfast.kernel.leases import Beat, return_unnamed
from holdfast.kernel.rows import Ending, Lease, LeaseRef
from holdfast.kernel.schedules import put_schedule
from holdfast.kernel.states import State
from holdfast.kernel.waiting import park
from holdfast.outcomes import Cancel, Done, Fail, Outcome, Park, Settled, Snooze, TryAgain
from holdfast.settings import Settings
from holdfast.text import message_of, traceback_of
from holdfast.workers.attempt import HANDLER, Attempts, Processes, called, ended_by, interrupted, outcome_of
from holdfast.workers.claims import Claimed, ClaimLoop, Hints, KnownRoutes, RouteTable
from holdfast.workers.definitions import Definition, Registry
from holdfast.workers.endings import ending_after
from holdfast.workers.layer import Layer
from holdfast.workers.lifeline import Lifeline, Pulse
from holdfast.workers.loop_watch import LoopWatch, attempted
from holdfast.workers.role import Role
from holdfast.workers.slots import AttemptTasks, Holding, Holdings, Stop, WorkerSlots
from holdfast.workers.station import Station, introduced, registration
from holdfast.workers.telemetry import WorkerTelemetry, about

# Pace: how long attempts take, which says how many jobs to have at hand.


_SHORT = 0.05
_REMEMBERED = 33


class Pace:
    def __init__(self) -> None:
        self._durations: deque[float] = deque(maxlen=_REMEMBERED)

    def note(self, seconds: float) -> None:
        self._durations.append(seconds)

    @property
    def short(self) -> bool:
        """Whether attempts end so soon that the next ones should be here already."""
        return len(self._durations) == _REMEMBERED and statistics.median(self._durations) < _SHORT


# To park: a job gives its worker up and waits in the store.


_AGAIN = 0.2


async def parked(
    database: Database, ports: Ports, holding: Holding, wish: Park
) -> Literal["parked", "lost", "refused"]:
    """Offer the wish until the store takes it, refuses it because a cancel was accepted first, or the lease is over."""
    timeout_us = None if wish.timeout is None else microseconds(wish.timeout)
    while True:
        try:
            await database.transact(park, holding.lease, channel=wish.channel, timeout_us=timeout_us)
        except LeaseLost:
            over = holding.stop is Stop.LOST or ports.clock.monotonic() >= holding.fence_at
            return "lost" if over else "refused"  # if it was lost after all, the store says so
        except Unavailable:
            if ports.clock.monotonic() >= holding.fence_at:
                return "lost"
            await ports.clock.sleep(_AGAIN)
        else:
            return "parked"


# Idle: whether a worker holds nothing, and since when.
#
# The store is told with each heartbeat. A worker of a pool that was idle then and takes work says so at once, so that
# nobody retires it for the rest it had before.


class IdleEvent(asyncio.Event):
    """Set while nothing is held."""

    def __init__(self, clock: Clock, stirs: Callable[[], None]) -> None:
        """`stirs` is called when work comes to a worker that has been told to be idle."""
        super().__init__()
        self._clock = clock
        self._stirs = stirs
        self._since = 0.0
        self._told = False
        self.set()

    def set(self) -> None:
        if not self.is_set():
            self._since = self._clock.monotonic()
        super().set()

    def clear(self) -> None:
        super().clear()
        if self._told:
            self._told = False
            self._stirs()

    def tell_us(self) -> int | None:
        """For how long, as a heartbeat tells it; None while something is held. On any thread."""
        if not self.is_set():
            return None
        self._told = True
        return max(0, round((self._clock.monotonic() - self._since) * 1e6))


# Warm-up: what layers get ready once a worker has started, beside what runs already.


log = logging.getLogger("holdfast.worker")


async def attended(layers: Iterable[Layer], capabilities: Collection[str], done: asyncio.Event) -> None:
    """Tell every layer that the worker has started, and set `done` when all are ready or cannot be."""
    try:
        await asyncio.gather(*(_started(layer, capabilities) for layer in layers))
    finally:
        done.set()


async def _started(layer: Layer, capabilities: Collection[str]) -> None:
    """Whatever goes wrong here, attempts meet it again and report it: the worker works."""
    try:
        await layer.started(capabilities)
    except Exception:
        log.exception("some preparations of %s failed; the first attempts may have to wait", layer.name)


_WARMING = 30.0  # seconds that a worker which is not ready yet waits for its layers
_DROPPED = 1_000  # leases that were lost here, which stay the sweep's

_INTERRUPTED, _HAND_BACK, _STAY = "instance_disconnected", 2.0, 1.0


class Worker:
    def __init__(
        self,
        registry: Registry,
        database: Database,
        settings: Settings,
        ports: Ports,
        *,
        role: Role | None = None,
        processes: Processes | None = None,
        lifeline: Lifeline | None = None,
    ) -> None:
        self._registry = registry
        self._database = database
        self._settings = settings
        self._ports = ports
        self._processes = processes
        self.awaited: Callable[[JobId], bool] = lambda _: False  # whether a caller in this process waits for a job
        self._role = role = role or Role()
        self.id = role.id or new_id(ports)
        self._ttl = settings.lease_ttl.total_seconds()
        self._ttl_us = microseconds(settings.lease_ttl)
        self.holdings = Holdings()
        self._stuck: Collection[Holding] = ()  # what ran when the time of a drain was over
        self._dropped: deque[LeaseRef] = deque(maxlen=_DROPPED)
        self._has_unnamed = False  # the store may have leases under its number that it does not know
        self._slots = WorkerSlots(registry.groups, settings)
        self._started = 0
        self._pace = Pace()
        self._routing = RouteTable(role.served_queues, self._capabilities(), registry.slots_of)
        self._known_routes = KnownRoutes(database, settings, registry, self._routing, self._capabilities)
        self._threads = ThreadPoolExecutor(settings.threads or settings.concurrency, "holdfast-job")
        self._attempts = Attempts(database, ports, settings, self._threads, processes, groups=registry.groups)
        self._tasks = AttemptTasks(self._attempt)
        self.telemetry = WorkerTelemetry(ports, self.id)
        self._claims = ClaimLoop(database, ports, settings, self._routing, self.telemetry)
        self._watch = LoopWatch(ports.clock, settings, self.holdings, self.id, (Worker._attempt.__code__, HANDLER))
        self._work = asyncio.Event()  # there may be something to claim
        self._station = Station(
            database,
            ports,
            settings,
            self.telemetry,
            chores=registry.chores,
            routing=self._routing,
            known_routes=self._known_routes,
            claims=self._claims,
            work=self._work,
            settled=self._on_settled,
            tended=self._on_tended,
            watch=self._watch,
            lifeline=lifeline,
        )
        self._look = self._station.polling.wanted
        self._hints = Hints(
            self._routing,
            self._claims,
            self._station.polling,
            self._station.duties,
            layers=registry.layers,
            work=self._work,
            cancelled=lambda workers: self._station.poke() if self.seq in workers else None,
        )
        self._idle = IdleEvent(ports.clock, self._station.poke if role.pool else ignore_change)
        self._quiet = asyncio.Event()  # nothing held and nothing to claim: `until="empty"` is reached
        self.tended = asyncio.Event()  # its first round of duties is done
        self.warmed = asyncio.Event()  # what its first attempts would have waited for is ready, or cannot be
        self._claiming = asyncio.Lock()
        self._stopping: asyncio.Task[None] | None = None
        self.leaving = asyncio.Event()  # nothing more is taken; there is no way back
        self.hurried = asyncio.Event()  # stop at once

    @property
    def seq(self) -> int:
        """Its number in the store; 0 before it has one."""
        return self._station.seq

    def _capabilities(self) -> tuple[str, ...]:
        return tuple(filter(self._role.takes, self._registry.capabilities(self._role.capabilities)))

    # Life cycle

    async def start(self) -> None:
        """Register, show presence, listen, and begin to take work."""
        self._database.introduce(introduced(self._role))
        await self._database.open()
        self._registry.warm_up()
        await self._known_routes.begin()  # what it adopts is registered with what it declares
        await self._station.enter(self._register)
        for schedule in self._registry.schedules:
            await self._database.transact(put_schedule, schedule, next_tick)
        for layer in self._registry.layers:
            await layer.prepare(self._database)
        await self._known_routes.begin()
        self._watch.begin()
        await self._database.listen(self._hints.take)
        self._station.begin(self._compose, self._on_beat, tick=self._tick, claim=self._claim)
        preparations = attended(self._registry.layers, self._capabilities(), self.warmed)
        self._station.keep(preparations, f"warm-up of {self.id}")

    async def run(self, started: Callable[[], None] = ignore_change, ready: Callable[[], None] = ignore_change) -> None:
        """Work until stopped, or until what the role asks for is reached; then leave cleanly.

        `ready` is called when what the first attempts would wait for is there, a provider's SDK for example, or takes
        too long. Jobs that need nothing of it run before that.
        """
        try:
            await self.start()
            started()
            await first_of(self.warmed, self.leaving, self._quiet, within=_WARMING)
            ready()
            await first_of(self.leaving, *(() if self._role.until == "stopped" else (self._quiet,)))
        finally:
            await self.stop()

    async def stop(self, grace: float | None = None) -> None:
        """Drain: take nothing more, finish or hand back what runs, then unregister. The caller waits for the end."""
        if not self.seq:
            return
        await asyncio.shield(self._begin_to_stop(grace))

    def _begin_to_stop(self, grace: float | None = None) -> asyncio.Task[None]:
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(grace), name=f"stop of {self.id}")
        return self._stopping

    async def _stop(self, grace: float | None) -> None:
        self.leaving.set()
        patience = self.grace if grace is None else grace
        self.telemetry.drains()
        await self._station.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_HAND_BACK), self._claiming:  # what a claim under way brings is handed back too
                pass
        for holding in self._slots.empty():
            self._release(holding)
        await first_of(self._idle, self.hurried, within=patience)
        self._stuck = self.holdings.all()
        for holding in self._stuck:
            holding.interrupt(Stop.RELEASE)
        await first_of(self._idle, within=_HAND_BACK)
        await self._leave()

    @property
    def grace(self) -> float:
        """Seconds that a drain waits for its jobs."""
        return self._settings.drain_grace.total_seconds()

    @property
    def hung(self) -> int:
        """Handlers that still run on threads after the worker has stopped. Python waits for such threads at its end."""
        return sum(each.thread is not None and not each.thread.done() for each in self._stuck)

    def running(self) -> list[str]:
        """Its jobs whose handlers run, each by its kind and its id."""
        return [f"{each.lease.kind} {each.lease.id}" for each in self.holdings.all() if each.begun]

    def hurry(self) -> None:
        """End a drain that is under way: what still runs is handed back now."""
        self.hurried.set()

    def press(self) -> bool:
        """Whether a drain is under way. One that nobody was in a hurry for has the usual grace from now on."""
        if self._stopping is not None:
            asyncio.get_running_loop().call_later(self.grace, self.hurry)
        return self._stopping is not None

    async def _leave(self) -> None:
        await self._station.halt()
        await self._station.finish()
        await self._station.leave(hand_back=True)
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._processes is not None:
            await self._processes.close()
        self.telemetry.stopped(self.seq, self._started, left=len(self.holdings))

    # Registration

    async def _register(self) -> None:
        who = registration(self.id, self._role, self._capabilities(), self._settings.concurrency)
        await self._station.register(who._replace(lines=self._taken()), self._registry.routes())

    def _taken(self) -> str:
        return self._slots.taken(self._registry.served_slots, self._attempts.hanging, self._watch.said())

    async def _register_again(self) -> None:
        """Its place is lost. If it was given up, what it still holds it may still end under its old number."""
        try:
            standing = await self._station.judge()
            if standing.live:
                self._station.poke()
                return
            if not standing.known:  # whatever was claimed under that number is no longer, or is another's
                for holding in self.holdings.all():
                    self._lose(holding)
            if not self.leaving.is_set():
                await self._register()
        except Unavailable:
            pass  # the next heartbeat finds out again
        except (DuplicateWorker, PlaceLost) as problem:
            log.warning("worker %s was replaced and leaves: %s", self.id, problem, extra={"worker": self.id})
            self._begin_to_stop()
        self._look.set()

    # The way of a job: `_claim` takes it, `_accept` holds it, `_attempt` runs it, `_end` hands its outcome in, and
    # `_on_settled` hears that the store has it.

    async def _claim(self) -> None:
        """Take what there is room for, whenever there may be something."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._claims.pause):
                    await self._work.wait()
            self._work.clear()
            async with self._claiming:
                while not self.leaving.is_set() and self._station.linked:
                    if self._has_unnamed:
                        await self._return_unnamed()
                    await self._claims.take(self.seq, self._room, self._hold)
                    if not self._claims.again:
                        break
                if self._role.until != "stopped" and self._claims.empty and self._station.linked:
                    self._conclude()

    def _hold(self, claimed: Claimed) -> None:
        self._accept(claimed)
        self._tasks.claimed(self._slots[claimed.slots])

    def _accept(self, claimed: Claimed) -> None:
        """Hold what was claimed, so that it is renewed, and let it wait for a slot."""
        self._station.duties.stirred = True
        self._idle.clear()
        self._quiet.clear()
        self._station.polling.settled = self._station.polling.settled and self._role.until == "stopped"
        fence_at, leaving = self._fence(claimed.sent_at, claimed.sent_at), self.leaving.is_set()
        for lease in claimed.leases:
            older = self.holdings.find(lease.seq, lease.epoch, lease.token)
            if older is not None:  # a token given out twice: the store was set back, and does not know the first
                self._lose(older)
                self._station.repair(self._station.raise_epoch)
                continue  # nobody renews it, so it comes back, under another epoch
            self._started += 1
            holding = self.holdings.add(lease, claimed.sent_at, fence_at=fence_at, slots=claimed.slots)
            if leaving:
                self._release(holding)
            else:
                self._slots[claimed.slots].put(holding)

    async def _attempt(self, holding: Holding) -> None:
        """Run a job that has a slot, and hand in how it ended."""
        holding.begun = True
        attempted.set(holding)
        begun = holding.began = self._ports.clock.monotonic()
        try:
            definition = self._registry.definitions.get(holding.lease.kind)
            handler = None if self._ports.events.heard else called(definition, holding, begun)
            if definition is None or handler is None:
                outcome = await self._outcome(definition, holding, begun)
            else:
                try:
                    outcome = outcome_of(definition.signature, await handler)
                except BaseException as problem:  # noqa: BLE001  what is not an outcome is raised again
                    outcome = ended_by(problem, holding)
            holding.ending = True
            if outcome is None or holding.stop is Stop.LOST:
                self._drop(holding)
            elif isinstance(outcome, Park):
                await self._park(holding, outcome)
            elif isinstance(outcome, Settled):
                self.telemetry.ended_itself(holding)
                self._forget(holding)
            else:
                self._end(holding, outcome)
            if holding.thread is not None and not holding.thread.done():
                await asyncio.wait([holding.thread])
        except asyncio.CancelledError:
            self._hand_back(holding)
        except BaseException as problem:
            log.exception(
                "the outcome of job %s is unknown", holding.lease.id, extra={**about(holding.lease), "worker": self.id}
            )
            error, trace = message_of(problem), traceback_of(problem)
            self._end(holding, TryAgain(error=error, type="outcome_error", trace=trace))
        finally:
            self._pace.note(self._ports.clock.monotonic() - begun)
            slots = self._slots[holding.slots]
            slots.running -= 1
            self._tasks.freed(slots)
            if self._claims.full:
                self._work.set()

    def _end(self, holding: Holding, outcome: Outcome) -> None:
        """Hand an outcome in, for the next write."""
        assert not isinstance(outcome, (Park, Settled))
        holding.ending = True
        definition = self._registry.definitions.get(holding.lease.kind)
        holding.awaited = not isinstance(outcome, Done) and self.awaited(holding.lease.id)
        written = ending_after(holding.lease, outcome, definition, self._settings, self._ports.random)
        self._station.endings.put(holding.lease, written)

    def _on_settled(self, lease: Lease, ending: Ending, state: str | None) -> None:
        """The store has the ending, and the job is in this state; None: the lease was lost."""
        if (holding := self.holdings.forget(lease)) is None:
            return
        self.telemetry.settled(holding, ending, state)
        if state == State.SCHEDULED:
            self._look.set()  # for when it is due
        self._check_idle()

    def _check_idle(self) -> None:
        """After something is no longer held: that may have been the last."""
        if not len(self.holdings):
            self._idle.set()
            if self._role.until == "one":
                self._quiet.set()
            self._work.set()

    # Beside that way: what a claim may bring, and attempts that end in another way

    def _room(self, name: str) -> int:
        """Free slots of a group, and more to have at hand while attempts are short."""
        if self._role.until == "one":
            return 1 - self._started
        if self._station.endings.backlog > 2 * self._settings.batch:
            return 0
        return self._slots[name].room(short=self._pace.short)

    async def _return_unnamed(self) -> None:
        """Hand back the jobs of claims whose answers were lost. Whatever a claim took is known here, or was lost: none
        is under way now. What this worker has dropped itself is left to the sweep, which counts it."""
        seq, incarnation, _ = self._station.row
        known = [*self.holdings.named(), *self._dropped]
        limit = self._settings.batch
        returned = await self._database.transact(return_unnamed, seq, incarnation, known, limit=limit)
        self._has_unnamed = returned == limit
        if returned:
            self.telemetry.returned(seq, returned)

    def _conclude(self) -> None:
        """Nothing is claimable. A worker that holds nothing either, and leaves then, first does what is due and looks
        once more."""
        if len(self.holdings):
            return
        if self._station.polling.settled and self.tended.is_set():
            self._quiet.set()
        else:
            self._look.set()

    async def _outcome(self, definition: Definition | None, holding: Holding, begun: float) -> Outcome | None:
        lease = holding.lease
        if not holding.may_start(begun):
            return None if begun >= holding.fence_at else interrupted(holding, "before it started")
        if definition is None:
            return Snooze("10s", f"this worker claims {lease.kind} but has no handler for it")
        elapsed = begun - holding.claimed_at
        holding.entered = True
        attempt = self._attempts.run(definition, holding, now_us=lease.claimed_at + round(elapsed * 1e6))
        return await (self.telemetry.attempt(holding, attempt, elapsed) if self._ports.events.heard else attempt)

    async def _park(self, holding: Holding, wish: Park) -> None:
        match await parked(self._database, self._ports, holding, wish):
            case "parked":
                if wish.timeout is not None:
                    self._look.set()  # for when it is due
                self.telemetry.parked(holding)
                self._forget(holding)
            case "lost":
                self._drop(holding)
            case "refused":
                self._end(holding, Cancel("cancelled before it could wait"))

    def _hand_back(self, holding: Holding) -> None:
        """This worker goes away in the middle of an attempt."""
        definition = self._registry.definitions.get(holding.lease.kind)
        if definition is not None and definition.once and holding.entered and not holding.ending:
            self._end(holding, Fail("its worker stopped while it ran, and it may start only once", _INTERRUPTED))
        else:
            self._release(holding)

    def _release(self, holding: Holding) -> None:
        holding.ending = True
        self._station.endings.put(holding.lease, release(holding.lease))

    def _drop(self, holding: Holding) -> None:
        self._dropped.append(holding.lease.held)
        self.telemetry.lost(holding)
        self._forget(holding)

    def _forget(self, holding: Holding) -> None:
        self.holdings.forget(holding.lease)
        self._check_idle()

    # Ticks, heartbeats and duties: until when a lease may be acted on

    def _fence(self, sent_at: float, claimed_at: float) -> float:
        """Until when a lease may be acted on, by when its claim and its last renewal were sent."""
        until = min(sent_at + self._ttl, claimed_at + self._settings.lease_ceiling.total_seconds())
        return until - self._settings.fence_margin.total_seconds()

    async def _tick(self) -> None:
        """Show that the loop runs, and stop what may no longer be acted on."""
        while True:
            now = self._watch.tick()
            if self._role.pool and self._station.store_is_silent and self._stopping is None:
                self._begin_to_stop()
            for holding in self.holdings.all():
                if now >= holding.fence_at and holding.stop is not Stop.LOST and not holding.ending:
                    self._lose(holding)
            for holding in self._slots.take_overdue(now - _STAY):
                self._end(holding, Snooze("1s"))
            await self._ports.clock.sleep(self._settings.tick.total_seconds())

    def _lose(self, holding: Holding) -> None:
        if self._slots[holding.slots].take_out(holding):
            self._drop(holding)
        else:
            holding.interrupt(Stop.LOST)

    def _compose(self) -> Pulse | None:
        """On the lifeline's thread: what to renew, or None when the loop has stood still for a whole lease."""
        if self._ports.clock.monotonic() - self._watch.ticked > self._ttl:
            return None
        ceiling, (seq, me) = microseconds(self._settings.lease_ceiling), self._station.own_row()
        active, held = self._slots.running, self.holdings.named()
        me = me._replace(lines=self._taken(), idle_us=self._idle.tell_us())
        return Pulse(seq, active, held, self._ttl_us, ceiling, me)

    def _on_beat(self, sent_at: float, beat: Beat) -> None:
        refused = self._station.is_refused(sent_at, beat)
        if (too_old := beat.oldest_code > self._station.code) and self._stopping is None:
            self.telemetry.too_old(self._station.code, beat.oldest_code)
        if beat.draining or too_old:  # someone asked for it in the store, or migrated it
            retired = self._role.pool and not too_old  # what such a worker may still have claimed it finishes
            self._begin_to_stop(self._settings.lease_ceiling.total_seconds() if retired else None)
        if refused and not self.leaving.is_set():
            self._station.repair(self._register_again)
        if beat.registered and beat.leases > len(beat.renewed):  # a claim is under way, or its answer was lost
            self._has_unnamed = True
            self._work.set()
        for renewed in beat.renewed:
            holding = self.holdings.find(renewed.seq, renewed.epoch, renewed.token)
            if holding is None:
                continue
            holding.fence_at = max(holding.fence_at, self._fence(sent_at, holding.claimed_at))
            if renewed.cancel_requested_at is not None and holding.stop is None:
                holding.interrupt(Stop.CANCEL)
        for held in beat.lost:
            lost = self.holdings.find(held.seq, held.epoch, held.token)
            if lost is not None and not lost.ending:
                self._lose(lost)

    def _on_tended(self) -> None:
        if not self.tended.is_set():
            self.tended.set()
            self._station.polling.settled = False
            self._look.set()


async def first_of(*events: asyncio.Event, within: float | None = None) -> None:
    """Until one of these events is set, or the time is over."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=within, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
