"""What the kernel should do, said as simply as Python can say it: no SQL, no batches, no indexes.

The machine does everything to the stores and to this model, and compares. Sequence numbers alone are learned from
the store; everything else is predicted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from holdfast.kernel.brokers import Claimer
from holdfast.kernel.ids import JobId
from holdfast.kernel.rows import Ending, LeaseRef, NewJob
from holdfast.kernel.states import TERMINAL, State
from tests.support.snapshots import Row, Snapshot

NOT_RUNNING = (State.SCHEDULED, State.PENDING, State.WAITING)


@dataclass
class Job:
    new: NewJob
    state: State
    created_at: int
    due_at: int | None
    deadline_at: int | None
    seq: int = 0
    epoch: int = 0
    token: int = 0
    worker: int | None = None
    lease_until: int | None = None
    claimed_at: int | None = None
    attempts: int = 0
    rescues: int = 0
    channel: str | None = None
    cancel_requested_at: int | None = None
    finished_at: int | None = None
    progress: str | None = None
    due_before: int | None = None  # with jitter, due_at is only the earliest

    @property
    def terminal(self) -> bool:
        return self.state in TERMINAL

    def end(self, state: State, now: int) -> None:
        self.leave(state)
        self.finished_at = now if state in TERMINAL else None

    def leave(self, state: State, due_at: int | None = None, channel: str | None = None) -> None:
        self.state, self.due_at, self.channel = state, due_at, channel
        self.worker = self.lease_until = self.due_before = None


@dataclass
class Worker:
    id: str
    incarnation: str
    heartbeat_at: int
    ttl_us: int
    status: str = "active"
    stopped_at: int | None = None
    principal: str | None = None  # of an owner, who lives in no process

    @property
    def live(self) -> bool:
        return self.status in ("active", "draining")

    def stop(self, status: str, now: int) -> None:
        self.status, self.stopped_at = status, now


@dataclass
class Duty:
    term: int
    holder: int | None
    held_until: int


@dataclass
class Owner:
    """What an idempotency key stands for."""

    meaning: tuple[str, str]
    job: JobId
    created_at: int


@dataclass
class Model:
    now: int
    epoch: int = 1
    identity: str = "home"
    jobs: dict[JobId, Job] = field(default_factory=dict)
    attempts: dict[tuple[int, int, int], str] = field(default_factory=dict)
    steps: dict[tuple[int, str], str] = field(default_factory=dict)
    signals: list[tuple[str, str, str]] = field(default_factory=list)  # id, channel, payload: oldest first
    sent: set[str] = field(default_factory=set)
    cancellations: set[int] = field(default_factory=set)
    keys: dict[tuple[str, str], Owner] = field(default_factory=dict)
    workers: dict[int, Worker] = field(default_factory=dict)
    duties: dict[str, Duty] = field(default_factory=dict)
    orphans_fail: set[str] = field(default_factory=set)
    losses_count: set[str] = field(default_factory=set)  # queues where a lost lease is an attempt
    charged: bool = False  # whether there ever was one
    _by_seq: dict[int, Job] = field(default_factory=dict)

    # Reading

    def job(self, seq: int) -> Job:
        return self._by_seq[seq]

    def in_state(self, *states: State) -> list[Job]:
        return [job for job in self.jobs.values() if job.state in states]

    def children(self, seq: int) -> list[Job]:
        return [job for job in self.jobs.values() if job.new.parent == seq]

    def open_children(self, seq: int) -> int:
        return sum(not child.terminal for child in self.children(seq))

    def holds(self, held: LeaseRef) -> bool:
        """Is this the lease the job is running under?"""
        job = self.job(held.seq)
        return job.state == State.RUNNING and (job.worker, job.epoch, job.token) == held[1:]

    def lapsed(self, gone: Collection[int]) -> list[Job]:
        return [job for job in self.in_state(State.RUNNING) if self._is_lapsed(job, gone)]

    def overdue_jobs(self) -> list[Job]:
        return [job for job in self.in_state(*NOT_RUNNING) if _passed(job.deadline_at, self.now)]

    def due(self) -> list[Job]:
        return [job for job in self.in_state(State.SCHEDULED, State.WAITING) if _passed(job.due_at, self.now)]

    def given_up(self, workers: Collection[int]) -> frozenset[int]:
        """Those that the store no longer counts as alive: only what they hold is taken before its time."""
        return frozenset(seq for seq in workers if seq not in self.workers or not self.workers[seq].live)

    def past_ttl(self) -> list[int]:
        return [seq for seq, w in self.workers.items() if w.live and w.heartbeat_at + w.ttl_us <= self.now]

    def silent(self) -> list[int]:
        """Those whom a sweep gives up: an owner stays while it has a lease."""
        busy = {job.worker for job in self.in_state(State.RUNNING)}
        return [seq for seq in self.past_ttl() if self.workers[seq].principal is None or seq not in busy]

    # From enqueue to the end

    def enqueue(self, jobs: Sequence[NewJob]) -> int:
        fresh = list(dict.fromkeys(job for job in jobs if job.id not in self.jobs))
        for new in fresh:
            due = self.now + new.delay_us if new.delay_us else new.due_at
            due = due if due is not None and due > self.now else None
            deadline = new.deadline_at
            if deadline is None and new.deadline_us is not None:
                deadline = self.now + new.deadline_us
            state = State.SCHEDULED if due else State.PENDING
            self.jobs[new.id] = Job(new, state, self.now, due, deadline)
        return len(fresh)

    def enqueue_once(self, job: NewJob, key: str) -> tuple[JobId, bool] | None:
        """The id and whether it is fresh; None when the key means something else."""
        meaning = (job.kind, job.payload)
        owner = self.keys.setdefault((job.tenant, key), Owner(meaning, job.id, self.now))
        if owner.job == job.id:
            self.enqueue([job])
            return job.id, True
        return None if owner.meaning != meaning else (owner.job, False)

    def claim(self, worker: int, routes: Collection[int], n: int, ttl_us: int) -> list[Job]:
        claimable = [job for job in self.in_state(State.PENDING) if job.new.route in routes]
        taken = sorted(claimable, key=lambda job: (job.new.priority, job.seq))[:n]
        for job in taken:
            self.begin(job, worker, ttl_us)
        return taken

    def begin(self, job: Job, worker: int, ttl_us: int) -> None:
        job.state, job.worker = State.RUNNING, worker
        job.epoch, job.token = self.epoch, job.token + 1
        job.claimed_at, job.lease_until = self.now, self.now + ttl_us

    def share_out(self, claimers: Sequence[Claimer]) -> list[Job]:
        """Each job to the first who waits for it. What a holder gets that is not active stays where it is."""
        left = [claimer.n for claimer in claimers]
        given: list[Job] = []
        for job in sorted(self.in_state(State.PENDING), key=lambda job: (job.new.priority, job.seq)):
            takers = [n for n, claimer in enumerate(claimers) if left[n] and job.new.route in claimer.routes]
            if not takers:
                continue
            left[takers[0]] -= 1
            worker, ttl_us = claimers[takers[0]].worker, claimers[takers[0]].ttl_us
            if worker in self.workers and self.workers[worker].status == "active":
                self.begin(job, worker, ttl_us)
                given.append(job)
        return given

    def make_claimable(self, job: Job) -> None:
        """For somebody who wants this job: its pause is over, or its lease, and then there is no other pause."""
        if job.state in (State.SCHEDULED, State.WAITING) and _passed(job.due_at, self.now):
            job.leave(State.PENDING)
        elif job.state == State.RUNNING and self._is_lapsed(job, ()):
            self._record(job, "lost")
            verdict = self._verdict(job)
            job.end(State.PENDING if verdict == State.SCHEDULED else verdict, self.now)
            self._count_loss(job)
            self._settle()

    def renew(self, held: Iterable[LeaseRef], ttl_us: int, ceiling_us: int) -> tuple[dict[int, int], list[LeaseRef]]:
        """The new ends of the renewed leases, and those that are lost."""
        renewed: dict[int, int] = {}
        lost: list[LeaseRef] = []
        for lease in sorted(held):
            job = self.job(lease.seq)
            alive = job.lease_until is not None and job.lease_until > self.now
            if self.holds(lease) and alive:
                renewed[lease.seq] = job.lease_until = _extended(job, self.now + ttl_us, ceiling_us)
            else:
                lost.append(lease)
        return renewed, lost

    def complete(self, endings: Sequence[Ending]) -> list[tuple[int, State]]:
        ended = []
        for ending in endings:
            if self.holds(LeaseRef(*ending[:4])):
                job = self.job(ending.seq)
                cancelled = job.cancel_requested_at is not None
                job.attempts += ending.counted
                self._record(job, "cancelled" if cancelled else ending.outcome)
                job.end(State.CANCELLED if cancelled else ending.state, self.now)
                if job.state == State.SCHEDULED:
                    job.due_at = self.now + ending.delay_us
                ended.append((job.seq, job.state))
        self._settle()
        return ended

    def repeated(self, endings: Sequence[Ending]) -> set[int]:
        return {e.seq for e in endings if self.attempts.get((e.seq, e.epoch, e.token)) == e.outcome}

    # Waiting

    def park(self, held: LeaseRef, channel: str | None, timeout_us: int | None) -> State | None:
        job = self.job(held.seq)
        if not self.holds(held) or job.cancel_requested_at is not None:
            return None
        self._record(job, "parked")
        if channel is None:
            nothing = self.open_children(job.seq) == 0
        else:
            nothing = any(signal[1] == channel for signal in self.signals)
        if nothing:
            job.leave(State.PENDING)
        else:
            job.leave(State.WAITING, None if timeout_us is None else self.now + timeout_us, channel)
        return job.state

    def signal(self, id: str, channel: str, payload: str) -> set[int]:
        if id not in self.sent:
            self.sent.add(id)
            self.signals.append((id, channel, payload))
        woken = [job for job in self.in_state(State.WAITING) if job.channel == channel]
        for job in woken:
            job.leave(State.PENDING)
        return {job.seq for job in woken}

    def take_signal(self, held: LeaseRef, channel: str, step: str) -> str | None:
        if (held.seq, step) not in self.steps:
            arrived = next((signal for signal in self.signals if signal[1] == channel), None)
            if arrived is None:
                return None
            self.signals.remove(arrived)
            self.steps[held.seq, step] = arrived[2]
        return self.steps[held.seq, step]

    def wake(self, limit: int) -> int:
        due = sorted(self.due(), key=lambda job: job.due_at or 0)[:limit]
        for job in due:
            job.leave(State.PENDING)
        return len(due)

    # Cancel and sweep

    def cancel(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            self._note(job)
            if job.state in NOT_RUNNING:
                job.end(State.CANCELLED, self.now)
                job.token += 1
                job.cancel_requested_at = self.now
            elif job.state == State.RUNNING and job.cancel_requested_at is None:
                job.cancel_requested_at = self.now
        self._settle()

    def close_family(self, seq: int) -> None:
        """Its children are cancelled; those that had ended hand the cancel on."""
        for child in self.children(seq):
            if child.terminal:
                self._note(child)
        self.cancellations.discard(seq)

    def overdue(self, seqs: Collection[int]) -> list[tuple[int, State]]:
        failed = [job for job in self.overdue_jobs() if job.seq in seqs]
        for job in failed:
            job.end(State.FAILED, self.now)
            job.token += 1
        self._settle()
        return [(job.seq, job.state) for job in failed]

    def expire(self, seqs: Collection[int], gone: Collection[int], backoff_us: int) -> list[tuple[int, State]]:
        lost = [job for job in self.lapsed(gone) if job.seq in seqs]
        for job in lost:
            self._record(job, "lost")
            job.end(self._verdict(job), self.now)
            if job.state == State.SCHEDULED:
                pause = backoff_us * 2 ** (job.rescues - 1)
                job.due_at, job.due_before = self.now + pause * 750 // 1000, self.now + pause * 1250 // 1000
            self._count_loss(job)
        self._settle()
        return [(job.seq, job.state) for job in lost]

    # Workers and duties

    def lose(self, gone: Collection[int]) -> int:
        lost = [w for seq, w in self.workers.items() if w.live and (seq in gone or seq in self.silent())]
        for worker in lost:
            worker.stop("lost", self.now)
        return len(lost)

    def acquire(self, name: str, worker: int, ttl_us: int, gone: Collection[int]) -> int | None:
        duty = self.duties.setdefault(name, Duty(0, None, 0))
        free = duty.holder in (None, worker, *gone) or duty.held_until <= self.now
        if not free and (holder := self.workers.get(duty.holder or 0)) is not None and holder.live:
            return None
        duty.term, duty.holder, duty.held_until = duty.term + 1, worker, self.now + ttl_us
        return duty.term

    def holds_duty(self, name: str, term: int, worker: int) -> bool:
        duty = self.duties[name]
        return (duty.term, duty.holder) == (term, worker) and duty.held_until > self.now

    def clean_up(self, key_age_us: int, worker_age_us: int) -> None:
        busy = {job.worker for job in self.in_state(State.RUNNING)}
        for seq, worker in list(self.workers.items()):
            if _passed(worker.stopped_at, self.now - worker_age_us) and seq not in busy:
                del self.workers[seq]
        for key, owner in list(self.keys.items()):
            ended = self.jobs[owner.job].finished_at
            if owner.created_at <= self.now - key_age_us and _passed(ended, self.now - key_age_us):
                del self.keys[key]

    # Comparing

    def learn(self, rows: Iterable[Row]) -> None:
        """Take over the numbers the store gave to new jobs, which must rise in the order they came."""
        numbers = {row["id"]: row["seq"] for row in rows}
        last = max((job.seq for job in self.jobs.values()), default=0)
        for id, job in self.jobs.items():
            if job.seq == 0:
                assert numbers[id] > last, f"job {id} has number {numbers[id]}, not after {last}"
                last = job.seq = numbers[id]
                self._by_seq[last] = job

    def compare(self, store: Snapshot) -> None:
        """Raise `AssertionError` for the first row that is not as predicted."""
        assert len(store["job"]) == len(self.jobs)
        for job in self.jobs.values():
            self._compare_job(job, store["job"][job.seq])
        _same("attempt", {key: row["outcome"] for key, row in store["attempt"].items()}, self.attempts)
        _same("step", {key: row["result"] for key, row in store["step"].items()}, self.steps)
        signals = [(row["id"], row["channel"], row["payload"]) for _, row in sorted(store["signal"].items(), key=repr)]
        _same("signal", sorted(signals), sorted(self.signals))
        _same("cancellation", set(store["cancellation"]), self.cancellations)
        _same("key", {key: row["job"] for key, row in store["idempotency"].items()}, _owners(self.keys))
        _same("worker", {seq: row["status"] for seq, row in store["worker"].items()}, _statuses(self.workers))
        duties = {name: Duty(row["term"], row["holder"], row["held_until"]) for name, row in store["duty"].items()}
        _same("duty", duties, self.duties)
        (cluster,) = store["cluster"].values()
        _same("cluster", (cluster["epoch"], cluster["identity"]), (self.epoch, self.identity))

    def _compare_job(self, job: Job, row: Row) -> None:
        if job.due_before is not None:
            assert _passed(job.due_at, row["due_at"]), f"back-off too short: {dict(row)}"
            assert row["due_at"] <= job.due_before, f"back-off too long: {dict(row)}"
            job.due_at, job.due_before = row["due_at"], None
        names = [name for name in Job.__dataclass_fields__ if name not in ("new", "due_before")]
        predicted = {name: getattr(job, name) for name in names}
        _same(f"job {job.seq}", {name: row[name] for name in names}, predicted)
        _same(f"open children of job {job.seq}", row["open_children"], self.open_children(job.seq))

    def _is_lapsed(self, job: Job, gone: Collection[int]) -> bool:
        return _passed(job.lease_until, self.now) or job.worker in gone

    def _verdict(self, job: Job) -> State:
        if job.cancel_requested_at is not None:
            return State.CANCELLED
        if _passed(job.deadline_at, self.now) or job.new.queue in self.orphans_fail:
            return State.FAILED
        if self.counts_loss(job):
            return State.FAILED if job.attempts + 1 >= job.new.max_attempts else State.PENDING
        if job.rescues >= job.new.max_rescues:
            return State.FAILED
        return State.PENDING if job.rescues == 0 else State.SCHEDULED

    def counts_loss(self, job: Job) -> bool:
        """Whether a lost lease of this job is an attempt, as its queue says now."""
        return job.new.queue in self.losses_count

    def _count_loss(self, job: Job) -> None:
        if job.terminal:
            job.attempts += 1
            return
        job.rescues = min(job.rescues + 1, job.new.max_rescues)
        job.attempts += self.counts_loss(job)

    def _record(self, job: Job, outcome: str) -> None:
        assert (job.seq, job.epoch, job.token) not in self.attempts
        self.attempts[job.seq, job.epoch, job.token] = outcome

    def _note(self, job: Job) -> None:
        if self.children(job.seq):
            self.cancellations.add(job.seq)

    def _settle(self) -> None:
        """Wake every job that is parked on children and has none left."""
        for job in self.in_state(State.WAITING):
            if job.channel is None and self.open_children(job.seq) == 0:
                job.leave(State.PENDING)


def _extended(job: Job, until: int, ceiling_us: int) -> int:
    assert job.lease_until is not None
    assert job.claimed_at is not None
    return max(job.lease_until, min(until, job.claimed_at + ceiling_us))


def _passed(at: int | None, now: int) -> bool:
    return at is not None and at <= now


def _owners(keys: dict[tuple[str, str], Owner]) -> dict[tuple[str, str], JobId]:
    return {key: owner.job for key, owner in keys.items()}


def _statuses(workers: dict[int, Worker]) -> dict[int, str]:
    return {seq: worker.status for seq, worker in workers.items()}


def _same(what: str, found: object, predicted: object) -> None:
    assert found == predicted, f"{what}: the store says {found!r}, the model {predicted!r}"
