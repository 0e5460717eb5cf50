"""Lanes: how many jobs run at once, and how often one starts, across all workers.

A job has at most one lane: its own, or else its queue's. Jobs with a lane are on routes of their own and are claimed
here; all others never pay for it. What a lane holds back is moved from `ready` to `later` and is 'blocked' there;
the transaction that ends a job of the lane, or runs after `opens_at`, lets the next through.

The lock order is jobs, then lanes by name, and nobody waits for a lane: after a few tries, within `_PATIENCE`, it
counts as held. A claim leaves the jobs of a held lane alone. An ending is recorded at once, and leaves a note: the
next transaction that holds the lane does what it says, and a look finds those that nobody followed. So a claim and an
ending of one lane cannot miss each other: either the claim sees the free place, or the ending sees the blocked job, or
a note is there that brings somebody who sees both. Nobody starts a job of a lane without its lock.

A transaction that lets blocked jobs through skips a job that somebody else holds, and has the lane looked at again.
`opens_at` is null only when nobody is blocked, as seen under the lane's lock, or when there is a note. A job becomes
blocked under that lock, or together with a note.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from holdfast.kernel.database import Transaction, route_note
from holdfast.kernel.flow_rows import Candidate, Charge, DeclaredLane, LaneState
from holdfast.kernel.rows import Lease
from holdfast.kernel.statements import LanesSql

LOOK_AHEAD = 100
BACKSTOP_US = 60_000_000  # a blocked lane is looked at this often, should an opening have been missed
SOON_US = 100_000  # and this soon, when a blocked job, or the lane itself, was in somebody's open transaction
_PATIENCE = (0.001, 0.002, 0.004, 0.008)  # seconds before each new try to lock a lane

# The limits of a lane whose row is missing, as `restore_lanes` and `open_stranded` write them.
UNKNOWN: Final[Mapping[str, int]] = {"concurrency": 1, "interval_us": 1_000_000, "burst": 1}


class Admission(NamedTuple):
    """What a claim may do with its candidates."""

    taken: list[int]
    blocked: list[int]
    charges: list[Charge]


async def claim_in_lanes(tx: Transaction, worker: int, routes: Sequence[int], n: int, ttl_us: int) -> list[Lease]:
    """Take up to `n` jobs that their lanes let through; what is held back waits for its lane to open."""
    look = max(n, LOOK_AHEAD)
    candidates = await tx.many(LanesSql.candidates, routes=routes, n=look)
    if not candidates:
        return []
    taken = await admitted(tx, candidates, n, crowded=len(candidates) >= look)
    leases = await tx.many(LanesSql.take, seqs=taken, worker=worker, ttl_us=ttl_us) if taken else []
    return sorted(leases, key=attrgetter("place"))


async def admitted(tx: Transaction, candidates: Sequence[Candidate], n: int, *, crowded: bool) -> list[int]:
    """Which of these jobs, which the caller has locked and takes, their lanes let start; the others are blocked now.

    Those of a lane that somebody holds stay where they are. `crowded`: there may be more behind them, which they would
    hide from this claim and the next; then they are blocked, too, with a note for the lane.
    """
    if not candidates:
        return []
    lanes = await _past_the_held_up(tx, await _locked(tx, {c.lane for c in candidates}))
    there = {lane.name for lane in lanes}
    held = [c for c in candidates if c.lane not in there]
    admission = admit([c for c in candidates if c.lane in there], lanes, n)
    if crowded and held:
        admission.blocked.extend(c.seq for c in held)
        await tx.run(LanesSql.note_lanes, names=sorted({c.lane for c in held}))
    if admission.blocked:
        await tx.run(LanesSql.block, seqs=admission.blocked)
    if admission.charges:
        await tx.run(LanesSql.charge, charges=admission.charges)
    return admission.taken


async def free_lanes(tx: Transaction, names: Collection[str]) -> None:
    """Let through what these lanes have room for now; called wherever one of their jobs stops running.

    A lane is left without an opening only when nobody is blocked in it. Of one that somebody holds a note is left.
    """
    lanes = await _locked(tx, names)
    if held := set(names) - {lane.name for lane in lanes}:
        await tx.run(LanesSql.note_lanes, names=sorted(held))
    await _free(tx, lanes)


async def _free(tx: Transaction, lanes: Sequence[LaneState]) -> None:
    routes: set[int] = set()
    charges: list[Charge] = []
    short: list[LaneState] = []
    for lane in lanes:
        if lane.first is None:
            charges.append(Charge(lane.name, lane.free_at, None, lane.now))
            continue
        room = _room(lane)
        woken = await tx.many(LanesSql.unblock, name=lane.name, n=room) if room else []
        routes.update(job.route for job in woken)
        if len(woken) < room:
            short.append(lane)
        else:
            charges.append(Charge(lane.name, lane.free_at, _look_again(lane, room), lane.now))
    if short:
        skipped = {row.name for row in await tx.many(LanesSql.still_blocked, names=[lane.name for lane in short])}
        charges += [
            Charge(lane.name, lane.free_at, lane.now + SOON_US if lane.name in skipped else None, lane.now)
            for lane in short
        ]
    if charges:
        await tx.run(LanesSql.charge, charges=charges)
    if note := route_note(routes):
        await tx.hint(note)


async def open_lanes(tx: Transaction, *, limit: int) -> int:
    """Look at lanes whose time has come, and at those of which there is a note; returns how many there were.

    What somebody holds is looked at again soon.
    """
    due = {lane.name for lane in await tx.many(LanesSql.due_lanes, limit=limit)}
    noted = {lane.name for lane in await tx.many(LanesSql.due_notes, limit=limit)}
    lanes = await _locked(tx, due | noted, patience=())
    await _free(tx, lanes)
    if held := noted - {lane.name for lane in lanes}:
        await tx.run(LanesSql.put_notes_off, names=sorted(held), pause_us=SOON_US)
    return len(due | noted)


async def prune_lanes(tx: Transaction, *, age_us: int, limit: int) -> None:
    """Look at some of the lanes that nobody has written for so long, and forget those that no job names any more.

    A job that ended may be enqueued again, so its lane stays as long as the job.
    """
    old = await tx.many(LanesSql.old_lanes, age_us=age_us, limit=limit)
    if used := sorted(lane.name for lane in old if lane.used):
        await tx.run(LanesSql.keep_lanes, names=used)
    if unused := sorted(lane.name for lane in old if not lane.used):
        await tx.run(LanesSql.prune_lanes, names=unused)


async def forget_empty(tx: Transaction, names: Collection[str]) -> None:
    """Forget those of these lanes that no job names any more, at once: a name may tell whose jobs they held."""
    if names:
        await tx.many(LanesSql.wait_for_lanes, names=sorted(names))
        await tx.many(LanesSql.take_notes, names=sorted(names))
        await tx.run(LanesSql.forget_empty, names=sorted(names))


def admit(candidates: Iterable[Candidate], lanes: Iterable[LaneState], n: int) -> Admission:
    """Who may run now, in their order; within a lane nobody overtakes. Every candidate's lane is given. Pure."""
    gates = {lane.name: _Gate(lane) for lane in lanes}
    taken: list[int] = []
    blocked: list[int] = []
    for candidate in candidates:
        gate = gates[candidate.lane]
        if len(taken) == n and gate.closed_until is None:
            break
        if gate.admits(candidate):
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
        if lane.first is not None and lane.first < candidate.place:
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


