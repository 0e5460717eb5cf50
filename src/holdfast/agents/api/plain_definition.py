"""Agents of plain values: what a program writes for an agent that is in the store alone, checked field by field."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from holdfast.agents.api.agent import Agent
from holdfast.agents.compaction.config import Compaction, check_compaction
from holdfast.agents.core import AgentsCore
from holdfast.agents.declared_tools import declared_tools
from holdfast.agents.definition import Delegate, Limits, OnMaxTokens, ToolSearch
from holdfast.agents.runs.create import Named
from holdfast.agents.tools import tool_name
from holdfast.durations import Duration
from holdfast.errors import UsageError
from holdfast.models.cache_markers import Caching
from holdfast.models.schemas import check_schema
from holdfast.validation import listed, shown


class PlainFields(TypedDict, total=False):
    """The fields of an agent in plain values: tools are names, and limits may be a dict.

    `server_tools` are the provider's own tools, as dicts; `output` is a JSON schema.
    """

    instructions: str
    max_tokens: int
    options: Mapping[str, Any]
    tools: Sequence[str]
    agents: Sequence[Agent[Any] | Delegate]
    server_tools: Sequence[Mapping[str, Any]]
    output: Mapping[str, Any] | None
    limits: Limits | Mapping[str, Any]
    attempts: int
    queue: str
    priority: int
    requires: Sequence[str]
    caching: Caching
    compaction: Compaction | Mapping[str, Any] | None
    tool_search: ToolSearch | None
    fallbacks: Sequence[str]
    fallback_after: Duration | None
    on_max_tokens: OnMaxTokens


class NewAgentFields(PlainFields):
    """The fields of `hf.agents.create`, beside name, metadata and description."""

    model: str


class AgentFields(PlainFields, total=False):
    """The fields of `hf.agents.update`, beside the description."""

    model: str


_CACHING = 'True, False or "1h"'
_TYPES: Mapping[str, tuple[type[Any] | tuple[type[Any], ...], str]] = {
    "model": (str, "the name of a model"),
    "instructions": (str, "text"),
    "description": (str, "text"),
    "max_tokens": (int, "a whole number"),
    "options": (Mapping, "a dict"),
    "output": ((Mapping, type(None)), "a JSON schema, as a dict"),
    "limits": (Limits, "Limits(…), or a dict of its fields"),
    "attempts": (int, "a whole number"),
    "queue": (str, "the name of a queue"),
    "priority": (int, "a whole number"),
    "caching": ((bool, str), _CACHING),
    "compaction": ((Mapping, type(None)), "Compaction(…), or a dict of its fields"),
    "tool_search": ((str, type(None)), '"regex", "bm25" or None'),
}
_LISTS: Mapping[str, tuple[type[Any] | tuple[type[Any], ...], str]] = {
    "tools": (str, "names of tools"),
    "agents": ((Agent, Delegate), "agents, as hf.agent or hf.agents[…].load() makes them"),
    "server_tools": (Mapping, "the provider's tools, as dicts"),
    "requires": (str, "capabilities"),
    "fallbacks": (str, "names of models"),
}


async def plain(app: AgentsCore, name: str, fields: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[Named, ...]]:
    """The fields of an agent as its definition has them, and the agents it may call; `UsageError` names a wrong one.

    A tool that this program does not have is as the workers that have it declared it.
    """
    values = dict(fields)
    if isinstance(values.get("limits"), Mapping):
        values["limits"] = _limits(values["limits"])
    if isinstance(values.get("compaction"), Compaction):
        values["compaction"] = values["compaction"].plain()
    if isinstance(values.get("compaction"), Mapping):
        values["compaction"] = _compaction(name, values["compaction"])
    check_fields(name, values)
    for field, (kind, meant) in _LISTS.items():
        if field in values:
            values[field] = listed(values[field], f"{field} of agent {name!r}", kind, meant)
    delegates: tuple[Agent[Any] | Delegate, ...] = values.get("agents", ())
    check_delegates(name, delegates)
    if "tools" in values:
        far = [tool for tool in values["tools"] if not app.has_tool(tool)]
        declared = await app.runtime().transact(declared_tools, far) if far else {}
        values["tools"] = tuple(declared.get(tool) or app.tool_named(tool) for tool in values["tools"])
    if "agents" in values:
        values["agents"] = tuple(each.delegate() if isinstance(each, Agent) else each for each in delegates)
    for field in ("options", "output"):
        if isinstance(values.get(field), Mapping):
            values[field] = dict(values[field])
    return values, tuple(each.named for each in delegates if isinstance(each, Agent))


def check_fields(name: str, values: Mapping[str, Any]) -> None:
    """`UsageError` when one of these fields of an agent is not what it is meant to be."""
    for field, (kind, meant) in _TYPES.items():
        value = values.get(field)
        if field in values and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
            raise UsageError(f"{field} of agent {name!r} is {meant}, not {shown(value)}.")
    if values.get("caching", True) not in (True, False, "1h"):
        raise UsageError(f"caching of agent {name!r} is {_CACHING}, not {shown(values['caching'])}.")
    if isinstance(values.get("output"), Mapping):
        check_schema(values["output"], f"output of agent {name!r}")


def check_delegates(name: str, agents: Iterable[Agent[Any] | Delegate]) -> None:
    """An agent that another may call is called like a tool."""
    for each in agents:
        if not isinstance(each, Agent | Delegate):
            raise UsageError(f"agents of agent {name!r} must come from hf.agent, not {shown(each)}.")
        try:
            tool_name(each.name)
        except UsageError as problem:
            raise UsageError(
                f"agent {each.name!r} cannot be called by agent {name!r} under its name: {problem} Rename it."
            ) from None


def _limits(fields: Mapping[str, Any]) -> Limits:
    unknown = sorted(set(map(str, fields)) - set(Limits.__dataclass_fields__))
    if unknown:
        raise UsageError(f"limits have no {unknown[0]!r}; they have {', '.join(Limits.__dataclass_fields__)}.")
    return Limits(**fields)


def _compaction(name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    unknown = sorted(set(map(str, fields)) - set(Compaction.__dataclass_fields__))
    if unknown:
        raise UsageError(f"compaction has no {unknown[0]!r}; it has {', '.join(Compaction.__dataclass_fields__)}.")
    made = Compaction(**fields)
    check_compaction(name, made)
    return made.plain()
