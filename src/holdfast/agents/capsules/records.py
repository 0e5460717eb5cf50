"""Rows of capsules, whole, in the order of their statements' columns.

A field has another name than its column where another table has a column of that name and of another type.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.kernel.sql import Exec, Many, One, Statements


class CapsuleAgent(NamedTuple):
    id: str
    tenant: str
    name: str
    metadata: str
    description: str
    version: int
    created_at: int
    updated_at: int


class CapsuleVersion(NamedTuple):
    agent: str
    version: int
    definition: str
    digest: str
    created_at: int


class CapsuleSession(NamedTuple):
    id: str
    tenant: str
    key: str | None
    metadata: str
    runs: int
    created_at: int
    updated_at: int
    during: str
    forked_from: str | None
    generation: str


class CapsuleRun(NamedTuple):
    id: str
    job: int
    session: str
    branch: str
    ordinal: int
    tenant: str
    agent: str
    agent_name: str
    version: int
    mode: str
    state: str
    previous_state: str | None
    parent: str | None
    call: str | None
    root: str
    depth: int
    input: str
    variables: str
    metadata: str
    options: str
    prompted: int
    turns: int
    events: int
    outcome: str | None
    stop_reason: str | None
    output: str | None
    refusal: str | None
    limited: str | None
    error_type: str | None
    error_text: str | None
    input_tokens: int
    output_tokens: int
    cache_write_tokens: int
    cache_read_tokens: int
    cost_nano: int
    created_at: int
    started_at: int | None
    finalized_at: int | None
    given_up: int
    continued: int
    forked_from: str | None
    forked_at: int | None
    generation: str


class CapsuleMessage(NamedTuple):
    id: str
    session: str
    branch: str
    ordinal: int
    role: str
    run: str
    turn: int
    kind: str
    live: int
    preserved: int
    created_at: int
    fingerprint: str


class CapsuleTurn(NamedTuple):
    run: str
    number: int
    model: str
    request_hash: str
    fingerprint: str
    state: str
    attempts: int
    unknown: int
    failures: int
    request_id: str | None
    stop_reason: str | None
    usage: str | None
    input_tokens: int
    output_tokens: int
    cache_write_tokens: int
    cache_read_tokens: int
    cost_nano: int
    error: str | None
    epoch: int
    token: int
    started_at: int
    ended_at: int | None
    mode: str
    generation: str


class CapsuleCall(NamedTuple):
    id: str
    run: str
    turn: int
    ordinal: int
    tool_use_id: str
    name: str
    input: str
    job: int | None
    child: str | None
    effect: str
    state: str | None
    output: str | None
    is_error: int
    created_at: int
    finished_at: int | None


class CapsuleEvent(NamedTuple):
    run: str
    seq: int
    at: int
    type: str
    data: str
    topic: str | None


class CapsuleInquiry(NamedTuple):
    id: str
    run: str
    session: str
    tenant: str
    kind: str
    call: str | None
    name: str
    digest: str
    data: str
    state: str
    otherwise: str | None
    asked_at: int
    expires_at: int | None
    decided_at: int | None
    decided_by: str | None
    decision: str | None


class CapsuleJob(NamedTuple):
    seq: int
    job_id: str
    kind: str
    queue: str
    route: int
    tenant: str
    state: str
    priority: int
    attempts: int
    max_attempts: int
    rescues: int
    max_rescues: int
    timeout_us: int | None
    created_at: int
    finished_at: int | None
    parent: int | None
    payload: str
    metadata: str
    result: str | None
    error: str | None


class CapsuleSteer(NamedTuple):
    id: str
    run: str
    ordinal: int
    body: str
    sent_at: int
    turn: int | None


class NewSeq(NamedTuple):
    seq: int


# The SQL file of capsules as Python sees it.


_PACKAGE = "holdfast.agents.sql"


class CapsulesSql(
    Statements,
    package=_PACKAGE,
    file="capsules.sql",
    types={
        "job_id": "uuid",
        "metadata": "jsonb",
        **dict.fromkeys(("definition", "input", "variables", "options", "output", "refusal", "usage", "error"), "json"),
        **dict.fromkeys(("data", "otherwise", "decision", "payload", "result", "body"), "json"),
    },
):
    kept_agents: Many[CapsuleAgent]
    keep_agent: Exec
    kept_versions: Many[CapsuleVersion]
    keep_version: Exec
    kept_session: One[CapsuleSession]
    keep_session: Exec
    kept_runs: Many[CapsuleRun]
    keep_run: Exec
    kept_messages: Many[CapsuleMessage]
    keep_message: Exec
    kept_turns: Many[CapsuleTurn]
    keep_turn: Exec
    kept_calls: Many[CapsuleCall]
    keep_call: Exec
    kept_events: Many[CapsuleEvent]
    keep_event: Exec
    kept_inquiries: Many[CapsuleInquiry]
    keep_inquiry: Exec
    kept_steers: Many[CapsuleSteer]
    keep_steer: Exec
    kept_jobs: Many[CapsuleJob]
    keep_job: One[NewSeq]
    end_kept_job: Exec
