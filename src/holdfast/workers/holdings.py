"""What a worker holds, and until when it may act on it.

`fence_at` is this process's own monotonic clock: the moment before the claim or renewal was sent, plus the
lease, minus a margin. Past it nothing may be started, whatever the store would say.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from holdfast.kernel.rows import Held, Lease


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

    def named(self) -> list[Held]:
        """Read from the heartbeat thread too: one atomic copy, then no shared state."""
        return [holding.lease.held for holding in list(self._by_lease.values())]

    def __len__(self) -> int:
        return len(self._by_lease)
