"""The toolbox of an app: the tools that this program has, and the options of `@hf.tool`.

A tool becomes a job definition of the registry and a `Tool` here, under one name.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, TypedDict, Unpack

from holdfast import durations, validation
from holdfast.agents.definition import LAYER, TOOL_KIND, Effect, ToolSpec
from holdfast.agents.people.people import ProgramCalls
from holdfast.agents.statements import ToolsSql
from holdfast.agents.system_jobs import TOOLS
from holdfast.agents.tools import (
    ApprovalFunction,
    Otherwise,
    Person,
    Tool,
    ToolContext,
    ToolSignature,
    Unknown,
    callable_of,
    shown_cap,
    tool_name,
)
from holdfast.client.core import Core
from holdfast.durations import Duration
from holdfast.errors import BadPayload, BadSetting, UsageError
from holdfast.events import CallView
from holdfast.kernel import codec
from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.retry import RetryPolicy
from holdfast.text import log_with_traceback, traceback_of
from holdfast.workers.definitions import Definition, Isolation, LaneLimits

# Declared tools: what workers say of the tools whose code they have, for agents that are made in other processes.
#
# A worker writes them when it starts. So `hf.agents.create(tools=["name"])` takes a name that this program does not
# know,
# as long as some worker has declared it; any worker that has the code then serves the agent.


_CAP = 1 << 20


async def declare_tools(tx: Transaction, tools: Iterable[ToolSpec]) -> None:
    """Write down what tools are, in the order of their names; what is there already is not written again."""
    for tool in sorted(tools, key=lambda each: each.name):
        text = codec.encode(asdict(tool), what=f"tool {tool.name!r}", cap=_CAP)
        await tx.run(ToolsSql.declare_tool, name=tool.name, definition=text, digest=codec.digest(text))


@reading
async def declared_tools(tx: Transaction, names: Sequence[str]) -> dict[str, ToolSpec]:
    """These tools as a worker declared them; `UsageError` names the first that nobody has."""
    found = {}
    for row in await tx.many(ToolsSql.find_tools, names=names):
        found[row.name] = codec.read(ToolSpec, codec.decode(row.definition), what=f"tool {row.name!r}")
    for name in names:
        if name not in found:
            raise UsageError(
                f"there is no tool {name!r}: this program does not declare it, and no worker ever has. "
                f"Declare it here with @hf.tool, or start a worker that has it first."
            )
    return found


log = logging.getLogger("holdfast.agents")

_INSTANT = RetryPolicy(attempts=2, backoff="constant", base="0s", jitter=0.0)


class RemoteToolOptions(TypedDict, total=False):
    """The options of `@hf.tool` that `hf.mcp` takes too, for each tool of a server."""

    timeout: Duration
    retry: RetryPolicy | None
    queue: str
    priority: int
    requires: Iterable[str]
    concurrency: int | None
    defer: bool
    approve: bool | ApprovalFunction
    within: Duration | None
    otherwise: Otherwise
    unknown: Unknown


class ToolOptions(RemoteToolOptions, total=False):
    """The options of `@hf.tool`."""

    name: str | None
    effect: Effect
    isolate: Isolation | None
    strict: bool


TOOL_DEFAULTS = ToolOptions(
    name=None,
    effect="idempotent",
    timeout="5m",
    retry=None,
    queue="default",
    priority=100,
    requires=(),
    isolate=None,
    concurrency=None,
    strict=False,
    defer=False,
    approve=False,
    within=None,
    otherwise="deny",
    unknown="review",
)


Preparing = Callable[[Transaction], Awaitable[Any]]


class Toolbox:
    """The tools of one app, by name."""

    def __init__(self, core: Core, ask_people: Callable[[], None], prepare: Callable[[Preparing], None]) -> None:
        """`ask_people` is called for a tool whose calls may wait for a person. `prepare` takes what a worker writes
        when it starts."""
        self._core = core
        self._ask_people = ask_people
        self._prepare = prepare
        self.calls = ProgramCalls()
        self._tools: dict[str, Tool[Any, Any]] = {}

    def find(self, name: str) -> Tool[Any, Any] | None:
        return self._tools.get(name)

    def has(self, name: str) -> bool:
        """Whether this program has the code of a tool."""
        return name in self._tools

    def spec(self, name: str) -> ToolSpec:
        """A tool of this program as agents store it."""
        if name not in self._tools:
            known = ", ".join(sorted(self._tools)) or "none"
            raise UsageError(f"this app has no tool {name!r}; it has {known}.")
        return self._tools[name].spec

    def declare(
        self, given: Any, signature: ToolSignature | None = None, **options: Unpack[ToolOptions]
    ) -> Tool[Any, Any]:
        """Make a function a tool. `signature` is of a tool whose arguments this program does not know."""
        validation.option_names(options, ToolOptions, "tool")
        asked: ToolOptions = {**TOOL_DEFAULTS, **options}
        function, called, doc = callable_of(given)
        title = tool_name(asked["name"] or called)
        _check(asked)
        effect, within = asked["effect"], asked["within"]
        kind = TOOL_KIND + title
        if signature is None:
            signature = ToolSignature(kind, function, self._core.settings.tool_output_cap)
            self._core.warnings += _gaps(function, doc, signature.untyped())
        definition = Definition(
            kind=kind,
            function=function,
            signature=signature,
            queue=codec.check_text(asked["queue"], what="a queue name"),
            requires=validation.capabilities(asked["requires"]),
            retry=RetryPolicy.none() if effect == "once" else asked["retry"] or _INSTANT,
            timeout_us=durations.microseconds(asked["timeout"]),
            deadline_us=None,
            priority=asked["priority"],
            isolate=asked["isolate"],
            limits=_lane(kind, asked["concurrency"]),
            slots=TOOLS.name,
            result_cap=shown_cap,
            once=effect == "once",
            layer=LAYER,
            context=ToolContext,
        )
        person = Person(
            approve=asked["approve"],
            within_us=None if within is None else durations.microseconds(within),
            otherwise=asked["otherwise"],
            review=effect == "once" and asked["unknown"] == "review",
        )
        strict, defer = asked["strict"], asked["defer"]
        tool: Tool[Any, Any] = Tool(
            definition, function, name=title, effect=effect, strict=strict, defer=defer, person=person
        )
        tool.__doc__ = doc
        return self._add(tool, asks=bool(asked["approve"]) or person.review)

    def question(
        self, name: str, *, description: str, within: Duration | None, otherwise: str | None
    ) -> Tool[Any, Any]:
        """A tool that a person answers."""
        title = tool_name(name)

        def ask(question: str, choices: list[str] | None = None) -> str:
            raise UsageError(f"{title} has no code to run: a person answers it with hf.answer(…).")

        kind = TOOL_KIND + title
        definition = Definition(
            kind=kind,
            function=ask,
            signature=ToolSignature(kind, ask, self._core.settings.tool_output_cap),
            queue="default",
            requires=frozenset(),
            retry=RetryPolicy.none(),
            timeout_us=None,
            deadline_us=None,
            priority=100,
            isolate=None,
            slots=TOOLS.name,
            result_cap=shown_cap,
            layer=LAYER,
            context=ToolContext,
        )
        person = Person(asks=True, within_us=durations.microseconds(within) if within else None, otherwise=otherwise)
        tool: Tool[Any, Any] = Tool(definition, ask, name=title, effect="read", strict=False, person=person)
        tool.__doc__ = description
        return self._add(tool, asks=True)

    async def approving(self, spec: ToolSpec, call: str, input: dict[str, Any]) -> bool:
        """Whether a person has to approve a call. A rule that fails, or takes too long, asks: nobody has said that it
        may run."""
        tool = self._tools.get(spec.name)
        rule = True if tool is None else tool.person.approve
        if not callable(rule):
            return bool(rule)
        definition = self._core.registry.definitions[spec.kind]
        try:
            given = definition.signature.decode(input)
        except (ValueError, TypeError, BadPayload):
            return False  # a payload that is not a call of this tool is refused when it starts
        try:
            name = f"the approve= of tool {spec.name}"
            return bool(await self.calls.call(name, rule, CallView(id=call, name=spec.name, input=given)))
        except (Exception, SystemExit) as problem:  # noqa: BLE001  whatever a rule raises
            words = f"the approve= of tool {spec.name} failed, so a person is asked"
            log_with_traceback(log, logging.WARNING, words, traceback_of(problem))
            return True

    def _add(self, tool: Tool[Any, Any], *, asks: bool) -> Tool[Any, Any]:
        self._core.registry.add(tool.definition)
        if asks:
            self._ask_people()
        if not self._tools:
            self._prepare(lambda tx: declare_tools(tx, [each.spec for each in self._tools.values()]))
        self._tools[tool.name] = tool
        return tool


def _gaps(function: Callable[..., Any], doc: str | None, untyped: list[str]) -> Iterator[str]:
    """A model knows of a tool only what its docstring and its annotations say: this is what they leave out."""
    name = f"{function.__module__}.{getattr(function, '__qualname__', type(function).__qualname__)}"
    if not (doc or "").strip():
        yield f"tool {name} has no docstring: the model will not know what it does or when to call it."
    if untyped:
        yield f"tool {name} has no types for {', '.join(untyped)}: the model will not know what to pass."


def _check(asked: ToolOptions) -> None:
    if asked["effect"] not in ("read", "idempotent", "once"):
        raise BadSetting(f'effect must be "read", "idempotent" or "once"; got {asked["effect"]!r}.')
    if asked["otherwise"] not in ("deny", "approve"):
        raise BadSetting(f'otherwise must be "deny" or "approve"; got {asked["otherwise"]!r}.')
    if asked["unknown"] not in ("review", "report"):
        raise BadSetting(f'unknown must be "review" or "report"; got {asked["unknown"]!r}.')
    if not isinstance(asked["approve"], bool) and not callable(asked["approve"]):
        raise BadSetting(f"approve must be True, False or a function of the call; got {asked['approve']!r}.")


def _lane(kind: str, concurrency: int | None) -> LaneLimits | None:
    if concurrency is None:
        return None
    return LaneLimits(kind, True, validation.whole(concurrency, "concurrency", least=1), None, 1)
