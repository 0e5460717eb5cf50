"""Brokers and owners beside workers: jobs taken by id, shared out among many, and renewed for times of their own."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from holdfast.errors import DuplicateWorker
from holdfast.kernel.broker_rows import OwnerBeat, Renewal
from holdfast.kernel.brokers import Claimer, claim_for, take
from holdfast.kernel.ids import JobId
from holdfast.kernel.leases import beat_many, renew_each
from holdfast.kernel.owners import RegisteredOwner, register_owner
from holdfast.kernel.rows import Lease, Route
from holdfast.kernel.states import State
from tests.lockstep.actions import OFTEN, USUAL, action, drawn, some_drawn
from tests.lockstep.machine import CEILING_US, ROUTES, SECOND, live_workers
from tests.lockstep.model import Worker
from tests.lockstep.rules_workers import WorkerRules
from tests.support.stores import TTL_US

NOBODY = 0  # the number of no worker
ttls = st.sampled_from([SECOND, TTL_US, CEILING_US])


class BrokerRules(WorkerRules):
    @action(
        weight=OFTEN,
        when=lambda self: self.alive and self.unfinished(),
        worker=live_workers,
        id=drawn(lambda machine: machine.unfinished()),
        ttl_us=ttls,
    )
    def take(self, worker: int, id: JobId, ttl_us: int) -> None:
        """That very job. First by nobody, who gets it where it can be claimed and no further."""
        job = self.model.jobs[id]
        before = job.state
        self.quiet = True  # who takes a job tells nobody that it could be claimed
        assert self.ask(take, NOBODY, id, ttl_us) is None
        self.model.make_claimable(job)
        self.judge()
        lease = self.ask(take, worker, id, ttl_us)
        holder = self.model.workers.get(worker)
        active = holder is not None and holder.status == "active"
        self.saw("a holder that was not active got nothing", job.state == State.PENDING and not active)
        if job.state != State.PENDING or not active:
            assert lease is None
            self.judge_refused()
            return
        self.saw("a lease that ran out was taken over at once", before == State.RUNNING)
        self.saw("a job was taken before a sweep woke it", before in (State.SCHEDULED, State.WAITING))
        self.model.begin(job, worker, ttl_us)
        assert lease is not None
        assert (lease.id, *lease.held[1:]) == (id, worker, job.epoch, job.token)
        assert lease.lease_until == job.lease_until
        self.leases.append(lease)

    @action(
        weight=OFTEN,
        when=lambda self: self.alive,
        workers=some_drawn(lambda machine: machine.alive),
        other=live_workers,
        routes=st.sets(st.sampled_from(ROUTES), min_size=1),
        n=st.integers(1, 3),
        ttl_us=ttls,
    )
    def claim_for(self, workers: list[int], other: int, routes: set[Route], n: int, ttl_us: int) -> None:
        """Some wait for the same routes, and one for the others."""
        mine = frozenset(route.id for route in routes)
        rest = frozenset(route.id for route in ROUTES) - mine
        claimers = [Claimer(worker, mine, n, ttl_us) for worker in workers] + [Claimer(other, rest, n, TTL_US)]
        leases = self.ask(claim_for, claimers)
        given = self.model.share_out(claimers)
        assert [(lease.id, lease.worker, lease.token, lease.lease_until) for lease in leases] == [
            (job.new.id, job.worker, job.token, job.lease_until) for job in given
        ]
        self.saw("several who waited were served together", len({lease.worker for lease in leases}) > 1)
        self.leases += leases

    @action(when=lambda self: self.leases, leases=some_drawn(lambda machine: machine.leases, most=5), ttl_us=ttls)
    def renew_each(self, leases: list[Lease], ttl_us: int) -> None:
        """Each for a time of its own: the first for another than the rest."""
        times = {lease.held: ttl_us if n else TTL_US for n, lease in enumerate(leases)}
        renewed, lost = self.ask_in_any_order(
            renew_each, [Renewal(*held, us) for held, us in times.items()], ceiling_us=CEILING_US
        )
        answers = [self.model.renew([held], us, CEILING_US) for held, us in times.items()]
        expected = {seq: until for ends, _ in answers for seq, until in ends.items()}
        assert {row.seq: row.lease_until for row in renewed} == expected
        assert sorted(lost) == sorted(held for _, gone in answers for held in gone)

    # Owners

    @action(
        when=lambda self: len(self.alive) < 6,
        name=st.sampled_from(["o1", "o2", "w1"]),
        principal=st.sampled_from(["ann", "ann", "bob"]),
        ttl_us=ttls,
        replace=st.booleans(),
    )
    def register_owner(self, name: str, principal: str, ttl_us: int, replace: bool) -> None:
        """A name that anybody may speak for, of one principal. A name of workers is theirs."""
        known = [seq for seq, worker in self.model.workers.items() if worker.live and worker.id == name]
        if name == "w1" and not known:
            return  # it would be a worker's in the next step
        who = self.newcomer(name)._replace(principal=principal)
        other = known[0] if known else None
        owner = None if other is None else self.model.workers[other]
        if owner is not None and owner.principal != principal:
            self.ask_in_vain(DuplicateWorker, register_owner, who, ttl_us=ttl_us, replace=replace)
            self.judge_refused()
            self.saw("a name was refused to an owner")
            return
        answer = self.ask(register_owner, who, ttl_us=ttl_us, replace=replace)
        if owner is not None and not replace:
            owner.heartbeat_at, owner.ttl_us = self.stage.now, max(owner.ttl_us, ttl_us)
            assert answer == RegisteredOwner(other or 0)
            self.saw("an owner came back under its name")
            return
        if owner is not None:
            owner.stop("lost", self.stage.now)
        assert answer.before == other
        assert answer.seq > max((*self.registrations, 0))
        self.model.workers[answer.seq] = Worker(name, who.incarnation, self.stage.now, ttl_us, principal=principal)
        self.registrations[answer.seq] = who
        self.alive.append(answer.seq)

    @action(
        weight=USUAL,
        when=lambda self: self.alive,
        workers=some_drawn(lambda machine: machine.alive + machine.dead, most=4),
        active=st.integers(0, 3),
    )
    def beat_many(self, workers: Sequence[int], active: int) -> None:
        """Those who are not among the answers were given up."""
        told = self.ask_in_any_order(beat_many, [OwnerBeat(seq, active) for seq in workers])
        known = {seq: self.model.workers[seq] for seq in workers if seq in self.model.workers}
        live = {seq: worker for seq, worker in known.items() if worker.live}
        assert {row.seq: row.status for row in told} == {seq: worker.status for seq, worker in live.items()}
        for worker in live.values():
            worker.heartbeat_at = self.stage.now
        self.saw("of many heartbeats some were refused", 0 < len(live) < len(workers))

    @action(when=lambda self: self.silent_owners())
    def spare_owners(self) -> None:
        """An owner is silent by nature: it stays while it has a lease."""
        before = self.silent_owners()
        self.lose_workers(frozenset())
        assert all(self.model.workers[seq].live for seq in before)
        self.saw("an owner with a lease was not given up for its silence")

    def silent_owners(self) -> list[int]:
        return [seq for seq in self.model.past_ttl() if seq not in self.model.silent()]
