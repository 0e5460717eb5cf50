"""Agents, runs and sessions as a program sees them. Making a handle does no I/O; waiting on a run does not run it."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from queue import Queue as ThreadQueue
from typing import Any, Generic, Literal, ParamSpec, Protocol, TypeVar, cast

from holdfast import durations
from holdfast.agents import reading
from holdfast.agents.contents import Prompt, blocks_of
from holdfast.agents.creating import (
    AgentName,
    Created,
    Named,
    SessionWish,
    Submission,
    create_run,
    open_session,
)
from holdfast.agents.deciding import run_job
from holdfast.agents.definitions import AgentSpec, Delegate, Limits, ToolSpec
from holdfast.agents.reading import MessageView, Turn
from holdfast.agents.records import CallRow, RunRow, SessionRow
from holdfast.agents.results import result_of, usage_of
from holdfast.agents.streams import ENDED, Streams
from holdfast.clock import Clock
from holdfast.durations import Duration
from holdfast.errors import NotFound, NoWorker, UsageError
from holdfast.events import Event, RunEnded, event_of
from holdfast.kernel import encoding
from holdfast.kernel.database import Operation, drive
from holdfast.kernel.ids import JobId, new_id
from holdfast.results import Result, Usage
from holdfast.runtime import Runtime
from holdfast.settings import Settings
from holdfast.transactions import Intake

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")

During = Literal["queue", "reject"]


class App(Protocol):
    """As much of the app as agents need."""

    settings: Settings
    watched: weakref.WeakSet[Run[Any]] | None

    def runtime(self) -> Runtime: ...

    def streams(self) -> Streams: ...

    def intake(self, tx: object | None, *, sync: bool = False) -> Intake: ...

    def call(self, coroutine: Coroutine[Any, Any, R]) -> R: ...

    async def ensure_worker(self, *, adopting: bool = False) -> None: ...

    async def why(self, id: str) -> str: ...

    def tool_named(self, name: str) -> ToolSpec: ...


class Reaching:
    """Whatever reaches the store through the app."""

    _app: App

    async def _transact(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._app.runtime().transact(operation, *args, **kwargs)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How one run is enqueued, beside its prompt."""

    session: str | Session | None = None
    key: str | None = None
    variables: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] | None = None
    tenant: str | None = None
    priority: int | None = None
    delay: Duration | None = None
    at: datetime | None = None
    limits: Limits | None = None
    model: str | None = None
    require_worker: bool = False
    notify: bool = True
    tx: object | None = None


