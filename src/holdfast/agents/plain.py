"""Agents of plain values: what a program writes for an agent that is in the store alone, checked field by field."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.agents.compaction.config import Compaction, check_compaction
from holdfast.agents.creating import Named
from holdfast.agents.definitions import Delegate, Limits
from holdfast.agents.handles import Agent
from holdfast.agents.reaching import App
from holdfast.agents.tools import tool_name
from holdfast.checking import listed, shown
from holdfast.errors import UsageError

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
    "caching": (bool, "True or False"),
    "compaction": ((Mapping, type(None)), "Compaction(…), or a dict of its fields"),
    "tool_search": ((str, type(None)), '"regex", "bm25" or None'),
}
_LISTS: Mapping[str, tuple[type[Any] | tuple[type[Any], ...], str]] = {
    "tools": (str, "names of this app's tools"),
    "agents": ((Agent, Delegate), "agents, as hf.agent or hf.agents[…].load() makes them"),
    "server_tools": (Mapping, "the provider's tools, as dicts"),
    "requires": (str, "capabilities"),
    "fallbacks": (str, "names of models"),
}


def plain(app: App, name: str, fields: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[Named, ...]]:
    """The fields of an agent as its definition has them, and the agents it may call; `UsageError` names a wrong one."""
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
        values["tools"] = tuple(app.tool_named(tool) for tool in values["tools"])
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


def check_delegates(name: str, agents: Iterable[Agent[Any] | Delegate]) -> None:
    """An agent that another may call is called like a tool."""
    for each in agents:
        if not isinstance(each, Agent | Delegate):
            raise UsageError(f"agents of agent {name!r} are what hf.agent made, not {shown(each)}.")
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
