"""Collections: `hf.agents`, `hf.sessions`, `hf.runs`. `[id]` is a handle without I/O; lists come in pages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from typing import Any, TypeVar, Unpack

from holdfast import checking
from holdfast.agents import reading
from holdfast.agents.batches import submissions
from holdfast.agents.batches.records import BatchRow, RequestRow
from holdfast.agents.contents import Prompt
from holdfast.agents.conversation import Session
from holdfast.agents.creating import AgentName, Named, put_agent
from holdfast.agents.definitions import AgentSpec
from holdfast.agents.forks.comparing import Comparison, compare, load_side
from holdfast.agents.handles import Agent, Run
from holdfast.agents.inbox import During
from holdfast.agents.money.face import BudgetsList, Part, Used
from holdfast.agents.options import RunOptionsDict, check_models
from holdfast.agents.people.face import InquiriesList, Rulings
from holdfast.agents.plain import plain
from holdfast.agents.reaching import App, Reaching
from holdfast.agents.reading import AFTER_ALL, LAST
from holdfast.agents.records import AgentRow, CallRow, RunRow, SessionRow, VersionRow
from holdfast.agents.states import BATCH_STATES, RUN_STATES
from holdfast.errors import NotFound, UsageError
from holdfast.handles import Jobs
from holdfast.kernel import encoding
from holdfast.kernel.ids import is_id
from holdfast.kernel.records import AttemptRow, JobRow
from holdfast.kernel.why import Reason
from holdfast.results import Result

T = TypeVar("T")


class Page(list[T]):
    """Part of a list; `next` is what to give as `after` for the part behind it, None when this was the last."""

    next: Any = None


class _Collection(Reaching):
    def __init__(self, app: App, tenant: str | None = None) -> None:
        self._app = app
        self._tenant = tenant  # None: all of them

    def _of(self, tenant: str | None) -> str | None:
        """Whose are listed: who sees one tenant alone cannot ask for another's."""
        return tenant if self._tenant is None else self._tenant

    def _json(self, value: Mapping[str, Any] | None) -> str:
        given = checking.mapping(value, "metadata")
        return encoding.encode(given, what="metadata", cap=self._app.settings.metadata_cap)

    async def _session_id(self, session: Session | str | None, tenant: str | None) -> str | None:
        """A session's id, by its id or by the key that it has in the tenant whose are listed."""
        if session is None:
            return None
        if isinstance(session, Session):
            return (await session.refresh()).id
        if not isinstance(session, str):
            raise UsageError(f"a session is named by its id or its key, not by {checking.shown(session)}.")
        return (await self._transact(reading.find_session, session, self._of(tenant))).id


class RunsList(_Collection):
    def __getitem__(self, id: str) -> Run[Any]:
        return Run(self._app, id.lower() if is_id(id) else id, tenant=self._tenant)

    async def get(self, id: str) -> RunRow:
        """The run as it stands; `NotFound` when there is none, or it is another tenant's."""
        return await self[id].refresh()

    async def list(
        self,
        *,
        session: Session | str | None = None,
        agent: str | None = None,
        state: str | None = None,
        parent: str | None = None,
        tenant: str | None = None,
        after: tuple[int, str] | None = None,
        limit: int = 100,
    ) -> Page[RunRow]:
        """Runs, the newest first. `agent` is a name or an id, `session` a Session, its id or its key."""
        checking.one_of(state, "state", RUN_STATES)
        found = await self._transact(
            reading.list_runs,
            tenant=self._of(tenant),
            session=await self._session_id(session, tenant),
            agent=agent,
            state=state,
            parent=parent,
            before=after or (LAST, AFTER_ALL),
            limit=checking.page(limit),
        )
        return _page(found, limit, lambda row: (row.created_at, row.id))

    async def compare(self, a: Run[Any] | str, b: Run[Any] | str) -> Comparison:
        """Two runs side by side: outcome, answers, tools, tokens, cost."""
        ids = [each if isinstance(each, str) else each.id for each in (a, b)]
        sides = [await self._transact(load_side, id, self._tenant) for id in ids]
        return compare(*sides)

    async def call(self, id: str) -> CallRow:
        """One tool call."""
        found = await self._transact(reading.find_call, id)
        if found is None:
            raise NotFound(f"there is no tool call {id} in this database.")
        await self.get(found.run)
        return found

    async def as_completed(self, runs: Iterable[Run[T]]) -> AsyncIterator[Run[T]]:
        """Each run as it ends, whatever its outcome; its `state` says how."""
        await self._app.runtime().open()
        streams = self._app.streams()

        async def ended(run: Run[T]) -> Run[T]:
            row, _ = await streams.wait(run.id, None, run.tenant)
            run.state, run.session_id = row.state, row.session
            return run

        waits = [asyncio.ensure_future(ended(run)) for run in runs]
        try:
            for next_one in asyncio.as_completed(waits):
                yield await next_one
        finally:
            for wait in waits:
                wait.cancel()


