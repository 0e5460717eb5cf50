"""A waterfall: what a run and the runs below it did, as spans of time that can be drawn below each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from holdfast.agents.values.runs import CallRecord, RunRecord, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One thing that took time. `parent` is the id of the span that it is part of, `ended_at` None while it lasts."""

    kind: Literal["run", "turn", "call"]
    id: str
    parent: str | None
    name: str
    state: str
    depth: int
    started_at: datetime
    ended_at: datetime | None


def below(top: RunRecord, family: Sequence[RunRecord]) -> list[RunRecord]:
    """Of a family, this run and those below it. A parent is older than its children, and comes before them."""
    inside = {top.id}
    for run in family:
        if run.parent in inside:
            inside.add(run.id)
    return [run for run in family if run.id in inside]


def spans_of(run: RunRecord, turns: Iterable[Turn], calls: Sequence[CallRecord]) -> list[Span]:
    """The run, and in it each turn with its calls."""
    whole = Span(
        kind="run",
        id=run.id,
        parent=run.call,
        name=run.agent_name,
        state=run.state,
        depth=run.depth,
        started_at=run.started_at or run.created_at,
        ended_at=run.finalized_at,
    )
    spans = [whole]
    for turn in turns:
        id = f"{run.id}/{turn.number}"
        spans.append(
            Span(
                kind="turn",
                id=id,
                parent=run.id,
                name=turn.model,
                state=turn.state,
                depth=run.depth,
                started_at=turn.started_at,
                ended_at=turn.ended_at,
            )
        )
        spans += [_call(call, id, run.depth) for call in calls if call.turn == turn.number]
    return spans


def _call(call: CallRecord, turn: str, depth: int) -> Span:
    return Span(
        kind="call",
        id=call.id,
        parent=turn,
        name=call.name,
        state=call.state,
        depth=depth,
        started_at=call.created_at,
        ended_at=call.finished_at,
    )
