"""Rows about batches: what goes to the provider together, and what became of each part of it."""

from __future__ import annotations

from typing import NamedTuple


class BatchId(NamedTuple):
    id: str


class BatchJob(NamedTuple):
    id: str
    job: str  # the one that plays it


class Trouble(NamedTuple):
    us: int  # for how long the provider has taken nothing


class NewRequest(NamedTuple):
    custom_id: str
    batch: str
    run: str
    job: int
    turn: int
    attempt: int
    body: str
    bytes: int


class BatchRow(NamedTuple):
    id: str
    lane: str
    model: str
    credential: str
    state: str
    provider_id: str | None
    size: int
    bytes: int
    applied: int
    attempts: int
    unknown: int
    held: str | None  # batches of the provider's that may be this one
    counts: str | None
    error: str | None
    polls: int
    created_at: int
    intent_at: int | None  # of a submit whose outcome is not known yet
    submitted_at: int | None
    polled_at: int | None
    ended_at: int | None
    now: int


class RequestSize(NamedTuple):
    custom_id: str
    bytes: int


class RequestBody(NamedTuple):
    custom_id: str
    body: str | None


class RequestId(NamedTuple):
    custom_id: str


class MovedRun(NamedTuple):
    id: str
    session: str
    agent_name: str
    parent: str | None
    state: str
    agent: str


class OpenRequest(NamedTuple):
    custom_id: str
    batch: str
    run: str
    job: int
    turn: int
    attempt: int
    turn_state: str
    failures: int
    model: str


class Applied(NamedTuple):
    custom_id: str
    outcome: str
    body: str | None  # the answer, if it is kept for another worker


class RequestRow(NamedTuple):
    custom_id: str
    run: str
    turn: int
    attempt: int
    bytes: int
    state: str
    outcome: str | None
    created_at: int
