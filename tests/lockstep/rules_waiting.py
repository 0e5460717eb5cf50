"""Waiting without a worker: park, signal, steps, children; and cancelling them, families included."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from holdfast.errors import LeaseLost, ParentCancelled
from holdfast.kernel import cancel as cancelling
from holdfast.kernel import waiting
from holdfast.kernel.database import Transaction
from holdfast.kernel.enqueue import enqueue_children
from holdfast.kernel.ids import JobId, derived_id
from holdfast.kernel.leases import renew
from holdfast.kernel.rows import Cancellation, ChildRef, Lease
from holdfast.kernel.statements import CancelSql
from holdfast.kernel.states import State
from tests.lockstep.actions import OFTEN, SELDOM, action, drawn
from tests.lockstep.machine import CEILING_US, CHANNELS, ROUTES, SECOND, STEPS, fresh_leases, limits, live_workers
from tests.lockstep.model import Job
from tests.lockstep.recalling import Recalling
from tests.lockstep.rules_jobs import JobRules, Outcome, outcomes
from tests.support.stores import TTL_US

REASON = "no longer wanted"
channels = st.sampled_from(CHANNELS)
steps = st.sampled_from(STEPS)
unfinished_jobs = drawn(lambda machine: machine.unfinished() + machine.parents() * 3)
timeouts = st.sampled_from([None, None, 0, 10 * SECOND])


async def find_cancellable(tx: Transaction, id: JobId) -> ChildRef | None:
    return await tx.one(CancelSql.find_cancellable, id=id)


async def cancel_found(tx: Transaction, id: JobId, found: ChildRef) -> State:
    return await cancelling.cancel(Recalling(tx, CancelSql.find_cancellable, [found]), id, reason=REASON)


async def find_family(tx: Transaction) -> tuple[Cancellation, list[ChildRef]] | None:
    families = await tx.many(CancelSql.next_cancellations, limit=1)
    if not families:
        return None
    return families[0], await tx.many(CancelSql.cancellable_children, parents=[families[0].job], limit=2)


async def cancel_children_found(tx: Transaction, family: Cancellation, children: Sequence[ChildRef]) -> bool:
    stale = Recalling(tx, CancelSql.next_cancellations, [family])
    return await cancelling.cancel_family(Recalling(stale, CancelSql.cancellable_children, children), limit=2)


class WaitingRules(JobRules):
    @action(when=lambda self: self.fresh(), lease=fresh_leases, channel=st.none() | channels, timeout=timeouts)
    def park_on(self, lease: Lease, channel: str | None, timeout: int | None) -> None:
        self.park(lease, channel, timeout)

    def park(self, lease: Lease, channel: str | None, timeout: int | None) -> None:
        state = self.model.park(lease.held, channel, timeout)
        if state is None:
            self.ask_in_vain(LeaseLost, waiting.park, lease, channel=channel, timeout_us=timeout)
            self.judge_refused()
            self.saw("a park was refused: stale token, or cancel requested")
            return
        assert self.ask(waiting.park, lease, channel=channel, timeout_us=timeout) == state
        self.saw("parked on children", channel is None and state == State.WAITING)
        self.saw("parked on children that had ended", channel is None and state == State.PENDING)
        self.saw("parked on a signal that was there already", channel is not None and state == State.PENDING)

    @action(channel=channels, payload=st.sampled_from(['"yes"', '{"n":1}']))
    def signal(self, channel: str, payload: str) -> None:
        self.send(self.new_id(), channel, payload)

    @action(weight=SELDOM + 1, when=lambda self: self.signals, sent=drawn(lambda machine: machine.signals))
    def signal_again(self, sent: tuple[str, str, str]) -> None:
        """The answer was lost, so the sender repeats itself."""
        self.send(*sent)
        self.saw("a signal was repeated")
        self.saw("a signal was repeated after it was taken", all(sent[0] != id for id, _, _ in self.model.signals))

    def send(self, id: str, channel: str, payload: str) -> None:
        woken = self.ask_in_any_order(waiting.signal, id, channel, payload)
        assert {job.seq for job in woken} == self.model.signal(id, channel, payload)
        self.signals.append((id, channel, payload))
        self.saw("a signal woke a parked job", bool(woken))

    @action(when=lambda self: self.fresh(), lease=fresh_leases, channel=channels, step=steps)
    def take_signal(self, lease: Lease, channel: str, step: str) -> None:
        stored = (lease.seq, step) in self.model.steps
        taken = self.model.take_signal(lease.held, channel, step)
        assert self.ask(waiting.take_signal, lease, channel, step) == (taken, self.stage.now)
        self.saw("a signal was taken", taken is not None and not stored)

    @action(when=lambda self: self.fresh(), lease=fresh_leases, step=steps, result=st.sampled_from(["1", '{"a":[]}']))
    def store(self, lease: Lease, step: str, result: str) -> None:
        self.saw("a step was stored already", (lease.seq, step) in self.model.steps)
        stored = self.model.steps.setdefault((lease.seq, step), result)
        assert self.ask(waiting.store_step, lease, step, result) == stored
        self.judge()
        self.model.job(lease.seq).progress = result
        self.ask(waiting.report_progress, lease, result)

    @action(
        when=lambda self: self.stale(),
        lease=drawn(lambda machine: machine.stale()),
        outcome=outcomes,
        channel=channels,
        step=steps,
    )
    def write_stale(self, lease: Lease, outcome: Outcome, channel: str, step: str) -> None:
        """Nothing can be written under a token that is not current."""
        self.end([self.ending(lease, outcome)])
        self.write_in_vain(lease, channel, step)
        job = self.model.job(lease.seq)
        self.saw("a stale completion was refused")
        self.saw("a stale completion was refused while another lease ran", job.state == State.RUNNING)
        self.saw("a token of an earlier epoch was refused", job.epoch > lease.epoch)

    @action(
        weight=SELDOM,
        when=lambda self: self.fresh() and self.alive,
        lease=fresh_leases,
        worker=live_workers,
        outcome=outcomes,
        channel=channels,
        step=steps,
    )
    def write_as_another(self, lease: Lease, worker: int, outcome: Outcome, channel: str, step: str) -> None:
        """The right token in the wrong hands is refused too."""
        if worker == lease.worker:
            return
        forged = lease._replace(worker=worker)
        self.end([self.ending(forged, outcome)])
        renewed, _ = self.ask_in_any_order(renew, [forged.held], ttl_us=TTL_US, ceiling_us=CEILING_US)
        assert not renewed
        self.write_in_vain(forged, channel, step)
        self.saw("another worker's token was refused")

    def write_in_vain(self, lease: Lease, channel: str, step: str) -> None:
        self.ask_in_vain(LeaseLost, waiting.park, lease, channel=channel, timeout_us=None)
        self.ask_in_vain(LeaseLost, waiting.park, lease, channel=None, timeout_us=1)
        self.ask_in_vain(LeaseLost, waiting.take_signal, lease, channel, step)
        self.ask_in_vain(LeaseLost, waiting.store_step, lease, step, "1")
        self.ask_in_vain(LeaseLost, waiting.report_progress, lease, "1")
        self.ask_in_vain(LeaseLost, enqueue_children, lease, [self.new_job(ROUTES[0])], ROUTES)
        self.judge_refused()

    @action(when=lambda self: self.fresh(), lease=fresh_leases, count=st.integers(1, 3), park=st.booleans())
    def launch(self, lease: Lease, count: int, park: bool) -> None:
        self.enqueue_children(lease, count)
        if park:
            self.judge()
            self.park(lease, None, None)

    def enqueue_children(self, lease: Lease, count: int) -> None:
        # New ordinals first: PostgreSQL uses a number up for each child that is there already.
        children = [
            self.new_job(ROUTES[n % 2])._replace(id=derived_id(lease.id, "children", n)) for n in reversed(range(count))
        ]
        if self.model.job(lease.seq).cancel_requested_at is not None:
            self.ask_in_vain(ParentCancelled, enqueue_children, lease, children, ROUTES)
            self.judge_refused()
            self.saw("a cancelled parent could not launch")
            return
        self.ask(enqueue_children, lease, children, ROUTES)
        fresh = self.model.enqueue([child._replace(parent=lease.seq) for child in children])
        self.saw("children were launched twice", fresh < count)
        self.saw("a child launched children", lease.parent is not None)

    # Cancel: at once, or finding now and acting later

    @action(when=lambda self: self.unfinished(), id=unfinished_jobs, later=st.booleans(), rounds=st.integers(0, 3))
    def cancel(self, id: JobId, later: bool, rounds: int) -> None:
        if later:
            found = self.ask(find_cancellable, id)
            assert found is not None
            self.cancellable.append((id, found, self.model.jobs[id].state))
            return
        self.cancel_one(id, None)
        for _ in range(rounds):
            self.judge()
            if self.model.cancellations:
                self.cancel_family(2, later=False)

    @action(when=lambda self: self.cancellable, found=drawn(lambda machine: machine.cancellable))
    def cancel_found(self, found: tuple[JobId, ChildRef, State]) -> None:
        id, kin, state = found
        self.cancel_one(id, kin)
        self.saw("a job moved on between a cancel's reading and writing", state != self.model.jobs[id].state)

    def cancel_one(self, id: JobId, found: ChildRef | None) -> None:
        job = self.model.jobs[id]
        finished = job.terminal
        self.saw("a running job was asked to stop", job.state == State.RUNNING and job.cancel_requested_at is None)
        if not finished:
            self.model.cancel([job])
        state = self.ask(cancel_found, id, found) if found else self.ask(cancelling.cancel, id, reason=REASON)
        assert state == job.state
        if finished:
            self.judge_refused()

    @action(weight=OFTEN, when=lambda self: self.model.cancellations, limit=limits, later=st.booleans())
    def cancel_family(self, limit: int, later: bool) -> None:
        if later:
            found = self.ask(find_family)
            assert found is not None
            assert found[0].job == min(self.model.cancellations)
            self.families.append(found)
            return
        family = min(self.model.cancellations)
        children = [job for job in self.model.children(family) if _cancellable(job.state, job.cancel_requested_at)]
        self.cancel_members(family, sorted(children, key=lambda job: job.seq)[:limit])
        assert self.ask(cancelling.cancel_family, limit=limit)

    def has_heirs(self, family: int) -> bool:
        ended = [child for child in self.model.children(family) if child.terminal]
        return any(self.model.open_children(child.seq) for child in ended)

    def cancel_members(self, family: int, members: Sequence[Job]) -> None:
        if not members:
            self.saw("a cancel went on through a child that had ended", self.has_heirs(family))
            self.model.close_family(family)
            return
        opened = set(self.model.cancellations)
        self.model.cancel(members)
        self.saw("a family was cancelled")
        self.saw("a family was cancelled to its grandchildren", self.model.cancellations > opened)

    @action(weight=OFTEN, when=lambda self: self.families, found=drawn(lambda machine: machine.families))
    def cancel_children_found(self, found: tuple[Cancellation, list[ChildRef]]) -> None:
        family, children = found
        members = [self.model.job(child.seq) for child in children]
        self.saw("a child moved on before its family was cancelled", any(m.terminal for m in members))
        self.cancel_members(family.job, members)
        assert self.ask(cancel_children_found, family, children)


def _cancellable(state: State, requested_at: int | None) -> bool:
    return state in (State.SCHEDULED, State.PENDING, State.WAITING, State.RUNNING) and requested_at is None
