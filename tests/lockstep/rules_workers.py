"""Workers come, beat, fall silent and go; duties change hands; the store itself is reopened, copied or restored."""

from __future__ import annotations

from collections.abc import Collection

from hypothesis import strategies as st

from holdfast.errors import DuplicateWorker, NotFound
from holdfast.kernel import duties, epoch, queries, queues, waiting, workers
from holdfast.kernel.cancel import cancel
from holdfast.kernel.database import Transaction
from holdfast.kernel.duties import CLEANUP, DutyLost
from holdfast.kernel.leases import lapsed
from holdfast.kernel.rows import Cluster, LiveWorker, Term
from holdfast.kernel.statements import WorkersSql
from holdfast.kernel.states import State
from holdfast.kernel.workers import Registration
from tests.lockstep.actions import SELDOM, USUAL, action, drawn
from tests.lockstep.machine import DUTY_TTL_US, ROUTES, SECOND, Machine, gone_workers, live_workers
from tests.lockstep.model import Worker
from tests.lockstep.recalling import Recalling
from tests.support.stores import TTL_US

ages = st.sampled_from([0, 0, 30 * SECOND, 120 * SECOND])
all_terms = drawn(lambda machine: machine.terms + machine.terms[-1:] * 2)


async def read_cluster(tx: Transaction) -> Cluster | None:
    return await tx.one(WorkersSql.cluster)


async def adopt_after(tx: Transaction, seen: Cluster, identity: str) -> Cluster:
    return await epoch.adopt(Recalling(tx, WorkersSql.cluster, [seen]), identity)


async def find_namesake(tx: Transaction, who: Registration) -> LiveWorker | None:
    return await tx.one(WorkersSql.find_live_worker, id=who.id, incarnation=who.incarnation)


async def register(tx: Transaction, _: object, who: Registration, gone: Collection[int]) -> int:
    return await workers.register(tx, who, ROUTES, ttl_us=TTL_US, gone=gone)


async def register_after(tx: Transaction, seen: LiveWorker | None, who: Registration, gone: Collection[int]) -> int:
    recalling = Recalling(tx, WorkersSql.find_live_worker, [seen] if seen else [])
    return await workers.register(recalling, who, ROUTES, ttl_us=TTL_US, gone=gone)


