"""A station: how a worker, or the hub of brokers, stands in the store for as long as it lives.

It registers, shows its presence and beats; it looks and sweeps, writes endings, tends duties, and leaves. Who has it
decides what to take and what to do with it.

A heartbeat that the store refuses says that the place is lost. Either the worker was given up, or an older state of the
store was restored under it, in which its number may belong to another: then the epoch rises before it continues.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple

from holdfast.clock import Ports
from holdfast.durations import microseconds
from holdfast.errors import VERSION, Unavailable
from holdfast.kernel import epoch, pools, workers
from holdfast.kernel.database import Database, ignore_change
from holdfast.kernel.ids import new_id
from holdfast.kernel.leases import Beat, OwnRow
from holdfast.kernel.migrate import code_version
from holdfast.kernel.rows import Ending, Lease, Route
from holdfast.kernel.workers import Registration
from holdfast.observe import without_audit
from holdfast.settings import Settings
from holdfast.workers.duties import Duties
from holdfast.workers.endings import Endings
from holdfast.workers.layer import Chore
from holdfast.workers.leaps import tolerance
from holdfast.workers.lifeline import Lifeline, Pulse, ThreadLifeline
from holdfast.workers.loop_watch import LoopWatch
from holdfast.workers.poll import Claims, Poller, RouteLearner, ServedRoutes
from holdfast.workers.role import Role
from holdfast.workers.sweeper import Sweeper
from holdfast.workers.telemetry import WorkerTelemetry

log = logging.getLogger("holdfast.worker")

# Registration: a worker's row in the store, and its sign of life.
#
# Every registration is a new incarnation with a number that is never used again.


def introduced(role: Role) -> str:
    """What a database's own lists call the worker in this process."""
    return role.id or role.name or f"{socket.gethostname()}:{os.getpid()}"


def registration(id: str, role: Role, capabilities: tuple[str, ...], slots: int) -> Registration:
    """Who this process is, and what the worker in it can do. The incarnation is added when it registers."""
    return Registration(
        incarnation="",
        id=id,
        name=role.name or socket.gethostname(),
        hostname=socket.gethostname(),
        pid=os.getpid(),
        version=VERSION,
        capabilities=capabilities,
        queues=role.queues,
        slots=slots,
        pool=role.pool or None,
    )


async def register(
    database: Database,
    who: Registration,
    routes: Sequence[Route],
    settings: Settings,
    *,
    presence_changed: Callable[[], None] = ignore_change,
) -> int:
    """Write the row, then show presence; returns the worker's number. A live worker of that id refuses.

    Once the row is written, the registration stands: a presence that cannot be shown or reported now is reported by a
    heartbeat.
    """
    namesake = await database.transact(workers.live_namesake, who.id, who.incarnation)
    gone = await database.presence.absent([namesake]) if namesake is not None else set()
    ttl_us = microseconds(settings.worker_ttl)
    if who.pool is None:
        seq = await database.transact(workers.register, who, routes, ttl_us=ttl_us, gone=gone)
    else:  # a worker of a pool has no other place than the one that was opened for it
        seq = await database.transact(pools.occupy, who, routes, ttl_us=ttl_us)
    present = await database.presence.hold(seq, presence_changed)
    if database.presence.disputed(seq):
        # Before anything is claimed under this number: what the other claimed under it has another epoch.
        await database.transact(epoch.bump)
    with contextlib.suppress(Unavailable):
        await database.transact(workers.advertise_presence, seq, presence=present)
    return seq


class StationRow(NamedTuple):
    """The worker's row in the store, as it knows it. One value, because the lifeline's thread reads it."""

    seq: int
    incarnation: str
    last_beat: int  # the store's time of the last heartbeat that was answered


