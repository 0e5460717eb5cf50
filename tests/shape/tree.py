"""The source as the shape tests see it."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "holdfast"


def modules(under: str = "") -> list[Path]:
    return sorted((SOURCE / under).rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a module, which several tests walk and none changes."""
    return ast.parse(path.read_text())


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All of that tree: walking it takes longer than parsing it."""
    return tuple(ast.walk(parsed(path)))


def statements(under: str = "") -> list[Path]:
    """The files of named statements, of a layer or of all; scripts that change tables are in folders of their own."""
    scripts = ("migrations", "security")
    return sorted(path for path in (SOURCE / under).rglob("*.sql") if path.parent.name not in scripts)


def named(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def listed(found: Iterable[object]) -> str:
    """What a failure says: every offender on a line of its own, however many there are."""
    return "\n".join(["", *map(str, found)])
