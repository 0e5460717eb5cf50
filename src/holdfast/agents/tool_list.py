"""The tools of stored agents: what models are shown, which agents have each, and who serves it."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from holdfast.agents import queries
from holdfast.agents.definition import TOOL_KIND
from holdfast.agents.statements import AgentsSql
from holdfast.kernel.database import Transaction, reading

_MOST_AGENTS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRecord:
    """A tool as the newest versions of stored agents have it. `agents` are the names of those that offer it."""

    name: str
    description: str
    schema: dict[str, Any]
    effect: str
    queue: str
    requires: list[str]
    approve: bool
    agents: list[str]


@reading
async def list_tools(tx: Transaction, tenant: str | None) -> list[ToolRecord]:
    """The tools of a tenant's agents, or of all, by name; of the first thousand agents."""
    agents = {row.id: row.name for row in await queries.list_agents(tx, tenant=tenant, limit=_MOST_AGENTS)}
    versions = await tx.many(AgentsSql.current_definitions, names=sorted(set(agents.values())))
    found: dict[str, ToolRecord] = {}
    for version in sorted(versions, key=lambda each: each.created_at, reverse=True):
        if version.agent in agents:
            for tool in json.loads(version.definition).get("tools", ()):
                known = found.setdefault(str(tool["name"]), _record(tool))
                known.agents.append(agents[version.agent])
    for each in found.values():
        each.agents.sort()
    return [found[name] for name in sorted(found)]


def _record(tool: dict[str, Any]) -> ToolRecord:
    return ToolRecord(
        name=str(tool["name"]),
        description=tool.get("description", ""),
        schema=tool.get("schema", {}),
        effect=tool.get("effect", "idempotent"),
        queue=tool.get("queue", "default"),
        requires=list(tool.get("requires", ())),
        approve=bool(tool.get("approve", False)),
        agents=[],
    )


async def workers_of(tx: Transaction, tool: ToolRecord, absent: Collection[int] = ()) -> list[str]:
    """The live workers that can run it."""
    return await queries.servers_of(tx, [TOOL_KIND + tool.name, *tool.requires], absent)
