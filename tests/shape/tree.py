"""The source as the shape tests see it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "holdfast"


def modules(under: str = "") -> list[Path]:
    return sorted((SOURCE / under).rglob("*.py"))


@cache
def source(path: Path) -> str:
    return path.read_text()


def saying(pattern: str, paths: Iterable[Path]) -> list[Path]:
    """Those in whose text this is found. To parse all modules takes seconds, in each process that runs a test."""
    said = re.compile(pattern)
    return [path for path in paths if said.search(source(path))]


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a module, which several tests walk and none changes."""
    return ast.parse(source(path))


def statements(under: str = "") -> list[Path]:
    """The files of named statements, of a layer or of all; scripts that change tables are in folders of their own."""
    scripts = ("migrations", "security")
    return sorted(path for path in (SOURCE / under).rglob("*.sql") if path.parent.name not in scripts)


def named(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def listed(found: Iterable[object]) -> str:
    """What a failure says: every offender on a line of its own, however many there are."""
    return "\n".join(["", *map(str, found)])
