"""What a waterfall needs besides turns and calls: who had the jobs when, who was asked, what holds the run now."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import cast

from holdfast.agents.api.waits import Cause, HeldInterval
from holdfast.agents.api.waterfall import RunPast
from holdfast.agents.listing_rows import HeldStretch
from holdfast.agents.people.inquiry import Inquiry, inquiry_of
from holdfast.agents.people.inquiry_pages import list_inquiries
from holdfast.agents.rows import RunRow
from holdfast.agents.runs.why import why
from holdfast.agents.statements import LookingSql
from holdfast.agents.values.runs import CallRecord, RunRecord, Turn
from holdfast.errors import NotFound
from holdfast.kernel import codec
from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.queries import now
from holdfast.values.times import moment

_STRETCHES, _INQUIRIES = 10_000, 1_000
_CAUSES = frozenset({"session", "lane", "budget", "person", "batch"})


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """`free_at` and `open_reason` are those of the run `top`."""

    top: str
    now: datetime
    held: Mapping[str, Sequence[HeldInterval]]
    inquiries: Sequence[Inquiry]
    free_at: datetime | None
    open_reason: tuple[Cause, str] | None

    def past(self, run: RunRecord, turns: Sequence[Turn], calls: Sequence[CallRecord]) -> RunPast:
        """What of it concerns one run."""
        mine = run.id == self.top
        return RunPast(
            now=self.now,
            turns=turns,
            calls=calls,
            held=self.held,
            inquiries=[each for each in self.inquiries if each.run_id == run.id],
            free_at=self.free_at if mine else None,
            open_reason=self.open_reason if mine else None,
        )

    def without_workers(self) -> History:
        """The same for those who do not see the fleet."""
        held = {id: [replace(each, worker="") for each in parts] for id, parts in self.held.items()}
        return replace(self, held=held)


@reading
async def read_history(tx: Transaction, top: RunRow, ids: Sequence[str]) -> History:
    """The history of a run and of the runs below it, which `ids` names; bounded."""
    held: dict[str, list[HeldInterval]] = defaultdict(list)
    owners = {row.job: row.id for row in await tx.many(LookingSql.jobs_below, ids=list(ids), limit=_STRETCHES)}
    for row in await tx.many(LookingSql.stretches, seqs=sorted(owners), limit=_STRETCHES):
        held[owners[row.job]].append(_held(row))
    before = await tx.one(LookingSql.run_before, session=top.session, created_at=top.created_at, id=top.id)
    return History(
        top=top.id,
        now=moment(await now(tx)),
        held=held,
        inquiries=[inquiry_of(row) for row in await list_inquiries(tx, state=None, run=top.root, limit=_INQUIRIES)],
        free_at=None if before is None else moment(before.at),
        open_reason=None if top.finalized_at is not None else await _open_reason(tx, top.id),
    )


def _held(row: HeldStretch) -> HeldInterval:
    error = codec.decode(row.error) if row.error else None
    said = str(error.get("message", "")) if isinstance(error, dict) else ""
    return HeldInterval(
        worker=row.worker,
        outcome=row.outcome,
        message=said,
        started_at=moment(row.started_at),
        ended_at=moment(row.ended_at),
    )


async def _open_reason(tx: Transaction, run: str) -> tuple[Cause, str] | None:
    try:
        reasons = await why(tx, run)
    except NotFound:  # its job is gone
        return None
    if not reasons:
        return None
    first = reasons[0]
    cause = first.gate if first.gate in _CAUSES else "queue"
    return cast(Cause, cause), first.sentence
