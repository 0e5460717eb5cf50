"""The life of one kind of row, as data: its states, its verbs, and what each verb does in each state.

CHECK constraints, the reference page, one conformance case for every (state, verb) pair and the buttons of a person
come from such a table. A verb that is not in the table for a state leaves the row as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

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