async def _locked(
    tx: Transaction, names: Collection[str], patience: Sequence[float] = _PATIENCE
) -> Sequence[LaneState]:
    """Those of these lanes that nobody else holds, locked until the commit, as they stand with their notes followed."""
    if not names:
        return []
    missing = set(names) - await _lock(tx, names)
    if missing:
        unknown = missing - {lane.name for lane in await tx.many(LanesSql.known_lanes, names=sorted(missing))}
        if unknown:
            await tx.run(LanesSql.restore_lanes, names=sorted(unknown))
            missing -= await _lock(tx, unknown)
    for seconds in patience:
        if not missing:
            break
        await tx.run(LanesSql.breathe, seconds=seconds)
        missing -= await _lock(tx, missing)
    free = sorted(set(names) - missing)
    lanes = await tx.many(LanesSql.lane_states, names=free) if free else []
    if noted := [lane.name for lane in lanes if lane.noted]:
        await _follow_notes(tx, noted)
        lanes = await tx.many(LanesSql.lane_states, names=free)
    return lanes


async def _lock(tx: Transaction, names: Iterable[str]) -> set[str]:
    return {lane.name for lane in await tx.many(LanesSql.lock_lanes, names=sorted(names))}


async def _follow_notes(tx: Transaction, names: Sequence[str]) -> None:
    """Write down what others declared who could not, or must not, lock these lanes; and have each looked at."""
    notes = sorted(await tx.many(LanesSql.take_notes, names=names))
    limits = {
        note.lane: DeclaredLane(note.lane, note.concurrency, note.interval_us, note.burst)
        for note in notes
        if note.declares
    }
    if limits:
        await tx.run(LanesSql.declare_lanes, limits=[limits[name] for name in sorted(limits)])
    await tx.run(LanesSql.follow_notes, names=names)


async def _past_the_held_up(tx: Transaction, lanes: Sequence[LaneState]) -> Sequence[LaneState]:
    """Where there is room, only a blocked job that could run now has a place before the others."""
    roomy = [lane.name for lane in lanes if lane.first is not None and _room(lane)]
    if not roomy:
        return lanes
    first = {row.name: row for row in await tx.many(LanesSql.lock_blocked, names=roomy)}
    return [lane.behind(first.get(lane.name)) if lane.name in roomy else lane for lane in lanes]
