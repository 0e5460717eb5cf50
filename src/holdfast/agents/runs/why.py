"""Why a run does not get on: what its job says, in the words of runs.

There are two sentences for each reason: one for operators, with names of workers, queues, lanes and batches, and one
for who sees a single tenant, without them.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

from holdfast.agents.batches.batch_rows import BatchRow
from holdfast.agents.batches.statements import BatchesSql
from holdfast.agents.fallback import foretold
from holdfast.agents.keys import missing
from holdfast.agents.lanes import behind, explain
from holdfast.agents.people.inquiry_rows import InquiryRow
from holdfast.agents.people.statements import InquiriesSql
from holdfast.agents.rows import RunRow
from holdfast.agents.runs.end import line_of
from holdfast.agents.statements import CallsSql, ProvidersSql, RunsSql
from holdfast.agents.states import IN_BATCH, BatchState, CallState, RunState
from holdfast.errors import NotFound
from holdfast.kernel import codec
from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.ids import JobId, is_id
from holdfast.kernel.why import Reason, RecordedEnd, retry_command, why_ended
from holdfast.kernel.why import why as why_job

OWN = frozenset({"children", "ended", "model", "person", "session", "tools"})
"""The gates whose sentences name only what belongs to the run or job itself, and its tenant."""

FOR_TENANTS = {
    "batch": "it waits for the answer of a batch",
    "budget": "a budget holds it back",
    "key": "no live worker has a key for its model",
    "lane": "a limit on how much runs at once, or how often, holds it back",
    "lease_ended": "its worker is gone: the next one that looks takes it over",
    "leased": "a worker is running it",
    "no_route": "no worker knows it yet",
    "no_worker": "no live worker can run it",
    "not_due": "it is put off",
    "paused": "its queue is paused",
    "raised": "the log of its worker says where it was raised",
    "signal": "it waits for a signal",
    "unknown": "it is in a state that this release does not know",
}
"""What is said of every other gate. One that is missing here says nothing but that something holds it back."""


def sentence_for_tenant(gate: str, sentence: str) -> str:
    """The sentence of a reason for who sees one tenant: it names no worker, host, process or other tenant."""
    return sentence if gate in OWN else FOR_TENANTS.get(gate, "something that belongs to no tenant holds it back")


@reading
async def why(tx: Transaction, id: str, *, absent: Collection[int] = ()) -> list[Reason]:
    """What keeps a job or a run; empty when nothing does. `absent`: workers whose presence is gone."""
    run = await tx.one(RunsSql.find_run, id=id)
    if run is not None and run.finalized_at is not None:
        again = retry_command("run", run.id)
        its = RecordedEnd(run.state, run.finalized_at, run.outcome, run.error_type, run.error, again)
        return await why_ended(tx, JobId(run.id), its)
    try:
        reasons = await why_job(tx, JobId(id), absent=absent) if is_id(id) else None
    except NotFound:
        reasons = None
    if reasons is None:
        raise NotFound(f"there is no run {id} in this database, and no job.")
    if run is None:
        return reasons
    if run.state in (RunState.PENDING_TOOLS, RunState.AWAITING_INPUT):
        asked = [_inquiry(row) for row in await tx.many(InquiriesSql.open_inquiries, id=run.id)]
        return asked or [await _tools(tx, run)]
    if run.state in IN_BATCH and (batch := await tx.one(BatchesSql.batch_of, run=run.id)) is not None:
        held = [lane for lane in await tx.many(ProvidersSql.closed_lanes) if lane.name == batch.lane]
        return [_batch(batch), *(Reason("lane", explain(lane)) for lane in held)]
    if unasked := await missing(tx, run, reasons, absent):
        return unasked
    if waiting := await behind(tx, reasons):
        return [*waiting, *await foretold(tx, run)]
    if any(line_of(run.session) in reason.sentence for reason in reasons):
        return [await _line(tx, run)]
    if any(reason.gate == "not_due" for reason in reasons):
        reasons += [*await _lanes(tx), *await foretold(tx, run)]
        if run.limited is not None:
            reasons.append(Reason("budget", run.limited))
    return reasons


async def _tools(tx: Transaction, run: RunRow) -> Reason:
    calls = await tx.many(CallsSql.calls_of, run=run.id, turn=run.turns)
    still = [f"{call.name} ({call.state})" for call in calls if call.state in (CallState.PENDING, CallState.RUNNING)]
    return Reason("tools", f"it waits for its tools: {', '.join(still) or 'all of them have ended'}")


def _inquiry(row: InquiryRow) -> Reason:
    since = datetime.fromtimestamp(row.asked_at / 1e6, UTC).strftime("%H:%M")
    data = codec.decode(row.data)
    match row.kind:
        case "approval":
            words = f"tool {row.name} has been waiting for approval since {since}"
        case "review":
            words = f"tool {row.name} has been waiting for a review since {since}: {data.get('reason')}{_change(data)}"
        case "question":
            words = f"it has been waiting for an answer from a person since {since}: {data.get('question')}"
        case "continuation":
            words = f"its answer was cut off at {since}, and a person decides whether it continues"
        case "limit":
            words = f"it reached a limit at {since}, and a person decides whether it continues: {data.get('reason')}"
        case unknown:
            words = f"it has waited for a person since {since}; a newer release asked: {unknown} of {row.name}"
    return Reason("person", words, row.expires_at)


def _change(data: dict[str, Any]) -> str:
    """That the call did not run with what the model had asked for."""
    changed = data.get("changed")
    return "" if not changed else f"; {changed.get('by') or 'a person'} had changed its arguments before it ran"


def _batch(batch: BatchRow) -> Reason:
    match batch.state:
        case BatchState.GATHERING:
            words = f"batch {batch.id} gathers the turns of more runs before it is submitted"
        case BatchState.SEARCHING:
            words = f"it is not known yet whether the provider has batch {batch.id}"
        case _:
            at = f", the provider's {batch.provider_id}" if batch.provider_id else ""
            words = f"it waits for the answer of batch {batch.id}{at}, which is {batch.state}"
    return Reason("batch", f"{words}: {batch.error}" if batch.error else words)


async def _line(tx: Transaction, run: RunRow) -> Reason:
    ahead = await tx.one(RunsSql.run_ahead, session=run.session, ordinal=run.ordinal)
    first = f"run {ahead.id} ({ahead.state})" if ahead is not None else "another run"
    return Reason("session", f"{first} of the same session comes first")


async def _lanes(tx: Transaction) -> list[Reason]:
    lanes = await tx.many(ProvidersSql.closed_lanes)
    return [Reason("lane", explain(lane), None if lane.person else lane.closed_until) for lane in lanes]
