"""Why a run does not get on: what its job says, in the words of runs."""

from __future__ import annotations

from datetime import UTC, datetime

from holdfast.agents.batches.records import BatchRow
from holdfast.agents.ending import line_of
from holdfast.agents.people.records import InquiryRow
from holdfast.agents.records import RunRow
from holdfast.agents.statements import Batches, Calls, Inquiries, Providers, Runs
from holdfast.errors import NotFound
from holdfast.kernel import encoding
from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.ids import JobId, is_id
from holdfast.kernel.why import Reason
from holdfast.kernel.why import why as why_job

_ENDS = {"completed": "was completed", "cancelled": "was cancelled", "failed": "has failed"}


@reading
async def why(tx: Transaction, id: str) -> list[Reason]:
    """What keeps a job or a run; empty when nothing does."""
    run = await tx.one(Runs.find_run, id=id)
    if run is not None and run.finalized_at is not None:
        return [_ended(run)]
    try:
        reasons = await why_job(tx, JobId(id)) if is_id(id) else None
    except NotFound:
        reasons = None
    if reasons is None:
        raise NotFound(f"there is no run {id} in this database, and no job.")
    if run is None:
        return reasons
    if run.state in ("pending_tools", "awaiting_input"):
        asked = [_inquiry(row) for row in await tx.many(Inquiries.open_inquiries, id=run.id)]
        return asked or [await _tools(tx, run)]
    if run.state.startswith("batch_") and (batch := await tx.one(Batches.batch_of, run=run.id)) is not None:
        return [_batch(batch)]
    if any(line_of(run.session) in reason.sentence for reason in reasons):
        return [await _line(tx, run)]
    if any(reason.gate == "not_due" for reason in reasons):
        reasons += await _lanes(tx)
        if run.limited is not None:
            reasons.append(Reason("budget", run.limited))
    return reasons


def _ended(run: RunRow) -> Reason:
    at = datetime.fromtimestamp((run.finalized_at or 0) / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    how = f", {run.outcome}" if run.outcome else f": {run.error}" if run.error else ""
    return Reason("ended", f"it {_ENDS[run.state]} at {at}{how}")


async def _tools(tx: Transaction, run: RunRow) -> Reason:
    calls = await tx.many(Calls.calls_of, run=run.id, turn=run.turns)
    still = [f"{call.name} ({call.state})" for call in calls if call.state in ("pending", "running")]
    return Reason("tools", f"it waits for its tools: {', '.join(still) or 'all of them have ended'}")


def _inquiry(row: InquiryRow) -> Reason:
    since = datetime.fromtimestamp(row.asked_at / 1e6, UTC).strftime("%H:%M")
    data = encoding.decode(row.data)
    match row.kind:
        case "approval":
            words = f"tool {row.name} needs approval since {since}"
        case "review":
            words = f"tool {row.name} needs review since {since}: {data.get('reason')}"
        case "question":
            words = f"a person is asked since {since}: {data.get('question')}"
        case "continuation":
            words = f"its answer was cut off at {since}, and a person says whether it goes on"
        case _:
            words = f"it reached a limit at {since}, and a person says whether it goes on: {data.get('reason')}"
    return Reason("person", words, row.expires_at)


def _batch(batch: BatchRow) -> Reason:
    match batch.state:
        case "gathering":
            words = f"batch {batch.id} gathers the turns of more runs before it is submitted"
        case "searching":
            words = f"whether the provider has batch {batch.id} is not known yet"
        case _:
            at = f", the provider's {batch.provider_id}" if batch.provider_id else ""
            words = f"it waits for the answer of batch {batch.id}{at}, which is {batch.state}"
    return Reason("batch", f"{words}: {batch.error}" if batch.error else words)


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
