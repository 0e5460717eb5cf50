"""Group commit: the plain enqueue calls of one event loop share their commits.

One write is in flight. Calls that are made meanwhile travel together in the next one, by one statement. So a lonely
caller waits for nothing, and a busy loop needs one commit for many calls, without a timer. Only calls that wait for
nobody's lock may enter: one that does would hold up all the others.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Iterable, Sequence
from contextvars import Context, copy_context
from typing import NamedTuple

from holdfast.clock import Ports
from holdfast.errors import Unavailable
from holdfast.kernel.database import Database
from holdfast.kernel.enqueue import enqueue
from holdfast.kernel.rows import NewJob

MOST_CALLS = 200  # in one statement; more gains little, and the first of them waits for the last
MOST_TEXT = 1 << 20  # characters of payload and metadata in one statement, unless a single call has more


class GroupedCall(NamedTuple):
    job: NewJob
    answer: asyncio.Future[None]
    since: float
    context: Context  # of the caller; a group is written in that of its first call

    @property
    def size(self) -> int:
        return len(self.job.payload) + len(self.job.metadata)


def may_join(job: NewJob) -> bool:
    """Whether the job can be inserted without a lane, a turn, a unique key or a parent that others may have locked."""
    return job.lane is None and not job.turn and job.unique_key is None and job.parent is None and job.retry_of is None


class Grouping:
    def __init__(self, database: Database, ports: Ports, patience: float) -> None:
        """`patience`: for how many seconds one call repeats itself while the store is away."""
        self._database = database
        self._ports = ports
        self._patience = patience
        # By whether workers get a hint: a statement announces all its jobs or none.
        self._waiting: dict[bool, deque[GroupedCall]] = {True: deque(), False: deque()}
        self._free = asyncio.Event()  # no write is in flight
        self._free.set()
        self._writer: asyncio.Task[None] | None = None  # asyncio itself keeps no reference

    async def enqueue(self, job: NewJob, *, notify: bool) -> None:
        """Accept a job that `may_join`, on a route that is known. Cancelled, it may have been accepted or not."""
        if not self._free.is_set():
            answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting[notify].append(GroupedCall(job, answer, self._ports.clock.monotonic(), copy_context()))
            await answer
            return
        self._free.clear()
        try:
            await self._database.transact(enqueue, [job], (), notify=notify)
        except Unavailable as problem:
            self._give_up(problem)
            raise
        finally:
            if self._waiting[True] or self._waiting[False]:
                asyncio.get_running_loop().call_soon(self._go_on)
            else:
                self._free.set()

    async def close(self) -> None:
        """Wait until every call has its answer."""
        while not self._free.is_set():
            await self._free.wait()

    def _go_on(self) -> None:
        """Write the next group, or be free. Callers that just got their answer ran before this, and may call again."""
        heads = {notify: calls[0].since for notify, calls in self._waiting.items() if calls}
        notify = min(heads, key=heads.__getitem__, default=True)
        if group := _take(self._waiting[notify]):
            writing = self._write(group, notify=notify)
            self._writer = asyncio.get_running_loop().create_task(writing, context=group[0].context)
        elif heads:
            self._go_on()  # all of those were cancelled
        else:
            self._free.set()

    async def _write(self, group: Sequence[GroupedCall], *, notify: bool) -> None:
        try:
            await self._accept(group, notify=notify)
        except Unavailable as problem:
            _fail(group, problem)
            self._give_up(problem)
        finally:
            for call in group:
                call.answer.cancel()  # nothing, but for those without an answer: the loop is being closed
            asyncio.get_running_loop().call_soon(self._go_on)

    async def _accept(self, group: Sequence[GroupedCall], *, notify: bool) -> None:
        """Insert a group and answer its calls. What the store refuses of one call must not take the others along."""
        try:
            await self._database.transact(enqueue, [call.job for call in group], (), notify=notify)
        except Unavailable:
            raise
        except Exception as problem:  # noqa: BLE001  the waiting caller must get the error, whatever it is
            if len(group) > 1:
                for call in group:
                    if not call.answer.done():
                        await self._accept([call], notify=notify)
            elif not group[0].answer.done():
                group[0].answer.set_exception(problem)
            return
        for call in group:
            if not call.answer.done():
                call.answer.set_result(None)

    def _give_up(self, problem: Unavailable) -> None:
        """The store is away. Callers that have waited as long as a call of their own would get the error too."""
        enough = self._ports.clock.monotonic() - self._patience
        for calls in self._waiting.values():
            _fail((call for call in calls if call.since <= enough), problem)


def _take(calls: deque[GroupedCall]) -> list[GroupedCall]:
    """The longest waiting, and as many after it as one statement may have."""
    group: list[GroupedCall] = []
    left = MOST_TEXT
    while calls and len(group) < MOST_CALLS and (not group or calls[0].size <= left):
        call = calls.popleft()
        if not call.answer.done():  # else its caller was cancelled, or has been told
            group.append(call)
            left -= call.size
    return group


def _fail(calls: Iterable[GroupedCall], problem: Unavailable) -> None:
    for call in calls:
        if not call.answer.done():
            mine = copy.copy(problem)  # each raises its own, with its own trace
            mine.__cause__ = problem
            call.answer.set_exception(mine)
