"""A lab: an app on a fresh database of its own, under a clock that stands still, with workers that run when you say so.

Nothing of the runtime is replaced but the URL, the clock, and the moment at which a worker runs. When the lab closes,
the app is as it was before.
"""

from __future__ import annotations

import asyncio
import random
import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, ParamSpec, Protocol, Self, TypeVar

from holdfast import durations
from holdfast.agents.definition import AGENT_KIND, TOOL_KIND
from holdfast.agents.events.reader import find_runs
from holdfast.agents.runs.create import CreatedRun
from holdfast.app import Holdfast, core_of
from holdfast.client.core import Binding
from holdfast.client.intake import Runtime
from holdfast.client.jobs import Job, JobFunction
from holdfast.clock import Ports
from holdfast.durations import Duration
from holdfast.errors import NotFound, UsageError
from holdfast.kernel.database import Operation
from holdfast.kernel.enqueue import AcceptedJob
from holdfast.kernel.ids import JobId
from holdfast.kernel.rows import Batch, JobRow, NewJob, Route
from holdfast.kernel.states import TERMINAL, State
from holdfast.models.script import Script
from holdfast.settings import Settings
from holdfast.testing import enqueued
from holdfast.testing.agents import AgentsInLab
from holdfast.testing.clock import LabClock
from holdfast.testing.crashes import Crash, CrashPlan, in_a_worker, outlive
from holdfast.testing.crew import LabCrew, Stuck
from holdfast.testing.databases import Databases, FreshDatabase, PostgresServer, SqliteFiles, postgres_server
from holdfast.testing.enqueued import Question
from holdfast.text import plural
from holdfast.values.jobs import job_of
from holdfast.workers.definitions import Definition

# The store as an app in a lab uses it: what it enqueues may run at once, and what it waits for is run first.
#
# Handlers use it too, and a lab kills their worker in the middle of a call. The test and the next worker share its
# locks,
# so a call that has begun is completed, as a server completes what a killed process has sent.


P = ParamSpec("P")
R = TypeVar("R")


class RunningLab(Protocol):
    """As much of the lab as its runtime needs."""

    async def accepted(self, ids: Sequence[JobId]) -> None:
        """These were enqueued, or signalled: an inline lab runs them now."""

    async def awaited(self, id: JobId, limit: float | None) -> None:
        """Somebody is about to wait for this job; run it, if it can be run."""


