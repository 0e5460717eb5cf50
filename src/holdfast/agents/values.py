"""Stored agents and their versions as programs see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, ClassVar, cast

from holdfast.agents.batches.records import BatchRow, RequestRow
from holdfast.agents.compaction.records import CompactionRow
from holdfast.agents.definition import Mode
from holdfast.agents.people.records import InquiryRow
from holdfast.agents.rows import AgentRow, CallRow, ClosedLane, MessageRow, RunRow, SessionRow, TurnRow, VersionRow
from holdfast.agents.states import (
    BatchStateName,
    CallStateName,
    CompactionStateName,
    InquiryStateName,
    RequestStateName,
    RunStateName,
    TurnStateName,
)
from holdfast.client.results import OutcomeName, Usage
from holdfast.errors import NotUnderstood
from holdfast.events import CallView
from holdfast.kernel import codec
from holdfast.values import Stored, moment, value_of


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRecord:
    """An agent as it stands in the store; `version` is its present one."""

    id: str
    tenant: str
    name: str
    metadata: Stored
    description: str
    version: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRecord:
    """One version of an agent: its whole definition, which never changes."""

    agent: str
    version: int
    definition: Stored
    digest: str
    created_at: datetime


def agent_of(row: AgentRow) -> AgentRecord:
    return value_of(AgentRecord, row)


def version_of(row: VersionRow) -> VersionRecord:
    return value_of(VersionRecord, row)


# Runs, their turns and their tool calls as programs see them.


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A run as it stands in the store. Tokens and `cost`, in USD, are its own, without the runs below it.

    `job` is the number of its job, `retry_of` the run that it repeats. `session`, `agent`, `parent` and `root` are
    ids, `call` that of the tool call that started it.
    """

    SHOWN: ClassVar = ("cost",)

    id: str
    job: int
    session: str
    branch: str
    ordinal: int
    tenant: str
    agent: str
    agent_name: str
    version: int
    mode: Mode
    state: RunStateName
    previous_state: RunStateName | None
    parent: str | None
    call: str | None
    root: str
    depth: int
    input: Stored
    variables: Stored
    metadata: Stored
    options: Stored
    turns: int
    events: int
    outcome: OutcomeName | None
    stop_reason: str | None
    output: Stored
    refusal: Stored
    limited: str | None
    error_type: str | None
    error: str | None
    input_tokens: int
    output_tokens: int
    cache_write_tokens: int
    cache_read_tokens: int
    cost_nano: int
    created_at: datetime
    started_at: datetime | None
    finalized_at: datetime | None
    retry_of: str | None

    @property
    def cost(self) -> Decimal:
        return Decimal(self.cost_nano) / 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One model call of a run and how it went.

    `attempts` counts the calls that were made for it, `unknown` those of them whose outcome nobody knows.
    """

    number: int
    model: str
    state: TurnStateName
    attempts: int
    unknown: int
    request_id: str | None
    stop_reason: str | None
    usage: Usage
    error: Stored
    started_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """One request of a model to run a tool. `child` is the run that it started, if the tool is an agent.

    `decision` is that of the person who let it run, with the arguments if they were changed.
    """

    id: str
    run: str
    turn: int
    ordinal: int
    tool_use_id: str
    name: str
    input: Stored
    child: str | None
    effect: str
    state: CallStateName
    output: Stored
    is_error: bool
    attempts: int
    created_at: datetime
    finished_at: datetime | None
    decision: Stored


def run_of(row: RunRow) -> RunRecord:
    return value_of(RunRecord, row)


def turn_of(row: TurnRow) -> Turn:
    usage = Usage(row.input_tokens, row.output_tokens, row.cache_write_tokens, row.cache_read_tokens, row.cost_nano, 1)
    return value_of(Turn, row, usage=usage)


def call_of(row: CallRow) -> CallRecord:
    return value_of(CallRecord, row)


# Sessions, their messages and their compactions as programs see them.


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRecord:
    """A session as it stands in the store.

    `runs` and `compactions` are how many it has had. `during` says what becomes of a message that comes while a run is
    under way.
    """

    id: str
    tenant: str
    key: str | None
    parent: str | None
    depth: int
    metadata: Stored
    runs: int
    created_at: datetime
    updated_at: datetime
    during: str
    compactions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message as people read it; `blocks` are the provider's own.

    One that is `retired` is kept and never sent again: it was refused, or somebody took it out.
    """

    id: str
    ordinal: int
    role: str
    kind: str
    run_id: str
    turn: int
    live: bool
    preserved: bool
    branch: str
    created_at: datetime
    blocks: tuple[dict[str, Any], ...]
    retired: bool = False

    @property
    def text(self) -> str:
        return "".join(str(block.get("text", "")) for block in self.blocks if block.get("type") == "text")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRecord:
    """One compaction: what it did, what it cost, and whether it still stands ("done").

    `run` is the run that did it before a call of its own, if one did: then it is part of what that run used. `unknown`
    counts calls of the summariser whose answer was lost, so that nobody knows whether they were paid for.
    """

    SHOWN: ClassVar = ("cost", "duration")

    id: str
    session: str
    run: str | None
    state: CompactionStateName
    strategy: str
    trigger: str
    model: str
    config: Stored
    before_generation: str
    tokens_before: int
    tokens_after: int | None
    removed: int
    pruned: int
    summary: str | None
    attempts: int
    unknown: int
    usage: Stored
    input_tokens: int
    output_tokens: int
    cache_write_tokens: int
    cache_read_tokens: int
    cost_nano: int
    error: str | None
    started_at: datetime
    ended_at: datetime | None
    restored_at: datetime | None

    @property
    def cost(self) -> Decimal:
        return Decimal(self.cost_nano) / 1_000_000_000

    @property
    def duration(self) -> timedelta | None:
        """From its beginning to its end; if it began again, from the first time."""
        return None if self.ended_at is None else self.ended_at - self.started_at


