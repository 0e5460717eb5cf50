"""A bundle: a machine together with all machines that it can run or launch, as one execution stores it.

An execution continues with the bundle that it began with, whatever becomes of the files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from holdfast.errors import UsageError
from holdfast.kernel import codec
from holdfast.machines.check import certain_calls, check_ends
from holdfast.machines.documents import MOST_BYTES
from holdfast.machines.graph import MachineGraph
from holdfast.machines.load import load
from holdfast.machines.problems import BadMachine, Findings, MachineProblem, Position

# Machines in files: read them, and find what they call by name.


SUFFIXES = (".yml", ".yaml")
_MOST_FILES = 1_000  # of a folder that are looked at for a name


def load_file(path: str | Path) -> MachineGraph:
    """The machine in a file. `BadMachine` when it cannot be read, or has mistakes."""
    file = str(path)
    try:
        with Path(path).open("rb") as opened:
            content = opened.read(MOST_BYTES + 1)
    except OSError as problem:
        raise BadMachine(
            [MachineProblem(Position(file, 1, 1), f"the file cannot be read: {problem.strerror}.")]
        ) from None
    if len(content) > MOST_BYTES:
        raise BadMachine([MachineProblem(Position(file, 1, 1), f"the file has more than {MOST_BYTES:,} bytes.")])
    try:
        return load(content.decode("utf-8-sig"), file)
    except UnicodeDecodeError:
        raise BadMachine([MachineProblem(Position(file, 1, 1), "the file is not UTF-8.")]) from None


class Finder:
    """What machines mean by names: first what the program says, then `machines:` of the file, then its folder."""

    def __init__(self, bound: Mapping[str, str | Path] | None = None) -> None:
        self._bound = {name: Path(path) for name, path in (bound or {}).items()}
        self._loaded: dict[Path, MachineGraph] = {}

    def find(self, machine: MachineGraph, name: str) -> MachineGraph | None:
        """`BadMachine` when a file that would be it has mistakes."""
        if name in self._bound:
            return self._load(self._bound[name])
        if name == machine.name:
            return machine
        folder = Path(machine.file).parent
        said = machine.machines.get(name)
        if said is not None:
            if said in self._bound:
                return self._load(self._bound[said])
            path = folder / said
            return self._load(path) if path.is_file() else self._in_folder(folder, said)
        return self._in_folder(folder, name)

    def _in_folder(self, folder: Path, name: str) -> MachineGraph | None:
        if not folder.is_dir():
            return None
        for suffix in SUFFIXES:
            if (path := folder / f"{name}{suffix}").is_file():
                return self._load(path)
        for path in sorted(folder.iterdir())[:_MOST_FILES]:
            if path.suffix in SUFFIXES and _says(path, name):
                return self._load(path)
        return None

    def _load(self, path: Path) -> MachineGraph:
        path = path.resolve()
        if path not in self._loaded:
            self._loaded[path] = load_file(path)
        return self._loaded[path]


def _says(path: Path, name: str) -> bool:
    """Whether a file looks like the machine of this name; loading it says the rest."""
    with path.open("rb") as opened:
        text = opened.read(MOST_BYTES).decode("utf-8", "replace")
    lines = {line.strip() for line in text.splitlines()}
    return "spec: flatmachine" in lines and any(f"name: {quote}{name}{quote}" in lines for quote in ("", '"', "'"))


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
