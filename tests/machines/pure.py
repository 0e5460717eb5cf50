"""A machine played without a store: effects are answered by a function of the test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from holdfast.machines.graph import MachineGraph
from holdfast.machines.load import load
from holdfast.machines.stepping import Effect, ExecutionInfo, MachineEvent, MachinePlace, Stepper, failure_of

SEED = Path(__file__).parent / "seed"
Answer = Callable[[MachinePlace, Effect], Any]


def machine_of(states: str, *, version: str = "0.8.3", data: str = "") -> MachineGraph:
    """A machine with these states, each line of them indented by two."""
    lines = "".join(f"    {line}\n" for line in states.strip("\n").splitlines())
    more = "".join(f"  {line}\n" for line in data.strip("\n").splitlines())
    return load(f'spec: flatmachine\nspec_version: "{version}"\ndata:\n  name: m\n{more}  states:\n{lines}', "m.yml")


def seed(name: str) -> MachineGraph:
    file = SEED / f"{name}.yml"
    return load(file.read_text(), str(file))


def play(
    machine: MachineGraph, answer: Answer, input: Mapping[str, Any] | None = None
) -> tuple[MachinePlace, list[MachineEvent]]:
    """Until it has ended. An answer that is an exception is what the effect raised."""
    stepper = Stepper(machine, input or {}, ExecutionInfo("execution"))
    moved = stepper.begin()
    events = list(moved.events)
    while not moved.to.has_ended:
        at = moved.to
        try:
            output = answer(at, stepper.effect(at))
        except Exception as problem:  # noqa: BLE001  what an effect raises is its outcome
            output = problem
        failed = isinstance(output, Exception)
        moved = stepper.failed(at, failure_of(output)) if failed else stepper.succeeded(at, output)
        events += moved.events
    return moved.to, events


def states_of(events: list[MachineEvent]) -> list[str]:
    return [event.state for event in events if event.name == "entered"]
