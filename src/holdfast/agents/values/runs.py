"""Runs, their turns and their tool calls as programs see them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import ClassVar

from holdfast.agents.definition import Mode
from holdfast.agents.rows import CallRow, RunRow, TurnRow
from holdfast.agents.states import CallStateName, RunStateName, TurnStateName
from holdfast.results import OutcomeName, Usage
from holdfast.values.rows import Stored, value_of


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
