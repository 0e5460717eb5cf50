"""Rows about tools that workers have declared."""

from __future__ import annotations

from typing import NamedTuple


class ToolRow(NamedTuple):
    """A tool as a worker that has its code declared it."""

    name: str
    definition: str
    digest: str
