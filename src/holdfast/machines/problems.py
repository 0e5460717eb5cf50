"""What is wrong in a machine's file, and where: every mistake of a file is collected before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.errors import UsageError
from holdfast.text import escaped
from holdfast.validation import did_you_mean, nearest

_SHOWN = 50
_ADVISED = 50  # mistakes of a file that say which name was probably meant: each looks at all names


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
        self._advised = 0

    def add(self, at: Position, message: str) -> None:
        self.problems.append(MachineProblem(at, message))

    def warn(self, at: Position, message: str) -> None:
        self.problems.append(MachineProblem(at, message, is_warning=True))

    def unknown(self, at: Position, what: str, name: str, known: Iterable[str]) -> None:
        """`name` is not one of the `known`: say so, and which of them was probably meant."""
        self.add(at, f"there is no {what} {name!r}.{self._advice(name, known)}")

    def _advice(self, name: str, known: Iterable[str]) -> str:
        if not self._may_advise():
            return ""
        names = sorted(known)
        listed = f" There are: {', '.join(names[:12])}{', …' if len(names) > 12 else ''}." if names else ""
        return did_you_mean(name, names) or listed

    def nearest(self, name: str, known: Iterable[str]) -> str | None:
        """The known name that was probably meant, if this file has not had enough advice."""
        return nearest(name, known) if self._may_advise() else None

    def _may_advise(self) -> bool:
        self._advised += 1
        return self._advised <= _ADVISED

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
