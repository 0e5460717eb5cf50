"""Rows about tools that workers have declared, and about calls of tools that have ended."""

from __future__ import annotations

from typing import NamedTuple


class ToolRow(NamedTuple):
    """A tool as a worker that has its code declared it."""

    name: str
    definition: str
    digest: str


class ClosedCall(NamedTuple):
    """A call whose job has ended. `unusual`: what it returned is not a text, or is a very long one."""

    id: str
    run: str
    turn: int
    name: str
    state: str
    unusual: int


class CallOutput(NamedTuple):
    """What a call returned."""

    id: str
    output: str
