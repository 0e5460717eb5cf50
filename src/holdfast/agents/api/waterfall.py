"""A waterfall: what a run and the runs below it did, as spans of time that can be drawn below each other. No I/O.

Beside what was done stand the waits, each with its reason, and the attempts that ended before their work did.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import ClassVar, Literal, NamedTuple, TypeVar

from holdfast.agents.listing_rows import LeaseInterval
from holdfast.agents.money.budgets import BudgetWait
from holdfast.agents.rows import RunRow
from holdfast.agents.runs.why import why
from holdfast.agents.statements import RunTreesSql
from holdfast.agents.values import CallRecord, RunRecord, Turn, call_of, turn_of
from holdfast.errors import NotFound
from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.queries import now
from holdfast.reasons import Gate, Reason, error_for_tenant
from holdfast.values import moment, value_of

# Waits: the times in which something was to be done and nobody did it, each with its reason. No I/O.
#
# Where a worker had the job there is no wait. What is left belongs to a person, a batch, the session, or to whatever
# the
# attempt before it said.


Cause = Literal["queue", "session", "lane", "budget", "person", "batch", "retry"]

_SHORTEST = timedelta(milliseconds=1)
_FREE = "no worker had taken it yet"


class Interval(NamedTuple):
    begin: datetime
    end: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldInterval:
    """A time in which a worker had the job; `outcome` and `ended_at` are None while it lasts."""

    worker: str
    outcome: str | None
    error_type: str | None
    message: str
    started_at: datetime
    ended_at: datetime | None


class KnownInterval(NamedTuple):
    """A time whose reason is known: nobody needs to guess what was waited for."""

    cause: Cause
    reason: str
    begin: datetime
    end: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitInterval:
    cause: Cause
    reason: str
    started_at: datetime
    ended_at: datetime | None


def waits(
    begin: datetime,
    end: datetime | None,
    now: datetime,
    held: Sequence[HeldInterval],
    *,
    known: Iterable[KnownInterval] = (),
    busy: Iterable[Interval] = (),
    open_reason: tuple[Cause, str] | None = None,
) -> list[WaitInterval]:
    """What was waited for from `begin` to `end`, or until now. `busy` are times that others worked in.

    `open_reason` is what holds it now, for a wait that has not ended.
    """
    left = without([Interval(begin, end or now)], [Interval(each.started_at, each.ended_at or now) for each in held])
    found: list[WaitInterval] = []
    for each in known:
        mine = within(left, Interval(each.begin, each.end or now))
        left = without(left, mine)
        found += [_wait(each.cause, each.reason, part, end is None and part.end >= now) for part in mine]
    for part in without(left, busy):
        lasts = end is None and part.end >= now
        cause, reason = open_reason if lasts and open_reason is not None else _after(part.begin, held)
        found.append(_wait(cause, reason, part, lasts))
    return sorted(
        (each for each in found if (each.ended_at or now) - each.started_at >= _SHORTEST),
        key=lambda each: each.started_at,
    )


def _wait(cause: Cause, reason: str, part: Interval, lasts: bool) -> WaitInterval:
    return WaitInterval(cause=cause, reason=reason, started_at=part.begin, ended_at=None if lasts else part.end)


def _after(begin: datetime, held: Sequence[HeldInterval]) -> tuple[Cause, str]:
    """What the last attempt before a time says about it."""
    before = [each for each in held if each.ended_at is not None and each.ended_at <= begin]
    last = max(before, key=lambda each: each.ended_at or begin, default=None)
    match None if last is None else last.outcome:
        case "lost":
            worker = f"worker {last.worker}" if last is not None and last.worker else "its worker"
            return "queue", f"{worker} was lost, and no other had taken it yet"
        case "snoozed":
            over = last is not None and last.error_type == BudgetWait.error_type
            return ("budget" if over else "lane"), (last.message if last else "") or "it was put off"
        case "retried":
            return "retry", f"it is tried again after: {last.message if last else ''}"
        case _:
            return "queue", _FREE


def without(parts: Iterable[Interval], taken: Iterable[Interval]) -> list[Interval]:
    """What is left of some times when others are taken out of them."""
    left = list(parts)
    for hole in taken:
        cut: list[Interval] = []
        for part in left:
            if hole.end <= part.begin or hole.begin >= part.end:
                cut.append(part)
                continue
            if hole.begin > part.begin:
                cut.append(Interval(part.begin, hole.begin))
            if hole.end < part.end:
                cut.append(Interval(hole.end, part.end))
        left = cut
    return left


def within(parts: Iterable[Interval], whole: Interval) -> list[Interval]:
    """What of some times lies in another one."""
    cut = [Interval(max(part.begin, whole.begin), min(part.end, whole.end)) for part in parts]
    return [part for part in cut if part.begin < part.end]


_DIED = frozenset({"lost", "retried", "failed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One thing that took time. `parent` is the id of the span that it is part of, `ended_at` None while it lasts.

    A "wait" has the `name` of what is waited for ("queue", "session", "lane", "budget", "person", "batch", "retry") and
    a `reason`; an "attempt" is one that ended before its work did. `worker` names who did it, for those who see the
    fleet. `tokens` and `cost` are the span's own; `unknown` counts purchases whose outcome nobody knows.
    """

    SHOWN: ClassVar = ("cost",)

    kind: Literal["run", "turn", "call", "wait", "attempt"]
    id: str
    parent: str | None
    name: str
    state: str
    depth: int
    started_at: datetime
    ended_at: datetime | None
    reason: str | None = None
    worker: str | None = None
    tokens: int = 0
    cost_nano: int = 0
    unknown: int = 0

    @property
    def cost(self) -> Decimal:
        return Decimal(self.cost_nano) / 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonInterval:
    """A time in which a person was asked, about a call or about the run itself."""

    run: str
    call: str | None
    kind: str
    name: str
    asked_at: datetime
    decided_at: datetime | None
    decided_by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHistory:
    """What is known of one run besides itself. `held` is by the id of the run or of a call of it.

    `free_at` is when the run before it in its session ended, `open_reason` what holds it now.
    """

    now: datetime
    turns: Sequence[Turn] = ()
    calls: Sequence[CallRecord] = ()
    held: Mapping[str, Sequence[HeldInterval]] = field(default_factory=dict)
    asked: Sequence[PersonInterval] = ()
    free_at: datetime | None = None
    open_reason: tuple[Cause, str] | None = None


