"""Streams: reading the events of runs from any process, from any point, and waiting for runs to end.

All readers of one process share one loop, and one query if they keep within the same bounds. Hints make it look at
once; without them it polls.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextvars import Context
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from holdfast.agents.events.log import payload_of
from holdfast.agents.queries import last_topic, topics_after
from holdfast.agents.retention.ages import find_horizon, with_gaps
from holdfast.agents.rows import AwaitedRun, Cursor, EventRow, RunRow, UsageBelow
from holdfast.agents.statements import EventsSql, RunsSql, RunTreesSql
from holdfast.agents.states import RUN
from holdfast.client.results import SlowWaits
from holdfast.clock import Ports
from holdfast.errors import (
    CursorPruned,
    HoldfastError,
    NotFound,
    ResultTimeout,
    StoreUnavailable,
    Unavailable,
    UsageError,
)
from holdfast.kernel import codec
from holdfast.kernel.database import Bounds, Database, Transaction, bound, bounds_now, reading, single, unbound
from holdfast.kernel.ids import new_id
from holdfast.reasons import Reason
from holdfast.text import shown
from holdfast.values import moment

# Readership: a process that streams runs or waits for them says so, and only then are their events hinted.
#
# Its row counts for some seconds and is renewed while somebody reads. It is written before the first look, so what it
# misses is found by the next one. A reader whose row is lost or late polls, as all do whose hints are lost.


log = logging.getLogger("holdfast.agents")

# Much longer than the time between two looks. For so long, writers send hints to a reader that has left.
_SECONDS = 20.0


@single
async def begin_reading(tx: Transaction, id: str) -> None:
    await tx.run(EventsSql.begin_reading, id=id, ttl_us=round(_SECONDS * 1e6))


@single
async def end_reading(tx: Transaction, id: str) -> None:
    await tx.run(EventsSql.end_reading, id=id)


class Readership:
    def __init__(self, database: Database, ports: Ports) -> None:
        self._database = database
        self._clock = ports.clock
        self._id = new_id(ports)
        self._renew_at = float("-inf")
        self._begun = False

    async def keep(self) -> None:
        """Be known as a reader; writes only when half of the time is over. To be called before each look."""
        now = self._clock.monotonic()
        if now < self._renew_at:
            return
        self._renew_at = now + _SECONDS / 2
        try:
            with unbound():
                await self._database.transact(begin_reading, self._id)
            self._begun = True
        except HoldfastError as problem:
            log.debug("this process finds events by polling: %s", shown(problem))

    async def end(self) -> None:
        """Nobody reads here any more. If that cannot be said, the row ends by itself."""
        self._renew_at = float("-inf")
        if self._begun:
            self._begun = False
            try:
                with unbound():
                    await self._database.transact(end_reading, self._id)
            except HoldfastError as problem:
                log.debug("a reader's row stays until its time is over: %s", shown(problem))


_PAGE = 500
_FIRST_LOOK, _LAST_LOOK = 0.02, 0.5
_STILL_THERE = 5.0  # seconds between two looks whether the runs that are read are still there
ENDED = RUN.final


@reading
async def events_after(tx: Transaction, cursors: Sequence[Cursor]) -> list[EventRow]:
    return await tx.many(EventsSql.events_after, cursors=cursors, limit=_PAGE)


@reading
async def find_runs(tx: Transaction, ids: Sequence[str]) -> list[RunRow]:
    return await tx.many(RunsSql.find_runs, ids=ids)


@reading
async def run_states(tx: Transaction, ids: Sequence[str]) -> list[AwaitedRun]:
    return await tx.many(RunTreesSql.run_states, ids=ids)


class EndedRun(NamedTuple):
    row: RunRow
    used: UsageBelow  # with all runs below it


@reading
async def ended_runs(tx: Transaction, ids: Sequence[str]) -> list[EndedRun]:
    """Runs that have ended, whole."""
    used = {each.run: each for each in await tx.many(RunTreesSql.usage_below, ids=ids)}
    return [EndedRun(row, used[row.id]) for row in await tx.many(RunsSql.find_runs, ids=ids) if row.id in used]


class _Waiter(NamedTuple):
    tenant: str | None  # None: any
    ended: asyncio.Future[EndedRun]
    bounds: Bounds | None  # within which its run is looked at


class _EventReader:
    def __init__(self, run: str, after: int, last: int | None) -> None:
        self.run = run
        self.after = after
        self.last = last
        self.bounds = bounds_now()
        self.rows: asyncio.Queue[EventRow | BaseException] = asyncio.Queue(4 * _PAGE)  # a page, with its gaps

    def give(self, rows: Sequence[EventRow]) -> bool:
        """What has come for this reader; at the end of a run that has ended, also that the rest was pruned."""
        fresh = [row for row in rows if row.seq > self.after]
        events = list(with_gaps(self.run, fresh, self.after, None if rows else self.last))
        for row in events:
            self.after = row.seq
            self.rows.put_nowait(row)
        return bool(events)

    def fail(self, problem: Exception) -> None:
        with contextlib.suppress(asyncio.QueueFull):  # it reads first, and is told so at the next look
            self.rows.put_nowait(problem)


class Streams:
    def __init__(
        self,
        database: Database,
        ports: Ports,
        ask: Callable[[str], Awaitable[Sequence[Reason]]],
        context: Context,
    ) -> None:
        """`ask` says why a run does not get on; `context` is where the loop runs that all readers share."""
        self._context = context
        self._database = database
        self._ports = ports
        self._readers: set[_EventReader] = set()
        self._awaited: defaultdict[str, list[_Waiter]] = defaultdict(list)
        self._looking: asyncio.Task[None] | None = None
        self._look = asyncio.Event()
        self._checked = ports.clock.monotonic()
        self._listening = False
        self._readership = Readership(database, ports)
        self._slow = SlowWaits(ports, "run", ask)

    async def events(self, run: str, after: int = 0, last: int | None = None) -> AsyncIterator[EventRow]:
        """Every event of a run after number `after`, and then each as it is stored, until the run has ended.

        `last` is the number of the last one, where the run has ended already. Where events were pruned, one says so.
        """
        await self._listen()
        reader = _EventReader(run, after, last)
        self._readers.add(reader)
        self._slow.begin(reader, run)
        self._wake()
        try:
            while True:
                row = await reader.rows.get()
                self._slow.progressed(reader)
                if isinstance(row, BaseException):
                    raise row
                if reader.rows.qsize() == _PAGE - 1:
                    self._look.set()  # there is room for more again
                yield row
                if row.type == "run_ended" or row.seq == last:
                    return
        finally:
            self._slow.end(reader)
            self._readers.discard(reader)

    async def wait(self, run: str, limit: float | None, tenant: str | None = None) -> EndedRun:
        """Until the run has ended; `NotFound` when there is none, or it is another tenant's."""
        await self._listen()
        waiter = _Waiter(tenant, asyncio.get_running_loop().create_future(), bounds_now())
        self._awaited[run].append(waiter)
        self._slow.begin(waiter.ended, run)
        self._wake()
        try:
            async with asyncio.timeout(limit):
                return await waiter.ended
        except TimeoutError:
            raise ResultTimeout(f"run {run} has not ended within {limit} s; it continues, so ask again.") from None
        finally:
            self._slow.end(waiter.ended)
            self._awaited[run] = [other for other in self._awaited[run] if other is not waiter]
            if not self._awaited[run]:
                del self._awaited[run]

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        await self._slow.close()
        await self._readership.end()
        self._database.unlisten(self._on_hint)
        self._listening = False
        self._give_up(StoreUnavailable("the app was closed while you read this run."))

    async def _listen(self) -> None:
        if not self._listening:
            self._listening = True
            await self._database.listen(self._on_hint)

    def _on_hint(self, note: str) -> None:
        subject, _, rest = note.partition(" ")
        if subject == "run":
            named = rest.split(",")
            ours = any(run in self._awaited for run in named) or any(reader.run in named for reader in self._readers)
            if ours or rest == "*":
                self._look.set()
        elif subject not in ("route", "cancel", "looked"):
            self._look.set()

    def _wake(self) -> None:
        self._look.set()
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._keep_looking(), name="streams", context=self._context)

    async def _keep_looking(self) -> None:
        pause = _FIRST_LOOK
        while self._readers or self._awaited:
            self._look.clear()
            try:
                found = await self._once()
            except Unavailable as problem:
                self._ports.try_again(problem)
                found = False
            except Exception as problem:  # noqa: BLE001  the waiting caller must get the error, whatever it is
                self._give_up(problem)
                return
            self._slow.look()
            pause = _FIRST_LOOK if found else min(pause * 1.5, _LAST_LOOK)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._look.wait()

    async def _once(self) -> bool:
        await self._readership.keep()
        found = False
        readers = [reader for reader in self._readers if reader.rows.qsize() < _PAGE]
        now = self._ports.clock.monotonic()
        checking, self._checked = (True, now) if now >= self._checked + _STILL_THERE else (False, self._checked)
        for bounds in {reader.bounds for reader in readers}:
            mine = [reader for reader in readers if reader.bounds == bounds]
            found |= await self._within(bounds, self._look_for_events(mine))
            if checking:
                await self._within(bounds, self._look_for_gone(mine))
        for bounds in {waiter.bounds for waiters in self._awaited.values() for waiter in waiters}:
            found |= await self._within(bounds, self._look_for_ends(bounds))
        return found

    async def _within(self, bounds: Bounds | None, look: Coroutine[Any, Any, bool]) -> bool:
        """One look. What is refused within these bounds, such as to one tenant, ends the waits within them alone."""
        try:
            with bound(bounds):
                return await look
        except Unavailable:
            raise
        except Exception as problem:  # noqa: BLE001  the waiting caller must get the error, whatever it is
            self._refuse(bounds, problem)
            return False

    async def _look_for_gone(self, readers: Sequence[_EventReader]) -> bool:
        """A run that is removed has no last event: who reads it is told so."""
        there = {row.id for row in await self._database.transact(run_states, sorted({each.run for each in readers}))}
        for reader in readers:
            if reader.run not in there:
                reader.fail(NotFound(f"there is no run {reader.run} in this database any more."))
        return False

    async def _look_for_events(self, readers: Sequence[_EventReader]) -> bool:
        lowest: dict[str, int] = {}
        for reader in readers:
            lowest[reader.run] = min(reader.after, lowest.get(reader.run, reader.after))
        rows = await self._database.transact(events_after, [Cursor(run, at) for run, at in lowest.items()])
        return self._deal(readers, rows)

    async def _look_for_ends(self, bounds: Bounds | None) -> bool:
        asked = {
            run: waiting
            for run, waiters in self._awaited.items()
            if (waiting := [waiter for waiter in waiters if waiter.bounds == bounds and not waiter.ended.done()])
        }
        if not asked:
            return False
        states = {row.id: row for row in await self._database.transact(run_states, list(asked))}
        for run, waiters in asked.items():
            there = states.get(run)
            for waiter in waiters:
                if (there is None or waiter.tenant not in (None, there.tenant)) and not waiter.ended.done():
                    waiter.ended.set_exception(NotFound(f"there is no run {run} in this database."))
        over = [run for run, row in states.items() if row.finalized_at is not None]
        if not over:
            return False
        for ended in await self._database.transact(ended_runs, over):
            for waiter in asked[ended.row.id]:
                if not waiter.ended.done():
                    waiter.ended.set_result(ended)
        return True

    @staticmethod
    def _deal(readers: Sequence[_EventReader], rows: Sequence[EventRow]) -> bool:
        by_run: defaultdict[str, list[_EventReader]] = defaultdict(list)
        for reader in readers:
            by_run[reader.run].append(reader)
        found: defaultdict[str, list[EventRow]] = defaultdict(list)
        for row in rows:
            found[row.run].append(row)
        given = [reader.give(found[run]) for run, reading in by_run.items() for reader in reading]
        return any(given)

    def _give_up(self, problem: Exception) -> None:
        everybodys = {reader.bounds for reader in self._readers}
        for bounds in everybodys | {each.bounds for waiters in self._awaited.values() for each in waiters}:
            self._refuse(bounds, problem)

    def _refuse(self, bounds: Bounds | None, problem: Exception) -> None:
        for reader in self._readers:
            if reader.bounds == bounds:
                reader.fail(problem)
        for waiters in self._awaited.values():
            for waiter in waiters:
                if waiter.bounds == bounds and not waiter.ended.done():
                    waiter.ended.set_exception(problem)


