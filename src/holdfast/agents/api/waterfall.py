"""A waterfall: what a run and the runs below it did, as spans of time that can be drawn below each other. No I/O.

Beside what was done stand the waits, each with its reason, and the attempts that ended before their work did.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import ClassVar, Literal

from holdfast.agents.api.waits import Cause, HeldInterval, Interval, KnownInterval, WaitInterval, waits
from holdfast.agents.values.runs import CallRecord, RunRecord, Turn

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
class AskedPerson:
    """A time in which a person was asked, about a call or about the run itself."""

    run: str
    call: str | None
    kind: str
    name: str
    asked_at: datetime
    decided_at: datetime | None
    decided_by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPast:
    """What is known of one run besides itself. `held` is by the id of the run or of a call of it.

    `free_at` is when the run before it in its session ended, `open_reason` what holds it now.
    """

    now: datetime
    turns: Sequence[Turn] = ()
    calls: Sequence[CallRecord] = ()
    held: Mapping[str, Sequence[HeldInterval]] = field(default_factory=dict)
    asked: Sequence[AskedPerson] = ()
    free_at: datetime | None = None
    open_reason: tuple[Cause, str] | None = None


def below(top: RunRecord, family: Sequence[RunRecord]) -> list[RunRecord]:
    """Of a family, this run and those below it. A parent is older than its children, and comes before them."""
    inside = {top.id}
    for run in family:
        if run.parent in inside:
            inside.add(run.id)
    return [run for run in family if run.id in inside]


def spans_of(run: RunRecord, past: RunPast) -> list[Span]:
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


def _call(call: CallRecord, turn: str, run: RunRecord, past: RunPast) -> list[Span]:
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


def _run_waits(run: RunRecord, past: RunPast, held: Sequence[HeldInterval]) -> list[WaitInterval]:
    known = [_person(each) for each in past.asked if each.run == run.id and each.call is None]
    if past.free_at is not None and past.free_at > run.created_at:
        known.append(
            KnownInterval("session", "an earlier run of the same session came first", run.created_at, past.free_at)
        )
    busy = [Interval(each.created_at, each.finished_at or past.now) for each in past.calls]
    for turn in past.turns if run.mode == "batch" else ():
        known.append(KnownInterval("batch", "the provider had it in a batch", turn.started_at, turn.ended_at))
    return waits(run.created_at, run.finalized_at, past.now, held, known=known, busy=busy, open_reason=past.open_reason)


def _person(asked: AskedPerson) -> KnownInterval:
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
