"""The ground all rules stand on: what the machine remembers, and how each step is judged.

After every operation the stores must have given one answer, hold equal rows, match the model, and every changed row
must respect the invariants. The machine forgets nothing: old leases, endings, terms and findings are used again long
after they have become stale.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import NamedTuple, ParamSpec, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from holdfast.clock import Ports
from holdfast.errors import HoldfastError
from holdfast.kernel import ids
from holdfast.kernel.database import Operation
from holdfast.kernel.ids import JobId
from holdfast.kernel.routes import route_for
from holdfast.kernel.rows import Cancellation, ChildRef, Cluster, Ending, Lease, LiveWorker, NewJob, Term
from holdfast.kernel.states import TERMINAL, State
from holdfast.kernel.workers import Registration
from tests.lockstep.actions import OFTEN, Action, Step, actions, drawn
from tests.lockstep.model import Model
from tests.lockstep.rare import RARE, RARE_WITH_BROKERS
from tests.lockstep.stage import Refusal, Stage
from tests.support import invariants
from tests.support.snapshots import Snapshot
from tests.support.stores import ManualClock

P = ParamSpec("P")
R = TypeVar("R")

SECOND = 1_000_000
CEILING_US = 90 * SECOND
BACKOFF_US = 5 * SECOND
DUTY_TTL_US = 30 * SECOND
ROUTES = (route_for("default", "a"), route_for("default", "b"), route_for("bulk", "a", ["tag:gpu"]))
CHANNELS = ("approval", "reply")
STEPS = ("one", "two")


class Finding(NamedTuple):
    """What a sweep or a canceller has read and not yet acted upon."""

    rows: tuple[ChildRef, ...]
    gone: frozenset[int]


@st.composite
def steps(draw: st.DrawFn) -> Step:
    machine: Machine = draw(st.runner())
    action = draw(st.sampled_from(machine.possible()))
    return Step(action.name, draw(st.fixed_dictionaries(dict(action.arguments))))


class Machine(RuleBasedStateMachine):
    def __init__(self, stage: Stage, seen: Counter[str]) -> None:
        super().__init__()
        self.stage = stage
        self._seen = seen
        stage.begin()
        self.model = Model(stage.now)
        self.clock = ManualClock()
        self.ports = Ports(self.clock, random.Random(0))
        self.off: set[str] = set()
        self.alive: list[int] = []
        self.dead: list[int] = []
        self.registrations: dict[int, Registration] = {}
        self.leases: list[Lease] = []
        self.endings: list[Ending] = []
        self.enqueued: list[NewJob] = []
        self.signals: list[tuple[str, str, str]] = []
        self.terms: list[tuple[Term, int]] = []
        self.lapsed: list[Finding] = []
        self.overdue_findings: list[Finding] = []
        self.cancellable: list[tuple[JobId, ChildRef, State]] = []
        self.families: list[tuple[Cancellation, list[ChildRef]]] = []
        self.clusters: list[Cluster] = []
        self.newcomers: list[tuple[Registration, LiveWorker | None]] = []
        self.gone: frozenset[int] = frozenset()
        self.quiet = False
        self._before = stage.look()

    @initialize(off=st.runner().flatmap(lambda machine: st.sets(st.sampled_from(machine.optional()), max_size=8)))
    def switch_off(self, off: set[str]) -> None:
        """Some actions do not happen in this example, so that the others come closer together."""
        self.off = off

    @rule(step=steps())
    def act(self, step: Step) -> None:
        getattr(self, step.name)(**step.arguments)

    def possible(self) -> list[Action]:
        """Each as often as its weight says."""
        ready = [a for a in actions(type(self)) if a.name not in self.off and a.when(self)]
        return [action for action in ready for _ in range(action.weight)]

    def optional(self) -> list[str]:
        return [action.name for action in actions(type(self)) if action.weight < OFTEN]

    def ask(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """The answer of all stores, which must not be a refusal."""
        return _granted(self.stage.ask(operation, *args, **kwargs))

    def ask_in_any_order(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return _granted(self.stage.ask_in_any_order(operation, *args, **kwargs))

    def ask_in_vain(
        self, error: type[HoldfastError], operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """All stores must refuse. Follow it, or several of it, with `judge_refused`."""
        answer = self.stage.ask(operation, *args, **kwargs)
        assert isinstance(answer, Refusal), f"{error.__name__} expected, not {answer!r}"
        assert answer.error is error

    def saw(self, event: str, happened: bool = True) -> None:
        """Count a rare event, so that the run can show that it was not blind to it."""
        assert event in RARE | RARE_WITH_BROKERS, f"{event!r} is not among the rare events"
        if happened:
            self._seen[event] += 1

    @invariant()
    def judge(self) -> None:
        """Compare the stores with each other and with the model, and what changed with the invariants."""
        after = self.stage.look()
        charged = self.model.charged
        invariants.check(self._before, after, ceiling_us=CEILING_US, gone=self.gone, charged=charged)
        invariants.check_whole(after, charged=charged)
        self.model.learn(after["job"].values())
        self.model.compare(after)
        self._judge_hints(after)
        self._before, self.gone, self.quiet = after, frozenset(), False

    def judge_refused(self) -> None:
        """What was asked since the last judgement must have changed nothing."""
        invariants.check_untouched(self._before, self.stage.look())

    def _judge_hints(self, after: Snapshot) -> None:
        """Whatever became claimable was hinted, or its workers would sleep until they poll."""
        hinted = self.stage.hinted()
        for seq, job in after["job"].items():
            old = self._before["job"].get(seq)
            woke = job["state"] == State.PENDING and (old is None or old["state"] != State.PENDING)
            assert not woke or self.quiet or job["route"] in hinted, f"no hint for job {seq}"

    def judge_swept(self) -> None:
        self.judge()
        invariants.check_swept(self._before)

    def new_id(self) -> JobId:
        self.clock.us = self.stage.now
        return ids.new_id(self.ports)

    def fresh(self) -> list[Lease]:
        """Leases that are current, as far as the model knows; they may have run out, unnoticed."""
        return [lease for lease in self.leases if self.model.holds(lease.held)]

    def stale(self) -> list[Lease]:
        return [lease for lease in self.leases if not self.model.holds(lease.held)]

    def parents(self) -> list[JobId]:
        """Unfinished jobs with unfinished children; those with grandchildren come several times."""
        grown = {id: self.model.children(self.model.jobs[id].seq) for id in self.unfinished()}
        return [
            id
            for id, children in grown.items()
            for child in children
            if not child.terminal
            for _ in range(1 + 3 * self.model.open_children(child.seq))
        ]

    def unfinished(self) -> list[JobId]:
        return [id for id, job in self.model.jobs.items() if job.state not in TERMINAL]


fresh_leases = drawn(lambda machine: machine.fresh())
stale_leases = drawn(lambda machine: machine.stale())
live_workers = drawn(lambda machine: machine.alive)
known_workers = drawn(lambda machine: machine.alive + machine.dead)
gone_workers = st.runner().flatmap(
    lambda machine: st.frozensets(st.sampled_from(machine.dead), max_size=2) if machine.dead else st.just(frozenset())
)
limits = st.sampled_from([100, 1, 2])


def _granted(answer: R | Refusal) -> R:
    assert not isinstance(answer, Refusal), f"refused: {answer.message}"
    return answer