class LabRuntime(Runtime):
    def __init__(self, lab: RunningLab, *given: Any) -> None:
        super().__init__(*given)
        self._lab = lab

    async def enqueue(self, job: NewJob, route: Route, *, key: str | None, notify: bool) -> AcceptedJob:
        accepted = await outlive(super().enqueue(job, route, key=key, notify=notify))
        await self._lab.accepted([accepted.id])
        return accepted

    async def enqueue_many(self, batch: Batch, route: Route, notify: bool) -> None:
        await outlive(super().enqueue_many(batch, route, notify))
        await self._lab.accepted(batch.ids)

    async def signal(self, channel: str, payload: str, key: str | None) -> None:
        await outlive(super().signal(channel, payload, key))
        await self._lab.accepted([])

    async def transact(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        answer = await outlive(super().transact(operation, *args, **kwargs))
        answers = answer if isinstance(answer, list) else [answer]
        created = [JobId(each.run) for each in answers if isinstance(each, CreatedRun)]
        if created:
            await self._lab.accepted(created)
        return answer

    async def expect(self, id: JobId, limit: float | None) -> None:
        await self._lab.awaited(id, limit)


_DECIDE = "Decide with lab.approve(run), lab.deny(run) or lab.answer(run, …), then drain."
_MOST_RETURNS = 100  # of one job that an inline lab runs to its end


class Lab(AgentsInLab):
    """An app in a test: `drain` runs what can run now, `clock.advance` lets time pass, `assert_enqueued` looks."""

    def __init__(
        self,
        app: Holdfast,
        database: FreshDatabase,
        clock: LabClock,
        plan: CrashPlan,
        *,
        inline: bool,
        script: Script | None = None,
    ) -> None:
        self.app = app
        self.url = database.url
        self.clock = clock
        self.plan = plan
        self.loop = asyncio.get_running_loop()
        self.closed = False
        self._database = database
        self._inline = inline
        self._ports = Ports(clock, random.Random(0))  # ids and jitter are the same in every run
        self._crew = LabCrew(app, self._ports, clock, plan)
        self._model = None if script is None else self._make_model(script)
        self._undo = ExitStack()
        self._turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = weakref.WeakKeyDictionary()
        self._drainer: asyncio.Task[Any] | None = None
        self._owner = asyncio.current_task()  # the test

    @classmethod
    async def open(
        cls,
        app: Holdfast,
        databases: Databases,
        plan: CrashPlan | None = None,
        *,
        script: Script | None = None,
        inline: bool = False,
        now: datetime | None = None,
    ) -> Self:
        """Bind `app` to a fresh database; the caller that opens a lab closes it. `script` answers for all of its
        models."""
        clock = LabClock(now)
        settings = replace(app.settings, direct_url="", pooler=False, profile="fast")
        database = await databases.make(settings)
        lab = cls(app, database, clock, plan or CrashPlan(), inline=inline, script=script)
        try:
            lab._bind(replace(settings, url=database.url))
        except BaseException:  # the app is another lab's, or broken: leave it alone
            await database.remove()
            raise
        try:
            await database.follow(clock.wall_us())
            await core_of(app).runtime().open()
            await lab._crew.plan_schedules()
        except BaseException:
            await lab.close()
            raise
        return lab

    @property
    def crashes(self) -> Sequence[Crash]:
        """Where workers of this lab were killed so far."""
        return tuple(self.plan.crashes)

    async def drain(self, *, patience: Duration = "30s") -> None:
        """Run the app's jobs on a real worker until nothing can be claimed at this time.

        What is not due, or waits for a signal, stays as it is. Raises `Stuck`, with what still runs, when nothing is
        committed for `patience` of real time, and `AssertionError` when a model was asked what its script does not
        expect.
        """
        self._begin_drain()
        await self._drain(patience)

    def crash(self, *, before: str | None = None, after: str | None = None, nth: int = 1) -> None:
        """Kill the worker right before, or right after, the n-th commit of that name from now on.

        The names are the kernel's: `claim`, `store_step`, `complete` and so on. `drain` then continues with another
        worker, once the clock has passed the leases; it raises `UsageError` if no worker reached that commit.
        """
        if self._drainer is not None:
            raise UsageError("a drain is under way; say where to crash before it begins.")
        if before is not None and after is None:
            self.plan.demand("before", before, nth)
        elif after is not None and before is None:
            self.plan.demand("after", after, nth)
        else:
            raise UsageError('say where to crash: lab.crash(before="complete") or lab.crash(after="claim").')

    def enqueued(self, job: JobFunction[P, R]) -> list[dict[str, Any]]:
        """The arguments of every such job that was ever enqueued in this lab, in order, whatever became of it."""
        definition = self._known(job)
        return [enqueued.arguments_of(row, definition) for row in self._jobs() if row.kind == definition.kind]

    def assert_enqueued(self, job: JobFunction[P, R], /, **arguments: Any) -> Job[R]:
        """Fail unless such a job was enqueued, with these arguments among others; returns the newest that was."""
        __tracebackhide__ = True
        definition = self._known(job)
        enqueued.check_names(definition, arguments)
        rows = self._jobs()
        found = [row for row in rows if enqueued.matches(row, definition, arguments)]
        if not found:
            wanted = enqueued.called(definition, arguments)
            raise AssertionError(f"{wanted} was not enqueued. {enqueued.listed(rows)}")
        return Job(core_of(self.app), found[-1].id, definition, job_of(found[-1]).state)

    async def close(self) -> None:
        """Give the app back as it was, and remove the database."""
        if self.closed:
            return
        self.closed = True
        try:
            await self._stop_draining()
            await self._crew.close()
            await self.app.close()
            await asyncio.to_thread(self.app.sync.close)
            await self._database.remove()
        finally:
            self._undo.close()

    def abandon(self) -> None:
        """`close` when its event loop is gone already: the app is as it was, and what needs a loop is left behind."""
        self.closed = True
        self._undo.close()
        self._database.abandon()

    async def accepted(self, ids: Sequence[JobId]) -> None:
        """For the runtime: these were enqueued. Inline, they run to their end; what the program delayed, it delayed."""
        if not self._inline or self._is_draining_us():
            return
        await self._drain()
        for id in ids:
            for _ in range(_MOST_RETURNS):
                row = await core_of(self.app).runtime().find(id)
                if row.state != State.SCHEDULED or row.due_at is None or row.token == 0:
                    break
                await self.clock.advance(f"{row.due_at - self.clock.wall_us()}us")
                await self._drain()
            else:
                raise Stuck(f"job {id} came back {_MOST_RETURNS} times and has not ended; do not run it inline.")

    async def awaited(self, id: JobId, limit: float | None) -> None:
        """For the runtime: the test will wait for this job. Run it; if it cannot end now, that wait would never end."""
        try:
            if self._is_draining_us() or (await core_of(self.app).runtime().find(id)).state in TERMINAL:
                return
        except NotFound:  # it was pruned: a run is there without its job
            return
        await self._drain()
        row = await core_of(self.app).runtime().find(id)
        alone = self._owner is None or self._owner.done() or self._owner is asyncio.current_task()
        if row.state not in TERMINAL and limit is None and alone:
            raise Stuck(f"job {row.id} ({row.kind}) has not ended: {await self._why(row)}")

    def _bind(self, settings: Settings) -> None:
        binding = Binding(
            settings,
            self._ports,
            embedded=False,
            make_runtime=partial(LabRuntime, self),
            watched=weakref.WeakSet(),
        )
        self._undo.enter_context(core_of(self.app).bound_to(binding))
        self._undo.enter_context(self.clock.followed_by(self._database))
        self._bind_models(self._undo)

    def _begin_drain(self) -> None:
        if self._is_draining_us():
            raise UsageError("this code already runs inside a drain: what it enqueues runs anyway.")
        self._owner = asyncio.current_task()

    async def _drain(self, patience: Duration = "30s", *, last: bool = True) -> None:
        """Work until nothing can be claimed; if it is the `last` time, crashes that were asked for must have come."""
        async with self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            self._drainer = asyncio.current_task()
            try:
                await self._crew.drain(durations.microseconds(patience) / 1e6)
                if last:
                    self.plan.require_met()
                await self._refresh_handles()
            except Stuck:
                self._require_expected()  # it may be the reason
                raise
            finally:
                self._drainer = None
        self._require_expected()

    async def _refresh_handles(self) -> None:
        """Let `run.state` of every run that the test holds be what it is now."""
        handles = list(core_of(self.app).watched or ())
        if handles:
            ids = sorted({run.id for run in handles})
            states = {row.id: row.state for row in await core_of(self.app).runtime().transact(find_runs, ids)}
            for run in handles:
                run.state = states.get(run.id, run.state)

    def _is_draining_us(self) -> bool:
        """Is this code part of a drain: a handler, or what a handler calls on the app's own thread?"""
        drainer = self._drainer
        return in_a_worker() or (drainer is not None and drainer.get_loop() is not asyncio.get_running_loop())

    async def _stop_draining(self) -> None:
        drainer = self._drainer
        if drainer is not None and drainer is not asyncio.current_task() and drainer.get_loop() is self.loop:
            drainer.cancel()
            await asyncio.gather(drainer, return_exceptions=True)

    def _known(self, job: JobFunction[P, R]) -> Definition:
        definition = job.definition
        if core_of(self.app).registry.definitions.get(definition.kind) is not definition:
            raise UsageError(f"job {definition.kind!r} does not belong to the app of this lab.")
        return definition

    def _jobs(self) -> list[JobRow]:
        return self.look(enqueued.read_jobs)

    def look(self, question: Question[R]) -> R:
        """What the store answers, without awaiting."""
        return enqueued.ask_store(self.url, self.app.settings, self._ports, question)

    async def _why(self, row: JobRow) -> str:
        if row.kind.startswith(AGENT_KIND) and row.state != State.SCHEDULED:
            decide = f" {_DECIDE}" if await self.app.runs[row.id].inquiries() else ""
            return f"{await self.app.why(row.id) or 'a worker would take it next'}.{decide}"
        match State(row.state):
            case State.SCHEDULED:
                left = durations.show((row.due_at or 0) - self.clock.wall_us())
                return f'it is due in {left}. await lab.clock.advance("{left}"), then drain.'
            case State.WAITING if row.channel is not None and row.kind.startswith(TOOL_KIND):
                return f"a person decides about it. {_DECIDE}"
            case State.WAITING if row.channel is not None:
                return f"it waits for a signal on {row.channel!r}. Send one with hf.signal, or advance to its timeout."
            case State.WAITING:
                return f"it waits for {plural(row.open_children, 'child that has', 'children that have')} not ended."
            case State.RUNNING:
                return "a worker that is not this lab's has it."
            case _ if row.gate is not None:
                return f"{row.gate!r} holds it back, a limit on how many run at once or how often. Advance the clock."
            case _:
                return "no worker of this app may claim it: its queue is paused, or the app has no job of that name."


@asynccontextmanager
async def lab(
    app: Holdfast,
    script: Script | None = None,
    *,
    inline: bool = False,
    now: datetime | None = None,
    database: str = "sqlite",
) -> AsyncIterator[Lab]:
    """A lab without the pytest plugin. `database`: "sqlite", "postgres", or the URL of a PostgreSQL server.

    A `script` answers for every model of the app. With `inline`, enqueuing a job runs it to its end. `now` is the time
    at which the clock stands, by default the moment the lab is opened.
    """
    server: PostgresServer | None = None
    if database != "sqlite":
        url = await asyncio.to_thread(postgres_server) if database == "postgres" else database
        server = PostgresServer(url)
    try:
        opened = await Lab.open(app, server or SqliteFiles(), script=script, inline=inline, now=now)
        try:
            yield opened
        finally:
            await opened.close()
    finally:
        if server is not None:
            await server.close()
