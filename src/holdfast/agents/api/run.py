"""A run as a program sees it. Making a handle does no I/O; waiting on a run does not run it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast, get_args

from holdfast import durations, validation
from holdfast.agents import queries
from holdfast.agents.api.options import check_model
from holdfast.agents.api.results import result_of, usage_of
from holdfast.agents.content import Prompt, blocks_of, check_blocks, check_fresh, content_of
from holdfast.agents.core import AgentsCore, AppPart
from holdfast.agents.definition import Limits, Mode, as_stored
from holdfast.agents.events.reader import ENDED
from holdfast.agents.forks.fork import ForkOrigin, ForkRequest, find_fork, find_origin, fork_run
from holdfast.agents.forks.past import Policy, Tools
from holdfast.agents.listings import list_messages, list_runs
from holdfast.agents.people.inquiries import inquiries_below
from holdfast.agents.retention.ages import with_gaps
from holdfast.agents.rows import RunRow
from holdfast.agents.runs import inbox
from holdfast.agents.runs.create import needs_of, run_job
from holdfast.agents.states import RunState, RunStateName
from holdfast.agents.values import CallRecord, Inquiry, Message, RunRecord, Turn, call_of, inquiry_of, run_of
from holdfast.client.results import Result, Usage
from holdfast.clock import Clock
from holdfast.durations import Duration
from holdfast.errors import HoldfastError, NotFound, RunFailed, UsageError
from holdfast.events import Event, RunEnded, event_of
from holdfast.kernel import codec
from holdfast.kernel.ids import JobId, new_id
from holdfast.observe import changing
from holdfast.outcomes import Cancel, Discard
from holdfast.text import with_traceback
from holdfast.values import Page, cursor, page_of, place
from holdfast.values.jobs import Why, why_of
from holdfast.workers.telemetry import sending

if TYPE_CHECKING:
    from holdfast.agents.api.waterfall import Span
    from holdfast.agents.capsules.capsules import Exported

# How a run is forked: what is to be different, checked before anything is written.


def fork_result(value: Any, cap: int) -> dict[str, Any]:
    """What a tool returned, as its result tells the model; an exception is how it failed. Blocks stay as they are."""
    if isinstance(value, BaseException):
        named = "" if isinstance(value, Cancel | Discard) else f"{type(value).__name__}: "
        return {"content": content_of(f"{named}{value}", cap), "is_error": True}
    if isinstance(value, list) and value and all(isinstance(each, dict) and "type" in each for each in value):
        check_blocks(value)
        return {"content": value}
    content = content_of(value, cap)
    return {"content": content} if content else {}


class ForkOptions(NamedTuple):
    """What the caller of a fork wants."""

    at: int | None
    prompt: Prompt | None
    model: str | None
    results: Mapping[str, Any]
    tools: Policy
    limits: Limits | None
    key: str | None
    mode: Mode = "streaming"

    def for_origin(self, origin: ForkOrigin, app: AgentsCore, tenant: str | None) -> ForkRequest:
        """The fork of this run, as the store is asked for it."""
        self._check()
        settings, ports = app.settings, app.runtime().ports
        run, spec = origin
        job, route = run_job(
            new_id(ports),
            spec.name,
            settings,
            tenant=run.tenant,
            queue=spec.queue,
            priority=spec.priority,
            requires=spec.requires,
            needs=[] if self.tools == "replayed" else needs_of(spec),  # what is replayed calls nothing
            mode=self.mode,
        )
        prompt = None
        if self.prompt is not None:
            blocks = blocks_of(self.prompt)
            check_fresh(blocks, ports.clock.wall_us())
            prompt = codec.encode(blocks, what="the prompt", cap=settings.prompt_cap)
        return ForkRequest(
            source=run.id,
            session=new_id(ports),
            job=job,
            route=route,
            at=self.at,
            prompt=prompt,
            results=codec.encode(
                {name: fork_result(value, settings.tool_output_cap) for name, value in self.results.items()},
                what="the results",
                cap=settings.prompt_cap,
            ),
            options=codec.encode(self._own(origin), what="the options", cap=settings.metadata_cap),
            mode=self.mode,
            key=self.key,
            tenant=tenant,
        )

    def _check(self) -> None:
        if self.tools not in (*get_args(Tools), "replayed"):
            raise UsageError(f"tools must be one of {', '.join(get_args(Tools))}; got {self.tools!r}.")
        if self.mode not in get_args(Mode):
            raise UsageError(f"mode must be one of {', '.join(get_args(Mode))}; got {self.mode!r}.")
        at: object = self.at
        if at is not None and (not isinstance(at, int) or isinstance(at, bool) or at < 1):
            raise UsageError(f"at is the number of a turn, from 1; not {validation.shown(at)}.")
        validation.mapping(self.results, "results")
        validation.instance(self.limits, "limits", Limits)

    def _own(self, origin: ForkOrigin) -> dict[str, Any]:
        own: dict[str, Any] = codec.decode(origin.run.options)
        own = {name: value for name, value in own.items() if name != "beyond_budget"}
        own["fork"] = {"tools": self.tools}
        if self.limits is not None:
            own["limits"] = as_stored(self.limits)
        if self.model is not None:
            check_model(self.model, origin.spec.options)
            own["model"] = self.model
        return own


T = TypeVar("T")

_FAMILY = 100  # runs of one waterfall
_MANY = 10_000  # calls on a page, unless the caller says otherwise


class Run(AppPart, Generic[T]):
    """A handle on one run."""

    def __init__(
        self,
        app: AgentsCore,
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
        self.state: RunStateName | None = RunState.PENDING.value if session_id else None  # as this handle last saw it
        self.fresh: bool | None = None  # the call that gave this handle made the run; None: it did not enqueue
        if app.watched is not None:
            app.watched.add(self)

    def __repr__(self) -> str:
        return f"Run({self.id}, state={self.state})"

    @property
    def clock(self) -> Clock:
        """The clock of its app."""
        return self._app.runtime().ports.clock

    async def refresh(self) -> RunRecord:
        """The current state of the run in the store."""
        return run_of(await self._row())

    async def _row(self) -> RunRow:
        found = await self._transact(queries.find_run, self.id)
        if found is None or self.tenant not in (None, found.tenant):
            raise NotFound(f"there is no run {self.id} in this database.")
        self.state, self.session_id = cast(RunStateName, found.state), found.session
        return found

    async def check(self) -> None:
        """`NotFound` when there is no such run, or it is another tenant's."""
        await self._transact(queries.known_run, self.id, self.tenant)

    async def result(self, *, timeout: Duration | None = None) -> Result[T]:
        """How it ended, once it has. `RunFailed` when it failed or was cancelled; the other outcomes are results.

        Cancelling the wait does not cancel the run. `ResultTimeout` when it has not ended in time.
        """
        limit = None if timeout is None else durations.microseconds(timeout) / 1e6
        await self.check()
        await self._app.runtime().expect(JobId(self.id), limit)
        with self._app.runtime().awaiting(JobId(self.id)):
            row, used = await self._app.streams().wait(self.id, limit, self.tenant)
        self.state, self.session_id = cast(RunStateName, row.state), row.session
        try:
            return cast(Result[T], result_of(row, self._decode, used))
        except RunFailed as failure:
            raise with_traceback(failure, f"run {self.id}", await self._traceback()) from None

    async def _traceback(self) -> str | None:
        """What the job of a failed run raised; None when it raised nothing, or when that cannot be read."""
        try:
            job = await self._app.runtime().find(JobId(self.id))
        except HoldfastError:  # retention may have removed it; whatever it is, the failure of the run matters more
            return None
        return (codec.decode(job.error) or {}).get("trace")

    async def text(self, *, timeout: Duration | None = None) -> str:
        """The text of the result."""
        return (await self.result(timeout=timeout)).text

    async def stream(self, after: int = 0) -> AsyncGenerator[Event, None]:
        """Every event after number `after`, then each as it happens, until the run has ended.

        A reader that lost its connection continues with the `seq` of the last event it saw.
        """
        validation.whole(after, "after", least=0, most=queries.LAST)
        await self.check()
        await self._app.runtime().expect(JobId(self.id), None)
        now = await self._row()
        if now.finalized_at is not None and after >= now.events:
            return
        last = now.events if now.state in ENDED else None
        async for row in self._app.streams().events(self.id, min(after, now.events), last):
            event = event_of(row.run, row.seq, row.at, row.type, codec.decode(row.data))
            yield await self._with_result(event) if isinstance(event, RunEnded) else event

    async def _with_result(self, event: RunEnded) -> RunEnded:
        row = await self._row()
        if row.state == RunState.COMPLETED:
            used = await self._transact(queries.usage_below, self.id)
            return replace(event, result=result_of(row, self._decode, used))
        return replace(event, error=row.error or "", error_type=row.error_type or "")

    @changing("runs cancel")
    async def cancel(self, reason: str = "cancelled by its owner") -> RunStateName:
        """Cancel the run, its tool calls and every run below it; returns its state now."""
        await self.check()
        await self._app.runtime().cancel(JobId(self.id), reason)
        return (await self.refresh()).state

    async def steer(self, prompt: Prompt) -> None:
        """Send a message to the active run: the model reads it with its next turn.

        It comes after the results of whatever tools it has called. `UsageError` when the run has ended.
        """
        await self.check()
        settings, ports = self._app.settings, self._app.runtime().ports
        blocks = codec.encode(blocks_of(prompt), what="the message", cap=settings.prompt_cap)
        await self._transact(inbox.steer, self.id, new_id(ports), blocks)

    @changing("runs interrupt")
    async def interrupt(self, by: str = "its owner") -> None:
        """End the run where it is: keep what the model has written as a cut-off answer, and cancel its tools."""
        await self.check()
        await self._transact(inbox.interrupt, self.id, by, self._app.settings.announced)

    async def inquiries(self, *, after: str | None = None, limit: int = 1_000) -> Page[Inquiry]:
        """What the run and the runs below it wait for a person to decide, in the order of their calls."""
        (last,) = ("",) if after is None else place(after, str)
        validation.page(limit)
        await self.check()
        found = await self._transact(inquiries_below, self.id, after=last, limit=limit)
        return page_of(found, limit, inquiry_of, lambda row: (row.id,))

    async def usage(self) -> Usage:
        """What the run and all runs below it have used so far."""
        row = await self._row()
        used = await self._transact(queries.usage_below, self.id)
        return usage_of(row if used is None else used)

    async def turns(self, *, after: str | None = None, limit: int = 1_000) -> Page[Turn]:
        """The turns of the run, in their order."""
        (last,) = (0,) if after is None else place(after, int)
        validation.page(limit)
        await self.check()
        found = await self._transact(queries.list_turns, self.id, after=last, limit=limit)
        return page_of(found, limit, lambda turn: turn, lambda turn: (turn.number,))

    async def calls(self, *, after: str | None = None, limit: int = _MANY) -> Page[CallRecord]:
        """The tool calls of the run, in the order in which they were asked for."""
        last = (-1, -1) if after is None else place(after, int, int)
        validation.page(limit)
        await self.check()
        found = await self._transact(queries.calls_after, self.id, last, limit)
        return page_of(found, limit, call_of, lambda row: (row.turn, row.ordinal))

    async def messages(self, *, after: str | None = None, limit: int = 1_000, archived: bool = False) -> Page[Message]:
        """What was said in the run, in its order; of a run below another, what its own agent said and was told.

        What a compaction took out is left out, unless `archived` asks for it.
        """
        (last,) = (0,) if after is None else place(after, int)
        validation.page(limit)
        row = await self._row()
        page = {"after": last, "limit": limit, "archived": archived}
        found = await self._transact(list_messages, row.session, run=self.id, **page)
        return Page(found, next=cursor(found[-1].ordinal) if len(found) == limit else None)

    async def events(self, after: int | str = 0, *, limit: int = 1_000_000) -> Page[Event]:
        """The events stored so far, with an `EventsPruned` where retention removed events.

        `after` is the `next` of a page, or the number of an event.
        """
        (last,) = place(after, int) if isinstance(after, str) else (after,)
        validation.whole(last, "after", least=0, most=queries.LAST)
        validation.page(limit)
        now = await self._row()
        rows = await self._transact(queries.stored_events, self.id, last, limit)
        full = len(rows) == limit
        rows_and_gaps = list(with_gaps(self.id, rows, last, now.events if now.state in ENDED and not full else None))
        shown, more = rows_and_gaps[:limit], full or len(rows_and_gaps) > limit
        events = [event_of(row.run, row.seq, row.at, row.type, codec.decode(row.data)) for row in shown]
        return Page(events, next=cursor(shown[-1].seq) if more else None)

    async def cassette(self, path: str | Path) -> None:
        """Write what the models of this run, and of all that it started, were asked and answered.

        `Script.cassette(path)` answers the same again, in tests and without a model. What looks like a key or a token
        is left out of the file; look through it before you share it.
        """
        from holdfast.agents.capsules.cassettes import record_runs, save

        await self.check()
        await save(await self._transact(record_runs, [self.id]), path)

    async def children(self, *, after: str | None = None, limit: int = 1_000) -> Page[RunRecord]:
        """The runs that its tool calls started, the newest first."""
        before = (queries.LAST, queries.AFTER_ALL) if after is None else place(after, int, str)
        validation.page(limit)
        await self.check()
        found = await self._transact(list_runs, parent=self.id, before=before, limit=limit)
        return page_of(found, limit, run_of, lambda row: (row.created_at, row.id))

    async def waterfall(self, *, workers: bool = True) -> list[Span]:
        """What the run and the runs below it did, as spans of time: turns, calls, waits, attempts that ended early.

        At most a hundred runs, and 5,000 turns and as many calls of them all. A tenant's handle names no workers, and
        none does with `workers=False`.
        """
        from holdfast.agents.api.waterfall import below, read_history, spans_of

        row = await self._row()
        family = [run_of(each) for each in await self._transact(queries.short_family, row.root, _FAMILY)]
        shown = below(run_of(row), family)
        absent = await self._app.runtime().absent_workers()
        history = await self._transact(read_history, row, [run.id for run in shown], absent)
        visible = history if workers and self.tenant is None else history.without_workers()
        return [span for run in shown for span in spans_of(run, visible.past(run))]

    async def why(self) -> Why:
        """Why the run does not continue: what keeps it, and until when if that is known; else it is empty.

        Printed, it is a sentence for each reason. A tenant's handle names no workers, lanes or queues.
        """
        await self.check()
        return why_of(await self._app.reasons(self.id), for_tenant=self.tenant is not None)

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
        """Create a run that continues, in a new session, from where this one was before turn `at`.

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
        with sending(self._app.ports, made.job, [made.job.id]) as job:
            forked = await self._transact(fork_run, made._replace(job=job), self._app.settings.announced)
        return Run(self._app, forked.run, self._decode, session_id=forked.session, tenant=self.tenant)

    async def forked_from(self) -> tuple[str, int] | None:
        """The run that this one was forked from, and the turn; None when it is not a fork."""
        await self.check()
        return await self._transact(find_fork, self.id)

    async def export(
        self, path: str | Path, *, redact: Sequence[str] = (), partial: bool = False, traces: bool = True
    ) -> Exported:
        """Write a capsule: the run, all runs below it and everything they saw, as one SQLite file without secrets.

        The file is a Holdfast database, whatever database the run is in. `redact` are regular expressions for what else
        is a secret. A run that has not ended is refused, unless `partial`. Without `traces` it has no tracebacks.
        """
        from holdfast.agents.capsules.capsules import export, gather, without_traces

        validation.listed(redact, "redact", str, "regular expressions")
        contents = await self._transact(gather, self.id, self.tenant, partial=partial)
        app, contents = self._app, contents if traces else without_traces(contents)
        return await export(contents, Path(path), app.settings, app.runtime().ports, redact=redact)

    def result_sync(self, *, timeout: Duration | None = None) -> Result[T]:
        return self._app.call(self.result(timeout=timeout), "run.result_sync")

    def cancel_sync(self, reason: str = "cancelled by its owner") -> RunStateName:
        return self._app.call(self.cancel(reason), "run.cancel_sync")

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
            while (
                event := self._app.call(following(), "run.stream_sync", "async for event in run.stream(...)")
            ) is not None:
                yield event
        finally:  # the caller may have seen enough
            leaving = leave()
            try:
                loop = asking[0].get_loop()
                loop.call_soon_threadsafe(loop.create_task, leaving)
            except (IndexError, RuntimeError):  # it was never asked; the app is closed
                leaving.close()
