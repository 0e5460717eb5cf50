"""Agents and runs as a program sees them. Making a handle does no I/O; waiting on a run does not run it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar, Unpack, cast

from holdfast import checking, durations
from holdfast.agents import inbox, reading
from holdfast.agents.batches.choosing import choose
from holdfast.agents.capsules.capsules import gather
from holdfast.agents.capsules.exporting import Exported, export
from holdfast.agents.capsules.recording import record_runs, save
from holdfast.agents.contents import Prompt, blocks_of
from holdfast.agents.conversation import Session, wish_for
from holdfast.agents.creating import AgentName, Named, Submission, create_runs
from holdfast.agents.deciding import run_job
from holdfast.agents.definitions import AgentSpec, Delegate, Limits, Mode
from holdfast.agents.files import check_fresh
from holdfast.agents.forks.forking import find_fork, find_origin, fork_run
from holdfast.agents.forks.options import ForkOptions
from holdfast.agents.forks.simulating import Tools
from holdfast.agents.options import RunOptions, RunOptionsDict, check_model, chosen, microseconds
from holdfast.agents.people.face import Inquiry, inquiry_of
from holdfast.agents.people.inquiries import open_inquiries
from holdfast.agents.reaching import App, Reaching
from holdfast.agents.reading import Turn
from holdfast.agents.records import CallRow, RunRow
from holdfast.agents.results import result_of, usage_of
from holdfast.agents.streams import ENDED
from holdfast.clock import Clock
from holdfast.durations import Duration
from holdfast.errors import NotFound, NoWorker, UsageError
from holdfast.events import Event, RunEnded, event_of
from holdfast.kernel import encoding
from holdfast.kernel.database import drive
from holdfast.kernel.ids import JobId, new_id
from holdfast.results import Result, Usage
from holdfast.transactions import Intake

T = TypeVar("T")

_TOGETHER = 1_000  # runs that one transaction takes in


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
        spec = self.spec
        return Delegate(
            name=self.name,
            description=self.description,
            queue=spec.queue,
            priority=spec.priority,
            requires=spec.requires,
        )

    async def enqueue(self, prompt: Prompt, **options: Unpack[RunOptionsDict]) -> Run[T]:
        """Accept a run durably: when this returns, it is committed, or will be with the caller's `tx`.

        `session`: a key, a Session, or nothing for a new one. `key` makes repeated calls one run. `variables` are for
        the tools, never for the model. `limits`, `model`, `priority`, `delay`, `at`, `metadata`, `tenant` are this
        run's own. `require_worker` refuses when no worker alive serves this agent. With a `deadline` ("6h") the runtime
        chooses whether the model is asked at once or by a batch, at half the price; `mode` says so outright.
        """
        own = chosen(options)
        return await self._enqueue(self._app.intake(own.tx), prompt, own)

    async def run(self, prompt: Prompt, **options: Unpack[RunOptionsDict]) -> Result[T]:
        """Enqueue, then wait for the result; starts a worker in this process if the app may embed one."""
        if options.get("tx") is not None:
            raise UsageError("nobody sees this run before your transaction commits: enqueue it, commit, then wait.")
        self._app.require_key(options.get("model") or self.spec.model)
        await self._app.ensure_worker(adopting=self._stored is not None)
        return await (await self.enqueue(prompt, **options)).result()

    def enqueue_sync(self, prompt: Prompt, **options: Unpack[RunOptionsDict]) -> Run[T]:
        """`enqueue` for code without an event loop; with `tx` it uses that connection, on this thread."""
        own = chosen(options)
        if own.tx is None:
            return self._app.call(self.enqueue(prompt, **options))
        return drive(self._enqueue(self._app.intake(own.tx, sync=True), prompt, own))

    def run_sync(self, prompt: Prompt, **options: Unpack[RunOptionsDict]) -> Result[T]:
        return self._app.call(self.run(prompt, **options))

    async def enqueue_many(
        self, prompts: Iterable[Prompt], *, key: Callable[[Any], str] | None = None, **options: Any
    ) -> list[Run[T]]:
        """Accept many runs, each in a session of its own. `key` makes a run's idempotency key from its prompt.

        All of them are accepted or none, by one transaction. More than a thousand are accepted a thousand at a time;
        if the store fails in between, the same call with the same keys goes on where it was.
        """
        if isinstance(prompts, str | bytes | Mapping):
            raise UsageError(f"enqueue_many takes a list of prompts, not {checking.shown(prompts)}.")
        if key is not None and not callable(key):
            raise UsageError("key is a function that makes a key from a prompt: key=str.")
        if options.get("session") is not None:
            raise UsageError("runs of one session come one after the other: enqueue them one by one.")
        own = chosen(options)
        intake = self._app.intake(own.tx)
        wishes = [
            self._submission(intake, prompt, own if key is None else chosen({**options, "key": key(prompt)}))
            for prompt in prompts
        ]
        made: list[Run[T]] = []
        for begin in range(0, len(wishes), _TOGETHER):
            made += await self._accept(intake, wishes[begin : begin + _TOGETHER], own)
        return made

    async def _enqueue(self, intake: Intake, prompt: Prompt, options: RunOptions) -> Run[T]:
        if isinstance(options.session, Session):
            await options.session.open(intake, lasting=options.tx is None)
        return (await self._accept(intake, [self._submission(intake, prompt, options)], options))[0]

    async def _accept(self, intake: Intake, wishes: Sequence[Submission], options: RunOptions) -> list[Run[T]]:
        if options.require_worker:
            await self._require_worker(intake)
        created = await intake.transact(create_runs, wishes, intake.settings.announced)
        if options.tx is None and self._stored is None:  # what a transaction may undo is not remembered
            self._stored = next((each.agent for each in created if each.agent is not None), None)
        return [Run(self._app, each.run, self._decode, session_id=each.session) for each in created]

    async def _require_worker(self, intake: Intake) -> None:
        able = await intake.transact(reading.servers_of, self.spec.kind)
        if not able:
            raise NoWorker(
                f"no worker that is alive serves agent {self.name!r}: start one, or leave require_worker out."
            )

    def _submission(self, intake: Intake, prompt: Prompt, options: RunOptions) -> Submission:
        spec, settings = self.spec, intake.settings
        blocks = blocks_of(prompt)
        check_fresh(blocks, intake.ports.clock.wall_us())
        tenant = self.tenant if options.tenant is None else options.tenant
        wish = wish_for(options.session, new_id(intake.ports))
        if isinstance(options.session, Session) and options.session.tenant is not None:
            if options.tenant not in (None, options.session.tenant):
                raise UsageError(f"session {options.session.id} does not belong to tenant {options.tenant!r}.")
            tenant = options.session.tenant
        if options.model is not None:
            check_model(options.model, spec.options)
        deadline_us = None if options.deadline is None else durations.microseconds(options.deadline)
        choice = choose(options.model or spec.model, options.mode, deadline_us, settings)
        job, route = run_job(
            new_id(intake.ports),
            spec.name,
            settings,
            tenant=tenant,
            queue=spec.queue,
            priority=spec.priority if options.priority is None else options.priority,
            requires=spec.requires,
            mode=choice.mode,
            delay_us=None if options.delay is None else durations.microseconds(options.delay),
            due_at=None if options.at is None else microseconds(options.at),
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
            mode=choice.mode,
            reason=choice.reason if options.deadline is not None else "",
            deadline_us=deadline_us if options.mode is None else None,  # who chooses needs no choosing
            key=options.key,
            variables=encoding.encode(dict(options.variables or {}), what="variables", cap=settings.metadata_cap),
            metadata=encoding.encode(dict(options.metadata or {}), what="metadata", cap=settings.metadata_cap),
            options=encoding.encode(own, what="the options", cap=settings.metadata_cap),
            notify=options.notify,
            during=options.during,
            lent=options.tx is not None,
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
        self.tenant = tenant  # None: any
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
        if found is None or self.tenant not in (None, found.tenant):
            raise NotFound(f"there is no run {self.id} in this database.")
        self.state, self.session_id = found.state, found.session
        return found

    async def check(self) -> None:
        """`NotFound` when there is no such run, or it is another tenant's."""
        await self._transact(reading.known_run, self.id, self.tenant)

    async def result(self, *, timeout: Duration | None = None) -> Result[T]:
        """How it ended, once it has. `RunFailed` when it failed or was cancelled; the other outcomes are results.

        Cancelling the wait does not cancel the run. `ResultTimeout` when it has not ended in time.
        """
        limit = None if timeout is None else durations.microseconds(timeout) / 1e6
        await self.check()
        await self._app.runtime().expect(JobId(self.id), limit)
        row, used = await self._app.streams().wait(self.id, limit, self.tenant)
        self.state, self.session_id = row.state, row.session
        return cast(Result[T], result_of(row, self._decode, used))

    async def text(self, *, timeout: Duration | None = None) -> str:
        """The text of the result."""
        return (await self.result(timeout=timeout)).text

    async def stream(self, after: int = 0) -> AsyncGenerator[Event, None]:
        """Every event after number `after`, then each as it happens, until the run has ended.

        A reader that lost its connection goes on with the `seq` of the last event it saw.
        """
        checking.whole(after, "after", least=0, most=reading.LAST)
        await self.check()
        await self._app.runtime().expect(JobId(self.id), None)
        now = await self.refresh()
        if now.state in ENDED and after >= now.events:
            return
        async for row in self._app.streams().events(self.id, min(after, now.events)):
            event = event_of(row.run, row.seq, row.at, row.type, encoding.decode(row.data))
            yield await self._with_result(event) if isinstance(event, RunEnded) else event

    async def _with_result(self, event: RunEnded) -> RunEnded:
        row = await self.refresh()
        if row.state == "completed":
            used = await self._transact(reading.usage_below, self.id)
            return replace(event, result=result_of(row, self._decode, used))
        return replace(event, error=row.error or "", error_type=row.error_type or "")

    async def cancel(self, reason: str = "cancelled by its owner") -> str:
        """Cancel the run, its tool calls and every run below it; returns its state now."""
        await self.check()
        await self._app.runtime().cancel(JobId(self.id), reason)
        return (await self.refresh()).state

    async def steer(self, prompt: Prompt) -> None:
        """A message for this run while it is under way: the model reads it with its next turn.

        It comes after the results of whatever tools it has called. `UsageError` when the run has ended.
        """
        await self.check()
        settings, ports = self._app.settings, self._app.runtime().ports
        blocks = encoding.encode(blocks_of(prompt), what="the message", cap=settings.prompt_cap)
        await self._transact(inbox.steer, self.id, new_id(ports), blocks)

    async def interrupt(self, by: str = "its owner") -> None:
        """End the run where it is: what it has said is kept, as an answer that was cut off. Its tools are cancelled."""
        await self.check()
        await self._transact(inbox.interrupt, self.id, by, self._app.settings.announced)

    async def inquiries(self) -> list[Inquiry]:
        """What the run waits for a person to decide, in the order in which its calls were asked for."""
        await self.check()
        return [inquiry_of(row) for row in await self._transact(open_inquiries, self.id)]

    async def usage(self) -> Usage:
        """What the run and everything below it has used, so far."""
        row = await self.refresh()
        used = await self._transact(reading.usage_below, self.id)
        return usage_of(row if used is None else used)

    async def turns(self) -> list[Turn]:
        await self.check()
        return await self._transact(reading.list_turns, self.id)

    async def calls(self) -> list[CallRow]:
        """The tool calls of the run, in the order in which they were asked for."""
        await self.check()
        return await self._transact(reading.list_calls, self.id)

    async def events(self, after: int = 0) -> list[Event]:
        """What is stored so far."""
        checking.whole(after, "after", least=0, most=reading.LAST)
        await self.check()
        rows = await self._transact(reading.stored_events, self.id, after)
        return [event_of(row.run, row.seq, row.at, row.type, encoding.decode(row.data)) for row in rows]

    async def cassette(self, path: str | Path) -> None:
        """Write what the models of this run, and of all that it started, were asked and answered.

        `Script.cassette(path)` answers the same again, in tests and without a model. What looks like a key or a token
        is left out of the file; look through it before you share it.
        """
        await self.check()
        await save(await self._transact(record_runs, [self.id]), path)

    async def children(self) -> list[RunRow]:
        await self.check()
        return await self._transact(reading.list_runs, parent=self.id, limit=1_000)

    async def why(self) -> str:
        """What the run waits for, in words; empty when nothing keeps it."""
        await self.check()
        return await self._app.why(self.id)

    async def fork(  # noqa: PLR0913  what can be different
        self,
        at: int | None = None,
        *,
        prompt: Prompt | None = None,
        model: str | None = None,
        results: Mapping[str, Any] | None = None,
        tools: Tools = "recorded",
        limits: Limits | None = None,
        mode: Mode = "streaming",
        key: str | None = None,
    ) -> Run[T]:
        """A new run that goes on, in a session of its own, from where this one was before turn `at`.

        Without `at` it begins with the prompt, or behind the last of the `results` that are changed. `prompt` asks
        something else, `model` asks another one, `results` says what tools had returned, by the call's id or the tool's
        name; an exception is how one failed. What was thought after a change is left out. However the run was asked,
        the fork is streamed, unless `mode` says "batch".

        Tools that only read are run. The others are answered as they were answered before and asked about where that
        is not known ("recorded"), always asked about ("ask"), or run ("live"). With a key, doing it again gives the
        same fork.
        """
        wish = ForkOptions(at, prompt, model, {} if results is None else results, tools, limits, key, mode)
        origin = await self._transact(find_origin, self.id, self.tenant)
        made = wish.for_origin(origin, self._app, self.tenant)
        forked = await self._transact(fork_run, made, self._app.settings.announced)
        return Run(self._app, forked.run, self._decode, session_id=forked.session, tenant=self.tenant)

    async def forked_from(self) -> tuple[str, int] | None:
        """The run that this one is a fork of, and the turn at which it was forked; None when it is none."""
        await self.check()
        return await self._transact(find_fork, self.id)

    async def export(self, path: str | Path, *, redact: Sequence[str] = (), partial: bool = False) -> Exported:
        """Write a capsule: the run, with all below it and all that it saw, as one SQLite file without secrets.

        The file is a Holdfast database, whatever database the run is in. `redact` are regular expressions for what else
        is a secret. A run that has not ended is refused, unless `partial`.
        """
        checking.listed(redact, "redact", str, "regular expressions")
        contents = await self._transact(gather, self.id, self.tenant, partial=partial)
        app = self._app
        return await export(contents, Path(path), app.settings, app.runtime().ports, redact=redact)

    def result_sync(self, *, timeout: Duration | None = None) -> Result[T]:
        return self._app.call(self.result(timeout=timeout))

    def cancel_sync(self, reason: str = "cancelled by its owner") -> str:
        return self._app.call(self.cancel(reason))

    def stream_sync(self, after: int = 0) -> Generator[Event, None, None]:
        """`stream` for code without an event loop. Each event is asked for when the one before it has been taken."""
        events = self.stream(after)
        asking: list[asyncio.Task[Any]] = []

        async def following() -> Event | None:
            asking[:] = [task for task in (asyncio.current_task(),) if task is not None]
            return await anext(events, None)

        async def leave() -> None:
            if not asking[0].cancel():  # not even in the middle of it
                await events.aclose()

        try:
            while (event := self._app.call(following())) is not None:
                yield event
        finally:  # the caller may have seen enough
            leaving = leave()
            try:
                loop = asking[0].get_loop()
                loop.call_soon_threadsafe(loop.create_task, leaving)
            except (IndexError, RuntimeError):  # it was never asked; the app is closed
                leaving.close()
