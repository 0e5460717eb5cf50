"""A worker's place in the store: its row, its number, and until when others must count it as alive.

A heartbeat that the store refuses says that the place is lost. Either the worker was given up, or an older state of the
store was restored under it, in which its number may belong to another: then the epoch rises before it continues.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from typing import NamedTuple

from holdfast.clock import Ports
from holdfast.durations import microseconds
from holdfast.errors import VERSION, Unavailable
from holdfast.kernel import epoch, pools, workers
from holdfast.kernel.database import Database, unheeded
from holdfast.kernel.ids import new_id
from holdfast.kernel.leases import Beat, OwnRow
from holdfast.kernel.rows import Route
from holdfast.kernel.workers import Registration
from holdfast.settings import Settings
from holdfast.workers.role import Role
from holdfast.workers.telemetry import WorkerTelemetry

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
    presence_changed: Callable[[], None] = unheeded,
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


class MemberRow(NamedTuple):
    """The worker's row in the store, as it knows it. One value, because the lifeline's thread reads it."""

    seq: int
    incarnation: str
    last_beat: int  # the store's time of the last heartbeat that was answered


class Membership:
    def __init__(
        self,
        database: Database,
        ports: Ports,
        settings: Settings,
        telling: WorkerTelemetry,
        *,
        relinked: Callable[[], None],
    ) -> None:
        """`relinked` is called when the worker may take jobs again."""
        self._database = database
        self._ports = ports
        self._settings = settings
        self._telling = telling
        self._relinked = relinked
        self._coming = ""  # the next incarnation, kept until its registration is answered
        self._linked_until = float("-inf")
        self._warned = False
        self._heard_at = float("inf")
        self.row = MemberRow(0, "", 0)

    def said(self) -> tuple[int, OwnRow]:
        """The worker's number, and what a heartbeat says of its row. Safe on any thread."""
        seq, incarnation, last_beat = self.row
        return seq, OwnRow(incarnation, last_beat, self._database.presence.shows(seq))

    @property
    def linked(self) -> bool:
        """Whether others must count this worker as alive. Otherwise it takes nothing: they would take it away again."""
        linked = self._is_linked()
        if not linked and not self._warned:
            self._warned = True
            self._telling.unlinked(self.row.seq)
        return linked

    @property
    def forsaken(self) -> bool:
        """Whether the store has answered no heartbeat for three TTLs."""
        return self._ports.clock.monotonic() - self._heard_at > 3 * self._settings.worker_ttl.total_seconds()

    async def register(
        self, who: Registration, routes: Sequence[Route], *, presence_changed: Callable[[], None]
    ) -> None:
        """As a new incarnation, under a new number."""
        self._coming = self._coming or new_id(self._ports)
        asked_at = self._ports.clock.monotonic()
        who = who._replace(incarnation=self._coming)
        seq = await register(self._database, who, routes, self._settings, presence_changed=presence_changed)
        self.row, self._coming = MemberRow(seq, who.incarnation, 0), ""
        self._link(asked_at)
        self._telling.registered(seq, who)

    def refused(self, sent_at: float, beat: Beat) -> bool:
        """Take in the answer to a heartbeat; True when the store has no place for this worker any more."""
        if beat.registered:
            self.row = self.row._replace(last_beat=beat.now or 0)
            self._link(sent_at)
            return False
        if beat.incarnation != self.row.incarnation:  # it was the one before
            return False
        self._linked_until = float("-inf")
        return True

    async def judge(self) -> workers.WorkerStanding:
        """After a refusal: what became of the row. Where it is still there, heartbeats continue from what it says."""
        standing = await self._database.transact(workers.judge_self, self.row.incarnation)
        if standing.live or not standing.known:
            self._telling.set_back(self.row.seq)
        else:
            self._telling.lost_contact(self.row.seq)
        if standing.live:
            self.row = self.row._replace(last_beat=0)
        else:  # if the number is another's now, so is the sign
            await self._database.presence.withdraw(self.row.seq)
        return standing

    async def drain(self) -> None:
        await self._database.transact(workers.drain, self.row.seq, self.row.incarnation)

    async def unregister(self) -> None:
        await self._database.presence.withdraw(self.row.seq)
        seq, incarnation, _ = self.row
        await self._database.transact(workers.unregister, seq, reason="stopped", incarnation=incarnation)

    async def raise_epoch(self) -> None:
        """The store gave a token out twice: it was set back."""
        with contextlib.suppress(Unavailable):  # the next such token says so again
            await self._database.transact(epoch.bump)
            self._telling.set_back(self.row.seq)

    def _is_linked(self) -> bool:
        return self._ports.clock.monotonic() < self._linked_until

    def _link(self, sent_at: float) -> None:
        """The store took a sign of life that was sent then."""
        before = self._is_linked()
        self._heard_at = sent_at
        self._linked_until = sent_at + self._settings.worker_ttl.total_seconds()
        self._warned = False
        if not before:
            self._relinked()
