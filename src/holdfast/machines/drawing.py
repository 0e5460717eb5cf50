"""Where each state of a machine stands in its picture: in rows from the initial state down, short ways first."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

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


# A machine as a Mermaid state diagram.


def mermaid(machine: MachineGraph, current: str | None = None) -> str:
    """The text of the diagram; `current` is the state that a running one is in."""
    ids = {name: f"s{number}" for number, name in enumerate(machine.states)}
    lines = ["stateDiagram-v2"]
    for name, state in machine.states.items():
        does = what_it_does(state)
        lines.append(f'    state "{_safe(f"{name}: {does}" if does else name)}" as {ids[name]}')
    lines.append(f"    [*] --> {ids[machine.initial]}")
    for arrow in lay_out(machine).arrows:
        label = f": {_safe(arrow.label)}" if arrow.label else ""
        lines.append(f"    {ids[arrow.source]} --> {ids[arrow.to]}{label}")
    lines += [f"    {ids[name]} --> [*]" for name, state in machine.states.items() if state.is_final]
    if current in ids:
        lines += [
            "    classDef current fill:#ffe08a,stroke:#b7791f,stroke-width:3px",
            f"    class {ids[current]} current",
        ]
    return "\n".join(lines) + "\n"


def _safe(text: str) -> str:
    """A text without the signs that mean something to Mermaid."""
    return re.sub(
        r'[";:#{}\[\]<>]', lambda found: {":": " -", "<": "＜", ">": "＞", '"': "'"}.get(found[0], " "), short(text, 60)
    )


# A machine as an SVG picture, with a light background of its own, that needs nothing else to be shown.
#
# Ways down lead from box to box. Ways back, ways to the same row and ways over several rows run in lanes of their own
# beside the boxes, so that no line crosses a box.


_WIDTH, _HEIGHT = 210, 48
_ACROSS, _DOWN = 60, 84
_MARGIN, _LANE = 28, 16
_INK, _QUIET, _RED = "#1f2937", "#4b5563", "#b91c1c"
_FILLS = {"": "#ffffff", "initial": "#e0edff", "final": "#e3f6e8", "current": "#ffe08a"}
_STYLE = "font-family='system-ui, sans-serif'"


@dataclass(frozen=True, slots=True)
class _Box:
    x: float
    y: float

    @property
    def middle(self) -> float:
        return self.x + _WIDTH / 2

    @property
    def bottom(self) -> float:
        return self.y + _HEIGHT


def svg(machine: MachineGraph, current: str | None = None) -> str:
    """The picture; `current` is the state that a running one is in."""
    layout = lay_out(machine)
    boxes = _boxes(layout)
    beside = [arrow for arrow in layout.arrows if not _is_straight(arrow, layout)]
    inner = max(box.x + _WIDTH + 40 for box in boxes.values())
    width = inner + _MARGIN + (_LANE * len(beside) if beside else 0)
    height = max(box.bottom for box in boxes.values()) + _MARGIN
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width:g} {height:g}' width='{width:g}' "
        f"height='{height:g}' role='img' aria-label='{escape(machine.name, quote=True)}'>",
        f"<title>{escape(machine.name)}</title>",
        _marker("arrow", _QUIET),
        _marker("error", _RED),
        f"<rect width='{width:g}' height='{height:g}' rx='8' fill='#fafafa'/>",
        f"<text x='{_MARGIN}' y='26' font-size='15' font-weight='600' fill='{_INK}' {_STYLE}>"
        f"{escape(machine.name)}</text>",
    ]
    parts += [_straight(arrow, boxes, layout) for arrow in layout.arrows if _is_straight(arrow, layout)]
    parts += [_beside(arrow, boxes, layout, inner + 20 + _LANE * number) for number, arrow in enumerate(beside)]
    parts += [
        _state(machine.states[name], box, name == current, name == machine.initial) for name, box in boxes.items()
    ]
    return "\n".join([*parts, "</svg>", ""])


def _boxes(layout: GraphLayout) -> dict[str, _Box]:
    widest = max(len(row) for row in layout.rows)
    across = _WIDTH + _ACROSS
    boxes = {}
    for number, row in enumerate(layout.rows):
        left = _MARGIN + (widest - len(row)) * across / 2
        for at, name in enumerate(row):
            boxes[name] = _Box(left + at * across, 44 + number * (_HEIGHT + _DOWN))
    return boxes


def _is_straight(arrow: Arrow, layout: GraphLayout) -> bool:
    return layout.row_of(arrow.to) == layout.row_of(arrow.source) + 1


def _straight(arrow: Arrow, boxes: dict[str, _Box], layout: GraphLayout) -> str:
    """From the bottom of one box to the top of the next."""
    begin, end = _ends(arrow, boxes, layout)
    top, bottom = boxes[arrow.source].bottom, boxes[arrow.to].y - 2
    half = (top + bottom) / 2
    path = f"M{begin:g},{top:g} C{begin:g},{half:g} {end:g},{half:g} {end:g},{bottom:g}"
    return _line(path, arrow) + _label(arrow, begin + (end - begin) * 0.25 + 6, top, layout)


def _beside(arrow: Arrow, boxes: dict[str, _Box], layout: GraphLayout, lane: float) -> str:
    """Out between two rows, along a lane, and in again between two rows."""
    begin, end = _ends(arrow, boxes, layout)
    top, bottom = boxes[arrow.source].bottom, boxes[arrow.to].y
    out = top + 8 + 4 * _leaving(arrow, layout).index(arrow)
    back = bottom - 14 - 3 * (_coming(arrow, layout).index(arrow) % 4)
    path = f"M{begin:g},{top:g} V{out:g} H{lane:g} V{back:g} H{end:g} V{bottom - 2:g}"
    return _line(path, arrow) + _label(arrow, begin + 6, top, layout)


def _leaving(arrow: Arrow, layout: GraphLayout) -> list[Arrow]:
    return [each for each in layout.arrows if each.source == arrow.source]


def _coming(arrow: Arrow, layout: GraphLayout) -> list[Arrow]:
    return [each for each in layout.arrows if each.to == arrow.to]


def _ends(arrow: Arrow, boxes: dict[str, _Box], layout: GraphLayout) -> tuple[float, float]:
    """Where it leaves one box and comes to the other; several are spread over the box."""
    leaving, coming = _leaving(arrow, layout), _coming(arrow, layout)
    begin = boxes[arrow.source].middle + _spread(leaving.index(arrow), len(leaving))
    return begin, boxes[arrow.to].middle + _spread(coming.index(arrow), len(coming))


def _line(path: str, arrow: Arrow) -> str:
    ink, marker = (_RED, "error") if arrow.is_error else (_QUIET, "arrow")
    dashes = " stroke-dasharray='5 4'" if arrow.is_error else ""
    return f"<path d='{path}' fill='none' stroke='{ink}' stroke-width='1.5'{dashes} marker-end='url(#{marker})'/>"


def _label(arrow: Arrow, x: float, top: float, layout: GraphLayout) -> str:
    """Below the box, each on a line of its own."""
    if not arrow.label:
        return ""
    ink, y = _RED if arrow.is_error else _QUIET, top + 24 + 14 * (_leaving(arrow, layout).index(arrow) % 4)
    return (
        f"<text x='{x:g}' y='{y:g}' font-size='11' fill='{ink}' paint-order='stroke' stroke='#fafafa' "
        f"stroke-width='4' {_STYLE}>{escape(short(arrow.label))}</text>"
    )


def _spread(number: int, count: int) -> float:
    return (number - (count - 1) / 2) * min(36, (_WIDTH - 30) / max(1, count))


def _state(state: Stage, box: _Box, is_current: bool, is_initial: bool) -> str:
    kind = "current" if is_current else "initial" if is_initial else state.type
    does = what_it_does(state)
    edge = ("#b7791f", 3) if is_current else (_INK, 2 if state.is_final else 1.2)
    lines = [(state.name, 13, "600", _INK)] + ([(does, 11, "400", _QUIET)] if does else [])
    first = box.y + _HEIGHT / 2 + (5 if not does else -3)
    texts = "".join(
        f"<text x='{box.middle:g}' y='{first + 17 * number:g}' font-size='{size}' font-weight='{weight}' fill='{ink}' "
        f"text-anchor='middle' {_STYLE}>{escape(short(text, 30 if size == 13 else 36))}</text>"
        for number, (text, size, weight, ink) in enumerate(lines)
    )
    return (
        f"<g><title>{escape(state.name)}{' (the current state)' if is_current else ''}</title>"
        f"<rect x='{box.x:g}' y='{box.y:g}' width='{_WIDTH}' height='{_HEIGHT}' "
        f"rx='{_HEIGHT / 2 if is_initial else 9:g}' fill='{_FILLS[kind]}' "
        f"stroke='{edge[0]}' stroke-width='{edge[1]}'/>{texts}</g>"
    )


def _marker(name: str, ink: str) -> str:
    return (
        f"<defs><marker id='{name}' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='7' markerHeight='7' orient='auto'>"
        f"<path d='M0,0 L8,4 L0,8 z' fill='{ink}'/></marker></defs>"
    )
