"""Actions: methods of the machine that may happen at each step, each with its weight and its condition.

Hypothesis' own rules know no weights, and it switches so many of them off at a time that most examples never claim a
job. Here what matters happens often, and few actions are off in any one example.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, ParamSpec, TypeVar

from hypothesis import strategies as st

from holdfast.kernel.rows import Lease, Route

P = ParamSpec("P")
R = TypeVar("R")

SELDOM, USUAL, OFTEN = 1, 4, 8


@dataclass(frozen=True)
class Action:
    """Something that can happen; `arguments` are drawn when it does."""

    name: str
    weight: int
    when: Callable[[Any], object]
    arguments: Mapping[str, st.SearchStrategy[Any]]


class Step(NamedTuple):
    name: str
    arguments: dict[str, Any]

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={_short(value)}' for name, value in self.arguments.items())})"


def _short(value: object) -> str:
    match value:
        case Lease():
            return f"<job {value.seq} under {value.fence} by worker {value.worker}>"
        case Route():
            return f"<{value.queue} {value.capabilities}>"
        case list():
            return f"[{', '.join(map(_short, value))}]"
        case _:
            return repr(value)


def action(
    *, weight: int = USUAL, when: Callable[[Any], object] = lambda _: True, **arguments: st.SearchStrategy[Any]
) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Mark a method that the machine may call, with arguments drawn for it, when the condition holds."""

    def mark(method: Callable[P, None]) -> Callable[P, None]:
        method.action = Action(method.__name__, weight, when, arguments)  # type: ignore[attr-defined]
        return method

    return mark


@cache
def actions(kind: type[object]) -> tuple[Action, ...]:
    """What such a machine may do, the most usual first: failing examples shrink towards it."""
    found = [member.action for _, member in inspect.getmembers(kind) if hasattr(member, "action")]
    return tuple(sorted(found, key=lambda action: (-action.weight, action.name)))


def drawn(choose: Callable[[Any], Sequence[R]]) -> st.SearchStrategy[R]:
    """One of the things the machine knows; the rule's precondition must ensure that there is one."""
    return st.runner().flatmap(lambda machine: st.sampled_from(choose(machine)))


def some_drawn(choose: Callable[[Any], Sequence[R]], most: int = 3) -> st.SearchStrategy[list[R]]:
    return st.runner().flatmap(
        lambda machine: st.lists(st.sampled_from(choose(machine)), min_size=1, max_size=most, unique=True)
    )
