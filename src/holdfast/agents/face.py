"""The app's face for agents: `@hf.tool`, `hf.agent`, `hf.session`, and the collections. Definitions do no I/O."""

from __future__ import annotations

import asyncio
import inspect
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar, cast, overload

from holdfast import checking, durations
from holdfast.agents import pruning, rescuing
from holdfast.agents.batches import submissions
from holdfast.agents.batches.submitting import BatchJobs
from holdfast.agents.book import NO_KEY, ModelBook
from holdfast.agents.capsules.replaying import Replay, replay
from holdfast.agents.collections import AgentsList, BatchesList, RunsList, SessionsList, Tenant
from holdfast.agents.compaction.automatic import compact_definition
from holdfast.agents.compaction.compacting import Compactor
from holdfast.agents.compaction.config import Compaction, check_compaction
from holdfast.agents.conversation import Session, session_wish
from holdfast.agents.creating import AgentName, Named, put_agent
from holdfast.agents.definitions import (
    AGENT_KIND,
    TOOL_KIND,
    AgentSpec,
    Effect,
    Limits,
    OnMaxTokens,
    ToolSearch,
    ToolSpec,
    check_numbers,
    check_search,
)
from holdfast.agents.ending import Following
from holdfast.agents.handles import Agent, Run
from holdfast.agents.inbox import During
from holdfast.agents.loop import RunLoop
from holdfast.agents.mcp.face import McpFace
from holdfast.agents.money.face import MoneyFace
from holdfast.agents.options import check_models
from holdfast.agents.outputs import Output
from holdfast.agents.people.face import PeopleFace
from holdfast.agents.plain import check_delegates, check_fields
from holdfast.agents.reaching import App
from holdfast.agents.serving import Serving, run_definition
from holdfast.agents.streams import Streams
from holdfast.agents.system import BATCH, system_definition
from holdfast.agents.tools import (
    Otherwise,
    Person,
    ServerTool,
    Tool,
    ToolContext,
    ToolSignature,
    Unknown,
    tool_name,
)
from holdfast.agents.uploads import UploadFace
from holdfast.clock import Ports
from holdfast.durations import Duration
from holdfast.errors import BadSetting, UsageError
from holdfast.events import CallView
from holdfast.kernel import encoding
from holdfast.kernel.database import drive
from holdfast.kernel.ids import new_id
from holdfast.kernel.retry import RetryPolicy
from holdfast.models.prices import Price
from holdfast.settings import Settings
from holdfast.workers.definitions import Definition, Isolation, Registry
from holdfast.workers.definitions import Limits as LaneLimits
from holdfast.workers.slots import BATCHED, TOOLS

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_INSTANT = RetryPolicy(attempts=2, backoff="constant", base="0s", jitter=0.0)