class Agent(Generic[T]):
    """An agent: what it is told, which model answers, what it may use."""

    def __init__(
        self,
        app: App,
        name: AgentName,
        make: Callable[[], Named],
        decode: Callable[[Any, str], T] | None = None,
        stored: tuple[str, int] | None = None,
    ) -> None:
        """`make` is called at first use: schemas of tools may name classes that are declared later."""
        self._app = app
        self._make = make
        self._decode = decode
        self._stored = stored  # its id and version, once written
        self._name = name

    def __repr__(self) -> str:
        return f"Agent({self.name!r})"

    @property
    def name(self) -> str:
        return self._name.name

    @cached_property
    def named(self) -> Named:
        return self._make()

    @property
    def spec(self) -> AgentSpec:
        return self.named.spec

    @property
    def description(self) -> str:
        return self.named.description

    @property
    def tenant(self) -> str:
        return self._name.tenant

    @property
    def metadata(self) -> dict[str, Any]:
        return dict(encoding.decode(self._name.metadata))

    def delegate(self) -> Delegate:
        """This agent as another's tool."""
        return Delegate(name=self.name, description=self.description, queue=self.spec.queue)

    async def enqueue(self, prompt: Prompt, **options: Any) -> Run[T]:
        """Accept a run durably: when this returns, it is committed, or will be with the caller's `tx`.

        `session`: a key, a Session, or nothing for a new one. `key` makes repeated calls one run. `variables` are for
        the tools, never for the model. `limits`, `model`, `priority`, `delay`, `at`, `metadata`, `tenant` are this
        run's own. `require_worker` refuses when no worker alive serves this agent.
        """
        chosen = _options(options)
        intake = self._app.intake(chosen.tx)
        return await self._enqueue(intake, prompt, chosen)

    async def run(self, prompt: Prompt, **options: Any) -> Result[T]:
        """Enqueue, then wait for the result; starts a worker in this process if the app may embed one."""
        if options.get("tx") is not None:
            raise UsageError("nobody sees this run before your transaction commits: enqueue it, commit, then wait.")
        await self._app.ensure_worker(adopting=self._stored is not None)
        return await (await self.enqueue(prompt, **options)).result()

    def enqueue_sync(self, prompt: Prompt, **options: Any) -> Run[T]:
        """`enqueue` for code without an event loop; with `tx` it uses that connection, on this thread."""
        chosen = _options(options)
        if chosen.tx is None:
            return self._app.call(self.enqueue(prompt, **options))
        return drive(self._enqueue(self._app.intake(chosen.tx, sync=True), prompt, chosen))

    def run_sync(self, prompt: Prompt, **options: Any) -> Result[T]:
        return self._app.call(self.run(prompt, **options))

    async def enqueue_many(
        self, prompts: Iterable[Prompt], *, key: Callable[[Any], str] | None = None, **options: Any
    ) -> list[Run[T]]:
        """Accept many runs, each in a session of its own. `key` makes a run's idempotency key from its prompt."""
        if options.get("session") is not None:
            raise UsageError("runs of one session come one after the other: enqueue them one by one.")
        runs = []
        for prompt in prompts:
            own = {} if key is None else {"key": key(prompt)}
            runs.append(await self.enqueue(prompt, **options, **own))
        return runs

    async def _enqueue(self, intake: Intake, prompt: Prompt, options: RunOptions) -> Run[T]:
        if isinstance(options.session, Session):
            await options.session.open(intake)
        new = self._submission(intake, blocks_of(prompt), options)
        if options.require_worker:
            await self._require_worker(intake)
        topics = intake.settings
        prefix = topics.topic_prefix if topics.public_topics else ""
        created: Created = await intake.transact(create_run, new, prefix)
        if options.tx is None and self._stored is None:  # what a transaction may undo is not remembered
            self._stored = created.agent
        return Run(self._app, created.run, self._decode, session_id=created.session)

    async def _require_worker(self, intake: Intake) -> None:
        able = await intake.transact(reading.servers_of, self.spec.kind)
        if not able:
            raise NoWorker(
                f"no worker that is alive serves agent {self.name!r}: start one, or leave require_worker out."
            )

    def _submission(self, intake: Intake, blocks: list[dict[str, Any]], options: RunOptions) -> Submission:
        spec, settings = self.spec, intake.settings
        tenant = self.tenant if options.tenant is None else options.tenant
        wish = _session_wish(options.session, new_id(intake.ports))
        if isinstance(options.session, Session) and options.session.tenant is not None:
            if options.tenant not in (None, options.session.tenant):
                raise UsageError(f"session {options.session.id} does not belong to tenant {options.tenant!r}.")
            tenant = options.session.tenant
        job, route = run_job(
            new_id(intake.ports),
            spec.name,
            settings,
            tenant=tenant,
            queue=spec.queue,
            priority=spec.priority if options.priority is None else options.priority,
            requires=spec.requires,
            delay_us=None if options.delay is None else durations.microseconds(options.delay),
            due_at=None if options.at is None else _microseconds(options.at),
        )
        own: dict[str, Any] = {}
        if options.limits is not None:
            own["limits"] = asdict(options.limits)
        if options.model is not None:
            own["model"] = options.model
        return Submission(
            job=job,
            route=route,
            agent=self._stored or self.named,
            agent_name=spec.name,
            session=wish,
            input=encoding.encode(blocks, what="the prompt", cap=settings.prompt_cap),
            key=options.key,
            variables=encoding.encode(dict(options.variables or {}), what="variables", cap=settings.metadata_cap),
            metadata=encoding.encode(dict(options.metadata or {}), what="metadata", cap=settings.metadata_cap),
            options=encoding.encode(own, what="the options", cap=settings.metadata_cap),
            notify=options.notify,
        )