class WorkerRules(Machine):
    @action(
        weight=SELDOM + 1,
        when=lambda self: len(self.alive) < 4,
        name=st.sampled_from(["w1", "w2", "w3"]),
        gone=gone_workers,
        later=st.booleans(),
    )
    def register(self, name: str, gone: frozenset[int], later: bool) -> None:
        """A new process; perhaps under the id of one that is still believed to be alive."""
        who = self.newcomer(name)
        if later:
            self.newcomers.append((who, self.ask(find_namesake, who)))
        else:
            self.join(who, None, gone)

    @action(
        when=lambda self: self.newcomers,
        found=drawn(lambda machine: machine.newcomers),
        gone=gone_workers,
    )
    def register_found(self, found: tuple[Registration, LiveWorker | None], gone: frozenset[int]) -> None:
        """Others joined or left under that id since the newcomer looked."""
        self.newcomers.remove(found)
        self.join(*found, gone, late=True)

    def newcomer(self, name: str) -> Registration:
        return Registration(self.new_id(), name, name, "host", 1, "0", ("tag:gpu",), None, 10)

    def join(self, who: Registration, seen: LiveWorker | None, gone: frozenset[int], *, late: bool = False) -> None:
        namesakes = [seq for seq, worker in self.model.workers.items() if worker.live and worker.id == who.id]
        fresh = {seq for seq in namesakes if seq not in self.model.silent() and seq not in gone}
        if seen is not None and seen.fresh and seen.seq not in gone:
            fresh = {seen.seq}  # as it was; one that was silent and has beaten since keeps its id, too
        if fresh:
            self.ask_in_vain(DuplicateWorker, register_after if late else register, seen, who, gone)
            self.judge_refused()
            self.saw("a live worker's id was refused to another")
            return
        for seq in namesakes:
            self.model.workers[seq].stop("lost", self.stage.now)
            self.saw("a dead worker was replaced under its id")
        seq = self.ask(register_after if late else register, seen, who, gone)
        assert seq > max((*self.registrations, 0)), "a worker's number was used before"
        self.model.workers[seq] = Worker(who.id, who.incarnation, self.stage.now, TTL_US)
        self.registrations[seq] = who
        self.alive.append(seq)
        self.saw("a newcomer found its id freed or taken since it looked", late and seen is not None)

    @action(
        weight=SELDOM,
        when=lambda self: self.alive,
        worker=live_workers,
        what=st.sampled_from(["again", "present", "absent", "drain", "stop", "die", "die"]),
    )
    def tell(self, worker: int, what: str) -> None:
        """A worker repeats its registration, shows or hides its presence, drains, or goes; its leases stay."""
        known = self.model.workers.get(worker)
        live = known is not None and known.live
        match what:
            case "again" if live:
                assert self.ask(workers.register, self.registrations[worker], [], ttl_us=TTL_US, gone=[]) == worker
            case "present" | "absent":
                self.ask(workers.advertise_presence, worker, presence=what == "present")
                self.ask(workers.live_namesake, "w1", self.new_id())
            case "drain":
                self.ask(workers.drain, worker)
                if known is not None and known.status == "active":
                    known.status = "draining"
            case "stop":
                self.ask(workers.unregister, worker, reason="stopped")
                if known is not None and live:
                    known.stop("stopped", self.stage.now)
        if what in ("stop", "die"):  # nobody is told of a kill -9
            self.alive.remove(worker)
            self.dead.append(worker)

    @action(weight=SELDOM, gone=gone_workers)
    def lose_workers(self, gone: frozenset[int]) -> None:
        silent = self.model.silent()
        assert self.ask(workers.lose_workers, gone=gone, reason="silent") == self.model.lose(gone)
        self.saw("a silent worker was given up", bool(silent))

    # Duties

    @action(weight=SELDOM + 1, when=lambda self: self.alive, worker=live_workers, gone=gone_workers)
    def acquire_duty(self, worker: int, gone: frozenset[int]) -> None:
        duty = self.model.duties.get(CLEANUP)
        term = self.model.acquire(CLEANUP, worker, DUTY_TTL_US, gone)
        self.gone = gone
        answer = self.ask(duties.acquire, CLEANUP, worker, ttl_us=DUTY_TTL_US, gone=gone)
        assert answer == (None if term is None else Term(CLEANUP, term))
        if answer is None:
            self.judge_refused()
            return
        self.terms.append((answer, worker))
        self.saw("a duty changed hands", duty is not None and duty.term > 1)

    @action(weight=SELDOM + 1, when=lambda self: self.terms, held=all_terms, release=st.booleans())
    def keep_duty(self, held: tuple[Term, int], release: bool) -> None:
        """Renew a term, or release it; both in vain when it is over."""
        term, worker = held
        duty = self.model.duties[CLEANUP]
        mine = (duty.term, duty.holder) == (term.term, worker)
        if release:
            self.ask(duties.release, term, worker)
            if mine:
                duty.holder, duty.held_until = None, 0
        else:
            mine = mine and duty.held_until > self.stage.now
            assert self.ask(duties.renew, term, worker, ttl_us=DUTY_TTL_US) == mine
            if mine:
                duty.held_until = self.stage.now + DUTY_TTL_US
        if not mine:
            self.judge_refused()
            self.saw("a term that was over was neither renewed nor released")

    @action(weight=USUAL, when=lambda self: self.terms, held=all_terms, key_age=ages, worker_age=ages)
    def clean_up(self, held: tuple[Term, int], key_age: int, worker_age: int) -> None:
        """The holder may have been frozen since it took the term."""
        term, worker = held
        if not self.model.holds_duty(*term, worker):
            self.ask_in_vain(DutyLost, duties.clean_up, term, worker, key_age_us=key_age, worker_age_us=worker_age)
            self.judge_refused()
            self.saw("a holder whose term was over was refused")
            return
        known = len(self.model.keys), len(self.model.workers)
        self.ask(duties.clean_up, term, worker, key_age_us=key_age, worker_age_us=worker_age)
        self.model.clean_up(key_age, worker_age)
        self.saw("a spent key was pruned", len(self.model.keys) < known[0])
        self.saw("an old worker was pruned", len(self.model.workers) < known[1])

    def _spent(self) -> bool:
        return any(self.model.jobs[owner.job].finished_at is not None for owner in self.model.keys.values())

    @action(weight=SELDOM + 1, when=lambda self: self.alive and self._spent(), worker=live_workers)
    def clean_up_at_once(self, worker: int) -> None:
        """Whoever gets the duty cleans up as soon as a key is spent."""
        self.acquire_duty(worker, frozenset())
        if self.terms:
            self.clean_up(self.terms[-1], 0, 120 * SECOND)

    # The store itself

    @action(weight=SELDOM, queue=st.sampled_from(["default", "bulk"]), fail=st.booleans(), counts=st.booleans())
    def set_queue(self, queue: str, fail: bool, counts: bool) -> None:
        self.ask(queues.set_queue, queue, on_orphan="fail" if fail else "requeue", lost_counts=counts)
        (self.model.orphans_fail.add if fail else self.model.orphans_fail.discard)(queue)
        (self.model.losses_count.add if counts else self.model.losses_count.discard)(queue)
        self.model.charged = self.model.charged or counts

    @action(
        weight=SELDOM + 1,
        identity=st.sampled_from(["", "copy", "restored"]),
        seen=drawn(lambda machine: [None, *machine.clusters]),
    )
    def change_epoch(self, identity: str, seen: Cluster | None) -> None:
        """Someone raises the epoch by hand, or connects to what seems another server or file.

        With `seen`, others noted something else between our reading and our writing.
        """
        if not identity:
            self.model.epoch += 1
            assert self.ask(epoch.bump).epoch == self.model.epoch
        elif seen is None or seen.identity != identity:
            self.adopt(identity, seen)

    def adopt(self, identity: str, seen: Cluster | None) -> None:
        changed = identity != self.model.identity
        self.model.epoch += changed
        self.model.identity = identity
        expected = Cluster(self.model.epoch, identity)
        answer = self.ask(epoch.adopt, identity) if seen is None else self.ask(adopt_after, seen, identity)
        assert answer == expected
        self.clusters.append(answer)

    @action(weight=SELDOM, when=lambda self: self.model.in_state(State.RUNNING))
    def reopen(self) -> None:
        """Every process of the stores stops and starts: leases, stale or not, outlive it."""
        self.stage.reopen()
        if self.model.identity != "home":
            self.model.epoch, self.model.identity = self.model.epoch + 1, "home"
            self.saw("the store found itself to be another one")
        self.saw("the stores were reopened under running jobs")

    @action(weight=SELDOM)
    def read(self) -> None:
        """Every question that changes nothing has one answer."""
        worker = min(self.registrations)
        sight = self.ask(workers.look, worker, [ROUTES[0].id, ROUTES[1].id])
        assert sight.now == self.stage.now
        assert self.ask(lapsed, until=self.stage.now) == bool(self.model.lapsed(()))
        assert bool(sight.silent) == bool(self.model.silent())
        assert bool(sight.cancellations) == bool(self.model.cancellations)
        running = self.model.in_state(State.RUNNING)
        assert bool(sight.leased) == bool(running)
        assert bool(sight.leased_elsewhere) == any(job.worker != worker for job in running)
        pending = {job.new.route for job in self.model.in_state(State.PENDING)}
        assert bool(sight.pending) == bool(pending & {ROUTES[0].id, ROUTES[1].id})
        waits = [job.due_at for job in self.model.in_state(State.SCHEDULED, State.WAITING) if job.due_at is not None]
        assert sight.next_due == min(waits, default=None)
        self.ask(workers.present_workers)
        self.ask(workers.list_workers, all=True, limit=3)
        self.ask(workers.list_duties)
        self.ask(workers.list_routes, since=0)
        self.ask(queries.list_jobs, queries.JobFilters(queue="default"), limit=5)
        self.ask(queries.list_jobs, queries.JobFilters(state="pending", kind="a", tenant=""), limit=100)
        self.ask_in_any_order(queries.find_ended, list(self.model.jobs))
        for job in [*self.model.jobs.values()][:3]:
            self.ask(queries.find_job, job.new.id)
            self.ask(queries.list_attempts, job.seq)
            self.ask(waiting.list_steps, job.seq)
            self.ask(waiting.list_children, job.seq)
        self.ask_in_vain(NotFound, queries.find_job, self.new_id())
        self.ask_in_vain(NotFound, cancel, self.new_id(), reason="it never was")
        self.judge_refused()