class AgentFace(PeopleFace, MoneyFace, McpFace, UploadFace):
    """What the app offers for agents. The app is one; this holds no rule of its own."""

    settings: Settings
    registry: Registry
    _ports: Ports
    _embedded: bool

    def _open_agents(self) -> None:
        self.watched: weakref.WeakSet[Run[Any]] | None = None  # for tests: the handles that a lab keeps fresh
        self.book = ModelBook(lambda: self.settings, lambda: self._ports)
        self._loop = RunLoop(
            self.book,
            lambda: self.settings,
            lambda: self._ports,
            approving=self._approving,
            notify=self._notifies,
        )
        self._play = self._loop.play
        self.compactor = Compactor(self.book, lambda: self.settings, lambda: self._ports)
        self._compacting = compact_definition(self.compactor)
        self._tools: dict[str, Tool[Any, Any]] = {}
        self._open_mcp()
        self._open_people()
        self._open_money(cast(App, self))
        self.defined: dict[str, Agent[Any]] = {}  # the agents of this program, by name
        self._streams: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Streams] = weakref.WeakKeyDictionary()
        app = cast(App, self)
        self.agents = AgentsList(app)
        self.sessions = SessionsList(app)
        self.runs = RunsList(app)
        self.batches = BatchesList(app)
        self.registry.adopt = Serving(self.registry, self._play, self._compacting, self._serve_beside).adopt
        self.registry.chores += [rescuing.CHORE, pruning.CHORE, submissions.CHORE]
        self.registry.kept[BATCH] = "cancel the runs that wait for it; without them it is cancelled at the provider too"

    @property
    def prices(self) -> Sequence[Price]:
        """Prices that come before the shipped ones: `hf.prices = [Price(model="claude-…", kind="input", …)]`."""
        return self.book.prices or ()

    @prices.setter
    def prices(self, prices: Sequence[Price]) -> None:
        self.book.prices = tuple(prices)

    def streams(self) -> Streams:
        """The readers of this event loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._streams:
            self._streams[loop] = Streams(cast(App, self).runtime().database, self._ports)
        return self._streams[loop]

    def tenant(self, id: str) -> Tenant:
        """The same app, seeing one tenant only: an id of another's is not found."""
        return Tenant(cast(App, self), id)

    async def replay(self, run: Run[Any] | str) -> Replay:
        """Play a run again from its record, in a copy, without key, network or its tools; says what was different."""

        def stage(url: str) -> Any:
            settings = replace(self.settings, url=url, direct_url="", pooler=False)
            return cast(Any, type(self))(url, settings=settings, embedded=False)

        id, tenant = (run, None) if isinstance(run, str) else (run.id, run.tenant)
        return await replay(cast(App, self), id, tenant, stage)

    @overload
    def tool(self, function: Callable[P, R], /) -> Tool[P, R]: ...

    @overload
    def tool(
        self,
        /,
        *,
        name: str | None = None,
        effect: Effect = "idempotent",
        timeout: Duration = "5m",
        retry: RetryPolicy | None = None,
        queue: str = "default",
        priority: int = 100,
        requires: Iterable[str] = (),
        isolate: Isolation | None = None,
        concurrency: int | None = None,
        strict: bool = False,
        defer: bool = False,
        approve: bool | Callable[[CallView], bool] = False,
        within: Duration | None = None,
        otherwise: Otherwise = "deny",
        unknown: Unknown = "review",
    ) -> Callable[[Callable[P, R]], Tool[P, R]]: ...

    def tool(self, function: Any = None, /, **options: Any) -> Any:
        """Make a typed function a tool that models may call: its docstring is what they are told of it.

        A class works too: its method `run` is what is called. `effect` says what calling it again would do: "read"
        changes nothing, "idempotent" may be repeated with the same key, "once" is started at most once. `timeout`
        limits one attempt; `retry` defaults to a second attempt at once. `requires` names capabilities its worker must
        have, `concurrency` limits it across all workers, `isolate="process"` runs it where a timeout can kill it.
        `defer` keeps its definition from the model until the agent's `tool_search` has found it.

        `approve=True`, or a function of the call that says so, lets a call wait for a person, who has `within` to
        decide before `otherwise` is done. A call of effect "once" of which nobody knows whether it took effect waits
        for a person too; `unknown="report"` tells the model instead.
        """
        if function is not None:
            return self._declare_tool(function)
        return lambda decorated: self._declare_tool(decorated, **options)

    def _declare_tool(  # noqa: PLR0913  the options of the decorator
        self,
        given: Any,
        *,
        name: str | None = None,
        effect: Effect = "idempotent",
        timeout: Duration = "5m",
        retry: RetryPolicy | None = None,
        queue: str = "default",
        priority: int = 100,
        requires: Iterable[str] = (),
        isolate: Isolation | None = None,
        concurrency: int | None = None,
        strict: bool = False,
        defer: bool = False,
        approve: bool | Callable[[CallView], bool] = False,
        within: Duration | None = None,
        otherwise: Otherwise = "deny",
        unknown: Unknown = "review",
        signature: ToolSignature | None = None,
    ) -> Tool[Any, Any]:
        function, called, doc = _callable(given)
        title = tool_name(name or called)
        if effect not in ("read", "idempotent", "once"):
            raise BadSetting(f'effect is "read", "idempotent" or "once", not {effect!r}.')
        if otherwise not in ("deny", "approve"):
            raise BadSetting(f'otherwise is "deny" or "approve", not {otherwise!r}.')
        if unknown not in ("review", "report"):
            raise BadSetting(f'unknown is "review" or "report", not {unknown!r}.')
        if not isinstance(approve, bool) and not callable(approve):
            raise BadSetting(f"approve is True, False or a function of the call, not {approve!r}.")
        kind = TOOL_KIND + title
        lane = None
        if concurrency is not None:
            checking.whole(concurrency, "concurrency", least=1)
            lane = LaneLimits(kind, True, concurrency, None, 1)
        definition = Definition(
            kind=kind,
            function=function,
            signature=signature or ToolSignature(kind, function, self.settings.tool_output_cap),
            queue=encoding.check_text(queue, what="a queue name"),
            requires=checking.capabilities(requires),
            retry=RetryPolicy.none() if effect == "once" else retry or _INSTANT,
            timeout_us=durations.microseconds(timeout),
            deadline_us=None,
            priority=priority,
            isolate=isolate,
            limits=lane,
            line=TOOLS,
            once=effect == "once",
            context=ToolContext,
        )
        self.registry.add(definition)
        person = Person(
            approve=approve,
            within_us=None if within is None else durations.microseconds(within),
            otherwise=otherwise,
            review=effect == "once" and unknown == "review",
        )
        if approve or person.review:
            self._serve_people()
        tool: Tool[Any, Any] = Tool(
            definition, function, name=title, effect=effect, strict=strict, defer=defer, person=person
        )
        tool.__doc__ = doc
        self._tools[title] = tool
        return tool

    def require_key(self, model: str) -> None:
        """`UsageError` when the worker in this process, if it may have one, could not ask this model."""
        if self._embedded and self.book.lacks_key(model):
            raise UsageError(f"model {model} cannot be asked: {NO_KEY}")

    def tool_named(self, name: str) -> ToolSpec:
        """A tool of this app as agents store it."""
        if name not in self._tools:
            known = ", ".join(sorted(self._tools)) or "none"
            raise UsageError(f"this app has no tool {name!r}; it has {known}.")
        return self._tools[name].spec

    @overload
    def agent(
        self,
        name: str,
        *,
        model: str,
        output: type[T],
        instructions: str = "",
        tools: Sequence[Tool[Any, Any] | ServerTool | dict[str, Any]] = (),
        agents: Sequence[Agent[Any]] = (),
        description: str = "",
        max_tokens: int = 4096,
        options: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        attempts: int = 5,
        tenant: str = "",
        metadata: Mapping[str, Any] | None = None,
        queue: str = "default",
        priority: int = 100,
        requires: Sequence[str] = (),
        caching: bool = True,
        compaction: Compaction | None = None,
        tool_search: ToolSearch | None = None,
        fallbacks: Sequence[str] = (),
        on_max_tokens: OnMaxTokens = "stop",
    ) -> Agent[T]: ...

    @overload
    def agent(
        self,
        name: str,
        *,
        model: str,
        output: None = None,
        instructions: str = "",
        tools: Sequence[Tool[Any, Any] | ServerTool | dict[str, Any]] = (),
        agents: Sequence[Agent[Any]] = (),
        description: str = "",
        max_tokens: int = 4096,
        options: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        attempts: int = 5,
        tenant: str = "",
        metadata: Mapping[str, Any] | None = None,
        queue: str = "default",
        priority: int = 100,
        requires: Sequence[str] = (),
        caching: bool = True,
        compaction: Compaction | None = None,
        tool_search: ToolSearch | None = None,
        fallbacks: Sequence[str] = (),
        on_max_tokens: OnMaxTokens = "stop",
    ) -> Agent[str]: ...

    def agent(  # noqa: PLR0913  what an agent is made of
        self,
        name: str,
        *,
        model: str,
        instructions: str = "",
        tools: Sequence[Tool[Any, Any] | ServerTool | dict[str, Any]] = (),
        agents: Sequence[Agent[Any]] = (),
        description: str = "",
        output: Any = None,
        max_tokens: int = 4096,
        options: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        attempts: int = 5,
        tenant: str = "",
        metadata: Mapping[str, Any] | None = None,
        queue: str = "default",
        priority: int = 100,
        requires: Sequence[str] = (),
        caching: bool = True,
        compaction: Compaction | None = None,
        tool_search: ToolSearch | None = None,
        fallbacks: Sequence[str] = (),
        on_max_tokens: OnMaxTokens = "stop",
    ) -> Agent[Any]:
        """Define an agent: a value, written as a version when it is first used.

        `tools` are tools of this app, `ServerTool`s or the provider's own JSON; `agents` may be called like tools, each
        call a run of its own. `output` is a type that the answer must have. `options` go to the model as they are
        (`{"effort": "high"}`). `attempts` is how often one call of the model may fail. `tool_search` ("regex" or
        "bm25") lets the model look for tools that are deferred. `fallbacks` are models that answer, in this order, when
        the one before them cannot or declines. An answer that `max_tokens` cut off is one by `on_max_tokens="stop"`;
        "continue" lets the model go on, a few times, and "ask" lets a person say so.
        """
        fields = {
            "instructions": instructions,
            "max_tokens": max_tokens,
            "options": options or {},
            "attempts": attempts,
        }
        check_fields(name, {**fields, "description": description, "priority": priority, "caching": caching})
        checking.instance(limits, "limits", Limits)
        check_numbers(max_tokens, attempts, priority, on_max_tokens)
        check_models(model, fallbacks, options or {}, max_tokens)
        check_delegates(name, agents)
        check_compaction(name, compaction)
        key = AgentName(
            encoding.check_text(name, what="an agent's name", cap=256),
            encoding.check_tenant(tenant),
            encoding.encode(checking.mapping(metadata, "metadata"), what="metadata", cap=self.settings.metadata_cap),
        )
        mine = [tool for tool in tools if isinstance(tool, Tool)]
        served = [tool.wire() if isinstance(tool, ServerTool) else tool for tool in tools if not isinstance(tool, Tool)]
        for tool in served:
            if not isinstance(tool, dict):
                raise UsageError(f"a tool is what @hf.tool made, a ServerTool or a dict, not {type(tool).__name__}.")
        check_search(name, tool_search, [tool.name for tool in mine if tool.defer], served)
        reader = None if output is None or output is str else Output(output)

        def make() -> Named:
            spec = AgentSpec(
                name=name,
                model=model,
                instructions=inspect.cleandoc(instructions),
                max_tokens=max_tokens,
                options=dict(options or {}),
                tools=tuple(tool.spec for tool in mine),
                agents=tuple(each.delegate() for each in agents),
                server_tools=tuple(served),
                output=None if reader is None else reader.schema(),
                limits=limits or Limits(),
                attempts=attempts,
                queue=queue,
                priority=priority,
                requires=tuple(sorted(requires)),
                caching=caching,
                compaction=None if compaction is None else compaction.plain(),
                tool_search=tool_search,
                fallbacks=tuple(fallbacks),
                on_max_tokens=on_max_tokens,
            )
            return Named(key, spec, description, tuple(each.named for each in agents))

        made: Agent[Any] = Agent(cast(App, self), key, make, reader)
        self.registry.add(run_definition(name, self._play, queue=queue, requires=requires, priority=priority))
        self._serve_beside()
        self.registry.preparing.append(lambda tx: put_agent(tx, made.named))
        if compaction is not None:
            self.registry.add(self._compacting)
        self.defined[name] = made
        return made

    def session(
        self,
        key: str | None = None,
        *,
        tenant: str = "",
        parent: Session | str | None = None,
        metadata: Mapping[str, Any] | None = None,
        during: During | None = None,
        tx: object | None = None,
    ) -> Session:
        """The session with this key, made when it is first used or awaited; without a key, a new one.

        `during` is its policy, when it is made, for messages that come while a run is under way.
        """
        app = cast(App, self)
        wish = session_wish(app, new_id(self._ports), key, parent, metadata, during)
        return Session(app, wish.id, key=key, tenant=encoding.check_tenant(tenant), wish=wish, tx=tx)

    def session_sync(
        self,
        key: str | None = None,
        *,
        tenant: str = "",
        parent: Session | str | None = None,
        metadata: Mapping[str, Any] | None = None,
        during: During | None = None,
        tx: object | None = None,
    ) -> Session:
        """`await session(…)` for code without an event loop; with `tx` it uses that connection, on this thread."""
        app = cast(App, self)
        made = self.session(key, tenant=tenant, parent=parent, metadata=metadata, during=during)
        if tx is not None:
            return drive(made.open(app.intake(tx, sync=True), lasting=False))

        async def opened() -> Session:
            return await made

        return app.call(opened())

    def _serve_beside(self) -> None:
        """Whoever serves agents takes part in their batches, and in what they ask of people."""
        if BATCH not in self.registry.definitions:
            jobs = BatchJobs(self._loop, lambda agent: AGENT_KIND + agent in self.registry.definitions)
            self.registry.add(system_definition(BATCH, jobs.play, line=BATCHED))
        self._serve_people()

    def _following(self) -> Following:
        return Following(self.settings.announced, self._notifies)


def _callable(given: Any) -> tuple[Callable[..., Any], str, str | None]:
    """What is called, what it is called, and what it says of itself."""
    if inspect.isclass(given):
        given = given()
    if inspect.isroutine(given) or not hasattr(given, "run"):
        if not callable(given):
            raise UsageError(f"a tool is a function, or a class with a method run; not {given!r}.")
        return given, getattr(given, "__name__", type(given).__name__), given.__doc__
    name = getattr(given, "name", None) or type(given).__name__.lower()
    doc = getattr(given, "description", None) or type(given).__doc__ or given.run.__doc__
    return given.run, name, doc
