"""Claims for those who wait at this server: one transaction serves many of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.kernel.broker_rows import OwnerBeat
from holdfast.kernel.brokers import Claimer, ClaimNotes, claim_for
from holdfast.kernel.database import Transaction, short
from holdfast.kernel.ids import JobId
from holdfast.kernel.leases import beat_many
from holdfast.kernel.rows import Lease
from holdfast.resp.plans import KIND
from holdfast.resp.rows import Epoch
from holdfast.resp.statements import HoldersSql, PlansSql


class QueueTurn(NamedTuple):
    """A queue that somebody waits for, and the routes on which it is served there."""

    queue: str
    routes: frozenset[int]


class ClaimAsk(NamedTuple):
    """How many jobs a worker asks for, of its first queue, then of its second …"""

    epoch: Epoch
    jobs: int
    turns: tuple[QueueTurn, ...]
    tenant: str  # of the connection's key: it gets no job of another


class Claimed(NamedTuple):
    """What each of those who asked got, in their order."""

    leases: list[list[Lease]]
    names: dict[JobId, str]  # the public ids of jobs of actions
    room: dict[Epoch, int]  # the places that each has left; who is not among them may take nothing
    left_us: dict[Epoch, int]  # for how long each counts as alive if it stays silent
    locked: frozenset[Epoch] = frozenset()  # those whose row somebody else holds: ask again for them


@short
async def claim_asked(
    tx: Transaction, asks: Sequence[ClaimAsk], notes: ClaimNotes | None = None, *, ttl_us: int
) -> Claimed:
    """Claim for each as many as it asks for and has places for. A worker may ask more than once.

    Who asks is alive. A heartbeat for all who wait leaves out the rows that claims have locked, and so a worker that
    never waits long would never be heard of.
    """
    epochs = {ask.epoch for ask in asks}
    holders = await tx.many(HoldersSql.lock_holders, workers=sorted({epoch.worker for epoch in epochs}))
    counted = await tx.many(HoldersSql.count_held, workers=[holder.seq for holder in holders])
    held = {row.worker: row.leases for row in counted}
    quiet = [holder.seq for holder in holders if holder.left_us < ttl_us - ttl_us // 4]
    if quiet:
        await beat_many(tx, [OwnerBeat(seq, held.get(seq, 0)) for seq in quiet])
    room = {holder.epoch: holder.slots - held.get(holder.seq, 0) for holder in holders if holder.epoch in epochs}
    missing = {epoch.worker for epoch in epochs} - {holder.seq for holder in holders}
    others = await tx.many(HoldersSql.find_holders, workers=sorted(missing)) if missing else []
    locked = frozenset(other.epoch for other in others) & epochs
    claimed = Claimed([[] for _ in asks], {}, room, {holder.epoch: holder.left_us for holder in holders}, locked)
    for turn in range(max((len(ask.turns) for ask in asks), default=0)):
        claimers = _claimers(asks, claimed, turn, ttl_us)
        for lease in await claim_for(tx, claimers, notes) if claimers else []:
            _give(lease, asks, claimed, turn)
    planned = [lease.id for given in claimed.leases for lease in given if lease.kind == KIND]
    if planned:
        rows = await tx.many(PlansSql.names_of_jobs, jobs=planned)
        claimed.names.update({row.job: row.id for row in rows})
    return claimed


def _claimers(asks: Sequence[ClaimAsk], claimed: Claimed, turn: int, ttl_us: int) -> list[Claimer]:
    """Those who still want something, each with no more than its worker has room for."""
    room = dict(claimed.room)
    claimers: list[Claimer] = []
    for ask, given in zip(asks, claimed.leases, strict=True):
        n = min(ask.jobs - len(given), room.get(ask.epoch, 0))
        if n > 0 and turn < len(ask.turns) and ask.turns[turn].routes:
            claimers.append(Claimer(ask.epoch.worker, ask.turns[turn].routes, n, ttl_us, ask.tenant))
            room[ask.epoch] -= n
    return claimers


def _give(lease: Lease, asks: Sequence[ClaimAsk], claimed: Claimed, turn: int) -> None:
    """To the first who asked for it: several connections of one worker may wait for different queues."""
    for ask, given in zip(asks, claimed.leases, strict=True):
        named = turn < len(ask.turns) and ask.turns[turn].queue == lease.queue
        named = named and ask.tenant == lease.tenant
        if named and ask.epoch.worker == lease.worker and ask.epoch in claimed.room and len(given) < ask.jobs:
            claimed.room[ask.epoch] -= 1
            given.append(lease)
            return
