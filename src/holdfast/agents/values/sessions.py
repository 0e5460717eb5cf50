"""Sessions, their messages and their compactions as programs see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, ClassVar

from holdfast.agents.compaction.compaction_rows import CompactionRow
from holdfast.agents.rows import MessageRow, SessionRow
from holdfast.agents.states import CompactionStateName
from holdfast.values.rows import Stored, value_of


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
