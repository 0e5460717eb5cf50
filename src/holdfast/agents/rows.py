"""Rows as agents read and write them. Each record's fields stand in the order of its statement's columns."""

from __future__ import annotations

from typing import NamedTuple


class AgentRow(NamedTuple):
    id: str
    tenant: str
    name: str
    metadata: str
    description: str
    version: int
    created_at: int
    updated_at: int


class CurrentAgent(NamedTuple):
    id: str
    tenant: str
    name: str
    metadata: str
    description: str
    version: int
    created_at: int
    updated_at: int
    digest: str


class SharedVersion(NamedTuple):
    """An agent that belongs to no tenant, and the version that new runs use."""

    agent: str
    version: int


class VersionRow(NamedTuple):
    agent: str
    version: int
    definition: str
    digest: str
    created_at: int


class SessionRow(NamedTuple):
    id: str
    tenant: str
    key: str | None
    parent: str | None
    depth: int
    metadata: str
    runs: int
    created_at: int
    updated_at: int
    during: str  # what becomes of a message that comes while a run is under way
    compactions: int


class RowCount(NamedTuple):
    n: int


class ValueCount(NamedTuple):
    value: str
    n: int


class NewRun(NamedTuple):
    id: str
    session: str
    branch: str
    ordinal: int
    tenant: str
    agent: str
    agent_name: str
    version: int
    mode: str
    parent: str | None
    call: str | None
    root: str
    depth: int
    input: str
    variables: str
    metadata: str
    options: str
    deadline_us: int | None = None  # from now


class LoadedRun(NamedTuple):
    """A run as the worker that has its lease needs it."""

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
    parent: str | None
    call: str | None
    root: str
    depth: int
    input: str
    variables: str
    options: str
    container: str | None
    prompted: int
    turns: int
    started_at: int | None
    cost_nano: int
    tokens: int
    created_at: int
    definition: str
    lanes: int  # whether any lane to a provider is closed, or was recently
    now: int
    generation: str  # of the history of its session: what was written under another one was written after other words
    interrupted: str | None
    fallback: int  # how many of its agent's models it has given up
    continued: int  # how often it continued after it was cut off
    deadline_at: int | None  # when its owner would like to have the answer
    forked_from: str | None
    steered: int  # whether a message waits for its next turn
    budgets: int  # whether there is any budget
    reported: int | None  # tokens of its last call and answer, as far as the history is still the one that was sent
    owner: str  # the tenant that its agent belongs to; empty: none


class RunRow(NamedTuple):
    """A run as it stands, whole."""

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
    turns: int
    events: int
    outcome: str | None
    stop_reason: str | None
    output: str | None
    refusal: str | None
    limited: str | None
    error_type: str | None
    error: str | None
    input_tokens: int
    output_tokens: int
    cache_write_tokens: int
    cache_read_tokens: int
    cost_nano: int
    created_at: int
    started_at: int | None
    finalized_at: int | None
    retry_of: str | None


class UsageRow(NamedTuple):
    runs: int
    turns: int
    input_tokens: int
    output_tokens: int
    cache_write_tokens: int
    cache_read_tokens: int
    cost_nano: int


class AwaitedRun(NamedTuple):
    """As much of a run as a caller reads that waits for its end."""

    id: str
    tenant: str
    state: str
    finalized_at: int | None


class UsageBelow(NamedTuple):
    """What a run and all below it have used."""

    run: str
    runs: int
    turns: int
    input_tokens: int
    output_tokens: int
    cache_write_tokens: int
    cache_read_tokens: int
    cost_nano: int


class BlobHash(NamedTuple):
    hash: str


class RunAhead(NamedTuple):
    id: str
    ordinal: int
    state: str


class FinishedRun(NamedTuple):
    id: str
    session: str
    branch: str
    ordinal: int
    state: str
    previous_state: str
    parent: str | None
    call: str | None
    agent_name: str
    turns: int
    prompted: int
    calling: int  # calls that are under way
    reserved: int  # calls that were reserved and never answered
    steered: int  # messages that came for it and were not read
    agent: str


class OpenRun(NamedTuple):
    """A run whose job has ended without its saying so; `state` and `error` are the job's."""

    id: str
    session: str
    branch: str
    ordinal: int
    agent_name: str
    turns: int
    state: str
    error: str | None


class TurnAttempt(NamedTuple):
    run: str
    number: int
    model: str
    state: str
    attempts: int
    unknown: int
    failures: int
    epoch: int
    token: int
    stop_reason: str | None


class EndedTurn(NamedTuple):
    """An answer as its turn stores it; `next` is the state of its run."""

    run: str
    number: int
    next: str
    request_id: str | None
    stop_reason: str
    usage: str
    model: str
    container: str | None
    continued: int
    input_tokens: int
    output_tokens: int
    cache_write_tokens: int
    cache_read_tokens: int
    cost_nano: int


class TurnKey(NamedTuple):
    run: str
    number: int


class RunEnd(NamedTuple):
    """How a run ended."""

    id: str
    state: str
    outcome: str | None = None
    output: str | None = None
    refusal: str | None = None
    limited: str | None = None
    error_type: str | None = None
    error: str | None = None


