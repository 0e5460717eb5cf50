"""Why a run does not get on: what its job says, in the words of runs."""

from __future__ import annotations

from datetime import UTC, datetime

from holdfast.agents.ending import line_of
from holdfast.agents.records import RunRow
from holdfast.agents.statements import Calls, Providers, Runs
from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.ids import JobId
from holdfast.kernel.why import Reason
from holdfast.kernel.why import why as why_job


@reading
async def why(tx: Transaction, id: str) -> list[Reason]:
    """What keeps a job or a run; empty when nothing does."""
    reasons = await why_job(tx, JobId(id))
    run = await tx.one(Runs.find_run, id=id)
    if run is None or run.finalized_at is not None:
        return reasons
    if run.state == "pending_tools":
        return [await _tools(tx, run)]
    if any(line_of(run.session) in reason.sentence for reason in reasons):
        return [await _line(tx, run)]
    if any(reason.gate == "not_due" for reason in reasons):
        reasons += await _lanes(tx)
    return reasons


async def _tools(tx: Transaction, run: RunRow) -> Reason:
    calls = await tx.many(Calls.calls_of, run=run.id, turn=run.turns)
    still = [f"{call.name} ({call.state})" for call in calls if call.state in ("pending", "running")]
    return Reason("tools", f"it waits for its tools: {', '.join(still)}")


async def _line(tx: Transaction, run: RunRow) -> Reason:
    ahead = await tx.one(Runs.run_ahead, session=run.session, ordinal=run.ordinal)
    first = f"run {ahead.id} ({ahead.state})" if ahead is not None else "another run"
    return Reason("session", f"{first} of its session comes first")


async def _lanes(tx: Transaction) -> list[Reason]:
    reasons = []
    for lane in await tx.many(Providers.closed_lanes):
        if lane.person:
            reasons.append(Reason("lane", f"lane {lane.name} waits for a person: {lane.reason}"))
        elif lane.closed_until is not None and lane.closed_until > lane.now:
            until = datetime.fromtimestamp(lane.closed_until / 1e6, UTC).strftime("%H:%M:%S")
            reasons.append(
                Reason("lane", f"lane {lane.name} is closed until {until}: {lane.reason}", lane.closed_until)
            )
    return reasons
