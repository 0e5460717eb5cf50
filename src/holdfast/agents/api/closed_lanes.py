"""Closed lanes as a program sees them: `hf.lanes`."""

from __future__ import annotations

from holdfast.agents import lanes
from holdfast.agents.core import AgentsCore, Reaching
from holdfast.agents.lanes import let_through, list_lanes
from holdfast.agents.values.lanes import ClosedLaneRecord, closed_lane_of
from holdfast.changes import changing
from holdfast.errors import NotFound
from holdfast.validation import did_you_mean
from holdfast.values.page import Page, part_of


class LanesList(Reaching):
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
