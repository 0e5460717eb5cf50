"""Declarations of agents: what `hf.agent` makes, and its options.

An agent is a value. Declaring one does no I/O; it is written, as a version, when it is first used.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict, Unpack, cast

from holdfast import validation
from holdfast.agents.adoption import run_definition
from holdfast.agents.api.agent import Agent
from holdfast.agents.api.options import check_models
from holdfast.agents.compaction.config import Compaction, check_compaction
from holdfast.agents.core import AgentsCore
from holdfast.agents.definition import (
    AGENT_KIND,
    AgentSpec,
    Delegate,
    Limits,
    OnMaxTokens,
    ToolSearch,
    check_numbers,
    check_search,
)
from holdfast.agents.runs.create import AgentName, NamedAgent, put_agent
from holdfast.agents.runs.output import Output
from holdfast.agents.toolbox import declared_tools
from holdfast.agents.tools import ServerTool, Tool, tool_name
from holdfast.durations import Duration
from holdfast.errors import UsageError
from holdfast.kernel import codec
from holdfast.models.prompt_cache import Caching
from holdfast.models.schemas import check_schema
from holdfast.validation import expected, listed, shown
from holdfast.workers.definitions import is_typed_again

# Agents of plain values: what a program writes for an agent that is in the store alone, checked field by field.


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


async def plain(app: AgentsCore, name: str, fields: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[NamedAgent, ...]]:
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
            raise UsageError(expected(f"{field} of agent {name!r}", meant, value))
    if values.get("caching", True) not in (True, False, "1h"):
        raise UsageError(expected(f"caching of agent {name!r}", f"{_CACHING}", values["caching"]))
    if isinstance(values.get("output"), Mapping):
        check_schema(values["output"], f"output of agent {name!r}")


def check_delegates(name: str, agents: Iterable[Agent[Any] | Delegate]) -> None:
    """An agent that another may call is called like a tool."""
    for each in agents:
        if not isinstance(each, Agent | Delegate):
            raise UsageError(f"agents of agent {name!r} must come from hf.agent; got {shown(each)}.")
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


class AgentOptions(TypedDict, total=False):
    """The options of `hf.agent`, beside its model and the type of its answers."""

    instructions: str
    tools: Sequence[Tool[Any, Any] | ServerTool | dict[str, Any]]
    agents: Sequence[Agent[Any]]
    description: str
    max_tokens: int
    options: Mapping[str, Any] | None
    limits: Limits | None
    attempts: int
    tenant: str
    metadata: Mapping[str, Any] | None
    queue: str
    priority: int
    requires: Sequence[str]
    caching: Caching
    compaction: Compaction | None
    tool_search: ToolSearch | None
    fallbacks: Sequence[str]
    fallback_after: Duration | None
    on_max_tokens: OnMaxTokens


AGENT_DEFAULTS = AgentOptions(
    instructions="",
    tools=(),
    agents=(),
    description="",
    max_tokens=4096,
    options=None,
    limits=None,
    attempts=5,
    tenant="",
    metadata=None,
    queue="default",
    priority=100,
    requires=(),
    caching=True,
    compaction=None,
    tool_search=None,
    fallbacks=(),
    fallback_after="30s",
    on_max_tokens="stop",
)


def declare_agent(core: AgentsCore, name: str, model: str, output: Any, **options: Unpack[AgentOptions]) -> Agent[Any]:
    """Define an agent and let this program's workers serve it. The same definition again is the same agent."""
    validation.option_names(options, AgentOptions, "agent")
    asked: AgentOptions = {**AGENT_DEFAULTS, **options}
    _check(name, model, asked)
    metadata = codec.encode(
        validation.mapping(asked["metadata"], "metadata"), what="metadata", cap=core.settings.metadata_cap
    )
    key = AgentName(
        codec.check_text(name, what="an agent's name", cap=256), codec.check_tenant(asked["tenant"]), metadata
    )
    mine = [tool for tool in asked["tools"] if isinstance(tool, Tool)]
    served = _served(asked["tools"])
    check_search(name, asked["tool_search"], [tool.name for tool in mine if tool.defer], served)
    said = {**asked, "tools": [*mine, *served], "model": model, "output": output}
    if (known := core.declared.get(key)) is not None:
        if known[1] == said:
            return cast("Agent[Any]", known[0])
        if not is_typed_again():
            raise UsageError(f"two agents are declared as {name!r}; give one of them another name.")
    reader = None if output is None or output is str else Output(output)
    agents, compaction = asked["agents"], asked["compaction"]

    def make() -> NamedAgent:
        spec = AgentSpec(
            name=name,
            model=model,
            instructions=inspect.cleandoc(asked["instructions"]),
            max_tokens=asked["max_tokens"],
            options=dict(asked["options"] or {}),
            tools=tuple(tool.spec for tool in mine),
            agents=tuple(each.delegate() for each in agents),
            server_tools=tuple(served),
            output=None if reader is None else reader.schema(),
            limits=asked["limits"] or Limits(),
            attempts=asked["attempts"],
            queue=asked["queue"],
            priority=asked["priority"],
            requires=tuple(sorted(asked["requires"])),
            caching=asked["caching"],
            compaction=None if compaction is None else compaction.plain(),
            tool_search=asked["tool_search"],
            fallbacks=tuple(asked["fallbacks"]),
            fallback_after=asked["fallback_after"],
            on_max_tokens=asked["on_max_tokens"],
        )
        return NamedAgent(key, spec, asked["description"], tuple(each.named for each in agents))

    made: Agent[Any] = Agent(core, key, make, reader)
    queue, requires, priority = asked["queue"], asked["requires"], asked["priority"]
    core.registry.add(run_definition(name, core.play, queue=queue, requires=requires, priority=priority))
    core.keys.note(AGENT_KIND + name, model)
    core.serve_beside()
    core.layer.preparing.append(lambda tx: put_agent(tx, made.named))
    if compaction is not None:
        core.registry.add(core.compacting)
    core.defined[name], core.declared[key] = made, (made, said)
    if reader is not None:
        core.outputs[name] = reader
    return made


def _check(name: str, model: str, asked: AgentOptions) -> None:
    options, max_tokens = asked["options"] or {}, asked["max_tokens"]
    checked = ("instructions", "max_tokens", "attempts", "description", "priority", "caching")
    given: Mapping[str, Any] = asked
    check_fields(name, {**{field: given[field] for field in checked}, "options": options})
    validation.instance(asked["limits"], "limits", Limits)
    check_numbers(max_tokens, asked["attempts"], asked["priority"], asked["on_max_tokens"])
    check_models(model, asked["fallbacks"], options, max_tokens)
    check_delegates(name, asked["agents"])
    check_compaction(name, asked["compaction"])


def _served(tools: Sequence[Any]) -> list[dict[str, Any]]:
    """The tools that the provider runs, as it wants them."""
    served = [tool.wire() if isinstance(tool, ServerTool) else tool for tool in tools if not isinstance(tool, Tool)]
    for tool in served:
        if not isinstance(tool, dict):
            raise UsageError(f"a tool must be what @hf.tool made, a ServerTool or a dict; got {type(tool).__name__}.")
    return served