def below(top: RunRecord, family: Sequence[RunRecord]) -> list[RunRecord]:
    """Of a family, this run and those below it. A parent is older than its children, and comes before them."""
    inside = {top.id}
    for run in family:
        if run.parent in inside:
            inside.add(run.id)
    return [run for run in family if run.id in inside]


def spans_of(run: RunRecord, past: RunHistory) -> list[Span]:
    """The run with its waits, and in it each turn with its attempts and calls, each call with its own."""
    held = past.held.get(run.id, ())
    spans = [_run(run, held), *_waited(run.id, run.depth, _run_waits(run, past, held))]
    placed = {each: _turn_of(each, run, past.turns) for each in held if each.outcome in _DIED}
    spans += _attempts(run.id, run.id, run.depth, [each for each, turn in placed.items() if turn is None])
    calls: defaultdict[int, list[CallRecord]] = defaultdict(list)
    for call in past.calls:
        calls[call.turn].append(call)
    for turn in past.turns:
        id = f"{run.id}/{turn.number}"
        spans.append(_turn(turn, id, run, held))
        spans += _attempts(id, id, run.depth, [each for each, place in placed.items() if place == turn.number])
        for call in calls[turn.number]:
            spans += _call(call, id, run, past)
    return spans


def _run(run: RunRecord, held: Sequence[HeldInterval]) -> Span:
    return Span(
        kind="run",
        id=run.id,
        parent=run.call,
        name=run.agent_name,
        state=run.state,
        depth=run.depth,
        started_at=run.created_at,
        ended_at=run.finalized_at,
        worker=_worker(held),
        tokens=run.input_tokens + run.output_tokens + run.cache_write_tokens + run.cache_read_tokens,
        cost_nano=run.cost_nano,
    )


def _turn(turn: Turn, id: str, run: RunRecord, held: Sequence[HeldInterval]) -> Span:
    return Span(
        kind="turn",
        id=id,
        parent=run.id,
        name=turn.model,
        state=turn.state,
        depth=run.depth,
        started_at=turn.started_at,
        ended_at=turn.ended_at,
        worker=_worker([each for each in held if each.started_at <= (turn.ended_at or turn.started_at)]),
        tokens=turn.usage.total_tokens,
        cost_nano=turn.usage.cost_nano,
        unknown=turn.unknown,
    )


def _call(call: CallRecord, turn: str, run: RunRecord, past: RunHistory) -> list[Span]:
    held = past.held.get(call.id, ())
    whole = Span(
        kind="call",
        id=call.id,
        parent=turn,
        name=call.name,
        state=call.state,
        depth=run.depth,
        started_at=call.created_at,
        ended_at=call.finished_at,
        worker=_worker(held),
    )
    if call.child is not None:
        return [whole]  # its time is that of the run below it
    asked = [_person(each) for each in past.asked if each.call == call.id]
    waited = waits(call.created_at, call.finished_at, past.now, held, known=asked)
    dead = [each for each in held if each.outcome in _DIED]
    return [whole, *_waited(call.id, run.depth, waited), *_attempts(call.id, call.id, run.depth, dead)]