# Topics: what happens to all runs, as the records that outside listeners get, durable and from any point.
#
# The order is that of the transactions. A transaction that is still open may yet put something before what has been
# committed since, so on PostgreSQL a reader stays behind the oldest one. A restored database counts its transactions
# again: before their number comes the cluster's epoch, which has risen by then.


NOW = "now"
_PAUSE = 0.25


@dataclass(frozen=True, slots=True)
class TopicEvent:
    """One change of a run; `at` is when it was stored, in UTC.

    Give `cursor` to `hf.events(after=…)` to continue behind it.
    """

    cursor: str
    topic: str
    run: str
    seq: int
    at: datetime
    payload: dict[str, Any]


async def topics(
    opened: Callable[[], Any], ports: Ports, after: str, names: tuple[str, ...]
) -> AsyncIterator[TopicEvent]:
    """Every change after a cursor, then each as it is committed; without end."""
    at = (-1, 0, 0) if after == NOW else read_topic_cursor(after)
    database: Database = await opened()
    if after == NOW:
        after = await newest_cursor(database)
        at = read_topic_cursor(after)
    if after and at < (gone := await database.transact(find_horizon)):
        raise CursorPruned(after, _as_cursor(gone))
    stirred = asyncio.Event()

    def heard(note: str) -> None:
        if note.startswith("run ") or not note:
            stirred.set()

    readership = Readership(database, ports)
    await database.listen(heard)
    try:
        while True:
            stirred.clear()
            await readership.keep()
            rows = await database.transact(topics_after, at, _PAGE)
            for row in rows:
                at = (row.epoch, row.tx, row.pos)
                if not names or row.topic in names:
                    payload = payload_of(row.topic, codec.decode(row.data))
                    yield TopicEvent(_as_cursor(at), row.topic, row.run, row.seq, moment(row.at), payload)
            if len(rows) < _PAGE:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_PAUSE):
                        await stirred.wait()
    finally:
        database.unlisten(heard)  # its row ends by itself: the app may be closed by now


async def newest_cursor(database: Database) -> str:
    """The cursor that "now" stands for: whatever is committed after this call comes after it."""
    at = await database.transact(last_topic)
    return "" if at[0] < 0 else _as_cursor(at)


def _as_cursor(at: tuple[int, int, int]) -> str:
    return ".".join(map(str, at))


def read_topic_cursor(cursor: str) -> tuple[int, int, int]:
    """Where a cursor of topics stands; `UsageError` when it is none."""
    if not cursor:
        return -1, 0, 0
    parts = cursor.split(".")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() for part in parts):
        raise UsageError(
            f"{cursor!r} is not a cursor; use the cursor of an event of hf.events(after=…), or '' for the beginning."
        )
    epoch, tx, pos = map(int, parts)
    return epoch, tx, pos
