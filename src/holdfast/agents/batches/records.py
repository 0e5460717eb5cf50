"""Rows about batches: what goes to the provider together, and what became of each part of it."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.agents.rows import RowCount
from holdfast.kernel.sql import Exec, Many, One, Statements


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


class AppliedResult(NamedTuple):
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


# The SQL file of batches as Python sees it.


_PACKAGE = "holdfast.agents.sql"


class BatchesSql(
    Statements, package=_PACKAGE, file="batches.sql", rows={"requests": NewRequest, "applied": AppliedResult}
):
    find_gathering: One[BatchId]
    open_batch: One[BatchId]
    add_requests: Exec
    find_batch: One[BatchRow]
    list_batches: Many[BatchRow]
    batch_of: One[BatchRow]
    close_gathering: One[BatchId]
    drop_requests: Exec
    drop_turn: Exec
    request_sizes: Many[RequestSize]
    move_requests: Exec
    intend: One[BatchId]
    request_bodies: Many[RequestBody]
    refused: One[Trouble]
    search: Exec
    taken_ids: Many[BatchId]
    is_request: One[RequestId]
    lock_provider_id: Exec
    take_batch: One[BatchId]
    offer_batch: One[BatchId]
    add_orphan: One[BatchId]
    agents_in: Many[BatchId]
    rekey_batch: Exec
    jobless_batches: Many[BatchJob]
    revive_batch: One[BatchId]
    split_batch: One[BatchId]
    note_download: Exec
    note_unknown: Exec
    send_requests: Exec
    runs_to_move: Many[MovedRun]
    move_runs: Many[MovedRun]
    note_poll: Exec
    note_error: Exec
    wanted_requests: One[RowCount]
    find_requests: Many[OpenRequest]
    unanswered: Many[OpenRequest]
    request_body: Many[RequestBody]
    apply_requests: Many[BatchId]
    count_applied: Exec
    kept_answer: One[RequestBody]
    settle_doubt: Exec
    take_answer: Exec
    retry_turns: Exec
    doubt_turns: Exec
    fail_batched: Exec
    end_batch: One[BatchId]
    list_requests: Many[RequestRow]
    prune_batches: Many[BatchId]
    delete_requests: Exec
    delete_batches: Exec
