"""What one principal sees of an app: all of it, one tenant of it, or one tenant's sessions with given metadata.

Every route reaches the app through this. What is outside of it is not there: 404, never 403.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from fastapi import Depends
from starlette.requests import Request

from holdfast.access.principals import Principal
from holdfast.agents.api.lists import AgentsList, RunsList, SessionsList, Tenant
from holdfast.agents.api.run import Run
from holdfast.agents.api.session import Session
from holdfast.agents.people.rulings import InquiriesList
from holdfast.agents.queries import metadata_of
from holdfast.agents.tenant_policy import NOTHING
from holdfast.agents.values import SessionRecord
from holdfast.app import Holdfast, core_of
from holdfast.errors import NotFound, UsageError
from holdfast.values.jobs import Why, why_of

T = TypeVar("T")


class PrincipalScope:
    def __init__(self, hf: Holdfast, principal: Principal, tenant: str | None, pinned: Mapping[str, Any]) -> None:
        """`pinned` are metadata that every session must have; those made here have them."""
        self.hf = hf
        self.principal = principal
        self.tenant = tenant
        self.pinned = pinned
        self.whole = False  # whether no value of the answer is to be cut
        self.part: Tenant | None = None if tenant is None else hf.tenant(tenant)

    @property
    def sees_fleet(self) -> bool:
        """Whether workers and queues, which belong to everybody, are there for this principal."""
        return self.tenant is None and not self.pinned

    async def why(self, id: str) -> Why:
        """Why a job or a run waits that is there for this principal: who sees no fleet reads no name of a worker."""
        return why_of(await core_of(self.hf).reasons(id), for_tenant=not self.sees_fleet)

    async def check_models(self, *models: str | None) -> None:
        """`UsageError` for a model that a principal with a tenant may not name."""
        asked = NOTHING._replace(models=frozenset(each for each in models if each))
        await core_of(self.hf).check_allowed(self.tenant, asked)

    @property
    def runs(self) -> RunsList:
        return (self.part or self.hf).runs

    @property
    def sessions(self) -> SessionsList:
        return (self.part or self.hf).sessions

    @property
    def agents(self) -> AgentsList:
        return (self.part or self.hf).agents

    @property
    def inquiries(self) -> InquiriesList:
        return (self.part or self.hf).inquiries

    async def session(self, id: str) -> Session:
        """A handle on a session that is there for this principal."""
        return self.sessions[(await self.find_session(id)).id]

    async def find_session(self, id: str) -> SessionRecord:
        found = await self.sessions.get(id)
        if not self._has_pinned(found):
            raise NotFound(f"there is no session {id} in this database.")
        return found

    async def run(self, id: str) -> Run[Any]:
        """A handle on a run that is there for this principal."""
        run = self.runs[id]
        if self.pinned:
            await self._within(run, id)
        else:
            await run.check()
        return run

    async def _within(self, run: Run[Any], id: str) -> None:
        try:
            await self.find_session((await run.refresh()).session)
        except NotFound:
            raise NotFound(f"there is no run {id} in this database.") from None

    async def shows(self, session: str) -> bool:
        """Whether what is in this session is there for this principal."""
        return bool(await self.shown([session], str))

    async def shown(self, items: Sequence[T], session: Callable[[T], str]) -> list[T]:
        """Those of these items whose sessions are there for this principal; all sessions are asked for at once."""
        if not self.pinned:
            return list(items)
        found = await core_of(self.hf).runtime().transact(metadata_of, [session(each) for each in items], self.tenant)
        return [each for each in items if self._has(found.get(session(each)))]

    def with_pinned(self, metadata: Mapping[str, Any] | None) -> dict[str, Any]:
        """Metadata for a session; those that are pinned cannot be given otherwise."""
        for name, value in (metadata or {}).items():
            if name in self.pinned and self.pinned[name] != value:
                raise UsageError(f"metadata {name!r} is pinned here: leave it out.")
        return {**(metadata or {}), **self.pinned}

    def chosen(self, tenant: str | None) -> str | None:
        """The tenant that a filter asks for; who is a tenant asks for itself."""
        if self.tenant is not None and tenant not in (None, self.tenant):
            raise NotFound(f"there is no tenant {tenant} in this database.")
        return self.tenant if self.tenant is not None else tenant

    def _has_pinned(self, session: SessionRecord) -> bool:
        return self._has(session.metadata)

    def _has(self, metadata: Mapping[str, Any] | None) -> bool:
        return metadata is not None and all(metadata.get(name) == value for name, value in self.pinned.items())


async def seen_of(request: Request) -> PrincipalScope:
    seen: PrincipalScope = request.state.seen
    return seen


RequestScope = Annotated[PrincipalScope, Depends(seen_of)]
