"""Claims for those who wait at this server: one transaction serves many of them.

Mostly all of them ask for one job of the same queue, and there is one for each: then one statement serves them, which
commits by itself (`claim_at_once`). For all others, and for who got nothing by it, `claim_asked` goes step by step. Two
servers may claim for one worker at the same time. Each claim locks the worker's row, counts what it holds, and changes
the row if it gave something, by which the other notices that its count is old.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.kernel.broker_rows import Asker, OwnerBeat
from holdfast.kernel.brokers import Claimer, ClaimNotes, claim_each, claim_for
from holdfast.kernel.database import Transaction, short, single
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
    left_us: dict[Epoch, int]  # for how long each counts as alive if it stays silent, in the order of those who asked
    locked: frozenset[Epoch] = frozenset()  # those whose row somebody else holds: ask again for them

    def completed(self, left: Sequence[ClaimAsk], later: Claimed) -> Claimed:
        """With what these got later. Each is of another worker."""
        given = dict(zip((ask.epoch for ask in left), later.leases, strict=True))
        leases = [mine or given[epoch] for mine, epoch in zip(self.leases, self.left_us, strict=True)]
        return Claimed(leases, self.names | later.names, later.room, self.left_us | later.left_us, later.locked)


def is_alike(asks: Sequence[ClaimAsk]) -> bool:
    """Whether `claim_at_once` can serve them: each is of another worker and asks for one job, all of the same queue."""
    first = asks[0]
    alike = all(ask.jobs == 1 and ask.turns == first.turns and ask.tenant == first.tenant for ask in asks)
    return alike and len(first.turns) == 1 and len({ask.epoch.worker for ask in asks}) == len(asks)


@short
@single
async def claim_at_once(
    tx: Transaction, asks: Sequence[ClaimAsk], notes: ClaimNotes | None = None, *, ttl_us: int
) -> Claimed:
    """Claim for those who are alike, as far as that is possible at once. Ask `claim_asked` for who got nothing.

    No lease is longer than its holder lives if it stays silent.
    """
    askers = [Asker(*ask.epoch) for ask in asks]
    first = asks[0]
    routes = sorted(first.turns[0].routes)
    leases = await claim_each(tx, askers, routes, first.tenant, ttl_us=ttl_us, notes=notes) if routes else []
    by_worker = {lease.worker: lease for lease in leases}
    given = [[by_worker[ask.epoch.worker]] if ask.epoch.worker in by_worker else [] for ask in asks]
    return Claimed(given, await _names(tx, leases), {}, {ask.epoch: ttl_us for ask in asks})


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
    room = {holder.epoch: holder.slots - held.get(holder.seq, 0) for holder in holders if holder.epoch in epochs}
    missing = {epoch.worker for epoch in epochs} - {holder.seq for holder in holders}
    others = await tx.many(HoldersSql.find_holders, workers=sorted(missing)) if missing else []
    locked = frozenset(other.epoch for other in others) & epochs
    claimed = Claimed([[] for _ in asks], {}, room, {holder.epoch: holder.left_us for holder in holders}, locked)
    for turn in range(max((len(ask.turns) for ask in asks), default=0)):
        claimers = _claimers(asks, claimed, turn, ttl_us)
        for lease in await claim_for(tx, claimers, notes) if claimers else []:
            _give(lease, asks, claimed, turn)
    leases = [lease for given in claimed.leases for lease in given]
    claimed.names.update(await _names(tx, leases))
    quiet = {holder.seq for holder in holders if holder.left_us < ttl_us - ttl_us // 4}
    taken = Counter(lease.worker for lease in leases)
    await beat_many(tx, [OwnerBeat(seq, held.get(seq, 0) + taken[seq]) for seq in quiet | taken.keys()])
    return claimed


async def _names(tx: Transaction, leases: Sequence[Lease]) -> dict[JobId, str]:
    planned = [lease.id for lease in leases if lease.kind == KIND]
    rows = await tx.many(PlansSql.names_of_jobs, jobs=planned) if planned else []
    return {row.job: row.id for row in rows}


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
