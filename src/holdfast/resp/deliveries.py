"""Deliveries: what went out over the connections of this server, and is still held as far as it knows.

Only memory, and only a shortcut: the store decides whether a lease holds. What is not found here is looked for there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from hashlib import blake2b
from typing import NamedTuple, TypeVar

from holdfast.kernel.rows import Held, Lease
from holdfast.resp.rows import Epoch

K = TypeVar("K")


class Popped(NamedTuple):
    """A job that was claimed, and the id by which clients know it. `element`: the bytes that were pushed, if any."""

    lease: Lease
    public: str
    incarnation: str  # of the worker
    element: bytes | None = None
    sure_until: float = 0.0  # by this process's clock: nobody can have taken it away from a silent worker before


class SentLease(NamedTuple):
    """A lease that went out, and to which incarnation of its worker."""

    lease: Lease  # without its payload
    incarnation: str
    sure_until: float = 0.0

    @property
    def epoch(self) -> Epoch:
        return Epoch(self.lease.worker, self.incarnation)


class JobDelivery(NamedTuple):
    sent: SentLease
    names: tuple[tuple[str, str | bytes], ...]
    client: int


class Deliveries:
    def __init__(self) -> None:
        self._held: dict[Held, JobDelivery] = {}
        self._named: dict[tuple[str, str | bytes], dict[Held, None]] = {}  # by worker, and public id or element
        self._owned: dict[str, dict[Held, None]] = {}
        self._clients: dict[int, dict[Held, None]] = {}
        self.ending: set[Held] = set()  # a report that ends them is on its way to the store

    def __len__(self) -> int:
        return len(self._held)

    def add(self, popped: Iterable[Popped], worker: str, client: int) -> None:
        """Their replies go out over this connection, or a report came in over it."""
        for lease, public, incarnation, element, sure_until in popped:
            held = lease.held
            before = self._held.get(held)
            self.forget(held)
            names: tuple[tuple[str, str | bytes], ...] = ((worker, public),)
            if element is not None:
                names += ((worker, _digest(element)),)
            elif before is not None:  # a report names no element
                names = before.names
            sent = SentLease(lease._replace(payload="", metadata="{}"), incarnation, sure_until)
            self._held[held] = JobDelivery(sent, names, client)
            for name in names:
                self._named.setdefault(name, {})[held] = None
            self._owned.setdefault(worker, {})[held] = None
            self._clients.setdefault(client, {})[held] = None

    def find(self, worker: str, public: str) -> SentLease | None:
        """The latest lease of this job whose reply went out to the worker."""
        found = self._named.get((worker, public))
        return self._held[next(reversed(found))].sent if found else None

    def find_element(self, worker: str, element: bytes) -> SentLease | None:
        """The first lease of a job that was pushed as this element, without those that are being ended."""
        found = self._named.get((worker, _digest(element)), ())
        return next((self._held[held].sent for held in found if held not in self.ending), None)

    def over(self, client: int) -> list[Held]:
        """What went out over this connection."""
        return [*self._clients.get(client, ())]

    def of(self, workers: Iterable[str]) -> frozenset[Held]:
        """What went out to these workers over connections that still live."""
        return frozenset[Held]().union(*(self._owned.get(worker, ()) for worker in workers))

    def by_epoch(self) -> dict[Epoch, list[Held]]:
        """What went out over connections that still live, to each epoch of a worker."""
        found: dict[Epoch, list[Held]] = {}
        for held, delivery in self._held.items():
            found.setdefault(delivery.sent.epoch, []).append(held)
        return found

    def forget(self, held: Held) -> None:
        """It has ended, or was lost."""
        delivery = self._held.pop(held, None)
        if delivery is None:
            return
        for name in delivery.names:
            _discard(self._named, name, held)
        _discard(self._owned, delivery.names[0][0], held)
        _discard(self._clients, delivery.client, held)

    def forget_others(self, asked: Collection[Held], kept: Collection[Held]) -> None:
        """Of those that were asked for, the store still knows these."""
        for held in asked:
            if held not in kept:
                self.forget(held)

    def lose_client(self, client: int) -> None:
        """A connection has ended: whether its last replies arrived is not known any more."""
        for held in [*self._clients.get(client, ())]:
            self.forget(held)


def _discard(index: dict[K, dict[Held, None]], key: K, held: Held) -> None:
    found = index[key]
    found.pop(held, None)
    if not found:
        del index[key]


def _digest(element: bytes) -> bytes:
    return blake2b(element, digest_size=16).digest()
