"""Rows of glances: what is looked at, and how much of it is open."""

from __future__ import annotations

from typing import NamedTuple


class TurnOfRun(NamedTuple):
    run: str
    turn: int


class RunOfSession(NamedTuple):
    id: str
    session: str


class OpenBelow(NamedTuple):
    """How many runs and calls have not ended."""

    runs: int
    calls: int
