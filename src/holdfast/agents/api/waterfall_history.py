"""What a waterfall needs besides its runs: their turns and calls, who had the jobs when, who was asked, what holds the
run now. It reads no arguments and no results, so it stays small however much was said."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeVar

from holdfast.agents.api.waits import Cause, HeldInterval
from holdfast.agents.api.waterfall import AskedPerson, RunPast
from holdfast.agents.listing_rows import HeldStretch
from holdfast.agents.rows import RunRow
from holdfast.agents.runs.why import why
from holdfast.agents.statements import LookingSql
from holdfast.agents.values.runs import CallRecord, RunRecord, Turn, call_of, turn_of
from holdfast.errors import NotFound
from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.queries import now
from holdfast.reasons import Gate, Reason, error_for_tenant
from holdfast.values.rows import value_of
from holdfast.values.times import moment

V = TypeVar("V")

_STRETCHES, _ASKED = 10_000, 1_000
_TURNS = _CALLS = 5_000  # of all runs of one waterfall
_CAUSES: Mapping[Gate, Cause] = {
    Gate.SESSION: "session",
    Gate.LANE: "lane",
    Gate.BUDGET: "budget",
    Gate.PERSON: "person",
    Gate.BATCH: "batch",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """By the id of each run, or of a call. `free_at` and `open_reason` are those of the run `top`."""

    top: str
    now: datetime
    turns: Mapping[str, Sequence[Turn]]
    calls: Mapping[str, Sequence[CallRecord]]
    held: Mapping[str, Sequence[HeldInterval]]
    asked: Mapping[str, Sequence[AskedPerson]]
    free_at: datetime | None
    open_reason: Reason | None
    shows_workers: bool = True

    def past(self, run: RunRecord) -> RunPast:
        """What of it concerns one run."""
        mine = run.id == self.top
        return RunPast(
            now=self.now,
            turns=self.turns.get(run.id, ()),
            calls=self.calls.get(run.id, ()),
            held=self.held,
            asked=self.asked.get(run.id, ()),
            free_at=self.free_at if mine else None,
            open_reason=self._open_reason() if mine else None,
        )

    def _open_reason(self) -> tuple[Cause, str] | None:
        """Of what kind the wait is that holds the run now, and the sentence."""
        reason = self.open_reason
        if reason is None:
            return None
        sentence = reason.sentence if self.shows_workers else reason.sentence_for_tenant
        return _CAUSES.get(reason.gate, "queue"), sentence

    def without_workers(self) -> History:
        """The same for those who do not see the fleet."""
        held = {id: [_for_tenant(each) for each in parts] for id, parts in self.held.items()}
        return replace(self, held=held, shows_workers=False)


def _for_tenant(held: HeldInterval) -> HeldInterval:
    return replace(held, worker="", message=error_for_tenant(held.error_type, held.message))


@reading
async def read_history(tx: Transaction, top: RunRow, ids: Sequence[str], absent: Collection[int] = ()) -> History:
    """The history of a run and of the runs below it, which `ids` names; bounded."""
    runs = list(ids)
    turns = await tx.many(LookingSql.turns_below, ids=runs, limit=_TURNS)
    calls = await tx.many(LookingSql.calls_below, ids=runs, limit=_CALLS)
    asked = await tx.many(LookingSql.asked_below, ids=runs, limit=_ASKED)
    before = await tx.one(LookingSql.run_before, session=top.session, created_at=top.created_at, id=top.id)
    return History(
        top=top.id,
        now=moment(await now(tx)),
        turns=_grouped((row.run, turn_of(row)) for row in turns),
        calls=_grouped((row.run, call_of(row)) for row in calls),
        held=await _held(tx, runs),
        asked=_grouped((row.run, value_of(AskedPerson, row)) for row in asked),
        free_at=None if before is None else moment(before.at),
        open_reason=None if top.finalized_at is not None else await _open_reason(tx, top.id, absent),
    )


def _grouped(pairs: Iterable[tuple[str, V]]) -> dict[str, list[V]]:
    found: defaultdict[str, list[V]] = defaultdict(list)
    for run, value in pairs:
        found[run].append(value)
    return found


async def _held(tx: Transaction, runs: Sequence[str]) -> dict[str, list[HeldInterval]]:
    owners = {row.job: row.id for row in await tx.many(LookingSql.jobs_below, ids=runs, limit=_STRETCHES)}
    rows = await tx.many(LookingSql.stretches, seqs=sorted(owners), limit=_STRETCHES)
    return _grouped((owners[row.job], _stretch(row)) for row in rows)


def _stretch(row: HeldStretch) -> HeldInterval:
    return HeldInterval(
        worker=row.worker,
        outcome=row.outcome,
        error_type=row.error_type,
        message=row.message or "",
        started_at=moment(row.started_at),
        ended_at=moment(row.ended_at),
    )


async def _open_reason(tx: Transaction, run: str, absent: Collection[int]) -> Reason | None:
    try:
        return next(iter(await why(tx, run, absent=absent)), None)
    except NotFound:  # its job is gone
        return None
