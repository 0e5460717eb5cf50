"""Rows that say what agents do now, and did in the last minute."""

from __future__ import annotations

from typing import NamedTuple


class AgentActivity(NamedTuple):
    """An agent: its open runs, those of them that wait for a person, and what it did in the last minute."""

    agent: str
    open: int
    asking: int
    ended: int
    failed: int
    turns: int
    cost_nano: int


class OpenInquiries(NamedTuple):
    """How many inquiries wait for a person, and since when."""

    n: int = 0
    oldest_at: int | None = None
