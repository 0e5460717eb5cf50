"""What is wrong in a machine's file, and where: every mistake of a file is collected before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.errors import UsageError
from holdfast.shown_text import escaped
from holdfast.validation import did_you_mean

_SHOWN = 50


class Position(NamedTuple):
    """A place in a file; lines and columns count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class MachineProblem:
    """One mistake, or with `is_warning` something that looks like one and does not keep the machine from running."""

    at: Position
    message: str
    is_warning: bool = False

    def __str__(self) -> str:
        return f"{self.at}: {'warning: ' if self.is_warning else ''}{escaped(self.message)}"


class BadMachine(UsageError):
    """A machine's file has mistakes. `problems` has each with its place; correct the file and load it again."""

    def __init__(self, problems: Sequence[MachineProblem]) -> None:
        more = f"\nand {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        super().__init__("\n".join(map(str, problems[:_SHOWN])) + more)
        self.problems = tuple(problems)


class Findings:
    """Collects the problems of one file."""

    def __init__(self) -> None:
        self.problems: list[MachineProblem] = []

    def add(self, at: Position, message: str) -> None:
        self.problems.append(MachineProblem(at, message))

    def warn(self, at: Position, message: str) -> None:
        self.problems.append(MachineProblem(at, message, is_warning=True))

    def unknown(self, at: Position, what: str, name: str, known: Iterable[str]) -> None:
        """`name` is not one of the `known`: say so, and which of them was probably meant."""
        names = sorted(known)
        listed = f" There are: {', '.join(names[:12])}{', …' if len(names) > 12 else ''}." if names else ""
        self.add(at, f"there is no {what} {name!r}.{did_you_mean(name, names) or listed}")

    @property
    def errors(self) -> list[MachineProblem]:
        return sorted((each for each in self.problems if not each.is_warning), key=lambda each: each.at)

    @property
    def warnings(self) -> list[MachineProblem]:
        return sorted((each for each in self.problems if each.is_warning), key=lambda each: each.at)

    def raise_any(self) -> None:
        """`BadMachine` with all that was found, if something must be corrected."""
        if self.errors:
            raise BadMachine(self.errors)