def session_of(row: SessionRow) -> SessionRecord:
    return value_of(SessionRecord, row)


def message_of(row: MessageRow, blocks: Sequence[dict[str, Any]]) -> Message:
    return value_of(Message, row, run_id=row.run, blocks=tuple(blocks))


def compaction_of(row: CompactionRow) -> CompactionRecord:
    return value_of(CompactionRecord, row)


# Batches and their requests as programs see them.


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


# Lanes to providers that are closed, as programs see them.


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLaneRecord:
    """A lane to a provider that is closed: until a time, or, if `person`, until somebody opens it.

    `closed_at` is when it was closed. `waiting` counts the runs behind it; 10,001 stands for more than 10,000.
    """

    name: str
    closed_until: datetime | None
    person: bool
    reason: str
    closed_at: datetime
    waiting: int


def closed_lane_of(row: ClosedLane) -> ClosedLaneRecord:
    return value_of(ClosedLaneRecord, row, closed_at=moment(row.updated_at))


# Inquiries as a program sees them: what only a person can decide.


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquiry:
    """Something that only a person can decide.

    `kind` is "approval" (may this call run?), "review" (it may have run: again?), "question", "continuation" (the
    answer was cut off: continue?) or "limit" (continue beyond it?). `call` is what is to be called, `data` the rest of
    what there is to know; `digest` is the identity of what was shown. A review shows what the call ran with; if a
    person had changed that, `data["changed"]` has what the model `asked` for, and `by` whom it was changed.
    """

    id: str
    kind: str
    state: InquiryStateName
    run_id: str
    session_id: str
    tenant: str
    name: str
    digest: str
    call: CallView | None
    data: dict[str, Any]
    asked_at: datetime
    expires_at: datetime | None
    decided_at: datetime | None = None
    decided_by: str | None = None
    decision: dict[str, Any] | None = None


def inquiry_of(row: InquiryRow) -> Inquiry:
    data: dict[str, Any] = codec.decode(row.data)
    call = _call_of(data)
    return Inquiry(
        id=row.id,
        kind=row.kind,
        state=cast(InquiryStateName, row.state),
        run_id=row.run,
        session_id=row.session,
        tenant=row.tenant,
        name=row.name,
        digest=row.digest,
        call=call,
        data=data,
        asked_at=moment(row.asked_at),
        expires_at=moment(row.expires_at),
        decided_at=moment(row.decided_at),
        decided_by=row.decided_by,
        decision=codec.decode(row.decision),
    )


def _call_of(data: dict[str, Any]) -> CallView | None:
    """Take the call out of what an inquiry is about. One that is not understood here stays there as it is."""
    if data.get("call") is None:
        data.pop("call", None)
        return None
    try:
        call = codec.read(CallView, data["call"], what="the call of an inquiry")
    except NotUnderstood:
        return None
    del data["call"]
    return call
