"""The app: the public calls, each handed to the part that does it. It decides nothing.

Constructing it and decorating functions touches neither network nor database.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack, overload

from holdfast import validation
from holdfast.agents.api.agent import Agent
from holdfast.agents.api.declarations import AgentOptions, declare_agent
from holdfast.agents.api.lists import AgentsList, BatchesList, LanesList, RunsList, SessionsList, Tenant
from holdfast.agents.api.session import Session, SessionOptions, new_session
from holdfast.agents.core import AgentsCore
from holdfast.agents.events.reader import TopicEvent, topics
from holdfast.agents.money.api import BudgetsList
from holdfast.agents.people.rulings import AppInquiries
from holdfast.agents.toolbox import ToolOptions
from holdfast.agents.tools import Tool
from holdfast.client.declarations import (
    CatchUp,
    Declarations,
    JobDecorator,
    JobOptions,
    ScheduleDecorator,
    ScheduledJobOptions,
)
from holdfast.client.handles import Jobs, Queues, Schedules, Workers
from holdfast.client.jobs import ContextAsync, ContextJob, Job, PlainAsync, PlainJob
from holdfast.clock import Ports
from holdfast.errors import MissingExtra, UsageError
from holdfast.kernel.drivers import connect
from holdfast.observe import Callback, EventStream, Listening
from holdfast.resp import DEFAULT_BIND
from holdfast.settings import DEFAULT_URL, Settings
from holdfast.sync import Sync
from holdfast.threads import refuse_on_a_loop
from holdfast.values.jobs import Why, why_of

if TYPE_CHECKING:
    from holdfast.access.access import Access
    from holdfast.access.principals import WebAccess
    from holdfast.access.webhooks import Target, WebhookOptions
    from holdfast.agents.api.scheduled_runs import ScheduledRunOptions
    from holdfast.agents.content import Document, Image, Prompt
    from holdfast.agents.mcp.tools import McpOptions, McpTools
    from holdfast.agents.values import Inquiry
    from holdfast.asgi import AsgiApp
    from holdfast.brokers.broker import Broker, BrokerOptions, Brokers, NamedJobOptions
    from holdfast.client.queues import Queue
    from holdfast.durations import Duration
    from holdfast.machines.api import Machine, MachineOptions, Machines
    from holdfast.models.registry import Provider
    from holdfast.models.script import Script
    from holdfast.pools.pool import Pool, PoolOptions
    from holdfast.pools.size import WorkerPool
    from holdfast.pools.stats import Pools
    from holdfast.resp.options import RespServing
    from holdfast.resp.server import RespServer, RespServers
    from holdfast.workers.context import JobContext
    from holdfast.workers.role import Role

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Part(Generic[T]):
    """A part of an app: imported, and made of the app's core, when the app is first asked for it.

    With `billing: Part[Billing] = Part("acme.billing:Billing")` in a subclass of `Holdfast`, `hf.billing` is a
    `Billing(core)`. `layer` names a class of which every app has an object from its beginning: a worker of any program
    may meet jobs of a part that it never uses. So a layer is a small module, and imports the rest when it needs it.
    """

    def __init__(self, home: str, *, layer: str | None = None) -> None:
        """`home` and `layer` are written `module:name`."""
        self.home = home
        self.layer = layer
        self._making = threading.RLock()  # callers without a loop may come on several threads

    def __set_name__(self, owner: type[Holdfast], name: str) -> None:
        self._name = name

    @overload
    def __get__(self, app: None, owner: type[Holdfast]) -> Self: ...

    @overload
    def __get__(self, app: Holdfast, owner: type[Holdfast]) -> T: ...

    def __get__(self, app: Holdfast | None, owner: type[Holdfast]) -> Self | T:
        if app is None:
            return self
        made: T
        with self._making:
            if self._name not in vars(app):
                vars(app)[self._name] = imported(self.home)(app._core)  # where it is found from now on
            made = vars(app)[self._name]
        return made


def imported(home: str) -> Any:
    """What `module:name` names."""
    module, _, name = home.partition(":")
    return getattr(import_module(module), name)


def _parts_of(kind: type[Holdfast]) -> Iterator[Part[Any]]:
    for each in reversed(kind.__mro__):
        yield from (part for part in vars(each).values() if isinstance(part, Part))


class Holdfast:
    """Durable agents and jobs on one database: `url` says which, else `HOLDFAST_URL`, else a file in `.holdfast/`."""

    access: Part[Access] = Part("holdfast.access.access:Access")
    pools: Part[Pools] = Part("holdfast.pools.stats:Pools")
    _brokers: Part[Brokers] = Part("holdfast.brokers.broker:Brokers")
    _machines: Part[Machines] = Part("holdfast.machines.api:Machines", layer="holdfast.machines.layer:MachineLayer")
    _mcp: Part[McpTools] = Part("holdfast.agents.mcp.tools:McpTools")
    _resp: Part[RespServers] = Part("holdfast.resp.server:RespServers", layer="holdfast.resp.layer:RespLayer")

    def __init__(
        self,
        url: str | None = None,
        *,
        settings: Settings | None = None,
        embedded: bool = True,
        ports: Ports | None = None,
    ) -> None:
        settings = settings or Settings.from_environment()
        if url:
            settings = replace(settings, url=url)
        core = self._core = AgentsCore(settings, ports or Ports(), embedded=embedded)
        for part in _parts_of(type(self)):
            if part.layer is not None:
                core.registry.plug_in(imported(part.layer)())
        core.recorder = self._record
        self._declarations = Declarations(core)
        self.jobs = Jobs(core)
        self.queues = Queues(core)
        self.schedules = Schedules(core)
        self.workers = Workers(core)
        self.agents = AgentsList(core)
        self.sessions = SessionsList(core)
        self.runs = RunsList(core)
        self.batches = BatchesList(core)
        self.inquiries = AppInquiries(core)
        self.budgets = BudgetsList(core)
        self.lanes = LanesList(core)
        self.sync = Sync(core, lambda: self._mcp)

    def _record(self, action: str, subject: str, by: str) -> AbstractAsyncContextManager[None]:
        return self.access.audit.by_program(action, subject, by)

    @property
    def settings(self) -> Settings:
        """The settings in force; `settings.url` is the database. New settings that name no database keep it."""
        return self._core.settings

    @settings.setter
    def settings(self, settings: Settings) -> None:
        keeps = settings.url == DEFAULT_URL
        self._core.settings = replace(settings, url=self._core.settings.url) if keeps else settings

    @overload
    def job(self, function: Callable[Concatenate[JobContext, P], Coroutine[Any, Any, R]], /) -> ContextAsync[P, R]: ...

    @overload
    def job(self, function: Callable[Concatenate[JobContext, P], R], /) -> ContextJob[P, R]: ...

    @overload
    def job(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> PlainAsync[P, R]: ...

    @overload
    def job(self, function: Callable[P, R], /) -> PlainJob[P, R]: ...

    @overload
    def job(self, /, **options: Unpack[JobOptions]) -> JobDecorator: ...

    def job(self, function: Callable[..., Any] | None = None, /, **options: Unpack[JobOptions]) -> Any:
        """Make a function a job: `@hf.job`, or `@hf.job(queue="images", timeout="2m", retry=Retry(attempts=5))`.

        `name` is its kind in the store (default: module.function). `timeout` limits one attempt, `deadline` all
        of them together. A lower `priority` runs first. `requires` names capabilities its worker must have.
        `isolate="process"` runs it where a timeout or a cancel can kill it.

        `concurrency` and `rate` ("100/min") limit it across all workers, each `lane=` of a call for itself. `unique`
        keeps a second one away while the first is "pending" or "live", or within a window such as "10m";
        `on_duplicate="replace"` lets the newer call change what nobody has started. `debounce="5s"` starts one job
        when the calls have been quiet for so long.
        """
        if function is not None:
            return self._declarations.job(function, **options)
        return lambda decorated: self._declarations.job(decorated, **options)

    @overload
    def schedule(
        self,
        cron: str,
        *,
        timezone: str = "UTC",
        catch_up: CatchUp = "one",
        name: str | None = None,
        args: Mapping[str, Any] | None = None,
        **options: Unpack[ScheduledJobOptions],
    ) -> ScheduleDecorator: ...

    @overload
    def schedule(
        self,
        cron: str,
        *,
        agent: Agent[Any] | str,
        prompt: Prompt,
        timezone: str = "UTC",
        catch_up: CatchUp = "one",
        name: str | None = None,
        **options: Unpack[ScheduledRunOptions],
    ) -> None: ...

    def schedule(
        self,
        cron: str,
        *,
        agent: Agent[Any] | str | None = None,
        prompt: Prompt | None = None,
        timezone: str = "UTC",
        catch_up: CatchUp = "one",
        name: str | None = None,
        args: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> ScheduleDecorator | None:
        """Make a function a job that the clock enqueues: `@hf.schedule("0 3 * * *", timezone="Europe/Athens")`.

        `cron` may also be "@daily" or "every 5m". After an outage `catch_up` enqueues one job for all that was missed
        ("one"), one for each ("all"), or none that is more than a minute late ("none"). A tick is enqueued once,
        whatever happens. `args` are the function's arguments; the other options are those of `@hf.job`. A parameter
        `scheduled_for: datetime` is given the tick, which is also `ctx.scheduled_for`.

        With `agent` and `prompt` each tick starts one run of the agent instead, with the options of a run. The tick is
        `scheduled_for` in the run's metadata: `hf.schedule("0 7 * * 1-5", agent=guide, prompt="Sum up the night.")`.
        """
        if agent is None and prompt is None:
            return self._declarations.schedule(cron, timezone, catch_up, name, args, **options)
        if agent is None or prompt is None or args is not None:
            raise UsageError("a scheduled run needs agent= and prompt=, and takes no args=.")
        rhythm: dict[str, Any] = {"timezone": timezone, "catch_up": catch_up, "name": name}
        from holdfast.agents.api.scheduled_runs import schedule_run

        schedule_run(self._core, cron, agent, prompt, **rhythm, options=options)
        return None

    def queue(self, name: str, policy: Queue) -> None:
        """Declare a queue's policy; jobs declared for that queue follow it. Declare it before them."""
        self._declarations.queue(name, policy)

    def pool(self, name: str, policy: WorkerPool | None = None, /, **options: Unpack[PoolOptions]) -> Pool:
        """A pool of workers that grows and shrinks with its work: `async with hf.pool("render", min=0, max=8): ...`.

        The options are those of `WorkerPool`. Its workers are tasks of this process, each with its own connections;
        `launcher=` starts them elsewhere, as `Subprocesses("app:hf")` does, or `holdfast pool app:hf`.
        """
        from holdfast.pools.pool import Pool, policy_from

        launcher = options.pop("launcher", None)
        if policy is not None and options:
            raise UsageError("give a pool either a WorkerPool or its options, not both.")
        return Pool(self._core, name, policy or policy_from(options), launcher)

    @overload
    def tool(self, function: Callable[P, R], /) -> Tool[P, R]: ...

    @overload
    def tool(self, /, **options: Unpack[ToolOptions]) -> Callable[[Callable[P, R]], Tool[P, R]]: ...

    def tool(self, function: Any = None, /, **options: Unpack[ToolOptions]) -> Any:
        """Make a typed function a tool that models may call: they read its docstring.

        A class works too: its method `run` is what is called. `effect` says what calling it again would do: "read"
        changes nothing, "idempotent" may be repeated with the same key, "once" is started at most once. `timeout`
        limits one attempt; `retry` defaults to a second attempt at once. `requires` names capabilities its worker must
        have, `concurrency` limits it across all workers, `isolate="process"` runs it where a timeout can kill it.
        `defer` keeps its definition from the model until the agent's `tool_search` has found it.

        `approve=True`, or a function (sync or async) that says so, lets a call wait for a person, who has `within` to
        decide before `otherwise` is done; a function that raises or takes a minute asks. A call of effect "once" whose
        outcome is unknown waits for a person too; `unknown="report"` tells the model instead.
        """
        if function is not None:
            return self._core.tools.declare(function, **options)
        return lambda decorated: self._core.tools.declare(decorated, **options)

    async def mcp(self, name: str, **options: Unpack[McpOptions]) -> list[Tool[Any, Any]]:
        """Add the tools of an MCP server to this app: `await hf.mcp("files", command=["python", "-m", "files"])`.

        `command` is started and spoken to on its standard streams, with `env` beside the few variables that are safe to
        inherit; `url` is spoken to over streamable HTTP, with `headers`. The server is asked once for its tools; a tool
        `read` of the server `files` is called `files_read`, or with another `prefix` ("" for none). `only` selects by
        the server's names.

        `effect` is that of all tools, `effects` that of single ones, by the server's names. Without either a tool that
        the server calls read-only has "read", any other "idempotent". The other options are those of `@hf.tool`, for
        each tool. Every process that works has to call this; `hf.sync.mcp` can do it while a module is imported.
        """
        return await self._mcp.declare(name, **options)

    @overload
    def agent(self, name: str, *, model: str, output: type[T], **options: Unpack[AgentOptions]) -> Agent[T]: ...

    @overload
    def agent(self, name: str, *, model: str, output: None = None, **options: Unpack[AgentOptions]) -> Agent[str]: ...

    def agent(self, name: str, *, model: str, output: Any = None, **options: Unpack[AgentOptions]) -> Agent[Any]:
        """Define an agent: a value, written as a version when it is first used.

        `tools` are tools of this app, `ServerTool`s or the provider's own JSON; `agents` may be called like tools, each
        call a run of its own. `output` is a type that the answer must have. `options` go to the model as they are
        (`{"effort": "high"}`). `attempts` is how often one call of the model may fail. `tool_search` ("regex" or
        "bm25") lets the model look for deferred tools. `fallbacks` answer, in this order, when the model before them
        cannot, declines, or has failed for `fallback_after` (None: as long as a run waits for a provider at all).
        After `max_tokens`, `on_max_tokens` says: "stop", "continue" by itself a few times, or "ask" a person.
        """
        return declare_agent(self._core, name, model, output, **options)

    @overload
    def machine(self, path: str | Path, *, output: type[T], **options: Unpack[MachineOptions]) -> Machine[T]: ...

    @overload
    def machine(
        self, path: str | Path, *, output: None = None, **options: Unpack[MachineOptions]
    ) -> Machine[dict[str, Any]]: ...

    def machine(self, path: str | Path, *, output: Any = None, **options: Unpack[MachineOptions]) -> Machine[Any]:
        """Load a machine from its file, check it and all machines that it runs, and let workers here play them.

        `hooks` do its actions: a class, an object, a function of `(action, context)`, a list of these, or a mapping of
        the names that the file uses. `machines` says which file a name in it stands for. `output` is a type that its
        result must have. `BadMachine` lists every mistake, with its line and column. Needs the extra `machines`.
        """
        return self._machines.declare(path, output, **options)

    def webhook(self, name: str, to: Target, secret: str | Sequence[str], **options: Unpack[WebhookOptions]) -> None:
        """Take signed deliveries of another system at `/hooks/{name}` of `hf.web()`, each once.

        Its JSON becomes the arguments of a job, the prompt of an agent or the input of a machine; `using` makes
        something else of it first. What comes of it belongs to `tenant`; `secret` is what signs it, or two of them.
        """
        self.access.webhooks.declare(name, to, secret, **options)

    def script(self, name: str, script: Script) -> None:
        """After `hf.script("guide", …)` "scripted:guide" plays it; by a real model's name it answers in its place."""
        from holdfast.models.script import Script

        validation.instance(script, "script", Script)
        self._core.book.add_script(name, script)

    def provider(self, prefix: str, provider: Provider) -> None:
        """After `hf.provider("openai", OpenAICompatible())`, "openai:gpt-5" is a model, for workers of this program."""
        self._core.book.providers.add(prefix, provider)

    async def upload(self, path: str | Path, *, expires_in: Duration | None = None) -> Document | Image:
        """Upload a file to the provider, with the key that is here: an Image if it is a picture, else a Document.

        It is kept until it is deleted there, or for `expires_in` ("30d"; an hour to ninety days).
        """
        from holdfast.agents.api.upload import upload

        return await upload(self._core.book, path, expires_in=expires_in)

    def session(
        self, key: str | None = None, *, tx: object | None = None, **options: Unpack[SessionOptions]
    ) -> Session:
        """The session with this key, made when it is first used or awaited; without a key, a new one.

        `parent` is a session above it. `during` is its policy for messages that come while a run is under way.
        """
        return new_session(self._core, key, tx=tx, **options)

    def tenant(self, id: str) -> Tenant:
        """The same app, seeing one tenant only: an id of another's is not found."""
        return Tenant(self._core, id)

    async def signal(
        self, channel: str, payload: Any = None, *, key: str | None = None, tx: object | None = None
    ) -> None:
        """Send a durable signal; the job that waits on the channel takes it, now or whenever it comes to wait.

        Sent again with the same `key` it is the same signal, also after a job has taken it; another payload raises
        `SignalConflict`. With `tx`, a connection of the caller's, it is sent when that transaction commits.
        """
        await self._core.signal(channel, payload, key, self._core.intake(tx))

    async def enqueue(
        self,
        kind: str,
        payload: Any = None,
        *,
        queue: str | None = None,
        requires: Sequence[str] = (),
        **options: Unpack[NamedJobOptions],
    ) -> Job[Any]:
        """Enqueue a job by its name: it waits for a broker, or for a worker that knows its kind.

        `payload` is JSON, or bytes. For a worker's function it is an object with the arguments by name. `requires`
        names capabilities that the broker or worker must have, `attempts` how often it may be tried; the other options
        are those of an enqueue. A kind that this program declares keeps what its declaration says.
        """
        return await self._brokers.enqueue(kind, payload, queue=queue, requires=requires, **options)

    def broker(self, **options: Unpack[BrokerOptions]) -> Broker:
        """Claim jobs without handlers: `async with hf.broker(queues=["mail"]) as broker: lease = await broker.claim()`.

        It takes jobs of every kind from its `queues`, or only of the kinds in `capabilities` ("job:resize"), no more
        than `slots` (20) at once. `renewal="manual"` leaves it to you to renew each lease; otherwise each is renewed
        until it ends. `lease_ttl` is how long a claim holds without renewal.
        """
        return self._brokers.broker(**options)

    def resp(self, bind: str | None = DEFAULT_BIND, **options: Unpack[RespServing]) -> RespServer:
        """Serve Redis clients: `async with hf.resp("127.0.0.1:6380"): ...`. Port 0 is any free one; `.port` says which.

        `workers` maps worker ids to their keys, 64 hex digits each, beside those that `holdfast resp keys add` has
        stored. `pop_form` is how BRPOP replies to a client that does not say: the value ("bulk"), or key and value
        ("array"). `unix` is the path of a socket for processes of the same user; then `bind` may be None.
        """
        return self._resp.server(bind, **options)

    async def approve(
        self, id: str, *, digest: str | None = None, by: str = "", input: dict[str, Any] | None = None
    ) -> Inquiry:
        """`hf.inquiries.approve`: approve a call, or let a run continue."""
        return await self.inquiries.approve(id, digest=digest, by=by, input=input)

    async def deny(self, id: str, *, digest: str | None = None, by: str = "", message: str = "") -> Inquiry:
        """`hf.inquiries.deny`: deny a call, or end a run that asked to continue."""
        return await self.inquiries.deny(id, digest=digest, by=by, message=message)

    async def answer(self, id: str, answer: Any, *, digest: str | None = None, by: str = "") -> Inquiry:
        """`hf.inquiries.answer`: answer a question, or provide the result of a call."""
        return await self.inquiries.answer(id, answer, digest=digest, by=by)

    @overload
    def events(self, *names: str, buffer: int = 1_000) -> EventStream: ...

    @overload
    def events(self, *names: str, after: str) -> AsyncIterator[TopicEvent]: ...

    @overload
    def events(self, *names: str, to: Callback) -> Listening: ...

    def events(self, *names: str, buffer: int = 1_000, after: str | None = None, to: Callback | None = None) -> Any:
        """What this app does in this process, as it happens: `async for event in hf.events("job.ended"): ...`.

        Without names, every event. A reader that falls more than `buffer` events behind loses its oldest ones.

        With `after`, what happens to all runs in the store, in any process: the five public topics, from a cursor on
        ("" is the beginning, "now" the end), and nothing is lost.

        With `to`, each event is given to that function, on the spot: it must be quick. Stop with `.stop()` or a `with`
        block.
        """
        if after is not None and to is not None:
            raise UsageError("events are read from a cursor (after=) or given to a function (to=), not both.")
        if after is not None:
            return topics(self._core.opened, self._core.ports, after, names)
        if to is not None:
            return self._core.ports.events.listen(to, names)
        return EventStream(self._core.ports.events, names, buffer=buffer)

    async def why(self, id: str) -> Why:
        """Why a job or a run does not continue: what keeps it, and until when if that is known; else it is empty.

        Printed, it is a sentence for each reason.
        """
        return why_of(await self._core.reasons(id))

    def web(self, **options: Unpack[WebAccess]) -> AsgiApp:
        """Pages and JSON API as an ASGI app, for any path: `app.mount("/ops", hf.web(who=current_user))`.

        `who` is given a request and returns a `Principal`, or None for nobody; without it, tokens and logins count.
        `tenant` binds all who come to one tenant, `metadata` to sessions that have these. `read_only` refuses changes.
        `gateway` is the agent, or an `InProcessGateway`, that answers at `/gateway`. Lists show the
        keys of metadata in `columns`, and one chooses by those in `filters`. Needs the extra `http`.
        """
        try:
            web = imported("holdfast.http.app:web")
        except ModuleNotFoundError as missing:
            if missing.name not in ("fastapi", "starlette", "jinja2", "markdown_it"):
                raise
            raise MissingExtra("http", "the web") from None
        app: AsgiApp = web(self, **options)
        return app

    async def migrate(self, *, force: bool = False) -> list[str]:
        """Migrate the tables to this version; says what it did. `MigrationRefused` if that would stop live workers."""
        from holdfast.kernel import migrate

        database = connect(self.settings.url, self.settings, self._core.ports)
        await database.connect()
        try:
            return await migrate.migrate(database, self.settings.schema, force=force)
        finally:
            await database.close()

    async def work(self, role: Role | None = None) -> None:
        """Be a worker until cancelled, or until the role's end is reached."""
        await self._core.opened()
        self._core.log_warnings()
        await self._core.work(role)

    def work_sync(self, role: Role | None = None) -> None:
        """`work` for a program without an event loop; Ctrl-C drains."""
        refuse_on_a_loop("hf.work_sync")

        async def work_and_close() -> None:
            try:
                await self.work(role)
            finally:
                await self.close()

        asyncio.run(work_and_close())

    async def ensure_worker(self) -> None:
        """Start a worker in this process, unless it has one; not with `embedded=False`, nor if nothing is declared."""
        await self._core.ensure_worker()

    async def __aenter__(self) -> Self:
        await self._core.ensure_worker()
        await self._core.opened()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Drain the embedded worker of this loop and close its connections."""
        await self._core.close()

    @asynccontextmanager
    async def lifespan(self, _app: object = None) -> AsyncIterator[None]:
        """For `FastAPI(lifespan=hf.lifespan)`."""
        await self.__aenter__()
        try:
            yield
        finally:
            await self._core.close_with_server()


def core_of(app: Holdfast) -> AgentsCore:
    """What is behind the app's public calls, for tests and for what is built on the app. Any release may change it."""
    return app._core


def machines_of(app: Holdfast) -> Machines:
    """The machines of the app, for what is built on it; see `core_of`."""
    return app._machines