class Station:
    def __init__(  # noqa: PLR0913  what its owner has, and what it does for its owner
        self,
        database: Database,
        ports: Ports,
        settings: Settings,
        telemetry: WorkerTelemetry,
        *,
        chores: Sequence[Chore],
        routing: ServedRoutes,
        known_routes: RouteLearner,
        claims: Claims,
        work: asyncio.Event,
        settled: Callable[[Lease, Ending, str | None], None],
        tended: Callable[[], None] = ignore_change,
        watch: LoopWatch | None = None,
        lifeline: Lifeline | None = None,
    ) -> None:
        """`work` is set when there may be something to claim; `settled` hears what became of an ending, and `tended` of
        each round of duties. `watch` is the watch over the event loop, which the lifeline keeps."""
        self.id = telemetry.worker
        self.code = code_version(database.dialect)
        self._database = database
        self._ports = ports
        self._settings = settings
        self._telemetry = telemetry
        self._work = work
        self._tended = tended
        self.endings = Endings(database, ports, telemetry, batch=settings.batch, settled=settled)
        self.duties = Duties(database, ports, settings, chores)
        self._sweeper = Sweeper(database, ports, settings)
        self.polling = Poller(
            database,
            ports,
            settings,
            routing,
            known_routes,
            claims=claims,
            sweeper=self._sweeper,
            duties=self.duties,
            work=work,
            worker=lambda: self.seq,
        )
        beat = settings.heartbeat.total_seconds()
        self._lifeline = lifeline or ThreadLifeline(
            database, ports, beat, tolerance(settings), watch, worker=telemetry.worker
        )
        self._coming = ""  # the next incarnation, kept until its registration is answered
        self._linked_until = float("-inf")
        self._warned = False
        self._heard_at = float("inf")
        self._loops: list[asyncio.Task[None]] = []
        self._repairing: asyncio.Task[None] | None = None
        self.row = StationRow(0, "", 0)

    # To come

    async def enter(self, *steps: Callable[[], Awaitable[None]]) -> None:
        """Take these steps, the registration among them, able to beat. After an error in one of them it never beats."""
        try:
            await self._lifeline.open()  # first: a worker that cannot beat would be given up while it takes jobs
            for step in steps:
                await to_the_end(step())
        except BaseException:
            await self._lifeline.stop()
            raise

    async def register(self, who: Registration, routes: Sequence[Route]) -> None:
        """As a new incarnation, under a new number."""
        self._coming = self._coming or new_id(self._ports)
        asked_at = self._ports.clock.monotonic()
        who = who._replace(incarnation=self._coming, code=self.code)
        seq = await register(self._database, who, routes, self._settings, presence_changed=self._lifeline.poke)
        self.row, self._coming = StationRow(seq, who.incarnation, 0), ""
        self._link(asked_at)
        self._telemetry.registered(seq, who)

    def begin(
        self,
        compose: Callable[[], Pulse | None],
        heard: Callable[[float, Beat], None],
        *,
        tick: Callable[[], Awaitable[None]],
        claim: Callable[[], Awaitable[None]],
    ) -> None:
        """Beat, look and tend duties from now on, beside these two loops of the owner's. For `compose` and `heard` see
        `Lifeline.start`."""
        self._lifeline.start(compose, heard)
        longest_pause = self._settings.reconnect_cap.total_seconds()
        with without_audit():  # what handlers change is work
            for name, loop in {"tick": tick, "poll": self.polling.run, "claim": claim, "duties": self._tend}.items():
                self.keep(survive(loop, self.id, self._ports, longest_pause=longest_pause), f"{name} of {self.id}")

    def keep(self, loop: Coroutine[Any, Any, None], name: str) -> None:
        """Run this until `halt`."""
        self._loops.append(asyncio.create_task(loop, name=name))

    async def _tend(self) -> None:
        while True:
            await self.duties.tend(self.seq)
            if self.duties.taken:
                self.polling.wanted.set()  # for when a schedule is due
            self._tended()
            await self.duties.pause()

    # To stay

    @property
    def seq(self) -> int:
        """Its number in the store; 0 before it has one."""
        return self.row.seq

    def own_row(self) -> tuple[int, OwnRow]:
        """The number, and what a heartbeat says of the row. Safe on any thread."""
        seq, incarnation, last_beat = self.row
        return seq, OwnRow(incarnation, last_beat, self._database.presence.shows(seq))

    def poke(self) -> None:
        """Beat now."""
        self._lifeline.poke()

    def is_refused(self, sent_at: float, beat: Beat) -> bool:
        """Take in the answer to a heartbeat; True when the store has no place for this worker any more."""
        self._telemetry.timed("heartbeat.done", sent_at, self.seq, renewed=len(beat.renewed), lost=len(beat.lost))
        if beat.registered:
            self.row = self.row._replace(last_beat=beat.now or 0)
            self._link(sent_at)
            return False
        if beat.incarnation != self.row.incarnation:  # it was the one before
            return False
        self._linked_until = float("-inf")
        return True

    @property
    def linked(self) -> bool:
        """Whether others must count this worker as alive. Otherwise it takes nothing: they would take it away again."""
        linked = self._is_linked()
        if not linked and not self._warned:
            self._warned = True
            self._telemetry.unlinked(self.seq)
        return linked

    @property
    def store_is_silent(self) -> bool:
        """Whether the store has answered no heartbeat for three TTLs."""
        return self._ports.clock.monotonic() - self._heard_at > 3 * self._settings.worker_ttl.total_seconds()

    def repair(self, repairing: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """One at a time: whatever makes it necessary shows again."""
        if self._repairing is None or self._repairing.done():
            self._repairing = asyncio.create_task(repairing())

    async def judge(self) -> workers.WorkerStanding:
        """After a refusal: what became of the row. Where it is still there, heartbeats continue from what it says."""
        standing = await self._database.transact(workers.judge_self, self.row.incarnation)
        if standing.live or not standing.known:
            self._telemetry.set_back(self.seq)
        else:
            self._telemetry.lost_contact(self.seq)
        if standing.live:
            self.row = self.row._replace(last_beat=0)
        else:  # if the number is another's now, so is the sign
            await self._database.presence.withdraw(self.seq)
        return standing

    async def raise_epoch(self) -> None:
        """The store gave a token out twice: it was set back."""
        with contextlib.suppress(Unavailable):  # the next such token says so again
            await self._database.transact(epoch.bump)
            self._telemetry.set_back(self.seq)

    def _is_linked(self) -> bool:
        return self._ports.clock.monotonic() < self._linked_until

    def _link(self, sent_at: float) -> None:
        """The store took a sign of life that was sent then."""
        before = self._is_linked()
        self._heard_at = sent_at
        self._linked_until = sent_at + self._settings.worker_ttl.total_seconds()
        self._warned = False
        if not before:
            self._work.set()

    # To go

    async def drain(self) -> None:
        await as_far_as_possible(self.id, self._drain)

    async def halt(self) -> None:
        """End the loops."""
        for task in self._loops:
            task.cancel()
        await asyncio.gather(*self._loops, *([self._repairing] if self._repairing else ()), return_exceptions=True)

    async def finish(self) -> None:
        """Beat no more, and give up the endings that the store has not taken."""
        await self._lifeline.stop()
        await self.endings.close()

    async def leave(self, *, hand_back: bool = False) -> None:
        """Give the duties back and take the row away. `hand_back`: and whatever is still held under its number."""
        steps = [partial(self._sweeper.expire, {self.seq})] if hand_back else []
        await as_far_as_possible(self.id, self.duties.release, self._unregister, *steps)

    async def _drain(self) -> None:
        await self._database.transact(workers.drain, self.seq, self.row.incarnation)

    async def _unregister(self) -> None:
        await self._database.presence.withdraw(self.seq)
        seq, incarnation, _ = self.row
        await self._database.transact(workers.unregister, seq, reason="stopped", incarnation=incarnation)


# Loops that outlive the store's absence, and work that outlives its caller.


_FIRST_PAUSE = 0.05
_STEADY = 10.0  # seconds after which a loop counts as well again


async def survive(loop: Callable[[], Awaitable[None]], worker: str, ports: Ports, *, longest_pause: float) -> None:
    """Run a loop for ever: while the store is away it waits, longer each time, and tries again."""
    pause = _FIRST_PAUSE
    while True:
        begun = ports.clock.monotonic()
        try:
            await loop()
        except Unavailable as problem:
            ports.try_again(problem)
        except Exception:
            log.exception("worker %s met an unexpected error; it continues", worker, extra={"worker": worker})
        if ports.clock.monotonic() - begun > _STEADY:
            pause = _FIRST_PAUSE
        await ports.clock.sleep(pause * (0.5 + ports.random.random()))
        pause = min(pause * 2, longest_pause)


async def as_far_as_possible(worker: str, *steps: Callable[[], Awaitable[object]]) -> None:
    """What a worker does on its way out. After an error in one step it does the others, except when the store is
    away, because then they would fail as well."""
    for step in steps:
        try:
            await step()
        except Unavailable as problem:
            log.warning("worker %s could not unregister: %s", worker, problem, extra={"worker": worker})
            return
        except Exception as problem:  # noqa: BLE001  it leaves, whatever the store answers
            log.warning("worker %s could not unregister completely: %s", worker, problem, extra={"worker": worker})


async def to_the_end(work: Awaitable[None]) -> None:
    """Finish `work` also when cancelled meanwhile: only what is whole can be taken back."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
