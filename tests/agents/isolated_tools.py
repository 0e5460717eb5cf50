"""Tools that their own processes find here by name."""

from __future__ import annotations

import os
from pathlib import Path


def dies() -> str:
    """Takes its whole process with it."""
    os._exit(3)


def counted(file: str) -> str:
    """Leaves a mark, and dies before it can say so."""
    with Path(file).open("a") as marks:
        marks.write("x")
    os._exit(3)


def spins() -> str:
    """Holds its process for ever."""
    while True:
        pass


def leaks() -> str:
    """Raises what its environment knows."""
    raise RuntimeError(f"refused: {os.environ['LEAKED_KEY']}")
