"""What runs have done, counted or listed for all of them: `hf.runs.stats()`, `.failures()`, `.calls()`, `.call()`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, Unpack

from holdfast import tallies, validation
from holdfast.agents import queries
from holdfast.agents.api.options import moment_us
from holdfast.agents.call_pages import CallFilters, call_page, count_calls
from holdfast.agents.core import Reaching
from holdfast.agents.looks import shown_page
from holdfast.agents.queries import AFTER_ALL, LAST
from holdfast.agents.states import CALL
from holdfast.agents.values.runs import CallRecord, call_of
from holdfast.durations import Duration
from holdfast.errors import NotFound
from holdfast.kernel.failure_groups import FailureTraits, Likeness, likeness
from holdfast.values.page import Page, place
from holdfast.values.tallies import FailureRecord, StatRecord


class CountedRuns(Reaching):
    """Of everybody, or of one tenant."""

    _tenant: str | None

    def _whose(self, tenant: str | None) -> str | None:
        return tenant if self._tenant is None else self._tenant

    async def stats(
        self,
        *by: tallies.Part,
        of: Literal["runs", "turns", "calls"] = "runs",
        tenant: str | None = None,
        **options: Unpack[tallies.StatOptions],
    ) -> Sequence[StatRecord]:
        """How many runs, turns or tool calls ended in each step of time, what they took and used.

        They are kept apart by what you name: `source` is the agent, `kind` the model of a turn or the tool of a call.
        The last three minutes are not counted yet.
        """
        now_us = self._app.runtime().ports.clock.wall_us()
        return await tallies.stats(self._transact, now_us, of, by=by, tenant=self._whose(tenant), options=options)

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
        return await tallies.failures(
            self._transact, now_us, subject=of, kind=kind, tenant=whose, since=since, limit=limit
        )

    async def _like(self, error: str | None, message: str | None, among: Sequence[FailureTraits]) -> Likeness:
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