class Run(Reaching, Generic[T]):
    """A handle on one run."""

    def __init__(
        self,
        app: App,
        id: str,
        decode: Callable[[Any, str], T] | None = None,
        *,
        session_id: str | None = None,
        tenant: str | None = None,
    ) -> None:
        self._app = app
        self._decode = decode
        self._tenant = tenant  # None: any
        self.id = id
        self.session_id = session_id
        self.state: str | None = "pending" if session_id else None  # as this handle last saw it
        if app.watched is not None:
            app.watched.add(self)

    def __repr__(self) -> str:
        return f"Run({self.id}, state={self.state})"

    @property
    def clock(self) -> Clock:
        """The clock of its app."""
        return self._app.runtime().ports.clock

    async def refresh(self) -> RunRow:
        """The run as it stands in the store."""
        found = await self._transact(reading.find_run, self.id)
        if found is None or self._tenant not in (None, found.tenant):
            raise NotFound(f"there is no run {self.id} in this database.")
        self.state, self.session_id = found.state, found.session
        return found

    async def check(self) -> None:
        """`NotFound` when the run is another tenant's."""
        if self._tenant is not None:
            await self.refresh()

    async def result(self, *, timeout: Duration | None = None) -> Result[T]:
        """How it ended, once it has. `RunFailed` when it failed or was cancelled; the other outcomes are results.

        Cancelling the wait does not cancel the run. `ResultTimeout` when it has not ended in time.
        """
        await self.check()
        limit = None if timeout is None else durations.microseconds(timeout) / 1e6
        await self._app.runtime().expect(JobId(self.id), limit)
        row = await self._app.streams().wait(self.id, limit)
        self.state, self.session_id = row.state, row.session
        return cast(Result[T], result_of(row, self._decode))

    async def text(self, *, timeout: Duration | None = None) -> str:
        """The text of the result."""
        return (await self.result(timeout=timeout)).text

    async def stream(self, after: int = 0) -> AsyncIterator[Event]:
        """Every event after number `after`, then each as it happens, until the run has ended.

        A reader that lost its connection goes on with the `seq` of the last event it saw.
        """
        await self._app.runtime().expect(JobId(self.id), None)
        now = await self.refresh()
        if now.state in ENDED and after >= now.events:
            return
        async for row in self._app.streams().events(self.id, min(after, now.events)):
            event = event_of(row.run, row.seq, row.at, row.type, encoding.decode(row.data))
            yield self._with_result(event, await self.refresh()) if isinstance(event, RunEnded) else event

    def _with_result(self, event: RunEnded, row: RunRow) -> RunEnded:
        if row.state == "completed":
            return replace(event, result=result_of(row, self._decode))
        return replace(event, error=row.error or "", error_type=row.error_type or "")

    async def cancel(self, reason: str = "cancelled by its owner") -> str:
        """Cancel the run, its tool calls and every run below it; returns its state now."""
        await self.check()
        await self._app.runtime().cancel(JobId(self.id), reason)
        return (await self.refresh()).state

    async def usage(self) -> Usage:
        """What the run and everything below it has used."""
        row = await self.refresh()
        used = await self._transact(reading.tree_usage, row.root) if row.root == row.id else None
        return usage_of(row) if used is None else usage_of(used)

    async def turns(self) -> list[Turn]:
        await self.check()
        return await self._transact(reading.list_turns, self.id)

    async def calls(self) -> list[CallRow]:
        """The tool calls of the run, in the order in which they were asked for."""
        await self.check()
        return await self._transact(reading.list_calls, self.id)

    async def events(self, after: int = 0) -> list[Event]:
        """What is stored so far."""
        await self.check()
        rows = await self._transact(reading.stored_events, self.id, after)
        return [event_of(row.run, row.seq, row.at, row.type, encoding.decode(row.data)) for row in rows]

    async def children(self) -> list[RunRow]:
        await self.check()
        return await self._transact(reading.list_runs, parent=self.id, limit=1_000)

    async def why(self) -> str:
        """What the run waits for, in words; empty when nothing keeps it."""
        await self.check()
        return await self._app.why(self.id)

    def result_sync(self, *, timeout: Duration | None = None) -> Result[T]:
        return self._app.call(self.result(timeout=timeout))

    def cancel_sync(self, reason: str = "cancelled by its owner") -> str:
        return self._app.call(self.cancel(reason))

    def stream_sync(self, after: int = 0) -> Iterator[Event]:
        """`stream` for code without an event loop."""
        events: ThreadQueue[Event | BaseException | None] = ThreadQueue()

        async def read() -> None:
            try:
                async for event in self.stream(after):
                    events.put(event)
                events.put(None)
            except BaseException as problem:  # noqa: BLE001  raised again on the caller's thread
                events.put(problem)

        async def begin() -> asyncio.Task[None]:
            return asyncio.create_task(read())

        reading = self._app.call(begin())
        try:
            while (event := events.get()) is not None:
                if isinstance(event, BaseException):
                    raise event
                yield event
        finally:  # the caller may have seen enough
            with contextlib.suppress(RuntimeError):  # the app is closed
                reading.get_loop().call_soon_threadsafe(reading.cancel)