class FailedTurn(NamedTuple):
    """How often and for how long a turn has been tried; `failures` are those that count."""

    failures: int
    attempts: int
    age_us: int


class TurnRow(NamedTuple):
    run: str
    number: int
    model: str
    state: str
    attempts: int
    unknown: int
    request_id: str | None
    stop_reason: str | None
    usage: str | None
    input_tokens: int
    output_tokens: int
    cache_write_tokens: int
    cache_read_tokens: int
    cost_nano: int
    error: str | None
    started_at: int
    ended_at: int | None


class WindowBlock(NamedTuple):
    """One block of a message that is sent."""

    message: str
    ordinal: int
    role: str
    kind: str
    fingerprint: str
    type: str
    body: str


class NewMessage(NamedTuple):
    id: str
    session: str
    branch: str
    role: str
    run: str
    turn: int
    kind: str


class NewBlock(NamedTuple):
    message: str
    ordinal: int
    type: str
    body: str | None
    blob: str | None


class BlockRow(NamedTuple):
    message: str
    ordinal: int
    type: str
    body: str


class MessageRow(NamedTuple):
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
    retired: int


class NewCall(NamedTuple):
    id: str
    run: str
    turn: int
    ordinal: int
    tool_use_id: str
    name: str
    input: str
    child: str | None
    effect: str
    state: str | None
    output: str | None
    is_error: int


class ReadyRun(NamedTuple):
    id: str
    session: str
    branch: str
    turns: int
    agent_name: str
    parent: str | None
    state: str
    agent: str


class CallId(NamedTuple):
    id: str


class CallRow(NamedTuple):
    id: str
    run: str
    turn: int
    ordinal: int
    tool_use_id: str
    name: str
    input: str
    child: str | None
    effect: str
    state: str
    output: str | None
    is_error: int
    attempts: int
    created_at: int
    finished_at: int | None
    decision: str | None  # of the person who let it run, with the arguments if they were changed


class NewEvent(NamedTuple):
    """`place` counts from 1 among the events of its run in one statement."""

    run: str
    place: int
    type: str
    data: str
    topic: str | None


class StreamingAttempt(NamedTuple):
    """One attempt of a run whose model speaks: one that was overtaken may still speak in the same process."""

    run: str
    epoch: int
    token: int


class CallRequestId(NamedTuple):
    """The provider's id of a call, known when its headers came."""

    run: str
    number: int
    epoch: int
    token: int
    request_id: str


class NewDelta(NamedTuple):
    run: str
    epoch: int
    token: int
    place: int
    type: str
    data: str


class ReaderFlag(NamedTuple):
    readers: int  # 1 when a process reads the events of runs


class Cursor(NamedTuple):
    run: str
    after: int


class EventRow(NamedTuple):
    run: str
    seq: int
    at: int
    type: str
    data: str


class TopicRow(NamedTuple):
    epoch: int
    tx: int
    pos: int
    run: str
    seq: int
    at: int
    type: str
    topic: str
    data: str


class ProviderLaneRow(NamedTuple):
    name: str
    closed_until: int | None
    person: int
    reason: str
    updated_at: int
    now: int


# Rows about content: calls in what was said, results that a provider refuses, messages that are retired.


class UseId(NamedTuple):
    id: str


class TurnError(NamedTuple):
    error: str | None


class UnansweredMessage(NamedTuple):
    """A message that no answer has followed."""

    id: str
    ordinal: int
    kind: str
    run: str
    turn: int


class FoundMessage(NamedTuple):
    id: str
    ordinal: int
    branch: str
    run: str
    kind: str
    made_by: str | None


class RunId(NamedTuple):
    id: str


class RetiredMessage(NamedTuple):
    id: str
    ordinal: int
    made_by: str | None  # the compaction that wrote it


# Rows about tools that workers have declared, and about calls of tools that have ended.


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


# Rows about what comes for a run that is under way.


class Steer(NamedTuple):
    id: str
    run: str
    body: str  # the blocks of a user message


class Mail(NamedTuple):
    interrupted: str | None
    steered: int


class RunMail(NamedTuple):
    run: str
    interrupted: str | None
    steered: int


class InterruptFlag(NamedTuple):
    id: str
    interrupted: int


class CurrentRun(NamedTuple):
    """A run that has not ended, and what its job does."""

    id: str
    job: int
    session: str
    branch: str
    ordinal: int
    agent_name: str
    state: str
    prompted: int
    turns: int
    parent: str | None
    input: str
    job_state: str
    channel: str | None
    agent: str


# Rows about providers that fail: lanes that are closed, and calls that failed.


class ClosedLane(NamedTuple):
    """A lane to a provider that is closed: until a time, or, `person`, until somebody opens it."""

    name: str
    closed_until: int | None
    person: int
    reason: str
    updated_at: int  # when it was closed
    now: int
    waiting: int  # how many wait behind it; 10,001 stands for more than 10,000


class LastFailure(NamedTuple):
    error: str | None
    now: int
