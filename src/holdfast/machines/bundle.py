"""A bundle: a machine together with all machines that it can run or launch, as one execution stores it.

An execution continues with the bundle that it began with, whatever becomes of the files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from holdfast.errors import UsageError
from holdfast.kernel import codec
from holdfast.machines.check import certain_calls, check_ends
from holdfast.machines.graph import MachineGraph
from holdfast.machines.load import load
from holdfast.machines.problems import Findings, Position

Find = Callable[[MachineGraph, str], MachineGraph | None]  # what a machine means by a name
_MOST = 200  # machines of one bundle


@dataclass(frozen=True, slots=True)
class Bundle:
    """`links` says which machine each name in a machine stands for: `(machine, name)` to the machine's own name."""

    main: str
    machines: Mapping[str, MachineGraph]
    links: Mapping[tuple[str, str], str]

    def called(self, machine: str, name: str) -> str:
        """The machine that another one means by `name`."""
        if (machine, name) not in self.links:
            raise UsageError(f"machine {machine!r} runs {name!r}, which is not there.")
        return self.links[machine, name]

    def of(self, main: str) -> Bundle:
        """The part of it that one of its machines can reach."""
        reached, left = {main}, [main]
        while left:
            here = left.pop()
            for (machine, _), to in self.links.items():
                if machine == here and to not in reached:
                    reached.add(to)
                    left.append(to)
        kept = {name: machine for name, machine in self.machines.items() if name in reached}
        return Bundle(main, kept, {key: to for key, to in self.links.items() if key[0] in reached})

    def called_always(self, machine: str) -> dict[str, Position]:
        """What each execution of a machine runs or launches, whatever its input is, with where that is said."""
        called = certain_calls(self.machines[machine])
        return {self.links[machine, name]: at for name, at in called.items() if (machine, name) in self.links}

    def recurs(self, machine: str) -> bool:
        """Whether what a machine runs or launches can come to run or launch that machine again."""
        return any(machine in self.of(to).machines for (name, _), to in self.links.items() if name == machine)

    def stored(self) -> dict[str, Any]:
        sources = {name: {"file": machine.file, "text": machine.text} for name, machine in self.machines.items()}
        links = [[machine, name, to] for (machine, name), to in sorted(self.links.items())]
        return {"main": self.main, "sources": sources, "links": links}

    @property
    def digest(self) -> str:
        return codec.digest(_text(self.stored()))


def gather(main: MachineGraph, find: Find, found: Findings, *, needed: bool = True) -> Bundle:
    """The bundle of a machine. A name that stands for none is a problem, or if it is not `needed` now, a warning."""
    machines, links, left = {main.name: main}, {}, [main]
    while left:
        machine = left.pop()
        for name, at in machine.called().items():
            other = find(machine, name)
            if other is None:
                say = found.add if needed else found.warn
                say(at, f"there is no machine {name!r} in this folder, and none of this program is called so.")
                continue
            links[machine.name, name] = other.name
            if other.name not in machines:
                machines[other.name] = other
                left.append(other)
            elif machines[other.name].text != other.text:
                found.add(
                    at, f"two different machines are called {other.name!r}: {machines[other.name].file}, {other.file}."
                )
        if len(machines) > _MOST:
            found.add(next(iter(main.states.values())).at, f"this machine can run more than {_MOST} others.")
            break
    made = Bundle(main.name, machines, links)
    check_ends(machines, made.called_always, found)
    return made


def unpack(stored: Mapping[str, Any]) -> Bundle:
    """A stored bundle. Machines are loaded once in a process for each text."""
    machines = {name: load_once(each["text"], each["file"]) for name, each in stored["sources"].items()}
    return Bundle(stored["main"], machines, {(machine, name): to for machine, name, to in stored["links"]})


@lru_cache(maxsize=256)
def load_once(text: str, file: str) -> MachineGraph:
    return load(text, file)


def _text(stored: Mapping[str, Any]) -> str:
    return codec.encode(stored, what="a bundle of machines", cap=1 << 30)
