"""Machines in files: read them, and find what they call by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from holdfast.machines.documents import MOST_BYTES
from holdfast.machines.graph import MachineGraph
from holdfast.machines.load import load
from holdfast.machines.problems import BadMachine, MachineProblem, Position

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
