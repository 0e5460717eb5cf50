"""What runs have done, counted or listed for all of them: `hf.runs.stats()`, `.failures()`, `.calls()`, `.call()`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, Literal, TypedDict, Unpack

from holdfast import validation
from holdfast.agents import queries
from holdfast.agents.api.agent import Agent
from holdfast.agents.api.options import moment_us
from holdfast.agents.api.run import Run
from holdfast.agents.api.session import Session
from holdfast.agents.core import AgentsCore, AppPart
from holdfast.agents.definition import AgentSpec, Limits
from holdfast.agents.events.reader import ENDED
from holdfast.agents.listings import CallFilters, call_page, count_calls, shown_page
from holdfast.agents.queries import AFTER_ALL, LAST, find_agent, find_version
from holdfast.agents.runs.create import AgentName, NamedAgent
from holdfast.agents.states import CALL
from holdfast.agents.values import CallRecord, RunRecord, call_of
from holdfast.client import handles
from holdfast.durations import Duration
from holdfast.errors import HoldfastError, NotFound, UsageError
from holdfast.kernel import codec
from holdfast.kernel.failure_groups import FailureKey, FailureMatch, likeness
from holdfast.values import Bulk, Page, place
from holdfast.values.jobs import FailureRecord, StatRecord

# Runs again, and runs in bulk: one call changes a page of them, each once.


TOGETHER = 1_000  # runs that one call changes


class RunChoice(TypedDict, total=False):
    """Which runs a call changes: what `hf.runs.list` takes.

    `error` and `message` are those of a group of `hf.runs.failures`: only runs that failed so.
    """

    session: Session | str | None
    agent: str | None
    state: str | None
    parent: str | None
    tenant: str | None
    error: str | None
    message: str | None
    after: str | None
    limit: int


async def run_again(app: AgentsCore, run: RunRecord, *, key: str | None) -> Run[Any]:
    """Enqueue an ended run again, as a new one that names it."""
    if run.state not in ENDED:
        raise UsageError(f"run {run.id} is {run.state}: only a run that has ended can be enqueued again.")
    if run.parent is not None:
        raise UsageError(f"run {run.id} was started by another one: enqueue run {run.root} again.")
    limits = run.options.get("limits")
    return await (await _agent_of(app, run)).enqueue_again(
        run.id,
        run.input,
        session=Session(app, run.session, tenant=run.tenant),
        variables=run.variables,
        metadata=run.metadata,
        limits=None if limits is None else codec.read(Limits, limits, what=f"the limits of run {run.id}"),
        model=run.options.get("model"),
        mode=run.mode,
        tenant=run.tenant,
        key=key,
    )


async def _agent_of(app: AgentsCore, run: RunRecord) -> Agent[Any]:
    row = await app.runtime().transact(find_agent, run.agent)
    stored = None if row is None else await app.runtime().transact(find_version, row.id, row.version)
    if row is None or stored is None:
        raise NotFound(f"there is no agent {run.agent_name} in this database any more.")
    name = AgentName(row.name, row.tenant, row.metadata)
    spec = AgentSpec.parse(stored.definition)
    return Agent(app, name, lambda: NamedAgent(name, spec, row.description), stored=(row.id, row.version))


async def change_some(
    listing: Callable[..., Awaitable[Page[RunRecord]]],
    choice: RunChoice,
    like: Callable[[str | None, str | None, Sequence[FailureKey]], Awaitable[FailureMatch]],
    change: Callable[[RunRecord], Awaitable[object]],
    *,
    ended: bool,
    dry_run: bool,
) -> Bulk:
    """Change a page of runs that have, or have not, ended. One that cannot be changed does not stop the others."""
    error, message = choice.pop("error", None), choice.pop("message", None)
    page = await listing(**{"limit": TOGETHER, **choice})
    wanted = [run for run in page if (run.state in ENDED) == ended]
    group = await like(error, message, [_traits(run) for run in wanted])
    fitting = [run for run in wanted if group.has(_traits(run))]
    changed = 0
    refused: dict[str, str] = {}
    for run in () if dry_run else fitting:
        try:
            await change(run)
            changed += 1
        except HoldfastError as problem:
            refused[run.id] = codec.clip(str(problem), 500)
    return Bulk(matched=len(fitting), changed=changed, refused=refused, next=page.next, dry_run=dry_run)


def _traits(run: RunRecord) -> FailureKey:
    return FailureKey(run.tenant, run.agent_name, run.error_type, run.error)


class CountedRuns(AppPart):
    """Of everybody, or of one tenant."""

    _tenant: str | None

    def _whose(self, tenant: str | None) -> str | None:
        return tenant if self._tenant is None else self._tenant

    async def stats(
        self,
        *by: handles.Part,
        of: Literal["runs", "turns", "calls"] = "runs",
        tenant: str | None = None,
        **options: Unpack[handles.StatOptions],
    ) -> Sequence[StatRecord]:
        """How many runs, turns or tool calls ended in each step of time, what they took and used.

        They are kept apart by what you name: `source` is the agent, `kind` the model of a turn or the tool of a call.
        The last three minutes are not counted yet.
        """
        now_us = self._app.runtime().ports.clock.wall_us()
        return await handles.stats(self._transact, now_us, of, by=by, tenant=self._whose(tenant), options=options)

    async def failures(
        self,
        *,
        of: Literal["runs", "calls"] = "runs",
        kind: str | None = None,
        tenant: str | None = None,
        since: datetime | Duration | None = None,
        limit: int = 100,
    ) -> Sequence[FailureRecord]:
        """Failed runs or calls, those that differ only in numbers and ids as one; what failed last comes first.

        `kind` is an agent or a tool.
        """
        now_us, whose = self._app.runtime().ports.clock.wall_us(), self._whose(tenant)
        return await handles.failures(
            self._transact, now_us, subject=of, kind=kind, tenant=whose, since=since, limit=limit
        )

    async def _like(self, error: str | None, message: str | None, among: Sequence[FailureKey]) -> FailureMatch:
        return await self._transact(likeness, "runs", error, message, among)

    async def call(self, id: str) -> CallRecord:
        """One tool call; `NotFound` when there is none, or it is another tenant's."""
        found = await self._transact(queries.find_call, id)
        run = None if found is None else await self._transact(queries.find_run, found.run)
        if found is None or run is None or self._tenant not in (None, run.tenant):
            raise NotFound(f"there is no tool call {id} in this database.")
        return call_of(found)

    async def calls(
        self,
        *,
        name: str | None = None,
        state: str | None = None,
        tenant: str | None = None,
        since: datetime | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Page[CallRecord]:
        """Tool calls of all runs that have ended, the last first; with `state` "pending" or "running", open ones.

        `name` is that of a tool. One call looks at 10,000 at most, so a page may be short and still have a `next`.
        """
        before = (LAST, AFTER_ALL) if after is None else place(after, int, str)
        wanted = self._wanted_calls(name, state, tenant, since)
        return shown_page(await self._transact(call_page, wanted, before=before, limit=validation.page(limit)), call_of)

    async def count_calls(
        self,
        *,
        name: str | None = None,
        state: str | None = None,
        tenant: str | None = None,
        since: datetime | None = None,
    ) -> int:
        """How many tool calls `calls` would give, among the last 10,000; open ones are counted whatever their state."""
        return await self._transact(count_calls, self._wanted_calls(name, state, tenant, since))

    def _wanted_calls(
        self, name: str | None, state: str | None, tenant: str | None, since: datetime | None
    ) -> CallFilters:
        validation.one_of(state, "state", CALL.names)
        first = 0 if since is None else moment_us(since, "since")
        return CallFilters(name, state, self._whose(tenant), first)
