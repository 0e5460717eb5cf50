"""Runs as a gateway shows them: its turns, and what was queued for pools. A tenant has turns alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.agents.api.lists import Tenant
from holdfast.agents.values.runs import RunRecord
from holdfast.app import Holdfast
from holdfast.errors import NotFound
from holdfast.facades.universal_agent.run_words import OUTCOMES
from holdfast.facades.universal_agent.runtime_db import RuntimeDb


class GatewayRuns:
    """The runs that are there for somebody who sees `part` of the app, in sessions with these metadata."""

    def __init__(self, runtime: RuntimeDb, part: Holdfast | Tenant, own: Mapping[str, Any], *, queued: bool) -> None:
        self._runtime = runtime
        self._part = part
        self._own = own
        self._queued = queued  # whether runs for pools, which belong to no session, are shown

    async def get(self, run_id: str) -> dict[str, Any]:
        """A turn or a queued run by its id; `NotFound` when there is none."""
        turn = await self._turn(run_id)
        if turn is not None:
            return turn
        found = await self._runtime.runs.get(run_id) if self._queued else None
        if found is None:
            raise NotFound(f"there is no run {run_id[:80]} in this gateway.")
        return found

    async def attempts(self, run_id: str) -> list[dict[str, Any]]:
        """The attempts of a turn or a queued run that have ended, the first first."""
        if await self._turn(run_id) is None:
            await self.get(run_id)
            return await self._runtime.runs.attempts(run_id)
        found = await self._runtime.app.jobs.attempts(run_id)
        return [
            {
                "attempt_number": number,
                "status": OUTCOMES.get(each.outcome, each.outcome),
                "started_at": each.started_at.isoformat(),
                "ended_at": each.ended_at.isoformat(),
            }
            for number, each in enumerate(found, 1)
        ]

    async def _turn(self, run_id: str) -> dict[str, Any] | None:
        try:
            run = await self._part.runs.get(run_id)
            session = await self._part.sessions.get(run.session)
        except NotFound:
            return None
        if any(session.metadata.get(name) != value for name, value in self._own.items()):
            return None
        return {
            "run_id": run.id,
            "session_id": session.key,
            "status": _status(run),
            "last_job_prompt": "".join(block.get("text", "") for block in run.input if isinstance(block, dict)),
            "workspace_dir": session.metadata.get("workspace_dir"),
            "created_at": run.created_at.isoformat(),
        }


def _status(run: RunRecord) -> str:
    if run.finalized_at is not None:
        return run.state
    return "queued" if run.started_at is None else "running"
