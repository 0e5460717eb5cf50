"""Slots: what a worker holds, how many attempts of each sort it runs at once, and what waits for a slot.

Every definition belongs to a group of slots. A group that is full takes nothing more, and keeps no other from taking.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from holdfast.kernel.rows import Lease, LeaseRef
from holdfast.kernel.workers import HANGING, LOOP, LoopHold
from holdfast.settings import Settings

# Holdings: the leases of a worker, and until when it may act on each.
#
# `fence_at` is this process's own monotonic clock: the moment before the claim or renewal was sent, plus the
# lease, minus a margin. Past it nothing may be started, whatever the store would say.


class Stop(Enum):
    """Why a running attempt is being interrupted."""

    LOST = auto()  # the lease is gone: drop the result
    CANCEL = auto()  # someone cancelled the job
    RELEASE = auto()  # this worker goes away: hand the job back


@dataclass(eq=False)
class Holding:
    """A lease and how far its attempt is. What is not given at first stays with the class until it changes: every job
    has one of these, and most never change it."""

    lease: Lease
    claimed_at: float  # this process's clock, before the claim was sent
    fence_at: float
    slots: str = "jobs"
    task: asyncio.Task[None] | None = field(default=None, init=False)
    thread: asyncio.Future[Any] | None = field(default=None, init=False)
    stop: Stop | None = field(default=None, init=False)
    begun: bool = field(default=False, init=False)
    began: float = field(default=0.0, init=False)  # this process's clock, when it had a slot
    awaited: bool = field(default=False, init=False)  # a caller in this process waited for it when it failed
    entered: bool = field(default=False, init=False)  # its handler may have done something
    ending: bool = field(default=False, init=False)  # its outcome is on the way to the store
    lasted: float = field(default=0.0, init=False)  # seconds its handler took, if anybody listened
    cancelled: bool = field(default=False, init=False)  # its handler should stop; a handler on a thread asks
    held_loop_at: float = field(default=0.0, init=False)  # this process's clock, when it was last seen to hold the loop

    def may_start(self, now: float) -> bool:
        return self.stop is None and now < self.fence_at

    def interrupt(self, why: Stop) -> None:
        """Stop the attempt; the first reason given stands, except that a lost lease overrides."""
        if self.stop is None or why is Stop.LOST:
            self.stop = why
        self.cancelled = True
        # A task cancelled before its first step would never run, and so never give its slot back.
        if self.task is not None and self.begun and not self.ending:
            self.task.cancel()


class Holdings:
    """Every lease this worker knows it holds. What is not in here is never renewed."""

    def __init__(self) -> None:
        self._by_lease: dict[tuple[int, int, int], Holding] = {}

    def add(self, lease: Lease, claimed_at: float, *, fence_at: float, slots: str) -> Holding:
        holding = self._by_lease[lease.seq, lease.epoch, lease.token] = Holding(lease, claimed_at, fence_at, slots)
        return holding

    def forget(self, lease: Lease) -> Holding | None:
        """What was held; None when nothing was, any more."""
        return self._by_lease.pop((lease.seq, lease.epoch, lease.token), None)

    def find(self, seq: int, epoch: int, token: int) -> Holding | None:
        return self._by_lease.get((seq, epoch, token))

    def has(self, holding: Holding) -> bool:
        lease = holding.lease
        return self._by_lease.get((lease.seq, lease.epoch, lease.token)) is holding

    def all(self) -> list[Holding]:
        return list(self._by_lease.values())

    def named(self) -> list[LeaseRef]:
        """Read from the heartbeat thread too: one atomic copy, then no shared state."""
        return [holding.lease.held for holding in list(self._by_lease.values())]

    def __len__(self) -> int:
        return len(self._by_lease)


# Slots, and their groups.


@dataclass(frozen=True, slots=True)
class SlotGroup:
    """Slots that some definitions share. A worker runs at most `limit` of their attempts at once.

    A route names the kind of its jobs, and kinds that its worker must have beside it. Of the groups of these kinds, its
    jobs take the slots of the one with the highest `rank`. The program's own jobs have rank 0.
    """

    name: str  # stored, and shown by `holdfast workers`
    limit: Callable[[Settings], int]
    rank: int = 0
    prefetches: bool = False  # while attempts are short, a worker holds more jobs than it has slots
    abandons: bool = False  # an attempt that ends before its thread leaves the thread behind and frees its slot


JOBS = SlotGroup("jobs", lambda settings: settings.concurrency, prefetches=True)


class Slots:
    """The slots of one group in one worker."""

    def __init__(self, limit: int, ahead: int) -> None:
        """`ahead`: how many more to have at hand while attempts are short."""
        self.limit = limit
        self.running = 0
        self.ready: deque[Holding] = deque()
        self._ahead = ahead

    def room(self, *, short: bool) -> int:
        return self.limit + (self._ahead if short else 0) - self.running - len(self.ready)

    def put(self, holding: Holding) -> None:
        """Let it wait for a slot. What was lost before goes first: it was in the store before the others."""
        if holding.lease.rescues:
            self.ready.insert(sum(other.lease.rescues > 0 for other in self.ready), holding)
        else:
            self.ready.append(holding)

    def take_out(self, holding: Holding) -> bool:
        """It does not wait here any more; False when it did not."""
        if holding not in self.ready:
            return False
        self.ready.remove(holding)
        return True

    def take_overdue(self, since: float) -> list[Holding]:
        """Take out those that were lost more than once and have waited here since then. Who dies beside them would cost
        them one more rescue before they have run, so they go back to the store, where a free worker finds them."""
        found = [holding for holding in self.ready if holding.lease.rescues > 1 and holding.claimed_at <= since]
        for holding in found:
            self.ready.remove(holding)
        return found

    @property
    def free(self) -> int:
        return self.limit - self.running

    def next(self) -> Holding | None:
        """The one whose turn it is, counted as running from now on."""
        if not self.ready or self.running >= self.limit:
            return None
        self.running += 1
        return self.ready.popleft()


class WorkerSlots(dict[str, Slots]):
    """All slots of one worker, by the name of their group."""

    def __init__(self, groups: Iterable[SlotGroup], settings: Settings) -> None:
        limits = {group: group.limit(settings) for group in groups}
        super().__init__(
            {
                group.name: Slots(limit, limit * settings.prefetch if group.prefetches else 0)
                for group, limit in limits.items()
            }
        )

    @property
    def running(self) -> int:
        return sum(slots.running for slots in self.values())

    def empty(self) -> list[Holding]:
        """Take out whatever waits for a slot."""
        found = [holding for slots in self.values() for holding in slots.ready]
        for slots in self.values():
            slots.ready.clear()
        return found

    def take_overdue(self, since: float) -> list[Holding]:
        return [holding for slots in self.values() for holding in slots.take_overdue(since)]

    def taken(self, served: Collection[str], hanging: tuple[int, int], hold: LoopHold | None) -> str:
        """As JSON, for each group that is served: how many slots it has, and how many of them are taken.

        `hanging` is the same for threads in calls that were given up, and shown as a group if there are any. `hold` is
        who holds the event loop, or held it lately.
        """
        shown = {name: [slots.limit, slots.running] for name, slots in self.items() if name in served}
        return json.dumps(shown | ({HANGING: hanging} if hanging[1] else {}) | ({LOOP: hold} if hold else {}))


# The tasks of attempts: one for each, started at once or soon.
#
# At once means that the handler runs up to its first wait before the call returns, which saves the loop a round for
# each job. Python can do that since 3.12. Only the slots that a claim finds free are filled so: then handlers which
# never wait keep the loop no longer than there are slots, as they would otherwise.


Attempt = Coroutine[Any, Any, None]

_NAME = "attempt"  # the same for all: a name for each job would be made for nobody


class AttemptTasks:
    def __init__(self, attempt: Callable[[Holding], Attempt]) -> None:
        self._attempt = attempt
        self._filling = False
        self._around = Context()

    def claimed(self, slots: Slots) -> None:
        """Start what was just claimed. All of it is held by now, and so renewed: a handler may keep the loop busy."""
        self._around = copy_context()
        self._filling = True
        try:
            for _ in range(slots.free):
                if (holding := slots.next()) is None:
                    break
                holding.task = start_at_once(self._attempt(holding))
        finally:
            self._filling = False
        self._start(slots)

    def freed(self, slots: Slots) -> None:
        """An attempt has ended: start the next. Nothing of what its handler left in its context continues with that."""
        if slots.ready and not self._filling:
            self._around.copy().run(self._start, slots)

    def _start(self, slots: Slots) -> None:
        while (holding := slots.next()) is not None:
            holding.task = start_soon(self._attempt(holding))


def start_soon(attempt: Attempt) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(attempt, name=_NAME)


if sys.version_info >= (3, 12):

    def start_at_once(attempt: Attempt) -> asyncio.Task[None]:
        loop = asyncio.get_running_loop()
        if loop.get_task_factory() is not None:  # its owner wants to make every task
            return start_soon(attempt)
        return asyncio.Task(attempt, loop=loop, name=_NAME, eager_start=True)

else:
    start_at_once = start_soon
