"""Where each state of a machine stands in its picture: in rows from the initial state down, short ways first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.machines.graph import MachineGraph, Stage

LONGEST = 34  # characters of a line in the picture


@dataclass(frozen=True, slots=True)
class Arrow:
    """A way from one state to another; `is_error` if an error leads there."""

    source: str
    to: str
    label: str
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class GraphLayout:
    """`rows` are the states from top to bottom, each row from left to right."""

    rows: tuple[tuple[str, ...], ...]
    arrows: tuple[Arrow, ...]

    def row_of(self, state: str) -> int:
        return next(number for number, row in enumerate(self.rows) if state in row)


def lay_out(machine: MachineGraph) -> GraphLayout:
    """States by the length of the longest way to them that visits none twice, as far as ways lead down."""
    arrows = tuple(arrow for state in machine.states.values() for arrow in _arrows(state))
    depth = _depths(machine)
    rows: dict[int, list[str]] = {}
    for name in machine.states:
        rows.setdefault(depth[name], []).append(name)
    ordered: list[tuple[str, ...]] = []
    places: dict[str, float] = {}
    for number in sorted(rows):
        row = sorted(rows[number], key=lambda name: (_middle(name, arrows, places), list(machine.states).index(name)))
        for at, name in enumerate(row):
            places[name] = at - (len(row) - 1) / 2
        ordered.append(tuple(row))
    return GraphLayout(tuple(ordered), arrows)


def _arrows(state: Stage) -> list[Arrow]:
    made: dict[tuple[str, bool], Arrow] = {}
    ways = [(each.to, each.condition.text if each.condition else "", False) for each in state.transitions]
    ways += [(to, "any error" if name == "default" else name, True) for name, to in state.on_error]
    for to, label, is_error in ways:
        key = (to, is_error)
        if key in made:
            joined = f"{made[key].label or 'else'} or {label or 'else'}"
            made[key] = Arrow(state.name, to, joined, is_error)
        else:
            otherwise = "else" if len(state.transitions) > 1 and not is_error else ""
            made[key] = Arrow(state.name, to, label or otherwise, is_error)
    return list(made.values())


def _depths(machine: MachineGraph) -> Mapping[str, int]:
    """How far down each state stands. A way back to a state that is being walked through does not count."""
    order = _walked(machine)
    place = {name: number for number, name in enumerate(order)}
    depth = dict.fromkeys(machine.states, 0)
    for name in order:
        for to in machine.states[name].targets():
            if place[to] > place[name]:
                depth[to] = max(depth[to], depth[name] + 1)
    return depth


def _walked(machine: MachineGraph) -> list[str]:
    """The states so that each stands after those that lead to it, but for ways back."""
    seen: set[str] = set()
    finished: list[str] = []
    stack: list[tuple[str, list[str]]] = [(machine.initial, list(machine.states[machine.initial].targets()))]
    seen.add(machine.initial)
    while stack:
        name, left = stack[-1]
        if not left:
            finished.append(name)
            stack.pop()
            continue
        to = left.pop()
        if to not in seen:
            seen.add(to)
            stack.append((to, list(machine.states[to].targets())))
    return finished[::-1]


def _middle(name: str, arrows: tuple[Arrow, ...], places: Mapping[str, float]) -> float:
    above = [places[arrow.source] for arrow in arrows if arrow.to == name and arrow.source in places]
    return sum(above) / len(above) if above else 0.0


def what_it_does(state: Stage) -> str:
    """A line about what is done in a state."""
    each = "for each: " if state.foreach is not None else ""
    if state.wait_for is not None:
        return f"wait for {getattr(state.wait_for, 'text', state.wait_for)}"
    if state.calls:
        return f"{each}run {', '.join(call.name for call in state.calls)}"
    if state.launches:
        return f"{each}launch {', '.join(call.name for call in state.launches)}"
    if state.agent is not None:
        return f"ask {state.agent}"
    return f"{each}{state.action}" if state.action is not None else ""


def short(text: str, longest: int = LONGEST) -> str:
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"
