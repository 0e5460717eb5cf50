"""From enqueue to the end: enqueue, claim, complete, with current and with stale tokens."""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Sequence

from hypothesis import strategies as st
from hypothesis.stateful import initialize

from holdfast.errors import IdempotencyConflict
from holdfast.kernel import complete as completing
from holdfast.kernel.claim import claim, heads
from holdfast.kernel.complete import complete, complete_and_settle, repeated
from holdfast.kernel.enqueue import AcceptedJob, enqueue, enqueue_once
from holdfast.kernel.ids import JobId
from holdfast.kernel.retry import RetryPolicy
from holdfast.kernel.rows import Ending, Lease, LeaseRef, NewJob, Route
from holdfast.kernel.states import State
from holdfast.outcomes import Cancel, Discard, Done, Fail, Snooze, TryAgain
from tests.lockstep.actions import OFTEN, SELDOM, action, drawn, some_drawn
from tests.lockstep.machine import ROUTES, SECOND, fresh_leases, live_workers
from tests.lockstep.rules_workers import WorkerRules
from tests.support.jobs import plain_job
from tests.support.stores import TTL_US

Outcome = Done | TryAgain | Fail | Cancel | Discard | Snooze | None  # None: released

POLICY = RetryPolicy()
PLAIN = plain_job(JobId(""), "a", ROUTES[0], max_attempts=2, max_rescues=1, metadata='{"aa": 1, "b": [1, 2]}')
outcomes: st.SearchStrategy[Outcome] = st.sampled_from(
    [
        Done({"answer": 42}),
        Done(None),
        TryAgain("0s", "again"),
        TryAgain("5s", "later"),
        TryAgain(None, "by policy"),
        Fail("broken"),
        Discard("no use"),
        Cancel("not now"),
        Snooze("0s"),
        Snooze("20s"),
        None,
    ]
)
payloads = st.sampled_from(["{}", '{"n":1}', '"grüße \\u2603"', "[1.0,1e3,null]"])
delays = st.sampled_from([None, None, None, 0, 1, 5 * SECOND, 90 * SECOND])
deadlines = st.sampled_from([None, None, None, 1, 20 * SECOND, 70 * SECOND])
moments = st.fixed_dictionaries(
    {"delay_us": delays, "due_at": delays, "deadline_us": deadlines, "deadline_at": deadlines}
)
job_kinds = st.fixed_dictionaries(
    {
        "priority": st.sampled_from([100, 100, 1, 200]),
        "max_attempts": st.integers(1, 3),
        "max_rescues": st.integers(0, 3),
        "payload": payloads,
    }
)


