"""Endings: what workers report as done, many to a commit.

One write is in flight; what comes meanwhile goes next. So a lonely report is not delayed, and those of many connections
or of one that pipelines share their commits. An answer is given after the commit. Of two reports about one lease the
first is written first.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple, TypeVar

from holdfast.clock import Clock
from holdfast.errors import HoldfastError, Unavailable
from holdfast.kernel.complete import complete, complete_and_settle
from holdfast.kernel.database import Database, Transaction, short, single
from holdfast.kernel.rows import EndedLease, Ending, Lease, LeaseRef
from holdfast.resp.records import Epoch, HoldersSql

# Deliveries: what went out over the connections of this server, and is still held as far as it knows.
#
# Only memory, and only a shortcut: the store decides whether a lease holds. What is not found here is looked for
# there.


K = TypeVar("K")


class PoppedJob(NamedTuple):
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
        self._held: dict[LeaseRef, JobDelivery] = {}
        self._named: dict[tuple[str, str | bytes], dict[LeaseRef, None]] = {}  # by worker, and public id or element
        self._owned: dict[str, dict[LeaseRef, None]] = {}
        self._clients: dict[int, dict[LeaseRef, None]] = {}
        self.ending: set[LeaseRef] = set()  # a report that ends them is on its way to the store

    def __len__(self) -> int:
        return len(self._held)

    def add(self, popped: Iterable[PoppedJob], worker: str, client: int) -> None:
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

    def over(self, client: int) -> list[LeaseRef]:
        """What went out over this connection."""
        return [*self._clients.get(client, ())]

    def of(self, workers: Iterable[str]) -> frozenset[LeaseRef]:
        """What went out to these workers over connections that still live."""
        return frozenset[LeaseRef]().union(*(self._owned.get(worker, ()) for worker in workers))

    def by_epoch(self) -> dict[Epoch, list[LeaseRef]]:
        """What went out over connections that still live, to each epoch of a worker."""
        found: dict[Epoch, list[LeaseRef]] = {}
        for held, delivery in self._held.items():
            found.setdefault(delivery.sent.epoch, []).append(held)
        return found

    def forget(self, held: LeaseRef) -> None:
        """It has ended, or was lost."""
        delivery = self._held.pop(held, None)
        if delivery is None:
            return
        for name in delivery.names:
            _discard(self._named, name, held)
        _discard(self._owned, delivery.names[0][0], held)
        _discard(self._clients, delivery.client, held)

    def forget_others(self, asked: Collection[LeaseRef], kept: Collection[LeaseRef]) -> None:
        """Of those that were asked for, the store still knows these."""
        for held in asked:
            if held not in kept:
                self.forget(held)

    def lose_client(self, client: int) -> None:
        """A connection has ended: whether its last replies arrived is not known any more."""
        for held in [*self._clients.get(client, ())]:
            self.forget(held)


def _discard(index: dict[K, dict[LeaseRef, None]], key: K, held: LeaseRef) -> None:
    found = index[key]
    found.pop(held, None)
    if not found:
        del index[key]


def _digest(element: bytes) -> bytes:
    return blake2b(element, digest_size=16).digest()


Write = Callable[[str | None], Ending]  # from what was reported before, as JSON, to how the attempt ends
Way = Callable[..., Awaitable["list[bool | Exception]"]]
_TOGETHER = 200


class ReportedEnd(NamedTuple):
    """A report about a job, and under which lease. `merges`: what was reported before is part of how it ends."""

    sent: SentLease
    write: Write
    merges: bool = True


class Report(NamedTuple):
    asked: ReportedEnd
    answer: asyncio.Future[bool]


class ReportEndings:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._waiting: list[Report] = []
        self._writer: asyncio.Task[None] | None = None
        self._last: asyncio.Future[bool] | None = None  # the answer to the last report

    def begin(self, sent: SentLease, write: Write, *, merges: bool = True) -> asyncio.Future[bool]:
        """End an attempt. False: the lease does not hold, or its worker counts as dead; nothing was written.

        What the store refuses is raised, for this report alone.
        """
        report = Report(ReportedEnd(sent, write, merges), asyncio.get_running_loop().create_future())
        self._waiting.append(report)
        self._last = report.answer
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_all(), name="resp-endings")
        return report.answer

    def _is_plain(self, lease: Lease) -> bool:
        """Whether nobody else has to hear of its end."""
        return lease.parent is None and lease.lane is None and lease.layer is None

    async def passed(self) -> None:
        """Wait for the answers to all reports that came before."""
        if self._last is not None and not self._last.done():
            await asyncio.wait([self._last])

    async def close(self) -> None:
        """Wait until what was reported is written, or refused."""
        if self._writer is not None:
            await self._writer

    async def _write_all(self) -> None:
        while self._waiting:
            reports = self._next()
            await self._write(reports)

    def _next(self) -> list[Report]:
        """The first that wait, and one of each lease."""
        chosen: dict[LeaseRef, Report] = {}
        left: list[Report] = []
        for report in self._waiting:
            held = report.asked.sent.lease.held
            if len(chosen) < _TOGETHER and held not in chosen:
                chosen[held] = report
            else:
                left.append(report)
        self._waiting = left
        return [*chosen.values()]

    def _way(self, asked: Sequence[ReportedEnd]) -> Way:
        if not all(self._is_plain(each.sent.lease) for each in asked):
            return end_together
        now = self._clock.monotonic()
        return end_at_once if all(each.sent.sure_until > now and not each.merges for each in asked) else end_plain

    async def _write(self, reports: Sequence[Report]) -> None:
        """What is refused of one report must not take the others along."""
        asked = [report.asked for report in reports]
        try:
            answers: Sequence[bool | Exception] = await self._database.transact(self._way(asked), asked)
        except Exception as problem:  # noqa: BLE001  the one that reported gets it, whatever it is
            if len(reports) > 1 and not isinstance(problem, Unavailable):
                for report in reports:
                    await self._write([report])
                return
            answers = [copy.copy(problem) for _ in reports]
        for report, answer in zip(reports, answers, strict=True):
            if report.answer.done():  # the connection that reported has ended
                continue
            if isinstance(answer, Exception):
                report.answer.set_exception(answer)
            else:
                report.answer.set_result(answer)


async def end_together(tx: Transaction, asked: Sequence[ReportedEnd]) -> list[bool | Exception]:
    """End attempts whose leases hold and whose workers are alive, each under its own token."""
    found = await _standing(tx, asked)
    parents = sorted({parent for number in found.endings if (parent := asked[number].sent.lease.parent) is not None})
    ended = await complete_and_settle(tx, [*found.endings.values()], parents) if found.endings else []
    return found.answers(asked, ended)


@short
@single
async def end_plain(tx: Transaction, asked: Sequence[ReportedEnd]) -> list[bool | Exception]:
    """As `end_together`, where nobody else hears of the end: a question, and one statement that commits by itself.

    Whatever changes in between, the statement names the token.
    """
    found = await _standing(tx, asked)
    return found.answers(asked, await complete(tx, [*found.endings.values()]) if found.endings else [])


@short
@single
async def end_at_once(tx: Transaction, asked: Sequence[ReportedEnd]) -> list[bool | Exception]:
    """As `end_plain` without the question, where the answer is known: the time of the lease and of its holder cannot be
    over yet. Who has lost the lease in another way has lost the token too."""
    found = _CheckedReports({}, {})
    for number, each in enumerate(asked):
        found.end(number, each.write, None)
    return found.answers(asked, await complete(tx, [*found.endings.values()]) if found.endings else [])


class _CheckedReports(NamedTuple):
    """By the places of their reports: how those end whose leases hold, and what is wrong with some."""

    endings: dict[int, Ending]
    refused: dict[int, Exception]

    def end(self, number: int, write: Write, before: str | None) -> None:
        try:
            self.endings[number] = write(before)
        except HoldfastError as problem:
            self.refused[number] = problem

    def answers(self, asked: Sequence[ReportedEnd], ended: Sequence[EndedLease]) -> list[bool | Exception]:
        seqs = {row.seq for row in ended}
        return [
            self.refused.get(number) or (number in self.endings and each.sent.lease.seq in seqs)
            for number, each in enumerate(asked)
        ]


async def _standing(tx: Transaction, asked: Sequence[ReportedEnd]) -> _CheckedReports:
    rows = await tx.many(HoldersSql.standing_leases, seqs=sorted(each.sent.lease.seq for each in asked))
    reported = {(row.held, row.incarnation): row.progress for row in rows}
    found = _CheckedReports({}, {})
    for number, (sent, write, _) in enumerate(asked):
        under = (sent.lease.held, sent.incarnation)
        if under in reported:
            found.end(number, write, reported[under])
    return found
