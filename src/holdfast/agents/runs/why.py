"""Why a run does not get on: what its job says, or what the run itself knows better."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.agents.batches.records import BatchesSql, BatchRow
from holdfast.agents.fallback import reasons_of_fallback
from holdfast.agents.keys import missing
from holdfast.agents.lanes import behind, explain
from holdfast.agents.people.records import InquiriesSql, InquiryRow
from holdfast.agents.rows import RunRow
from holdfast.agents.runs.end import line_of
from holdfast.agents.statements import CallsSql, ProviderLanesSql, RunsSql
from holdfast.agents.states import IN_BATCH, BatchState, CallState, RunState
from holdfast.errors import NotFound
from holdfast.kernel import codec
from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.ids import JobId, is_id
from holdfast.kernel.why import AwaitsSignal, HasEnded, retry_command, why_ended
from holdfast.kernel.why import why as why_job
from holdfast.reasons import Gate, Reason, time_text


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitsTools(Reason):
    """Its tool calls have to end; `calls` are those that have not, each with its state."""

    gate = Gate.TOOLS

    calls: Sequence[tuple[str, str]]

    @property
    def sentence(self) -> str:
        still = ", ".join(f"{name} ({state})" for name, state in self.calls)
        return f"it waits for its tools: {still or 'all of them have ended'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitsPerson(Reason):
    """A person was asked: about a tool, or about the run itself. `data` is what the question says besides."""

    gate = Gate.PERSON

    kind: str
    tool: str
    asked_at: int
    data: Mapping[str, Any]

    @property
    def sentence(self) -> str:
        since, data = time_text(self.asked_at, "%H:%M"), self.data
        match self.kind:
            case "approval":
                return f"tool {self.tool} has been waiting for approval since {since}"
            case "review":
                waiting = f"tool {self.tool} has been waiting for a review since {since}: {data.get('reason')}"
                changed = data.get("changed")  # it did not run with what the model had asked for
                by = changed.get("by") or "a person" if changed else ""
                return f"{waiting}; {by} had changed its arguments before it ran" if changed else waiting
            case "question":
                return f"it has been waiting for an answer from a person since {since}: {data.get('question')}"
            case "continuation":
                return f"its answer was cut off at {since}, and a person decides whether it continues"
            case "limit":
                return f"it reached a limit at {since}, and a person decides whether it continues: {data.get('reason')}"
            case unknown:
                return f"it has waited for a person since {since}; a newer release asked: {unknown} of {self.tool}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitsBatch(Reason):
    """The answer comes with a batch; `provider_id` is the provider's name for it, `error` what went wrong last."""

    gate = Gate.BATCH

    batch: str
    state: str
    provider_id: str | None
    error: str | None

    @property
    def sentence(self) -> str:
        match self.state:
            case BatchState.GATHERING:
                words = f"batch {self.batch} gathers the turns of more runs before it is submitted"
            case BatchState.SEARCHING:
                words = f"it is not known yet whether the provider has batch {self.batch}"
            case _:
                at = f", the provider's {self.provider_id}" if self.provider_id else ""
                words = f"it waits for the answer of batch {self.batch}{at}, which is {self.state}"
        return f"{words}: {self.error}" if self.error else words


@dataclass(frozen=True, slots=True, kw_only=True)
class BehindInSession(Reason):
    """Runs of one session do not overlap; `run` comes first, if it is still there."""

    gate = Gate.SESSION

    run: str | None
    state: str

    @property
    def sentence(self) -> str:
        first = "another run" if self.run is None else f"run {self.run} ({self.state})"
        return f"{first} of the same session comes first"


@dataclass(frozen=True, slots=True, kw_only=True)
class OverBudget(Reason):
    """A budget has nothing left for its next call; `limit` says which one."""

    gate = Gate.BUDGET

    limit: str

    @property
    def sentence(self) -> str:
        return self.limit


@reading
async def why(tx: Transaction, id: str, *, absent: Collection[int] = ()) -> list[Reason]:
    """What keeps a job or a run; empty when nothing does. `absent`: workers whose presence is gone."""
    run = await tx.one(RunsSql.find_run, id=id)
    if run is not None and run.finalized_at is not None:
        ended = HasEnded(
            state=run.state,
            at=run.finalized_at,
            outcome=run.outcome,
            message=run.error or "",
            error_type=run.error_type,
        )
        return await why_ended(tx, JobId(run.id), ended, retry_command("run", run.id))
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
        held = [lane for lane in await tx.many(ProviderLanesSql.closed_lanes) if lane.name == batch.lane]
        return [_batch(batch), *map(explain, held)]
    if unasked := await missing(tx, run, reasons, absent):
        return unasked
    if waiting := await behind(tx, reasons):
        return [*waiting, *await reasons_of_fallback(tx, run)]
    line = line_of(run.session)
    if any(isinstance(reason, AwaitsSignal) and reason.channel == line for reason in reasons):
        return [await _ahead(tx, run)]
    if any(reason.gate is Gate.NOT_DUE for reason in reasons):
        reasons += [*map(explain, await tx.many(ProviderLanesSql.closed_lanes)), *await reasons_of_fallback(tx, run)]
        if run.limited is not None:
            reasons.append(OverBudget(limit=run.limited))
    return reasons


async def _tools(tx: Transaction, run: RunRow) -> Reason:
    calls = await tx.many(CallsSql.calls_of, run=run.id, turn=run.turns)
    still = [call for call in calls if call.state in (CallState.PENDING, CallState.RUNNING)]
    return AwaitsTools(calls=[(call.name, call.state) for call in still])


def _inquiry(row: InquiryRow) -> Reason:
    return AwaitsPerson(
        kind=row.kind, tool=row.name, asked_at=row.asked_at, data=codec.decode(row.data), until=row.expires_at
    )


def _batch(batch: BatchRow) -> Reason:
    return AwaitsBatch(batch=batch.id, state=batch.state, provider_id=batch.provider_id, error=batch.error)


async def _ahead(tx: Transaction, run: RunRow) -> Reason:
    ahead = await tx.one(RunsSql.run_ahead, session=run.session, ordinal=run.ordinal)
    return BehindInSession(run=None, state="") if ahead is None else BehindInSession(run=ahead.id, state=ahead.state)
