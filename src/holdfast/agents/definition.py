"""What an agent is: a value, written to the store as a version when it is first used. Making one does no I/O.

A version is plain JSON with everything a worker needs to run it, so that any worker that has the tools can serve it,
and a run keeps what it started with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal, get_args

from holdfast import durations, validation
from holdfast.durations import Duration
from holdfast.errors import BadSetting, UsageError
from holdfast.kernel import codec
from holdfast.models.schemas import accepted
from holdfast.workers.role import SYSTEM_KIND

# The stored form: definitions and limits as they are stored, in a way that the next release does not change.
#
# Release 0.1.0 writes all fields. A later release marks each field that it adds with `LATER`, and such a field is
# written
# only where it says something. So a program that uses nothing new makes no new version of its agents when it is
# upgraded,
# and the two releases of a deploy do not take turns in writing versions.


LATER: Mapping[str, bool] = {"later": True}  # the metadata of a field that is younger than 0.1.0


def as_stored(record: Any) -> dict[str, Any]:
    """A definition, or a part of one, as it is stored."""
    values = [(each, getattr(record, each.name)) for each in fields(record)]
    return {
        each.name: _value(value) for each, value in values if "later" not in each.metadata or value != _default_of(each)
    }


def _value(value: Any) -> Any:
    if is_dataclass(value):
        return as_stored(value)
    return [_value(each) for each in value] if isinstance(value, tuple) else value


def _default_of(each: Field[Any]) -> Any:
    return each.default if each.default_factory is MISSING else each.default_factory()


Effect = Literal["read", "idempotent", "once"]
Mode = Literal["streaming", "batch"]
OnLimit = Literal["end", "ask"]
OnMaxTokens = Literal["stop", "continue", "ask"]
ToolSearch = Literal["regex", "bm25"]

AGENT_KIND = "agent:"
TOOL_KIND = "tool:"
LAYER = "agents"  # to which jobs of these kinds belong
KINDS: tuple[str, ...] = (AGENT_KIND, TOOL_KIND, SYSTEM_KIND)
DEFAULT_ATTEMPTS = 5
SEARCH = "tool_search_tool_"
_SEARCH_VERSION = "20251119"
_CAP = 4 * 1024 * 1024
FALLBACK_AFTER = "30000000us"
_NANO = 1_000_000_000
_MOST_NANO = 2**63 - 1  # what a column of both databases holds


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How far one run may go. What is None is not limited.

    `turns`, `tokens` and `cost` (in USD, "0.50") end a run with outcome "limited"; `depth` is how deep agents may call
    agents; `time` is the wall clock of the whole run. With `on_limit="ask"` a person is asked first, who may grant as
    much again; `within` is how long a person has for that, and for an answer that was cut off.
    """

    turns: int | None = 50
    depth: int | None = 8
    tokens: int | None = None
    cost: str | None = None
    time: Duration | None = None
    on_limit: OnLimit = "end"
    within: Duration | None = None

    def __post_init__(self) -> None:
        if self.on_limit not in ("end", "ask"):
            raise BadSetting(f'Limits(on_limit=…) must be "end" or "ask"; got {self.on_limit!r}.')
        for name in ("turns", "depth", "tokens"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise BadSetting(f"Limits({name}=…) must be a whole number of at least 1; got {value!r}.")
        if isinstance(self.cost, float):
            raise BadSetting(f'money is written as text, Limits(cost="{self.cost}"), never as a float.')
        if self.cost is not None:
            object.__setattr__(self, "cost", str(self.cost))
            if not nano_of(str(self.cost)):
                raise BadSetting("Limits(cost=…) must be more than 0, or no call could ever be made.")
        if self.within is not None:
            object.__setattr__(self, "within", f"{durations.microseconds(self.within)}us")
        if self.time is not None:
            object.__setattr__(self, "time", f"{durations.microseconds(self.time)}us")

    @property
    def cost_nano(self) -> int | None:
        return None if self.cost is None else nano_of(self.cost)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool as a version stores it: what the model is shown, and how its calls are run as jobs."""

    name: str
    description: str
    schema: dict[str, Any]
    effect: Effect = "idempotent"
    queue: str = "default"
    requires: tuple[str, ...] = ()
    timeout_us: int | None = None
    attempts: int = 2
    priority: int = 100
    strict: bool = False
    defer: bool = False  # shown to the model only once its search has found it
    lane: str | None = None  # its limits across all workers, if it has any
    concurrency: int | None = None
    approve: bool = False  # whether a person may have to approve a call; the program says of which
    person: bool = False  # answered by a person, never run
    within_us: int | None = None  # how long a person has
    otherwise: str | None = None  # what is done when nobody decides in time: "approve", or an answer; else a denial
    review: bool = False  # a call of unknown outcome waits for a person

    @property
    def kind(self) -> str:
        return TOOL_KIND + self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Delegate:
    """An agent that this one may call like a tool; `agent` is its id in the store."""

    name: str
    description: str
    agent: str = ""
    queue: str = "default"
    priority: int = 100
    requires: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSpec:
    """One version of an agent."""

    name: str
    model: str
    instructions: str = ""
    max_tokens: int = 4096
    options: dict[str, Any] = field(default_factory=dict)
    tools: tuple[ToolSpec, ...] = ()
    agents: tuple[Delegate, ...] = ()
    server_tools: tuple[dict[str, Any], ...] = ()
    output: dict[str, Any] | None = None
    limits: Limits = field(default_factory=Limits)
    attempts: int = DEFAULT_ATTEMPTS  # calls of the model in one turn before a failure is final
    queue: str = "default"
    priority: int = 100
    requires: tuple[str, ...] = ()
    caching: bool | str = True  # "1h": for an hour; what else a later release may store counts as True
    compaction: dict[str, Any] | None = None  # how its sessions are compacted by themselves; None: they are not
    tool_search: ToolSearch | None = None  # how the model finds tools that are deferred
    fallbacks: tuple[str, ...] = ()  # the models that answer when its own does not, in this order
    fallback_after: Duration | None = FALLBACK_AFTER  # so long a model may fail before the next is asked
    on_max_tokens: OnMaxTokens = "stop"
    continuations: int = 3  # how often an answer that was cut off continues by itself

    def __post_init__(self) -> None:
        codec.check_text(self.name, what="an agent's name", cap=256)
        names = [tool.name for tool in self.tools] + [each.name for each in self.agents]
        names += [str(tool["name"]) for tool in self._served() if "name" in tool]
        twice = sorted(validation.repeated(names))
        if twice:
            raise UsageError(f"agent {self.name!r} has two tools named {twice[0]!r}; the model cannot tell them apart.")
        check_numbers(self.max_tokens, self.attempts, self.priority, self.on_max_tokens)
        if self.fallback_after is not None:
            object.__setattr__(self, "fallback_after", f"{durations.microseconds(self.fallback_after)}us")
        check_search(self.name, self.tool_search, [tool.name for tool in self.tools if tool.defer], self.server_tools)

    def _served(self) -> tuple[dict[str, Any], ...]:
        """The tools that the provider runs."""
        if self.tool_search is None:
            return self.server_tools
        name = SEARCH + self.tool_search
        return (*self.server_tools, {"type": f"{name}_{_SEARCH_VERSION}", "name": name})

    def models_for(self, own: str | None = None) -> tuple[str, ...]:
        """Who answers, in this order: the model a run was given as its `own`, or the agent's, then the fallbacks."""
        first = own or self.model
        return (first, *(each for each in self.fallbacks if each != first))

    def model_for(self, own: str | None, given_up: int) -> str:
        """Who answers a run that has given up so many models."""
        models = self.models_for(own)
        return models[min(given_up, len(models) - 1)]

    @property
    def kind(self) -> str:
        return AGENT_KIND + self.name

    def tool(self, name: str) -> ToolSpec | None:
        return next((tool for tool in self.tools if tool.name == name), None)

    def delegate(self, name: str) -> Delegate | None:
        return next((each for each in self.agents if each.name == name), None)

    def with_delegates(self, ids: Mapping[str, str]) -> AgentSpec:
        """The same, knowing its delegates' ids."""
        return replace(self, agents=tuple(replace(each, agent=ids.get(each.name, each.agent)) for each in self.agents))

    def text(self) -> str:
        return codec.encode(as_stored(self), what=f"agent {self.name!r}", cap=_CAP)

    @classmethod
    def parse(cls, text: str) -> AgentSpec:
        """A version as it is stored; `NotUnderstood` when a newer release wrote what this one cannot do."""
        fields: Any = codec.decode(text)
        name = fields.get("name") if isinstance(fields, dict) else None
        return codec.read(cls, fields, what=f"the definition of agent {name!r}")

    @classmethod
    def from_values(cls, name: str, *, tools: Sequence[ToolSpec] = (), **fields: Any) -> AgentSpec:
        """An agent of plain values, with an error that names the one it does not know."""
        return cls(name=name, tools=tuple(tools), **_checked(fields))

    def changed(self, **fields: Any) -> AgentSpec:
        return replace(self, **_checked(fields))

    def wire_tools(self, *, strict: bool) -> list[dict[str, Any]]:
        """The tools as the model is offered them: always in this order, or the provider's cache is lost."""
        offered: list[dict[str, Any]] = []
        for tool in self.tools:
            marks = {"strict": tool.strict and strict, "defer_loading": tool.defer}
            schema = accepted(tool.schema) if marks["strict"] else tool.schema
            shown = {"name": tool.name, "description": tool.description, "input_schema": schema}
            offered.append(shown | {name: True for name, marked in marks.items() if marked})
        offered += [
            {"name": each.name, "description": each.description or f"Ask the agent {each.name}.", "input_schema": _TASK}
            for each in self.agents
        ]
        return offered + [dict(tool) for tool in self._served()]


def check_numbers(max_tokens: int, attempts: int, priority: int, on_max_tokens: str) -> None:
    if max_tokens < 1:
        raise BadSetting(f"max_tokens must be at least 1; got {max_tokens}.")
    if on_max_tokens not in get_args(OnMaxTokens):
        raise BadSetting(f'on_max_tokens must be "stop", "continue" or "ask"; got {on_max_tokens!r}.')
    validation.whole(attempts, "attempts", least=1)
    validation.whole(priority, "priority")


def check_search(agent: str, search: str | None, deferred: Sequence[str], served: Sequence[Mapping[str, Any]]) -> None:
    """`UsageError` when tools are deferred that the agent's model could never find."""
    if search not in (None, *get_args(ToolSearch)):
        raise BadSetting(f'tool_search must be "regex", "bm25" or None; got {search!r}.')
    if deferred and search is None and not any(str(tool.get("type", "")).startswith(SEARCH) for tool in served):
        raise UsageError(
            f"agent {agent!r} could never find its tool {deferred[0]!r}, which is deferred: give the agent "
            f'tool_search="regex" or "bm25".'
        )


def _checked(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    unknown = sorted(fields.keys() - set(AgentSpec.__dataclass_fields__))
    if unknown:
        known = ", ".join(sorted(AgentSpec.__dataclass_fields__))
        raise UsageError(f"an agent has no {unknown[0]!r}; it has {known}.")
    return fields


_TASK: dict[str, Any] = {
    "type": "object",
    "properties": {"task": {"type": "string", "description": "What to do, with everything the agent needs to know."}},
    "required": ["task"],
}


def nano_of(usd: str) -> int:
    """An amount of USD in billionths, exactly."""
    from decimal import Decimal, InvalidOperation

    try:
        amount = Decimal(usd)
    except InvalidOperation:
        amount = Decimal("nan")
    if not amount.is_finite():
        raise BadSetting(f'{usd!r} is not an amount of money; write "0.50".')
    if amount < 0:
        raise BadSetting(f"an amount of money cannot be negative: {usd!r}.")
    if amount >= _MOST_NANO // _NANO:
        raise BadSetting(f"{usd!r} is more than {_MOST_NANO // _NANO:,} USD, which is the most that can be written.")
    nano = amount * _NANO
    if nano != nano.to_integral_value():
        raise BadSetting(f"{usd!r} is finer than a billionth of a USD.")
    return int(nano)


def digest_of(spec: AgentSpec) -> str:
    return codec.digest(spec.text())