class BatchesList(_Collection):
    """`hf.batches`: what goes to the provider together."""

    async def get(self, id: str) -> BatchRow:
        found = await self._transact(submissions.find_batch, id)
        if found is None:
            raise NotFound(f"there is no batch {id} in this database.")
        return found

    async def list(
        self, *, state: str | None = None, after: tuple[int, str] | None = None, limit: int = 100
    ) -> Page[BatchRow]:
        """Batches, the newest first."""
        checking.one_of(state, "state", BATCH_STATES)
        before, most = after or (LAST, AFTER_ALL), checking.page(limit)
        found = await self._transact(submissions.list_batches, state=state, before=before, limit=most)
        return _page(found, limit, lambda row: (row.created_at, row.id))

    async def requests(self, id: str, *, after: str = "", limit: int = 1_000) -> Page[RequestRow]:
        """The turns in a batch, and what became of each."""
        await self.get(id)
        found = await self._transact(submissions.batch_requests, id, after=after, limit=checking.page(limit))
        return _page(found, limit, lambda row: row.custom_id)


class SessionsList(_Collection):
    def __getitem__(self, id: str) -> Session:
        return Session(self._app, id, tenant=self._tenant)

    async def get(self, id: str) -> SessionRow:
        """A session by its id, or by its key."""
        return await self._transact(reading.find_session, id, self._tenant)

    async def list(
        self,
        *,
        metadata: Mapping[str, Any] | None = None,
        parent: str | None = None,
        tenant: str | None = None,
        after: tuple[int, str] | None = None,
        limit: int = 100,
    ) -> Page[SessionRow]:
        """Sessions whose metadata contain these, the newest first."""
        found = await self._transact(
            reading.list_sessions,
            tenant=self._of(tenant),
            parent=await self._session_id(parent, tenant),
            metadata=self._json(metadata),
            before=after or (LAST, AFTER_ALL),
            limit=checking.page(limit),
        )
        return _page(found, limit, lambda row: (row.created_at, row.id))

    async def count(
        self, *, metadata: Mapping[str, Any] | None = None, parent: str | None = None, tenant: str | None = None
    ) -> int:
        above = await self._session_id(parent, tenant)
        chosen, wanted = self._of(tenant), self._json(metadata)
        return await self._transact(reading.count_sessions, tenant=chosen, parent=above, metadata=wanted)

    async def values(self, key: str) -> Sequence[tuple[Any, int]]:
        """The different values that sessions have under a key of their metadata, each with how many have it."""
        found = await self._transact(reading.metadata_values, key, self._tenant)
        return [(encoding.decode(row.value), row.n) for row in found]

    async def update(
        self, id: str, *, metadata: Mapping[str, Any] | None = None, during: During | None = None
    ) -> SessionRow:
        """Other metadata for a session, by its id or its key, or another policy for messages during a run."""
        return await self[id].update(metadata=metadata, during=during)

    async def delete(self, id: str) -> None:
        """Remove a session, by its id or its key, with its messages and runs."""
        await self._transact(reading.delete_session, (await self.get(id)).id)


class AgentsList(_Collection):
    def __getitem__(self, id: str) -> StoredAgent:
        return StoredAgent(self._app, id, self._tenant)

    async def get(self, name: str, *, metadata: Mapping[str, Any] | None = None) -> AgentRow:
        """An agent by its id, or by its name and exactly these metadata."""
        if is_id(name):
            found = await self._transact(reading.find_agent, name)
        else:
            key = AgentName(name, self._tenant or "", self._json(metadata))
            found = await self._transact(reading.find_named, key)
        if found is None or self._tenant not in (None, found.tenant):
            raise NotFound(f"there is no agent {name} in this database.")
        return found

    async def list(
        self,
        *,
        name: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        tenant: str | None = None,
        after: tuple[str, str] | None = None,
        limit: int = 100,
    ) -> Page[AgentRow]:
        """Agents whose metadata contain these, by name."""
        found = await self._transact(
            reading.list_agents,
            tenant=self._of(tenant),
            name=name,
            metadata=self._json(metadata),
            after=after or ("", ""),
            limit=checking.page(limit),
        )
        return _page(found, limit, lambda row: (row.name, row.id))

    async def put(self, agent: Agent[Any]) -> AgentRow:
        """Write an agent's definition now, as a version if it is new: create, update, and get-or-create in one."""
        return await self._transact(put_agent, agent.named)

    async def create(
        self, name: str, *, metadata: Mapping[str, Any] | None = None, description: str = "", **fields: Any
    ) -> AgentRow:
        """Write an agent from plain values; its tools are names of this app's, and whoever has them may serve it."""
        key = AgentName(name, self._tenant or "", self._json(metadata))
        if "model" not in fields:
            raise UsageError("an agent needs a model.")
        values, delegates = plain(self._app, name, fields)
        return await self._put(Named(key, AgentSpec.from_values(name, **values), description, delegates))

    async def update(self, id: str, **fields: Any) -> AgentRow:
        """A new version of a stored agent, with these fields changed. Runs that have begun keep theirs."""
        row = await self.get(id)
        stored = await self._transact(reading.find_version, row.id, row.version)
        if stored is None:
            raise NotFound(f"agent {id} has no version yet.")
        description = fields.pop("description", row.description)
        values, delegates = plain(self._app, row.name, fields)
        spec = AgentSpec.parse(stored.definition).changed(**values)
        return await self._put(Named(AgentName(row.name, row.tenant, row.metadata), spec, description, delegates))

    async def versions(self, id: str) -> Sequence[VersionRow]:
        row = await self.get(id)
        return await self._transact(reading.list_versions, row.id)

    async def delete(self, id: str) -> None:
        """Remove an agent that no run has used."""
        row = await self.get(id)
        await self._transact(reading.delete_agent, row.id)

    async def _put(self, agent: Named) -> AgentRow:
        spec = agent.spec
        check_models(spec.model, spec.fallbacks, spec.options, spec.max_tokens)
        return await self._transact(put_agent, agent)


