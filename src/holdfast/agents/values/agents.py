"""Stored agents and their versions as programs see them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from holdfast.agents.rows import AgentRow, VersionRow
from holdfast.values.rows import Stored, value_of


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
