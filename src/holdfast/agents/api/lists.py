"""Lists: `hf.agents`, `hf.sessions`, `hf.runs`. `[id]` is a handle without I/O; lists come in pages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast

from holdfast import durations, validation
from holdfast.agents import lanes, queries
from holdfast.agents.api.agent import Agent
from holdfast.agents.api.counted_runs import CountedRuns, RunChoice, change_some, run_again
from holdfast.agents.api.declarations import AgentFields, NewAgentFields, plain
from holdfast.agents.api.options import RunOptions, TenantRunOptions, check_models, moment_us
from holdfast.agents.api.run import Run
from holdfast.agents.api.session import Session, TenantSessionOptions, new_session
from holdfast.agents.batches import steps
from holdfast.agents.content import Prompt
from holdfast.agents.core import AgentsCore, AppPart
from holdfast.agents.definition import AgentSpec
from holdfast.agents.lanes import let_through, list_lanes
from holdfast.agents.listings import (
    RunFilters,
    SessionFilters,
    count_runs,
    count_sessions,
    metadata_values,
    run_page,
    session_page,
    shown_page,
)
from holdfast.agents.money.api import BudgetsList, Part, Used
from holdfast.agents.people.rulings import InquiriesList, Rulings
from holdfast.agents.queries import AFTER_ALL, LAST
from holdfast.agents.retention.ages import Ages, check_ages, find_ages, forget_ages, set_ages
from holdfast.agents.retention.cleanup import START, prune_some_sessions
from holdfast.agents.rows import AgentRow
from holdfast.agents.runs.create import AgentName, NamedAgent, put_agent
from holdfast.agents.runs.inbox import During
from holdfast.agents.states import BATCH, RUN, RunState, RunStateName
from holdfast.agents.tenant_policy import NOTHING, named_by
from holdfast.agents.values import (
    AgentRecord,
    BatchRecord,
    ClosedLaneRecord,
    RequestRecord,
    RunRecord,
    SessionRecord,
    VersionRecord,
    agent_of,
    batch_of,
    closed_lane_of,
    request_of,
    run_of,
    session_of,
    version_of,
)
from holdfast.client.handles import Jobs
from holdfast.client.jobs import Job
from holdfast.client.results import Result
from holdfast.durations import Duration
from holdfast.errors import NotFound, UsageError
from holdfast.kernel import codec
from holdfast.kernel.ids import is_id
from holdfast.kernel.states import StateName
from holdfast.observe import changing
from holdfast.validation import did_you_mean
from holdfast.values import Bulk, Page, page_of, part_of, place
from holdfast.values.jobs import AttemptRecord, JobRecord, Why, why_of

if TYPE_CHECKING:
    from holdfast.agents.capsules.replay import Replay
    from holdfast.agents.forks.comparison import Comparison
    from holdfast.agents.retention.erasure import Erased, Progress

# The jobs of one tenant as a program sees them: `hf.tenant(id).jobs`.


class TenantJobs:
    """The jobs of one tenant."""

    def __init__(self, app: AgentsCore, tenant: str) -> None:
        self._app = app
        self._jobs = Jobs(app)
        self._tenant = tenant

    async def get(self, id: str) -> JobRecord:
        row = await self._jobs.get(id)
        if row.tenant != self._tenant:
            raise NotFound(f"there is no job {id} in this database.")
        return row

    async def list(
        self,
        *,
        state: str | None = None,
        queue: str | None = None,
        kind: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> Page[JobRecord]:
        """Jobs of this tenant, the newest first."""
        return await self._jobs.list(state=state, queue=queue, kind=kind, tenant=self._tenant, limit=limit, after=after)

    async def attempts(self, id: str) -> Sequence[AttemptRecord]:
        return await self._jobs.attempts((await self.get(id)).id)

    async def why(self, id: str) -> Why:
        """Why no worker runs the job, without names of workers, lanes or queues; empty when nothing holds it back."""
        return why_of(await self._app.reasons((await self.get(id)).id), for_tenant=True)

    async def retry(self, id: str) -> Job[Any]:
        """Enqueue an ended job again, as `hf.jobs.retry` does."""
        return await self._jobs.retry((await self.get(id)).id)

    async def cancel(self, id: str, reason: str = "cancelled by its owner") -> StateName:
        """Cancel a job and its family; returns its state now."""
        return await self._jobs[(await self.get(id)).id].cancel(reason)


T = TypeVar("T")

_TREE = 1_000  # runs of one tree
_NAMED = 1_000  # agents among which the name that was meant is looked for


class Collection(AppPart):
    """What is in the store of one kind, for everybody or as one tenant sees it."""

    def __init__(self, app: AgentsCore, tenant: str | None = None) -> None:
        self._app = app
        self._tenant = tenant  # None: all of them

    def _of(self, tenant: str | None) -> str | None:
        """Whose are listed: who sees one tenant alone cannot ask for another's."""
        return tenant if self._tenant is None else self._tenant

    def _json(self, value: Mapping[str, Any] | None) -> str:
        given = validation.mapping(value, "metadata")
        return codec.encode(given, what="metadata", cap=self._app.settings.metadata_cap)

    async def _session_id(self, session: Session | str | None, tenant: str | None) -> str | None:
        """A session's id, by its id or by the key that it has in the tenant whose are listed."""
        if session is None:
            return None
        if isinstance(session, Session):
            return (await session.refresh()).id
        if not isinstance(session, str):
            raise UsageError(f"a session is named by its id or its key, not by {validation.shown(session)}.")
        return (await self._transact(queries.find_session, session, self._of(tenant))).id


