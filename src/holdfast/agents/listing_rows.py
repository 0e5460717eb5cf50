"""Rows of lists: where a look ended, and who has something."""

from __future__ import annotations

from typing import NamedTuple


class RunPlace(NamedTuple):
    created_at: int
    id: str


class FailedRun(NamedTuple):
    """`error` is the type, and `message` what it said."""

    id: str
    tenant: str
    error: str | None
    message: str | None
    at: int


class TenantName(NamedTuple):
    tenant: str


class RunCount(NamedTuple):
    """How many runs a session has had so far."""

    id: str
    runs: int


class SessionMetadata(NamedTuple):
    id: str
    tenant: str
    metadata: str


class LeaseInterval(NamedTuple):
    """A time in which a worker had a job; `outcome` and `ended_at` are None while it lasts."""

    job: int
    outcome: str | None
    error_type: str | None
    message: str | None
    started_at: int
    ended_at: int | None
    worker: str


class InquiryTimes(NamedTuple):
    """When a run asked a person, about which call, and who decided."""

    run: str
    call: str | None
    kind: str
    name: str
    asked_at: int
    decided_at: int | None
    decided_by: str | None


class JobNumber(NamedTuple):
    """The number of the job of a run or a call."""

    id: str
    job: int


class EndTime(NamedTuple):
    at: int | None


class CallPlace(NamedTuple):
    at: int
    id: str


class SessionId(NamedTuple):
    session: str


# Rows of glances: what is looked at, and how much of it is open.


class TurnOfRun(NamedTuple):
    run: str
    turn: int


class RunOfSession(NamedTuple):
    id: str
    session: str


class OpenCounts(NamedTuple):
    """How many runs and calls have not ended."""

    runs: int
    calls: int


# Rows that say what agents do now, and did in the last minute.


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
