"""The source as the shape tests see it."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "holdfast"


def modules(under: str = "") -> list[Path]:
    return sorted((SOURCE / under).rglob("*.py"))


def statements() -> list[Path]:
    """The files of named statements; migrations are beside them."""
    return sorted((SOURCE / "kernel" / "sql").glob("*.sql"))


def named(path: Path) -> str:
    return str(path.relative_to(SOURCE))