class RunsList(Collection, CountedRuns):
    def __getitem__(self, id: str) -> Run[Any]:
        return Run(self._app, id.lower() if is_id(id) else id, tenant=self._tenant)

    async def get(self, id: str) -> RunRecord:
        """The current state of the run; `NotFound` when there is none, or it is another tenant's."""
        return await self[id].refresh()

    async def list(  # noqa: PLR0913  filters
        self,
        *,
        session: Session | str | None = None,
        agent: str | None = None,
        state: str | None = None,
        parent: str | None = None,
        tenant: str | None = None,
        mode: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Page[RunRecord]:
        """Runs, the newest first. `agent` is a name or an id, `session` a Session, its id or its key.

        `since` is included and `until` is not: when they were created. Filters that no index has look at 10,000 runs at
        most, so a page may be short and still have a `next`.
        """
        where = {"session": session, "agent": agent, "parent": parent, "tenant": tenant}
        wanted = await self._filters(**where, state=state, mode=mode, since=since, until=until)
        found = await self._transact(run_page, wanted, before=newest_first(after), limit=validation.page(limit))
        return shown_page(found, run_of)

    async def count(self, **choice: Any) -> int:
        """How many runs `list` would give with these filters, among the newest 10,000 that it looks at."""
        return await self._transact(count_runs, await self._filters(**choice))

    async def _filters(self, **given: Any) -> RunFilters:
        validation.one_of(given.get("state"), "state", RUN.names)
        since, until, tenant = given.pop("since", None), given.pop("until", None), given.pop("tenant", None)
        session = await self._session_id(given.pop("session", None), tenant)
        first = 0 if since is None else moment_us(since, "since")
        last = LAST if until is None else moment_us(until, "until")
        return RunFilters(tenant=self._of(tenant), session=session, since=first, until=last, **given)

    async def tree(self, id: str) -> Sequence[RunRecord]:
        """A run and all runs below it, the oldest first; at most 1,000."""
        from holdfast.agents.api.waterfall import below

        row = await self.get(id)
        return below(row, [run_of(each) for each in await self._transact(queries.runs_of_root, row.root, _TREE)])

    @changing("runs retry")
    async def retry(self, id: str, *, key: str | None = None) -> Run[Any]:
        """Enqueue an ended run again: the same prompt and options, in the same session; `retry_of` names the old one.

        The agent is asked in its present version. With a key, doing it again gives the same run.
        """
        return await run_again(self._app, await self.get(id), key=key)

    @changing("runs retry")
    async def retry_some(self, *, dry_run: bool = False, **choice: Unpack[RunChoice]) -> Bulk:
        """`retry` for a page of runs that have ended, each once however often it is called; failed ones by default.

        With `dry_run` it only counts. Continue with `next` as `after`.
        """
        choice.setdefault("state", RunState.FAILED.value)
        return await change_some(self.list, choice, self._like, self._once_more, ended=True, dry_run=dry_run)

    @changing("runs cancel")
    async def cancel_some(self, *, dry_run: bool = False, reason: str = "", **choice: Unpack[RunChoice]) -> Bulk:
        """Cancel a page of runs that have not ended. With `dry_run` it only counts."""

        async def cancelled(run: RunRecord) -> None:
            await self[run.id].cancel(reason or "cancelled by its owner")

        return await change_some(self.list, choice, self._like, cancelled, ended=False, dry_run=dry_run)

    async def _once_more(self, run: RunRecord) -> None:
        await run_again(self._app, run, key=f"retry of run {run.id}")

    async def compare(self, a: Run[Any] | str, b: Run[Any] | str) -> Comparison:
        """Two runs side by side: outcome, answers, tools, tokens, cost."""
        from holdfast.agents.forks.comparison import compare, load_side

        ids = [each if isinstance(each, str) else each.id for each in (a, b)]
        sides = [await self._transact(load_side, id, self._tenant) for id in ids]
        return await asyncio.to_thread(compare, *sides)

    async def replay(self, run: Run[Any] | str) -> Replay:
        """Play a run again from its record, in a copy, without key, network or its tools; says what was different."""
        from holdfast.agents.capsules.replay import replay

        id, its_own = (run, None) if isinstance(run, str) else (run.id, run.tenant)
        return await replay(self._app, id, its_own if self._tenant is None else self._tenant)

    async def as_completed(self, runs: Iterable[Run[T]]) -> AsyncIterator[Run[T]]:
        """Each run as it ends, whatever its outcome; its `state` says how."""
        await self._app.runtime().open()
        streams = self._app.streams()

        async def ended(run: Run[T]) -> Run[T]:
            row, _ = await streams.wait(run.id, None, run.tenant)
            run.state, run.session_id = cast(RunStateName, row.state), row.session
            return run

        waits = [asyncio.ensure_future(ended(run)) for run in runs]
        try:
            for next_one in asyncio.as_completed(waits):
                yield await next_one
        finally:
            for wait in waits:
                wait.cancel()


class SessionsList(Collection):
    def __getitem__(self, id: str) -> Session:
        return Session(self._app, id, tenant=self._tenant)

    async def get(self, id: str) -> SessionRecord:
        """A session by its id, or by its key."""
        return session_of(await self._transact(queries.find_session, id, self._tenant))

    async def list(
        self,
        *,
        metadata: Mapping[str, Any] | None = None,
        parent: str | None = None,
        tenant: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Page[SessionRecord]:
        """Sessions whose metadata contain these, the newest first; it looks at 10,000, so a page may be short."""
        wanted = SessionFilters(self._of(tenant), await self._session_id(parent, tenant), self._json(metadata))
        found = await self._transact(session_page, wanted, before=newest_first(after), limit=validation.page(limit))
        return shown_page(found, session_of)

    async def count(
        self,
        *,
        metadata: Mapping[str, Any] | None = None,
        parent: str | None = None,
        tenant: str | None = None,
        cap: int | None = None,
    ) -> int:
        """How many sessions `list` would give, in all its pages; with `cap`, among the newest so many."""
        wanted = SessionFilters(self._of(tenant), await self._session_id(parent, tenant), self._json(metadata))
        return await self._transact(count_sessions, wanted, cap)

    async def tenants(self, *, after: str | None = None, limit: int = 100) -> Page[dict[str, Any]]:
        """The tenants that have sessions, by name."""
        (last,) = ("",) if after is None else place(after, str)
        found = await self._transact(queries.list_tenants, after=last, limit=validation.page(limit))
        return page_of(found, limit, lambda row: {"id": row.tenant}, lambda row: (row.tenant,))

    async def values(
        self, key: str, *, after: str | None = None, limit: int = 10_000, cap: int | None = None
    ) -> Page[tuple[Any, int]]:
        """The different values that sessions have under a key of their metadata, each with how many have it.

        What most sessions have comes first. With `cap`, it looks at the newest so many.
        """
        last = (LAST, "") if after is None else place(after, int, str)
        most = validation.page(limit)
        found = await self._transact(metadata_values, key, self._tenant, after=last, limit=most, look=cap)
        return page_of(found, limit, lambda row: (codec.decode(row.value), row.n), lambda row: (row.n, row.value))

    async def update(
        self, id: str, *, metadata: Mapping[str, Any] | None = None, during: During | None = None
    ) -> SessionRecord:
        """Other metadata for a session, by its id or its key, or another policy for messages during a run."""
        return await self[id].update(metadata=metadata, during=during)

    @changing("sessions delete")
    async def delete(self, id: str) -> None:
        """Remove a session, by its id or its key, with its messages and runs."""
        await self._transact(queries.delete_session, (await self.get(id)).id)

    @changing("sessions prune")
    async def prune(self, *, older_than: Duration, progress: Callable[[int], None] | None = None) -> int:
        """Remove the sessions in which nothing has happened for so long; returns how many it removed.

        One with a run under way stays, one with sessions below it goes after them, and one from which a fork was made
        stays. What they cost stays counted. It may be stopped at any time and called again. `progress` is called with
        how many are gone so far.
        """
        before = self._app.runtime().ports.clock.wall_us() - durations.microseconds(older_than)
        removed, upto = 0, START
        while True:
            some = await self._transact(prune_some_sessions, upto, before, tenant=self._tenant, own=True)
            removed, upto = removed + some.removed, some.upto or START
            if progress is not None:
                progress(removed)
            if not some.more:
                return removed


class AgentsList(Collection):
    def __getitem__(self, id: str) -> StoredAgent:
        return StoredAgent(self._app, id, self._tenant)

    async def get(self, name: str, *, metadata: Mapping[str, Any] | None = None) -> AgentRecord:
        """An agent by its id, or by its name and exactly these metadata."""
        return agent_of(await self._row(name, metadata))

    async def _row(self, name: str, metadata: Mapping[str, Any] | None = None) -> AgentRow:
        if is_id(name):
            found = await self._transact(queries.find_agent, name)
        else:
            key = AgentName(name, self._tenant or "", self._json(metadata))
            found = await self._transact(queries.find_named, key)
        if found is None or self._tenant not in (None, found.tenant):
            known = await self._transact(queries.list_agents, tenant=self._tenant, limit=_NAMED)
            close = validation.did_you_mean(name, [row.name for row in known])
            raise NotFound(f"there is no agent {name} in this database.{close}")
        return found

    async def list(
        self,
        *,
        name: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        tenant: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Page[AgentRecord]:
        """Agents whose metadata contain these, by name."""
        found = await self._transact(
            queries.list_agents,
            tenant=self._of(tenant),
            name=name,
            metadata=self._json(metadata),
            after=("", "") if after is None else place(after, str, str),
            limit=validation.page(limit),
        )
        return page_of(found, limit, agent_of, lambda row: (row.name, row.id))

    async def count(
        self,
        *,
        name: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        tenant: str | None = None,
        cap: int | None = None,
    ) -> int:
        """How many agents `list` would give, in all its pages; with `cap`, it stops there."""
        whose, wanted = self._of(tenant), self._json(metadata)
        return await self._transact(queries.count_agents, tenant=whose, name=name, metadata=wanted, cap=cap)

    async def named(self, name: str) -> Agent[Any]:
        """The agent that runs take by this name or id: this program's own, else a stored one.

        A tenant's own comes before one that belongs to nobody, which every tenant may use.
        """
        mine = self._app.defined.get(name)
        if mine is not None:
            return cast(Agent[Any], mine)
        try:
            return await self[name].load()
        except NotFound:
            nobodys = None if self._tenant is None else StoredAgent(self._app, name, "")
            if nobodys is None:
                raise
        return await nobodys.load()

    async def put(self, agent: Agent[Any]) -> AgentRecord:
        """Write an agent's definition now, as a version if it is new: create, update, and get-or-create in one."""
        return agent_of(await self._transact(put_agent, agent.named))

    async def create(
        self,
        name: str,
        *,
        metadata: Mapping[str, Any] | None = None,
        description: str = "",
        **fields: Unpack[NewAgentFields],
    ) -> AgentRecord:
        """Write an agent from plain values; `await hf.agents[row.id].enqueue("…")` runs it.

        Its tools are names: of this program's tools, or of those that a worker elsewhere has declared. Whichever worker
        has the code of all of them may serve it, without a restart.
        """
        key = AgentName(name, self._tenant or "", self._json(metadata))
        if "model" not in fields:
            raise UsageError("an agent needs a model.")
        await self._check_tools(fields)
        values, delegates = await plain(self._app, name, fields)
        return await self._put(NamedAgent(key, AgentSpec.from_values(name, **values), description, delegates))

    async def update(self, id: str, *, description: str | None = None, **fields: Unpack[AgentFields]) -> AgentRecord:
        """A new version of a stored agent, with these fields changed. Runs that have begun keep theirs."""
        row = await self._row(id)
        stored = await self._transact(queries.find_version, row.id, row.version)
        if stored is None:
            raise NotFound(f"agent {id} has no version yet.")
        description = row.description if description is None else description
        await self._check_tools(fields)
        values, delegates = await plain(self._app, row.name, fields)
        spec = AgentSpec.parse(stored.definition).changed(**values)
        return await self._put(NamedAgent(AgentName(row.name, row.tenant, row.metadata), spec, description, delegates))

    async def versions(self, id: str, *, after: str | None = None, limit: int = 10_000) -> Page[VersionRecord]:
        """The versions that an agent has had, the newest first."""
        (before,) = (validation.MOST,) if after is None else place(after, int)
        validation.page(limit)
        row = await self._row(id)
        found = await self._transact(queries.list_versions, row.id, before=before, limit=limit)
        return page_of(found, limit, version_of, lambda each: (each.version,))

    async def delete(self, id: str) -> None:
        """Remove an agent that no run has used."""
        row = await self.get(id)
        await self._transact(queries.delete_agent, row.id)

    async def _check_tools(self, fields: Mapping[str, Any]) -> None:
        """Before anything says which tools there are: a tenant does not learn which others the program has."""
        if self._tenant is not None and isinstance(tools := fields.get("tools", ()), list | tuple):
            await self._app.check_allowed(self._tenant, NOTHING._replace(tools=frozenset(map(str, tools))))

    async def _put(self, agent: NamedAgent) -> AgentRecord:
        spec = agent.spec
        await self._app.check_allowed(self._tenant, named_by(spec))
        check_models(spec.model, spec.fallbacks, spec.options, spec.max_tokens)
        return agent_of(await self._transact(put_agent, agent))


class StoredAgent(AppPart):
    """An agent that is in the store, by its id: `await hf.agents[id].enqueue("…")` runs it.

    Nobody needs to define it in code: a worker that has its tools serves it.
    """

    def __init__(self, app: AgentsCore, id: str, tenant: str | None) -> None:
        self._app = app
        self._tenant = tenant
        self.id = id

    async def load(self) -> Agent[str]:
        """The agent as a handle, in its present version."""
        agents = AgentsList(self._app, self._tenant)
        row = await agents._row(self.id)
        stored = await self._transact(queries.find_version, row.id, row.version)
        if stored is None:
            raise NotFound(f"agent {self.id} has no version yet.")
        key = AgentName(row.name, row.tenant, row.metadata)
        spec = AgentSpec.parse(stored.definition)
        return Agent(self._app, key, lambda: NamedAgent(key, spec, row.description), stored=(row.id, row.version))

    async def enqueue(self, prompt: Prompt, **options: Unpack[RunOptions]) -> Run[str]:
        """A run of its present version, with the options of `Agent.enqueue`; returns a handle at once."""
        return await (await self.load()).enqueue(prompt, **options)

    async def run(self, prompt: Prompt, **options: Unpack[RunOptions]) -> Result[str]:
        """The same, waited for: returns the result."""
        return await (await self.load()).run(prompt, **options)


class Tenant(Rulings):
    """The app as one tenant sees it."""

    def __init__(self, app: AgentsCore, id: str) -> None:
        if not id:
            raise UsageError("a tenant needs a name; without a tenant, use the app itself.")
        self._app = app
        self._tenant = self.id = codec.check_tenant(id)
        self.inquiries = InquiriesList(app, id)
        self.agents = AgentsList(app, id)
        self.sessions = SessionsList(app, id)
        self.runs = RunsList(app, id)
        self.jobs = TenantJobs(app, id)
        self.budgets = BudgetsList(app, id)

    @changing("tenants erase")
    async def erase(self, *, within: Duration = "2m", progress: Progress | None = None) -> Erased:
        """Remove everything of this tenant: what is open is cancelled first; returns how many of each are gone.

        Its sessions go with their messages, runs, events and inquiries, its jobs with their results and errors, its
        keys, its agents and its schedules, and its plans, actions and plain data in the gateway. What it cost stays
        counted, by day and model; its budgets and
        the audit stay. Stop its programs first. It may be killed at any time, and called again; a worker that still
        runs something has `within` to stop. `progress` is called with what is gone so far.
        """
        from holdfast.agents.retention.erasure import Eraser

        runtime = self._app.runtime()
        return await Eraser(
            runtime, self._app.registry.layers, self.id, durations.microseconds(within), progress
        ).erase()

    async def retention(
        self,
        *,
        deltas: Duration | None = None,
        events: Duration | None = None,
        inquiries: Duration | None = None,
        turns: Duration | None = None,
        sessions: Duration | None = None,
        reset: bool = False,
    ) -> Ages:
        """How long to keep what belongs to this tenant. It stores the ages you give; the settings say the others.

        An age of "0s" keeps for ever. `reset` forgets what was stored before.
        """
        given = {"deltas": deltas, "events": events, "inquiries": inquiries, "turns": turns, "sessions": sessions}
        stored = check_ages(given)
        if reset:
            await self._transact(forget_ages, self.id)
        if any(us is not None for us in stored.values()):
            await self._transact(set_ages, self.id, stored)
        return await self._transact(find_ages, self.id, self._app.settings)

    def allow(self, *, tools: Iterable[str] | None = None, models: Iterable[str] | None = None) -> None:
        """Say which tools and models agents may name that this tenant stores, in this program and its workers.

        `tools=["look_up"]`, `models=["claude-*"]`: a star at the end stands for the rest. Without it the settings
        `tenant_tools` and `tenant_models` say so, and if they are empty, the agents that belong to no tenant: a tenant
        may use what they name. What the program declares itself may name everything.
        """
        self._app.policy.allow(self.id, tools, models)

    def session(
        self, key: str | None = None, *, tx: object | None = None, **options: Unpack[TenantSessionOptions]
    ) -> Session:
        return new_session(self._app, key, tx=tx, tenant=self.id, **options)

    async def enqueue(self, agent: Agent[T], prompt: Prompt, **options: Unpack[TenantRunOptions]) -> Run[T]:
        """A run of an agent for this tenant, with the options of `agent.enqueue`."""
        return await agent.enqueue(prompt, tenant=self.id, **options)

    async def used(
        self, *by: Part, since: date | datetime | None = None, until: date | datetime | None = None
    ) -> Sequence[Used]:
        """What models have used and cost for this tenant, as from `hf.budgets.used`."""
        return await self.budgets.used(*by, since=since, until=until)

    async def why(self, id: str) -> Why:
        """Why a job or a run of this tenant does not continue; it names no workers, lanes or queues."""
        try:
            return await self.runs[id].why()
        except NotFound:
            return await self.jobs.why(id)


def newest_first(after: str | None) -> tuple[Any, ...]:
    """Where a list that begins with the newest continues."""
    return (LAST, AFTER_ALL) if after is None else place(after, int, str)


# Batches as a program sees them: `hf.batches`.


class BatchesList(Collection):
    """`hf.batches`: what goes to the provider together."""

    async def get(self, id: str) -> BatchRecord:
        found = await self._transact(steps.find_batch, id)
        if found is None:
            raise NotFound(f"there is no batch {id} in this database.")
        return batch_of(found)

    async def list(self, *, state: str | None = None, after: str | None = None, limit: int = 100) -> Page[BatchRecord]:
        """Batches, the newest first."""
        validation.one_of(state, "state", BATCH.names)
        before, most = newest_first(after), validation.page(limit)
        found = await self._transact(steps.list_batches, state=state, before=before, limit=most)
        return page_of(found, limit, batch_of, lambda row: (row.created_at, row.id))

    async def requests(self, id: str, *, after: str | None = None, limit: int = 1_000) -> Page[RequestRecord]:
        """The turns in a batch, and what became of each."""
        await self.get(id)
        (last,) = ("",) if after is None else place(after, str)
        found = await self._transact(steps.batch_requests, id, after=last, limit=validation.page(limit))
        return page_of(found, limit, request_of, lambda row: (row.custom_id,))


# Closed lanes as a program sees them: `hf.lanes`.


class LanesList(AppPart):
    """`hf.lanes`: the lanes to providers that are closed now."""

    def __init__(self, app: AgentsCore) -> None:
        self._app = app

    async def list(self, *, limit: int = 1_000, after: str | None = None) -> Page[ClosedLaneRecord]:
        """The lanes that are closed, by name."""
        rows = await self._transact(list_lanes)
        return part_of([closed_lane_of(row) for row in rows], limit, after, lambda lane: lane.name)

    @changing("lanes open")
    async def open(self, name: str) -> int:
        """Open a lane for all workers; returns how many runs it has woken. `NotFound` when it is not closed."""
        closed = {lane.name for lane in await self._transact(list_lanes)}
        if name not in closed:
            close = did_you_mean(name, closed)
            raise NotFound(f"lane {name} is not closed; `holdfast lanes ls` shows those that are.{close}")
        woken = some = await self._transact(let_through, name, opened=True)
        while some == lanes.TOGETHER:
            some = await self._transact(let_through, name)
            woken += some
        return woken
