"""The lives of jobs and workers, each as one table; and what such a table is.

CHECK constraints, the diagrams in the docs, one conformance case for every (state, verb) pair and the buttons of a
person come from such tables. A verb that is not in the table for a state leaves the row as it is. Terminal is final for
ever: running finished work again is a new job that names the old one, and a worker that comes back is a new one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, Literal, TypeVar

from holdfast.errors import NotUnderstood

S = TypeVar("S", bound=StrEnum)
V = TypeVar("V", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class Move(Generic[S, V]):
    """What one verb does to a row in one state."""

    verb: V
    source: S
    targets: tuple[S, ...]  # empty: the row is deleted
    meaning: str


def moves(verb: V, sources: Iterable[S], targets: S | tuple[S, ...], meaning: str) -> tuple[Move[S, V], ...]:
    """The same from several states."""
    ends = targets if isinstance(targets, tuple) else (targets,)
    return tuple(Move(verb, source, ends, meaning) for source in sources)


@dataclass(frozen=True, slots=True)
class Life(Generic[S, V]):
    """All states and moves of one table of the store."""

    table: str
    states: type[S]
    verbs: type[V]
    born: tuple[S, ...]  # in which a row begins
    moves: tuple[Move[S, V], ...]
    by_person: frozenset[V] = frozenset()  # verbs that a person may use
    derived: frozenset[S] = frozenset()  # states that the row does not store: its job says them
    column: str = "state"  # where the row stores it

    @property
    def final(self) -> frozenset[S]:
        """The states that a row never leaves, unless it is deleted."""
        return frozenset(state for state in self.states if not any(m.targets for m in self.moves if m.source is state))

    @property
    def names(self) -> tuple[str, ...]:
        """Its states as text, in the order of the enum."""
        return tuple(state.value for state in self.states)

    @property
    def stored(self) -> frozenset[S]:
        """The values of the column."""
        return frozenset(self.states) - self.derived

    def move(self, source: S, verb: V) -> Move[S, V] | None:
        """What `verb` may do to a row in `source`; None when it must leave the row as it is."""
        return next((m for m in self.moves if m.source is source and m.verb is verb), None)

    def offered(self, state: str) -> tuple[V, ...]:
        """The verbs that a person may use on a row in this state; none in one that only a newer release knows."""
        return tuple(verb for verb in self.verbs if verb in self.by_person and self._moves(state, verb))

    def _moves(self, state: str, verb: V) -> bool:
        return any(m.source == state and m.verb is verb for m in self.moves)


class State(StrEnum):
    """Of a job."""

    SCHEDULED = "scheduled"  # not due yet; the sweep wakes it
    PENDING = "pending"  # claimable, unless a gate is closed
    RUNNING = "running"  # one worker holds a lease on it
    WAITING = "waiting"  # parked on children or a signal; holds no lease and no worker
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


StateName = Literal["scheduled", "pending", "running", "waiting", "succeeded", "failed", "cancelled"]
"""The states as type checkers know them."""


class Verb(StrEnum):
    REPLACE = "replace"
    CLAIM = "claim"
    RENEW = "renew"
    COMPLETE = "complete"
    RETRY = "retry"
    FAIL = "fail"
    SNOOZE = "snooze"
    RELEASE = "release"
    PARK = "park"
    SUSPEND = "suspend"
    RESOLVE = "resolve"
    SIGNAL = "signal"
    WAKE = "wake"
    CANCEL = "cancel"
    EXPIRE = "expire"
    OVERDUE = "overdue"
    PRUNE = "prune"


J, JV = State, Verb

JOB = Life(
    "job",
    State,
    Verb,
    born=(State.PENDING, State.SCHEDULED),
    moves=(
        Move(JV.REPLACE, J.SCHEDULED, (J.SCHEDULED, J.PENDING), "never claimed: a newer call of the unique job"),
        Move(JV.REPLACE, J.PENDING, (J.PENDING, J.SCHEDULED), "never claimed: a newer call of the unique job"),
        Move(JV.WAKE, J.SCHEDULED, (J.PENDING,), "its due time has come"),
        Move(JV.WAKE, J.WAITING, (J.PENDING,), "the last child ended, or the wait timed out"),
        Move(JV.SIGNAL, J.WAITING, (J.PENDING,), "what it waited for arrived"),
        Move(JV.CLAIM, J.PENDING, (J.RUNNING,), "a worker with a free slot takes it, under a new token"),
        Move(JV.RENEW, J.RUNNING, (J.RUNNING,), "its worker is alive and its event loop ticks"),
        Move(JV.COMPLETE, J.RUNNING, (J.SUCCEEDED,), "the handler returned"),
        Move(JV.RETRY, J.RUNNING, (J.PENDING, J.SCHEDULED), "the handler failed and attempts are left"),
        Move(JV.FAIL, J.RUNNING, (J.FAILED,), "the handler failed for good"),
        Move(JV.SNOOZE, J.RUNNING, (J.PENDING, J.SCHEDULED), "the handler asked to come back later"),
        Move(JV.RELEASE, J.RUNNING, (J.PENDING,), "its worker drains and returns it"),
        Move(JV.PARK, J.RUNNING, (J.WAITING, J.PENDING), "the handler waits for children or a signal"),
        Move(JV.SUSPEND, J.SCHEDULED, (J.WAITING,), "it waits for a signal before a worker may claim it"),
        Move(JV.SUSPEND, J.PENDING, (J.WAITING,), "it waits for a signal before a worker may claim it"),
        Move(
            JV.RESOLVE,
            J.WAITING,
            (J.PENDING, J.WAITING, J.SUCCEEDED, J.FAILED),
            "what it waited for came and settled it, without a worker",
        ),
        Move(JV.CANCEL, J.SCHEDULED, (J.CANCELLED,), "someone cancelled it"),
        Move(JV.CANCEL, J.PENDING, (J.CANCELLED,), "someone cancelled it"),
        Move(JV.CANCEL, J.WAITING, (J.CANCELLED,), "someone cancelled it"),
        Move(JV.CANCEL, J.RUNNING, (J.RUNNING, J.CANCELLED), "asked first; its worker, or the sweep, then ends it"),
        Move(
            JV.EXPIRE,
            J.RUNNING,
            (J.PENDING, J.SCHEDULED, J.FAILED, J.CANCELLED),
            "its lease ran out or its worker died",
        ),
        Move(JV.OVERDUE, J.SCHEDULED, (J.FAILED,), "its deadline passed"),
        Move(JV.OVERDUE, J.PENDING, (J.FAILED,), "its deadline passed"),
        Move(JV.OVERDUE, J.WAITING, (J.FAILED,), "its deadline passed"),
        Move(JV.PRUNE, J.SUCCEEDED, (), "its retention time is over"),
        Move(JV.PRUNE, J.FAILED, (), "its retention time is over"),
        Move(JV.PRUNE, J.CANCELLED, (), "its retention time is over"),
    ),
)

TERMINAL = JOB.final


def known_state(text: str) -> State:
    """The state of this name; `NotUnderstood` when a newer release has put a job into another one."""
    if text not in set(State):
        raise NotUnderstood("the state of a job", f"it is {text!r}")
    return State(text)


class WorkerState(StrEnum):
    STARTING = "starting"  # its pool has a place for it, and its process has not come up
    ACTIVE = "active"  # it takes work
    DRAINING = "draining"  # it finishes what it has, and takes no more
    STOPPED = "stopped"  # it has left
    LOST = "lost"  # it was silent for too long, or somebody saw it die


class WorkerVerb(StrEnum):
    OCCUPY = "occupy"
    HEARTBEAT = "heartbeat"
    DRAIN = "drain"
    RETIRE = "retire"
    UNREGISTER = "unregister"
    REPLACE = "replace"
    LOSE = "lose"
    GIVE_UP = "give_up"
    PRUNE = "prune"


W, WV = WorkerState, WorkerVerb
ALIVE = (W.ACTIVE, W.DRAINING)
"""In these a worker may hold leases, and has to beat."""

WORKER = Life(
    "worker",
    WorkerState,
    WorkerVerb,
    born=(W.STARTING, W.ACTIVE),
    moves=(
        Move(WV.OCCUPY, W.STARTING, (W.ACTIVE,), "its process has come up in time"),
        Move(WV.HEARTBEAT, W.ACTIVE, (W.ACTIVE,), "its process is alive"),
        Move(WV.HEARTBEAT, W.DRAINING, (W.DRAINING,), "its process is alive"),
        Move(WV.DRAIN, W.ACTIVE, (W.DRAINING,), "it was asked to stop, by a person or a signal"),
        Move(WV.RETIRE, W.ACTIVE, (W.DRAINING,), "it is idle, and its pool has too many"),
        *moves(WV.UNREGISTER, ALIVE, W.STOPPED, "it says that it leaves"),
        *moves(WV.REPLACE, ALIVE, W.LOST, "it is silent, and another worker registers under its id"),
        *moves(WV.LOSE, (W.STARTING, *ALIVE), W.LOST, "its time is over, or its presence is gone"),
        *moves(
            WV.GIVE_UP,
            (W.STARTING, *ALIVE),
            (W.LOST, W.STOPPED),
            "its pool saw its process end, or could not start it",
        ),
        *moves(WV.PRUNE, (W.STOPPED, W.LOST), (), "it left long ago, or a person forgets it"),
    ),
    column="status",
)