class Session(Reaching):
    """A conversation: its runs come one after the other.

    `hf.session(key)` is a handle; `await` it to have the session made and its id known, or just use it.
    """

    def __init__(
        self,
        app: App,
        id: str,
        *,
        key: str | None = None,
        tenant: str | None = "",
        wish: SessionWish | None = None,
        tx: object | None = None,
    ) -> None:
        self._app = app
        self.id = id
        self.key = key
        self.tenant = tenant  # None: any
        self._wish = wish  # to be made, or found by its key, at first use
        self._tx = tx

    def __repr__(self) -> str:
        return f"Session({self.key or self.id!r})"

    def __await__(self) -> Generator[Any, None, Session]:
        return self.open(self._app.intake(self._tx)).__await__()

    async def open(self, intake: Intake) -> Session:
        """See that the session is there, as part of what is taken in."""
        if self._wish is not None:
            row = await intake.transact(open_session, self._wish, self.tenant or "")
            self.id, self.key, self._wish = row.id, row.key, None
        return self

    async def refresh(self) -> SessionRow:
        await self
        return await self._transact(reading.find_session, self.id, self.tenant)

    async def check(self) -> None:
        """`NotFound` when the session is another tenant's."""
        await self
        if self.tenant is not None:
            await self.refresh()

    async def send(self, prompt: Prompt, agent: Agent[T], *, during: During = "queue", **options: Any) -> Run[T]:
        """A message for an agent in this session. While a run is under way: "queue" it, or "reject" it."""
        if during not in ("queue", "reject"):
            raise UsageError(f'during is "queue" or "reject", not {during!r}.')
        await self.check()
        if during == "reject" and await self._transact(reading.live_run, self.id):
            raise UsageError(f"session {self.key or self.id} has a run under way, and this message was not to wait.")
        return await agent.enqueue(prompt, session=self, **options)

    async def messages(self, *, after: int = 0, limit: int = 1_000) -> list[MessageView]:
        """The conversation so far, without what happened inside the agents that were called as tools."""
        await self.check()
        return await self._transact(reading.list_messages, self.id, after=after, limit=limit)

    async def runs(self, *, limit: int = 100) -> list[RunRow]:
        await self.check()
        return await self._transact(reading.list_runs, session=self.id, limit=limit)

    async def usage(self) -> Usage:
        await self.check()
        used = await self._transact(reading.session_usage, self.id)
        assert used is not None, "a count has one row"
        return usage_of(used)

    async def update(self, *, metadata: Mapping[str, Any]) -> SessionRow:
        await self.check()
        text = encoding.encode(dict(metadata), what="metadata", cap=self._app.settings.metadata_cap)
        return await self._transact(reading.update_session, self.id, text)

    async def delete(self) -> None:
        """Remove the session with its messages and runs. Refused while one of them is under way."""
        await self.check()
        await self._transact(reading.delete_session, self.id)


def session_wish(
    app: App, id: str, key: str | None, parent: Session | str | None, metadata: Mapping[str, Any] | None
) -> SessionWish:
    text = encoding.encode(dict(metadata or {}), what="metadata", cap=app.settings.metadata_cap)
    return SessionWish(id, key, parent=parent.id if isinstance(parent, Session) else parent, metadata=text)


def _session_wish(session: str | Session | None, fresh: str) -> SessionWish:
    match session:
        case None:
            return SessionWish(fresh)
        case Session():
            return SessionWish(session.id, known=True)
        case str():
            return SessionWish(fresh, encoding.check_text(session, what="a session's key"))
        case _:
            raise UsageError(f"session is a key or a Session, not {type(session).__name__}.")


def _options(options: Mapping[str, Any]) -> RunOptions:
    unknown = sorted(options.keys() - set(RunOptions.__dataclass_fields__))
    if unknown:
        known = ", ".join(sorted(RunOptions.__dataclass_fields__))
        raise UsageError(f"{unknown[0]!r} is not an option of a run; there are {known}.")
    return RunOptions(**options)


def _microseconds(moment: datetime) -> int:
    if moment.tzinfo is None:
        raise UsageError("at= needs a time zone: datetime(…, tzinfo=UTC).")
    return round((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1e6)
