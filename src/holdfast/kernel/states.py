"""The life of a job, as one table.

CHECK constraints, the diagram in the docs, and one conformance case for every (state, verb) pair come from
here. Terminal is final for ever: running finished work again is a new job that names the old one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from holdfast.errors import NotUnderstood


class State(StrEnum):
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


@dataclass(frozen=True, slots=True)
class Transition:
    verb: Verb
    source: State
    targets: tuple[State, ...]  # empty: the row is deleted
    meaning: str


S, V = State, Verb

TRANSITIONS = (
    Transition(V.REPLACE, S.SCHEDULED, (S.SCHEDULED, S.PENDING), "never claimed: a newer call of the unique job"),
    Transition(V.REPLACE, S.PENDING, (S.PENDING, S.SCHEDULED), "never claimed: a newer call of the unique job"),
    Transition(V.WAKE, S.SCHEDULED, (S.PENDING,), "its due time has come"),
    Transition(V.WAKE, S.WAITING, (S.PENDING,), "the last child ended, or the wait timed out"),
    Transition(V.SIGNAL, S.WAITING, (S.PENDING,), "what it waited for arrived"),
    Transition(V.CLAIM, S.PENDING, (S.RUNNING,), "a worker with a free slot takes it, under a new token"),
    Transition(V.RENEW, S.RUNNING, (S.RUNNING,), "its worker is alive and its event loop ticks"),
    Transition(V.COMPLETE, S.RUNNING, (S.SUCCEEDED,), "the handler returned"),
    Transition(V.RETRY, S.RUNNING, (S.PENDING, S.SCHEDULED), "the handler failed and attempts are left"),
    Transition(V.FAIL, S.RUNNING, (S.FAILED,), "the handler failed for good"),
    Transition(V.SNOOZE, S.RUNNING, (S.PENDING, S.SCHEDULED), "the handler asked to come back later"),
    Transition(V.RELEASE, S.RUNNING, (S.PENDING,), "its worker drains and returns it"),
    Transition(V.PARK, S.RUNNING, (S.WAITING, S.PENDING), "the handler waits for children or a signal"),
    Transition(V.SUSPEND, S.SCHEDULED, (S.WAITING,), "it waits for a signal before a worker may claim it"),
    Transition(V.SUSPEND, S.PENDING, (S.WAITING,), "it waits for a signal before a worker may claim it"),
    Transition(
        V.RESOLVE,
        S.WAITING,
        (S.PENDING, S.WAITING, S.SUCCEEDED, S.FAILED),
        "what it waited for came and settled it, without a worker",
    ),
    Transition(V.CANCEL, S.SCHEDULED, (S.CANCELLED,), "someone cancelled it"),
    Transition(V.CANCEL, S.PENDING, (S.CANCELLED,), "someone cancelled it"),
    Transition(V.CANCEL, S.WAITING, (S.CANCELLED,), "someone cancelled it"),
    Transition(V.CANCEL, S.RUNNING, (S.RUNNING, S.CANCELLED), "asked first; its worker, or the sweep, then ends it"),
    Transition(
        V.EXPIRE,
        S.RUNNING,
        (S.PENDING, S.SCHEDULED, S.FAILED, S.CANCELLED),
        "its lease ran out or its worker died",
    ),
    Transition(V.OVERDUE, S.SCHEDULED, (S.FAILED,), "its deadline passed"),
    Transition(V.OVERDUE, S.PENDING, (S.FAILED,), "its deadline passed"),
    Transition(V.OVERDUE, S.WAITING, (S.FAILED,), "its deadline passed"),
    Transition(V.PRUNE, S.SUCCEEDED, (), "its retention time is over"),
    Transition(V.PRUNE, S.FAILED, (), "its retention time is over"),
    Transition(V.PRUNE, S.CANCELLED, (), "its retention time is over"),
)

_BY_PAIR = {(t.source, t.verb): t for t in TRANSITIONS}

TERMINAL = frozenset(s for s in State if all(not t.targets for t in TRANSITIONS if t.source is s))


def known_state(text: str) -> State:
    """The state of this name; `NotUnderstood` when a newer release has put a job into another one."""
    if text not in set(State):
        raise NotUnderstood("the state of a job", f"it is {text!r}")
    return State(text)


def transition(source: State, verb: Verb) -> Transition | None:
    """What `verb` may do to a job in `source`; None when it must leave the row untouched."""
    return _BY_PAIR.get((source, verb))
