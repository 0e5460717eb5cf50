"""The code blocks of Universal Agent's document, as `tools/cut_document.py` cut them out of it."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent / "universal_agent"


def block(name: str) -> str:
    return (FOLDER / f"{name}.txt").read_text()
