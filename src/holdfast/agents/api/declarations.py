"""Declarations of agents: what `hf.agent` makes, and its options.

An agent is a value. Declaring one does no I/O; it is written, as a version, when it is first used.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack, cast

from holdfast import validation
from holdfast.agents.adoption import run_definition
from holdfast.agents.api.agent import Agent
from holdfast.agents.api.options import check_models
from holdfast.agents.api.plain_definition import check_delegates, check_fields
from holdfast.agents.compaction.config import Compaction, check_compaction
from holdfast.agents.core import AgentsCore
from holdfast.agents.definition import (
    AGENT_KIND,
    AgentSpec,
    Limits,
    OnMaxTokens,
    ToolSearch,
    check_numbers,
    check_search,
)
from holdfast.agents.runs.create import AgentName, Named, put_agent
from holdfast.agents.runs.output import Output
from holdfast.agents.tools import ServerTool, Tool
from holdfast.durations import Duration
from holdfast.errors import UsageError
from holdfast.kernel import codec
from holdfast.models.cache_markers import Caching
from holdfast.workers.definitions import is_typed_again


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

    def make() -> Named:
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
        return Named(key, spec, asked["description"], tuple(each.named for each in agents))

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
            raise UsageError(f"a tool is what @hf.tool made, a ServerTool or a dict, not {type(tool).__name__}.")
    return served
