"""Batches and their requests as programs see them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from holdfast.agents.batches.batch_rows import BatchRow, RequestRow
from holdfast.agents.states import BatchStateName, RequestStateName
from holdfast.values.rows import Stored, value_of


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """A batch as it stands in the store: what went to the provider together.

    `held` names batches of the provider's that may be this one. `intent_at` is when a submit began whose outcome is not
    known yet, and `now` is the store's clock when the batch was read.
    """

    id: str
    lane: str
    model: str
    credential: str
    state: BatchStateName
    provider_id: str | None
    size: int
    bytes: int
    applied: int
    attempts: int
    unknown: int
    held: Stored
    counts: Stored
    error: str | None
    polls: int
    created_at: datetime
    intent_at: datetime | None
    submitted_at: datetime | None
    polled_at: datetime | None
    ended_at: datetime | None
    now: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One turn in a batch, and what became of it."""

    custom_id: str
    run: str
    turn: int
    attempt: int
    bytes: int
    state: RequestStateName
    outcome: str | None
    created_at: datetime


def batch_of(row: BatchRow) -> BatchRecord:
    return value_of(BatchRecord, row)


def request_of(row: RequestRow) -> RequestRecord:
    return value_of(RequestRecord, row)