def _run_waits(run: RunRecord, past: RunHistory, held: Sequence[HeldInterval]) -> list[WaitInterval]:
    known = [_person(each) for each in past.asked if each.run == run.id and each.call is None]
    if past.free_at is not None and past.free_at > run.created_at:
        known.append(
            KnownInterval("session", "an earlier run of the same session came first", run.created_at, past.free_at)
        )
    busy = [Interval(each.created_at, each.finished_at or past.now) for each in past.calls]
    for turn in past.turns if run.mode == "batch" else ():
        known.append(KnownInterval("batch", "the provider had it in a batch", turn.started_at, turn.ended_at))
    return waits(run.created_at, run.finalized_at, past.now, held, known=known, busy=busy, open_reason=past.open_reason)


def _person(asked: PersonInterval) -> KnownInterval:
    what = {
        "approval": f"{asked.name} waited for approval",
        "review": f"{asked.name} waited for a review",
        "question": "it waited for an answer from a person",
    }.get(asked.kind, "it waited for a person to say whether it continues")
    by = f"; {asked.decided_by} decided" if asked.decided_by else ""
    return KnownInterval("person", what + by, asked.asked_at, asked.decided_at)


def _waited(owner: str, depth: int, found: Sequence[WaitInterval]) -> list[Span]:
    return [
        Span(
            kind="wait",
            id=f"{owner}/wait/{number}",
            parent=owner,
            name=each.cause,
            state="over" if each.ended_at else "lasting",
            depth=depth,
            started_at=each.started_at,
            ended_at=each.ended_at,
            reason=each.reason,
        )
        for number, each in enumerate(found, 1)
    ]


def _attempts(owner: str, parent: str, depth: int, dead: Sequence[HeldInterval]) -> list[Span]:
    return [
        Span(
            kind="attempt",
            id=f"{owner}/attempt/{number}",
            parent=parent,
            name=f"attempt {number}",
            state=each.outcome or "",
            depth=depth,
            started_at=each.started_at,
            ended_at=each.ended_at,
            reason=each.message or None,
            worker=each.worker or None,
        )
        for number, each in enumerate(dead, 1)
    ]


def _turn_of(held: HeldInterval, run: RunRecord, turns: Sequence[Turn]) -> int | None:
    """The turn that an attempt was at when it ended."""
    end = held.ended_at or run.created_at
    at = [turn for turn in turns if turn.started_at <= end and (turn.ended_at is None or turn.ended_at >= end)]
    return at[-1].number if at else None


def _worker(held: Sequence[HeldInterval]) -> str | None:
    return (held[-1].worker or None) if held else None


# What a waterfall needs besides its runs: their turns and calls, who had the jobs when, who was asked, what holds the
# run now. It reads no arguments and no results, so it stays small however much was said.


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
    asked: Mapping[str, Sequence[PersonInterval]]
    free_at: datetime | None
    open_reason: Reason | None
    shows_workers: bool = True

    def past(self, run: RunRecord) -> RunHistory:
        """What of it concerns one run."""
        mine = run.id == self.top
        return RunHistory(
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
    turns = await tx.many(RunTreesSql.turns_below, ids=runs, limit=_TURNS)
    calls = await tx.many(RunTreesSql.calls_below, ids=runs, limit=_CALLS)
    asked = await tx.many(RunTreesSql.asked_below, ids=runs, limit=_ASKED)
    before = await tx.one(RunTreesSql.run_before, session=top.session, created_at=top.created_at, id=top.id)
    return History(
        top=top.id,
        now=moment(await now(tx)),
        turns=_grouped((row.run, turn_of(row)) for row in turns),
        calls=_grouped((row.run, call_of(row)) for row in calls),
        held=await _held(tx, runs),
        asked=_grouped((row.run, value_of(PersonInterval, row)) for row in asked),
        free_at=None if before is None else moment(before.at),
        open_reason=None if top.finalized_at is not None else await _open_reason(tx, top.id, absent),
    )


def _grouped(pairs: Iterable[tuple[str, V]]) -> dict[str, list[V]]:
    found: defaultdict[str, list[V]] = defaultdict(list)
    for run, value in pairs:
        found[run].append(value)
    return found


async def _held(tx: Transaction, runs: Sequence[str]) -> dict[str, list[HeldInterval]]:
    owners = {row.job: row.id for row in await tx.many(RunTreesSql.jobs_below, ids=runs, limit=_STRETCHES)}
    rows = await tx.many(RunTreesSql.stretches, seqs=sorted(owners), limit=_STRETCHES)
    return _grouped((owners[row.job], _stretch(row)) for row in rows)


def _stretch(row: LeaseInterval) -> HeldInterval:
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