class JobRules(WorkerRules):
    def new_job(self, route: Route, **changes: object) -> NewJob:
        kind = json.loads(route.capabilities)[0].removeprefix("job:")
        mine = PLAIN._replace(id=self.new_id(), kind=kind, queue=route.queue, route=route.id)
        return mine._replace(**changes)  # type: ignore[arg-type]

    @action(route=st.sampled_from(ROUTES), count=st.integers(1, 3), changes=job_kinds, moments=moments)
    def enqueue(self, route: Route, count: int, changes: dict[str, object], moments: dict[str, int | None]) -> None:
        when = {name: us if us is None or name.endswith("_us") else self.stage.now + us for name, us in moments.items()}
        jobs = [self.new_job(route, **changes, **when) for _ in range(count)]
        assert self.ask(enqueue, jobs, [route]) == self.model.enqueue(jobs) == count
        self.enqueued += jobs

    @action(
        weight=SELDOM, when=lambda self: self.enqueued, job=drawn(lambda machine: machine.enqueued), fresh=st.booleans()
    )
    def enqueue_again(self, job: NewJob, fresh: bool) -> None:
        """The answer was lost, so the client repeats itself; perhaps with something new, twice, in the same batch."""
        self.quiet = True
        new = [self.new_job(ROUTES[0])] if fresh else []
        jobs = [*new, job, *new]
        assert self.ask(enqueue, jobs, [], notify=False) == self.model.enqueue(jobs) == len(new)
        self.enqueued += new
        self.saw("an enqueue was repeated")

    @action(weight=SELDOM + 1, tenant=st.sampled_from(["", "acme"]), payload=st.sampled_from(["1", "2"]))
    def enqueue_under_key(self, tenant: str, payload: str) -> None:
        key = "order 66"
        job = self.new_job(ROUTES[0], payload=payload, tenant=tenant)
        known = (tenant, key) in self.model.keys
        expected = self.model.enqueue_once(job, key)
        if expected is None:
            self.ask_in_vain(IdempotencyConflict, enqueue_once, job, [ROUTES[0]], key=key)
            self.judge_refused()
            self.saw("a key was refused for another payload")
            return
        assert self.ask(enqueue_once, job, [ROUTES[0]], key=key) == AcceptedJob(*expected)
        self.saw("a key gave the same job again", known)
        again = self.ask(enqueue_once, self.model.jobs[expected[0]].new, [], key=key)
        assert again == AcceptedJob(expected[0], fresh=True)

    # Claim

    @initialize(count=st.integers(1, 3), changes=job_kinds)
    def first_work(self, count: int, changes: dict[str, object]) -> None:
        for name in ("w1", "w2"):
            self.join(self.newcomer(name), None, frozenset())
            self.judge()
        self.begin_work(self.alive[0], count, changes)

    @action(when=lambda self: self.alive, worker=live_workers, count=st.integers(1, 3), changes=job_kinds)
    def begin_work(self, worker: int, count: int, changes: dict[str, object]) -> None:
        """Jobs that are claimed as soon as they are there."""
        self.enqueue(ROUTES[1], count, changes, {})
        self.judge()
        self.claim_from(worker, [ROUTES[1]], 9)

    @action(
        weight=OFTEN,
        when=lambda self: self.alive,
        worker=live_workers,
        routes=st.sets(st.sampled_from(ROUTES)),
        n=st.integers(1, 4),
    )
    def claim(self, worker: int, routes: set[Route], n: int) -> None:
        """From some routes; or, asked about none, from those that have something."""
        if routes:
            self.claim_from(worker, sorted(routes), n)
            return
        hot = self.ask_in_any_order(heads, [route.id for route in ROUTES])
        assert set(hot) == {job.new.route for job in self.model.in_state(State.PENDING)}
        if hot:
            assert self.claim_from(worker, [route for route in ROUTES if route.id in hot], n)

    def claim_from(self, worker: int, routes: Collection[Route], n: int) -> list[Lease]:
        leases = self.ask(claim, worker, [route.id for route in routes], n, TTL_US)
        taken = self.model.claim(worker, {route.id for route in routes}, n, TTL_US)
        now, epoch = self.stage.now, self.model.epoch
        assert [(lease.id, lease.epoch, lease.token) for lease in leases] == [
            (job.new.id, epoch, job.token) for job in taken
        ]
        assert all((lease.claimed_at, lease.lease_until) == (now, now + TTL_US) for lease in leases)
        for lease in leases:
            earlier = [old for old in self.leases if old.seq == lease.seq]
            self.saw("a lost job was claimed by another worker", any(old.worker != worker for old in earlier))
            self.saw("a job was claimed again in a later epoch", any(old.epoch < epoch for old in earlier))
        self.leases += leases
        return leases

    # Complete

    @action(weight=OFTEN, when=lambda self: self.fresh(), lease=fresh_leases, outcome=outcomes)
    def complete(self, lease: Lease, outcome: Outcome) -> None:
        self.end([self.ending(lease, outcome)])

    @action(
        when=lambda self: self.leases,
        leases=some_drawn(lambda machine: machine.leases, most=5),
        outcome=outcomes,
        other=outcomes,
    )
    def complete_batch(self, leases: list[Lease], outcome: Outcome, other: Outcome) -> None:
        """Current and stale leases, with parents and without: each stands or falls alone."""
        endings = [self.ending(lease, other if n else outcome) for n, lease in enumerate(leases)]
        before = len(self.endings)
        self.end(endings)
        self.saw("a batch was half refused", 0 < len(self.endings) - before < len(endings))

    @action(weight=SELDOM, when=lambda self: self.endings, ending=drawn(lambda machine: machine.endings))
    def complete_again(self, ending: Ending) -> None:
        """The answer to a completion was lost: nothing changes, and the repeat is told from a lost lease."""
        assert not self.ask_in_any_order(complete, [ending])
        self.judge_refused()
        assert self.ask(repeated, [ending]) == self.model.repeated([ending])
        self.saw("a repeated completion was recognised", bool(self.model.repeated([ending])))

    def ending(self, lease: Lease, outcome: Outcome) -> Ending:
        if outcome is None:
            return completing.release(lease)
        chance = random.Random(lease.seq)
        return completing.ending(lease, outcome, policy=POLICY, chance=chance, result_cap=1_000, error_cap=1_000)

    def end(self, endings: Sequence[Ending]) -> None:
        """Complete on all sides and compare; what is not returned was lost."""
        parents = {parent for e in endings if (parent := self.model.job(e.seq).new.parent) is not None}
        mine = [ending for ending in endings if self.model.holds(LeaseRef(*ending[:4]))]
        asked = [e for e in mine if self.model.job(e.seq).cancel_requested_at is not None]
        late = [e for e in mine if self.model.job(e.seq) in self.model.lapsed(())]
        ended = (
            self.ask_in_any_order(complete_and_settle, endings, sorted(parents))
            if parents
            else self.ask_in_any_order(complete, endings)
        )
        assert sorted((job.seq, job.state) for job in ended) == sorted(self.model.complete(endings))
        self.endings += mine
        self.saw("a cancel won over an outcome", bool(asked))
        self.saw("a lapsed lease was completed before the sweep came", bool(late))
        last = [e for e in mine if self.model.job(e.seq).attempts == self.model.job(e.seq).new.max_attempts]
        self.saw("the last attempt failed", any(e.outcome == "failed" for e in last))
