"""What must hold of a machine as a whole: states that exist and can be reached, and parts that fit together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from holdfast.machines.expressions import Expression
from holdfast.machines.graph import MachineGraph, Path, Stage
from holdfast.machines.problems import Findings, Position
from holdfast.machines.templates import TextTemplate

SET_BY_ENGINE = frozenset({"machine", "error", "last_error", "last_error_type", "worker_id"})


def check_graph(machine: MachineGraph, found: Findings) -> None:
    """Add what is wrong between the parts of a machine; each part is in order by itself."""
    for state in machine.states.values():
        _check_targets(machine, state, found)
        _check_parts(state, found)
    _check_reached(machine, found)
    _check_fields(machine, found)


def _check_targets(machine: MachineGraph, state: Stage, found: Findings) -> None:
    for transition in state.transitions:
        if transition.to not in machine.states:
            found.unknown(transition.at, "state", transition.to, machine.states)
    for error, to in state.on_error:
        if to not in machine.states:
            at = state.where(f"on_error {error}", "on_error")
            found.unknown(at, f"state (on_error of {state.name!r})", to, machine.states)
    if state.is_final and state.transitions:
        found.add(state.where("transitions"), f"{state.name!r} is final, so it has no transitions.")
    if not state.is_final and not state.transitions:
        found.add(state.at, f"{state.name!r} leads nowhere: give it transitions, or type: final.")
    for number, transition in enumerate(state.transitions[:-1]):
        if transition.condition_at == transition.at:  # it has none
            after = state.transitions[number + 1]
            found.add(after.at, f"this is never reached: the transition before it always leads to {transition.to!r}.")
            break


def _check_parts(state: Stage, found: Findings) -> None:
    done, at = [state.calls, state.launches, state.action], state.where("foreach")
    if state.foreach is not None and not any(done):
        found.add(at, f"{state.name!r} has foreach, and no machine, launch or action to do for each item.")
    if state.foreach is not None and sum(map(bool, done)) > 1:
        found.add(at, f"{state.name!r} has foreach, so it does one of machine, launch and action.")
    if state.foreach is not None and (state.several or len(state.launches) > 1):
        found.add(at, f"{state.name!r} has foreach, so it names one machine.")
    if state.wait_for is not None and (any(done) or state.agent is not None or state.foreach is not None):
        found.add(
            state.where("wait_for"), f"{state.name!r} has wait_for, which stands alone: wait in a state of its own."
        )
    if state.agent is not None and state.calls:
        found.add(state.where("machine"), f"{state.name!r} has both an agent and a machine: use two states.")
    if state.agent is not None and state.foreach is not None:
        found.add(at, f"{state.name!r} has foreach with an agent: give the agent a machine of its own.")
    if state.output is not None and not state.is_final:
        found.add(state.where("output"), f"{state.name!r} is not final, and only a final state has an output.")
    if state.mode == "any" and not state.several and state.foreach is None:
        found.add(state.where("mode"), f"{state.name!r} has mode any and one machine: name several.")
    if state.key is None and state.foreach is None and state.item != "item":
        found.add(state.where("as"), f"{state.name!r} has as, and no foreach.")


def _check_reached(machine: MachineGraph, found: Findings) -> None:
    if machine.initial not in machine.states:
        return
    reached, left = {machine.initial}, [machine.initial]
    while left:
        for to in machine.states[left.pop()].targets():
            if to in machine.states and to not in reached:
                reached.add(to)
                left.append(to)
    for name, state in machine.states.items():
        if name not in reached:
            found.add(state.at, f"{name!r} can never be reached from {machine.initial!r}.")
    if not any(machine.states[name].is_final for name in reached):
        found.add(machine.states[machine.initial].at, "no final state can be reached, so the machine would never end.")


def certain_calls(machine: MachineGraph) -> dict[str, Position]:
    """What a machine runs or launches each time: in states that every way to an end leads through.

    A list may be empty, a signal may never come, and an error may lead elsewhere, so they are conditions too.
    """
    found: dict[str, Position] = {}
    for state in machine.states.values():
        certain = state.foreach is None and not state.on_error and not _ends_without(machine, state)
        for call in (*state.calls, *state.launches) if certain else ():
            found.setdefault(call.name, call.at)
    return found


def _ends_without(machine: MachineGraph, avoided: Stage) -> bool:
    """Whether it may end, or wait for a signal, without coming to a state."""
    seen, left = {avoided.name}, [machine.initial]
    while left:
        state = machine.states.get(name := left.pop())
        if name in seen or state is None:
            continue
        if state.is_final or state.wait_for is not None:
            return True
        seen.add(name)
        left += state.targets()
    return False


def check_ends(machines: Iterable[str], called: Callable[[str], Mapping[str, Position]], found: Findings) -> None:
    """A machine that always runs or launches itself, or does so by way of others, never comes to an end."""
    always = {name: called(name) for name in machines}
    reported: set[str] = set()
    for name in always:
        way = _way_back(always, name)
        if way and not reported & set(way):
            reported |= set(way)
            others = "".join(f", which starts {each!r}" for each in way[1:])
            found.add(
                always[name][way[0]],
                f"{name!r} always starts {way[0]!r}{others}, so this would never end: make a way that does not.",
            )


def _way_back(always: Mapping[str, Mapping[str, Position]], name: str) -> list[str]:
    """From a machine to itself, by those that are always started: their names, the last is its own."""
    ways = [[each] for each in always[name]]
    seen: set[str] = set()
    while ways:
        way = ways.pop(0)
        if way[-1] == name:
            return way
        if way[-1] not in seen:
            seen.add(way[-1])
            ways += [[*way, each] for each in always.get(way[-1], ())]
    return []


def _check_fields(machine: MachineGraph, found: Findings) -> None:
    """A field that is read and never set, and is nearly called like one that is set, is probably misspelt."""
    known = {*SET_BY_ENGINE, *machine.context}
    for state in machine.states.values():
        known |= {name for name, _ in state.to_context}
    for state in machine.states.values():
        read = {field: at for field, at in reversed([*_read(state)]) if field not in known}
        for field, at in sorted(read.items()):
            if close := found.nearest(field, known):
                found.warn(at, f"{state.name!r} reads context.{field}, which nothing sets. Did you mean {close!r}?")


def _read(state: Stage) -> Iterator[tuple[str, Position]]:
    """The fields of the context that a state reads, each with where it does."""
    values: list[tuple[Any, Position]] = [
        (state.input, state.where("input")),
        (state.foreach, state.where("foreach")),
        (state.launch_input, state.where("launch_input")),
        (state.wait_for, state.where("wait_for")),
        (state.output, state.where("output")),
        (state.key, state.where("key")),
        *((value, state.where("output_to_context")) for _, value in state.to_context),
        *((call.input, call.at) for call in (*state.calls, *state.launches)),
        *((transition.condition, transition.condition_at) for transition in state.transitions),
    ]
    for value, at in values:
        for field in _fields_of(value):
            yield field, at


def _fields_of(value: Any) -> Iterator[str]:
    left = [value]
    while left:
        each = left.pop()
        match each:
            case TextTemplate():
                yield from each.fields
            case Expression():
                yield from each.fields()
            case Path(parts=("context", field, *_)):
                yield field
            case dict():
                left += each.values()
            case list():
                left += each
            case _:
                pass
