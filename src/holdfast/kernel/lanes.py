"""Lanes: how many jobs run at once, and how often one starts, across all workers.

A job has at most one lane: its own, or else its queue's. Jobs with a lane are on routes of their own and are claimed
here; all others never pay for it. What a lane holds back gets the lane's name as its gate and leaves the claim index;
whoever ends a job of the lane, or comes when `opens_at` has passed, lets the next through.

The lock order is jobs, then lanes by name. A claim and an ending of one lane follow each other by its row's lock, so
none can miss the other: either the claim sees the free place, or the ending sees the blocked job.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from holdfast.kernel.database import Transaction
from holdfast.kernel.records import Lease
from holdfast.kernel.records_flow import Candidate, Charge, LaneState
from holdfast.kernel.statements import Jobs, Lanes

LOOK_AHEAD = 100
BACKSTOP_US = 60_000_000  # a blocked lane is looked at this often, should an opening have been missed


class Admission(NamedTuple):
    """What a claim may do with its candidates."""

    taken: list[int]
    blocked: list[int]
    charges: list[Charge]


async def claim_in_lanes(tx: Transaction, worker: int, routes: Sequence[int], n: int, ttl_us: int) -> list[Lease]:
    """Take up to `n` jobs that their lanes let through; what is held back waits for its lane to open."""
    candidates = await tx.many(Lanes.candidates, routes=routes, n=max(n, LOOK_AHEAD))
    if not candidates:
        return []
    admission = admit(candidates, await _locked(tx, {c.lane for c in candidates}), n)
    leases = await tx.many(Lanes.take, seqs=admission.taken, worker=worker, ttl_us=ttl_us) if admission.taken else []
    if admission.blocked:
        await tx.run(Lanes.block, seqs=admission.blocked)
    if admission.charges:
        await tx.run(Lanes.charge, charges=admission.charges)
    return sorted(leases, key=lambda lease: (lease.priority, lease.seq))


async def free_lanes(tx: Transaction, names: Collection[str]) -> None:
    """Let through what these lanes have room for now; called wherever one of their jobs stops running."""
    routes: set[int] = set()
    charges: list[Charge] = []
    for lane in await _locked(tx, names):
        if lane.first is None:
            charges.append(Charge(lane.name, lane.free_at, None, lane.now))
            continue
        room = _room(lane)
        woken = await tx.many(Lanes.unblock, name=lane.name, n=room) if room else []
        routes.update(job.route for job in woken)
        opens_at = None if len(woken) < room else _look_again(lane, room)
        charges.append(Charge(lane.name, lane.free_at, opens_at, lane.now))
    if charges:
        await tx.run(Lanes.charge, charges=charges)
    if routes:
        await tx.run(Jobs.hint_routes, routes=",".join(str(route) for route in sorted(routes)))


async def open_lanes(tx: Transaction, *, limit: int) -> int:
    """Look at lanes whose time has come; returns how many there were."""
    due = [lane.name for lane in await tx.many(Lanes.due_lanes, limit=limit)]
    await free_lanes(tx, due)
    return len(due)


def admit(candidates: Iterable[Candidate], lanes: Iterable[LaneState], n: int) -> Admission:
    """Who may run now, in their order; within a lane nobody overtakes. Pure."""
    gates = {lane.name: _Gate(lane) for lane in lanes}
    taken: list[int] = []
    blocked: list[int] = []
    for candidate in candidates:
        gate = gates.get(candidate.lane)
        if len(taken) == n and (gate is None or gate.closed_until is None):
            break
        if gate is None or gate.admits(candidate):
            taken.append(candidate.seq)
        else:
            blocked.append(candidate.seq)
    return Admission(taken, blocked, [charge for gate in gates.values() if (charge := gate.charge())])


class _Gate:
    """One lane while a claim goes through its candidates. The rate is a leaky bucket (GCRA): `free_at` is when it will
    have run empty, and it may be ahead of now by as much as the burst allows."""

    def __init__(self, lane: LaneState) -> None:
        self._lane = lane
        self._running = lane.running
        self._free_at = lane.free_at
        self._admitted = False
        self.closed_until: int | None = None

    def admits(self, candidate: Candidate) -> bool:
        lane = self._lane
        if self.closed_until is not None:
            return False
        if lane.concurrency is not None and self._running >= lane.concurrency:
            self.closed_until = lane.now + BACKSTOP_US
            return False
        after = self._free_at
        if lane.interval_us is not None:
            after = max(self._free_at, lane.now) + candidate.cost * lane.interval_us
            early = after - max(lane.burst, candidate.cost) * lane.interval_us
            if early > lane.now:
                self.closed_until = early
                return False
        if lane.first is not None and lane.first < (candidate.priority, candidate.slot, candidate.seq):
            self.closed_until = lane.now  # there is room, but for one that was blocked before
            return False
        self._free_at = after
        self._running += 1
        self._admitted = True
        return True

    def charge(self) -> Charge | None:
        """What to write down, if anything was let through or held back."""
        lane = self._lane
        if self.closed_until is not None:
            return Charge(lane.name, self._free_at, self.closed_until, lane.now)
        if self._admitted and lane.interval_us is not None:
            opens_at = max(lane.now, self._free_at - (lane.burst - 1) * lane.interval_us)
            return Charge(lane.name, self._free_at, opens_at, lane.now)
        return None


def _room(lane: LaneState) -> int:
    """How many blocked jobs to let through; the claim asks again, so one too many does no harm."""
    room = LOOK_AHEAD if lane.concurrency is None else min(LOOK_AHEAD, max(0, lane.concurrency - lane.running))
    if lane.interval_us is None:
        return room
    ahead = max(lane.free_at, lane.now) - lane.now
    return min(room, max(0, lane.burst - -(-ahead // lane.interval_us)))


def _look_again(lane: LaneState, room: int) -> int:
    """When more may be let through; who ends a job of the lane looks by itself."""
    full = lane.concurrency is not None and lane.running + room >= lane.concurrency
    if lane.interval_us is None or full:
        return lane.now + BACKSTOP_US
    next_free = max(lane.free_at, lane.now) - (lane.burst - 1) * lane.interval_us
    return max(next_free, lane.now + lane.interval_us if room else next_free)


async def _locked(tx: Transaction, names: Collection[str]) -> list[LaneState]:
    if not names:
        return []
    ordered = sorted(names)
    await tx.many(Lanes.lock_lanes, names=ordered)
    return await tx.many(Lanes.lane_states, names=ordered)
