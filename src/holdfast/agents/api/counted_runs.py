"""What has ended of runs, counted: `hf.runs.stats()` and `hf.runs.failures()`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, Unpack

from holdfast import tallies
from holdfast.agents.core import Reaching
from holdfast.durations import Duration
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
