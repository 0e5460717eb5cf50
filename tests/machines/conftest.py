"""Labs for machines, on both databases, and machines from a few lines."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Protocol

import pytest

from holdfast import Holdfast
from tests.testing.conftest import databases, labs
from tests.testing.conftest import emptied as server

__all__ = ["databases", "labs", "server"]


class WriteMachine(Protocol):
    def __call__(self, name: str, states: str, data: str = "") -> Path: ...


@pytest.fixture
def write(tmp_path: Path) -> WriteMachine:
    """Write a machine's file; the folder is the test's own."""

    def write(name: str, states: str, data: str = "") -> Path:
        lines = textwrap.indent(textwrap.dedent(states).strip(), "    ")
        more = textwrap.indent(textwrap.dedent(data).strip(), "  ")
        text = f'spec: flatmachine\nspec_version: "0.8.3"\ndata:\n  name: {name}\n{more}\n  states:\n{lines}\n'
        path = tmp_path / f"{name}.yml"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def hf(tmp_path: Path) -> Holdfast:
    return Holdfast(f"sqlite:///{tmp_path}/unused.db")
