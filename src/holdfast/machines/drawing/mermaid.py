"""A machine as a Mermaid state diagram."""

from __future__ import annotations

import re

from holdfast.machines.drawing.layout import lay_out, short, what_it_does
from holdfast.machines.graph import MachineGraph


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