class StoredAgent(Reaching):
    """An agent that is in the store, by its id: `await hf.agents[id].enqueue("…")`."""

    def __init__(self, app: App, id: str, tenant: str | None) -> None:
        self._app = app
        self._tenant = tenant
        self.id = id

    async def load(self) -> Agent[str]:
        """The agent as a handle, in its present version."""
        agents = AgentsList(self._app, self._tenant)
        row = await agents.get(self.id)
        stored = await self._transact(reading.find_version, row.id, row.version)
        if stored is None:
            raise NotFound(f"agent {self.id} has no version yet.")
        key = AgentName(row.name, row.tenant, row.metadata)
        spec = AgentSpec.parse(stored.definition)
        return Agent(self._app, key, lambda: Named(key, spec, row.description), stored=(row.id, row.version))

    async def enqueue(self, prompt: Prompt, **options: Unpack[RunOptionsDict]) -> Run[str]:
        return await (await self.load()).enqueue(prompt, **options)

    async def run(self, prompt: Prompt, **options: Unpack[RunOptionsDict]) -> Result[str]:
        return await (await self.load()).run(prompt, **options)


class TenantJobs:
    """The jobs of one tenant."""

    def __init__(self, app: Any, tenant: str) -> None:
        self._jobs = Jobs(app)
        self._tenant = tenant

    async def get(self, id: str) -> JobRow:
        row = await self._jobs.get(id)
        if row.tenant != self._tenant:
            raise NotFound(f"there is no job {id} in this database.")
        return row

    async def list(self, **filters: Any) -> Sequence[JobRow]:
        """Newest first; filter by state, queue, kind; `before` and `limit` page."""
        return await self._jobs.list(**{**filters, "tenant": self._tenant})

    async def attempts(self, id: str) -> Sequence[AttemptRow]:
        return await self._jobs.attempts((await self.get(id)).id)

    async def why(self, id: str) -> Sequence[Reason]:
        """What keeps a job from being run; empty when nothing does."""
        return await self._jobs.why((await self.get(id)).id)

    async def cancel(self, id: str, reason: str = "cancelled by its owner") -> str:
        """Cancel a job and its family; returns its state now."""
        return await self._jobs[(await self.get(id)).id].cancel(reason)


class Tenant(Rulings):
    """The app as one tenant sees it."""

    def __init__(self, app: App, id: str) -> None:
        if not id:
            raise UsageError("a tenant has a name; without one, use the app itself.")
        self._app = app
        self._tenant = self.id = encoding.check_tenant(id)
        self.inquiries = InquiriesList(app, id)
        self.agents = AgentsList(app, id)
        self.sessions = SessionsList(app, id)
        self.runs = RunsList(app, id)
        self.jobs = TenantJobs(app, id)
        self.budgets = BudgetsList(app, id)

    def session(self, key: str | None = None, **options: Any) -> Session:
        app: Any = self._app
        made: Session = app.session(key, tenant=self.id, **options)
        return made

    async def enqueue(self, agent: Agent[T], prompt: Any, **options: Any) -> Run[T]:
        """A run of an agent for this tenant."""
        return await agent.enqueue(prompt, tenant=self.id, **options)

    async def used(
        self, *by: Part, since: date | datetime | None = None, until: date | datetime | None = None
    ) -> list[Used]:
        """What models have used and cost for this tenant, as `hf.used` tells it."""
        app: Any = self._app
        rows: list[Used] = await app.used(*by, since=since, until=until, tenant=self.id)
        return rows

    async def why(self, id: str) -> str:
        """What a run of this tenant waits for, in words; empty when nothing keeps it."""
        return await self.runs[id].why()


def _page(rows: list[T], limit: int, mark: Callable[[T], Any]) -> Page[T]:
    page: Page[T] = Page(rows)
    page.next = mark(rows[-1]) if len(rows) == limit and rows else None
    return page
