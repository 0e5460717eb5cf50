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


class RunsHad(NamedTuple):
    """How many runs a session has had so far."""

    id: str
    runs: int


class SessionMetadata(NamedTuple):
    id: str
    tenant: str
    metadata: str


class HeldStretch(NamedTuple):
    """A time in which a worker had a job; `outcome` and `ended_at` are None while it lasts."""

    job: int
    outcome: str | None
    error_type: str | None
    message: str | None
    started_at: int
    ended_at: int | None
    worker: str


class AskedRow(NamedTuple):
    """When a run asked a person, about which call, and who decided."""

    run: str
    call: str | None
    kind: str
    name: str
    asked_at: int
    decided_at: int | None
    decided_by: str | None


class JobOf(NamedTuple):
    """The number of the job of a run or a call."""

    id: str
    job: int


class EndedAt(NamedTuple):
    at: int | None


class CallPlace(NamedTuple):
    at: int
    id: str


class SessionId(NamedTuple):
    session: str
