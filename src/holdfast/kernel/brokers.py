"""Leases for code that is no worker of ours: taken by id, shared out among many who wait, found and moved by owner.

A token binds to the lease, not to a process: any caller that names it may write. The statement that takes a job tests
that its holder is active, so nobody takes anything after it was told to drain.

If the answer to a claim is lost, its caller does not know what it holds, and nobody would renew or end it. A worker
finds that out by its heartbeat (`leases.return_unnamed`), because no other process holds anything under its number. The
owners here may live in several processes. So the calls of this module note what they take before it is committed, and
`LostAnswers` gives back what no answer named.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from holdfast.kernel.broker_rows import (
    Alias,
    Asker,
    LeaseKey,
    LeaseRequest,
    Offer,
    OwnedLease,
    TransferredLease,
    Want,
    WantedJob,
)
from holdfast.kernel.complete import complete_and_settle, error_json, release
from holdfast.kernel.database import Transaction, Transactor, reading, single
from holdfast.kernel.families import lock_anchors, lock_jobs, settle, try_lock_jobs
from holdfast.kernel.flow_rows import Candidate
from holdfast.kernel.ids import JobId
from holdfast.kernel.lanes import admitted
from holdfast.kernel.leases import ERRORS
from holdfast.kernel.rows import ChildRef, EndedLease, Lease, LeaseRef, MovedJob, Route
from holdfast.kernel.statements import BrokersSql, LeasesSql
from holdfast.kernel.states import State

MOST = 1_000  # jobs that one call gives out

_AT_ONCE = {"backoff_us": 0, "jitter": 0, "at_once": 1}
_REAPED = ERRORS | {"attempts_error": error_json("rescue_failed", "its holder was given up on its last attempt")}


class Claimer(NamedTuple):
    """Somebody who waits for jobs of these routes. `n` is how many it may have, so its slots are its own business."""

    worker: int
    routes: frozenset[int]
    n: int
    ttl_us: int
    tenant: str | None = None  # None: jobs of any tenant


class LostAnswers:
    """What a process may have taken without knowing it, because the answer to a claim was lost."""

    def __init__(self) -> None:
        self._notes: list[ClaimNotes] = []

    @contextlib.contextmanager
    def claiming(self) -> Iterator[ClaimNotes]:
        """For one claim: give its notes to the operation, and tell them what the answer named."""
        notes = ClaimNotes()
        try:
            yield notes
        except BaseException:
            self._notes.append(notes)  # a driver's thread may be about to note something
            raise
        if notes.unanswered():
            self._notes.append(notes)

    def __bool__(self) -> bool:
        return bool(self._notes)

    async def give_back(self, database: Transactor) -> int:
        """Give back what was noted and not named; how many jobs that were. What was never committed is not there, and
        what somebody else holds locked is tried the next time."""
        notes = self._notes[:]
        if not notes:
            return 0
        given, locked = await database.transact(release_unanswered, notes)
        self._notes = [*([ClaimNotes(locked)] if locked else []), *self._notes[len(notes) :]]
        return given


class ClaimNotes:
    def __init__(self, taken: Iterable[Lease] = ()) -> None:
        self.taken = [*taken]  # by a driver's thread; also what it took before it ran the operation again
        self._answered: set[LeaseRef] = set()

    def add(self, leases: Iterable[Lease]) -> None:
        self.taken += leases

    def answered(self, held: Iterable[LeaseRef]) -> None:
        self._answered.update(held)

    def unanswered(self) -> list[Lease]:
        return [lease for lease in self.taken if lease.held not in self._answered]


async def release_unanswered(tx: Transaction, notes: Sequence[ClaimNotes]) -> tuple[int, list[Lease]]:
    """Give back those of these leases that are still there: how many jobs that were, and those that somebody else has
    locked, for which this does not wait.

    What the notes say is read here: by now a claim that was under way on SQLite's thread has ended.
    """
    leases = [lease for each in notes for lease in each.unanswered()]
    keys = sorted({LeaseKey.of(lease) for lease in leases})
    found = await tx.many(BrokersSql.find_unanswered, leases=keys) if keys else []
    if not found:
        return 0, []
    locked = {job.seq for job in await try_lock_jobs(tx, [ChildRef(lease.seq, lease.parent) for lease in found])}
    free = [lease for lease in found if lease.seq in locked]
    parents = sorted({lease.parent for lease in free if lease.parent is not None})
    given = len(await complete_and_settle(tx, [release(lease) for lease in free], parents)) if free else 0
    missed = {lease.seq for lease in found} - locked
    return given, [lease for lease in leases if lease.seq in missed]


async def claim_for(tx: Transaction, claimers: Sequence[Claimer], notes: ClaimNotes | None = None) -> list[Lease]:
    """Serve many who wait, in their order, by statements whose number does not depend on theirs.

    A job goes to the first who can take it. A short answer does not mean that nothing is left: ask `heads`.
    """
    wants = _wants(claimers)
    if not wants:
        return []
    most = min(MOST, sum(claimer.n for claimer in claimers))
    found = await tx.many(BrokersSql.offers, wants=wants, most=most)
    offers = [*{offer.seq: offer for offer in found}.values()]  # who wants any tenant may be offered another's too
    takings = shared_out(offers, claimers)
    if any(offer.lane is not None for offer in offers):
        takings = await _let_through(tx, offers, takings)
    leases = await tx.many(BrokersSql.take_for, takings=takings) if takings else []
    if notes is not None:
        notes.add(leases)
    return sorted(leases, key=attrgetter("place"))


async def claim_each(
    tx: Transaction,
    askers: Sequence[Asker],
    routes: Sequence[int],
    tenant: str,
    *,
    ttl_us: int,
    notes: ClaimNotes | None = None,
) -> list[Lease]:
    """One job of these routes for each owner that lives and has a place left, by one statement that commits by itself.

    No owner may be among them twice. Who gets nothing may have been passed over: ask for it with `claim_for`, under
    the lock of its row, and change that row then too, as this does.
    """
    asked = {"askers": askers, "most": len(askers), "routes": routes, "tenant": tenant}
    leases = await tx.many(BrokersSql.claim_each, **asked, ttl_us=ttl_us)
    if notes is not None:
        notes.add(leases)
    return leases


def shared_out(offers: Iterable[Offer], claimers: Sequence[Claimer]) -> list[LeaseRequest]:
    """Who gets which job: the most urgent and then the oldest first, each to the first who waits for it. Pure.

    Within a route the order is that of the offers.
    """
    lines: dict[tuple[int, str | None], list[Offer]] = {}
    for offer in sorted(offers, key=lambda offer: (offer.priority, offer.slot, offer.seq)):
        lines.setdefault((offer.route, offer.tenant), []).append(offer)
    waiting: dict[tuple[int, str | None], list[int]] = {}
    for place, claimer in enumerate(claimers):
        for key in {(route, claimer.tenant) for route in claimer.routes} & lines.keys():
            waiting.setdefault(key, []).append(place)
    left = [claimer.n for claimer in claimers]
    heads = [(line[0].priority, line[0].seq, key, 0) for key, line in lines.items()]
    heapq.heapify(heads)
    takings: list[LeaseRequest] = []
    while heads:
        _, seq, key, place = heapq.heappop(heads)
        line = waiting.get(key, [])
        while line and not left[line[0]]:
            del line[0]
        if not line:
            continue  # nobody is left who could take one of this route
        left[line[0]] -= 1
        takings.append(LeaseRequest(seq, claimers[line[0]].worker, claimers[line[0]].ttl_us))
        if place + 1 < len(lines[key]):
            following = lines[key][place + 1]
            heapq.heappush(heads, (following.priority, following.seq, key, place + 1))
    return takings


def _wants(claimers: Sequence[Claimer]) -> list[Want]:
    parties: dict[tuple[frozenset[int], str | None], int] = {}
    for claimer in claimers:
        key = (claimer.routes, claimer.tenant)
        parties[key] = parties.get(key, 0) + claimer.n
    return [
        Want(party, route, min(n, MOST), tenant)
        for party, ((routes, tenant), n) in enumerate(parties.items())
        for route in sorted(routes)
        if n > 0
    ]


async def _let_through(tx: Transaction, offers: Sequence[Offer], takings: Sequence[LeaseRequest]) -> list[LeaseRequest]:
    """Without those that their lanes hold back; these wait there from now on."""
    by_seq = {offer.seq: offer for offer in offers}
    laned = [_candidate(by_seq[taking.seq]) for taking in takings if by_seq[taking.seq].lane is not None]
    through = set(await admitted(tx, laned, len(laned), crowded=True))
    return [taking for taking in takings if by_seq[taking.seq].lane is None or taking.seq in through]


def _candidate(job: Offer | WantedJob) -> Candidate:
    return Candidate(job.seq, job.priority, job.slot, job.lane or "", job.cost or 1)


async def take(
    tx: Transaction,
    worker: int,
    id: JobId,
    ttl_us: int,
    *,
    serves: Callable[[Route], bool] = lambda _: True,
    notes: ClaimNotes | None = None,
) -> Lease | None:
    """Take that very job if it can be claimed now; None when it cannot.

    A lease of it that has run out is expired first, and the job is to be had at once: nobody else has
    to be alive for that. So is a job whose pause is over. `serves` judges its route.
    """
    job = await tx.one(BrokersSql.seek, id=id)
    if job is None or job.paused or not serves(Route(job.route, job.queue, job.capabilities)):
        return None
    if (job.lapsed or job.due or job.lane is not None) and not await _made_claimable(tx, id, job):
        return None
    taken = await tx.many(BrokersSql.take_for, takings=[LeaseRequest(job.seq, worker, ttl_us)])
    if notes is not None:
        notes.add(taken)
    return taken[0] if taken else None


async def _made_claimable(tx: Transaction, id: JobId, seen: WantedJob) -> bool:
    """Lock the job, and bring it to where it can be claimed, if it may be. It may have moved since it was seen."""
    if seen.parent is not None:
        await lock_anchors(tx, [seen.parent])
    await lock_jobs(tx, [seen.seq])
    job = await tx.one(BrokersSql.seek, id=id)
    if job is None or not (job.ready or job.due or job.lapsed):
        return False
    if job.due:
        await tx.one(BrokersSql.wake_one, seq=job.seq)
    if job.lapsed:
        seqs = {"seqs": [job.seq], "gone": []}
        lost = await tx.many(LeasesSql.expire, **seqs, **_AT_ONCE, charge=0, **ERRORS)
        await settle(tx, [each.moved for each in lost])
        if [each.state for each in lost] != [State.PENDING]:
            return False
    return job.lane is None or bool(await admitted(tx, [_candidate(job)], 1, crowded=False))


@reading
async def find_lease(tx: Transaction, id: JobId, owner: str) -> OwnedLease | None:
    """The lease of this job that an owner of this name holds, also when it has run out and nobody has noticed yet."""
    return await tx.one(BrokersSql.find_lease, id=id, owner=owner)


@reading
async def leases_of(tx: Transaction, worker: int, *, queue: str | None = None, limit: int = MOST) -> list[OwnedLease]:
    return await tx.many(BrokersSql.leases_of, worker=worker, queue=queue, limit=limit)


@single
async def transfer_leases(tx: Transaction, old: int, new: int, *, limit: int = MOST) -> list[TransferredLease]:
    """Give what one holder has to another that is active; what the old one writes from now on is refused.

    Call it again while it returns `limit` leases.
    """
    return await tx.many(BrokersSql.transfer_leases, old=old, new=new, limit=limit)


async def release_by_worker(
    tx: Transaction, worker: int, *, queue: str | None = None, charge: bool = False, limit: int = MOST
) -> list[EndedLease] | list[MovedJob]:
    """Take back what a holder has, of one queue or of all; returns each job with its state now.

    `charge`: the leases are lost, as those of a holder that was given up are, and each counts as an attempt. Call it
    again while it returns `limit` jobs.
    """
    held = [owned.lease for owned in await leases_of(tx, worker, queue=queue, limit=limit)]
    if not held:
        return []
    parents = sorted({lease.parent for lease in held if lease.parent is not None})
    if not charge:
        return await complete_and_settle(tx, [release(lease) for lease in held], parents)
    await lock_anchors(tx, parents)
    locked = [job.seq for job in await lock_jobs(tx, [lease.seq for lease in held])]
    lost = await tx.many(LeasesSql.expire, seqs=locked, gone=[worker], **_AT_ONCE, charge=1, **_REAPED)
    moved = [each.moved for each in lost]
    await settle(tx, moved)
    return moved


# Aliases: public names for jobs that follow each other, as a run that is started again has a new job.
#
# A name is never given to something else, even when its jobs have been pruned. The last job that was written under it
# is
# the current one.


async def name_job(tx: Transaction, scope: str, name: str, job: JobId, *, digest: str) -> Alias:
    """Give a name to a job, or find what it stands for: the answer's `job` is another then.

    Whether that is the same work the caller judges by `digest`. Enqueue the job in the same transaction.
    """
    first = {"scope": scope, "name": name, "job": job, "digest": digest, "number": 1, "attempts": 0}
    while True:
        named = await tx.one(BrokersSql.name_job, **first) or await tx.one(
            BrokersSql.find_alias, scope=scope, name=name
        )
        if named is not None:
            return named


@single
async def follow(tx: Transaction, before: Alias, job: JobId, *, digest: str, attempts: int) -> Alias | None:
    """Let another job continue under a name; None when somebody else was faster, so look again.

    `attempts`: how many all jobs of the name have made until now.
    """
    after = {"job": job, "digest": digest, "number": before.number + 1, "attempts": attempts}
    return await tx.one(BrokersSql.name_job, scope=before.scope, name=before.name, **after)


@reading
async def find_alias(tx: Transaction, scope: str, name: str) -> Alias | None:
    """What a name stands for now. Its job may have been pruned."""
    return await tx.one(BrokersSql.find_alias, scope=scope, name=name)


@reading
async def list_aliases(tx: Transaction, scope: str, name: str, *, after: int = 0, limit: int = 10_000) -> list[Alias]:
    """What a name has stood for after this number, the first first."""
    return await tx.many(BrokersSql.list_aliases, scope=scope, name=name, after=after, limit=limit)


@reading
async def alias_of(tx: Transaction, job: JobId) -> Alias | None:
    """The name of a job, if it has one."""
    return await tx.one(BrokersSql.alias_of, job=job)
