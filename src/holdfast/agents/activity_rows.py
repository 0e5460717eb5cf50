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
    input_tokens: int = 0
    output_tokens: int = 0
    cache_write_tokens: int = 0
    cache_read_tokens: int = 0


class OpenInquiries(NamedTuple):
    """How many inquiries wait for a person, and since when."""

    n: int = 0
    oldest_at: int | None = None


class TurnLatencies(NamedTuple):
    """How long the last turns of a model took, in microseconds."""

    model: str
    p50: int
    p95: int
    p99: int
