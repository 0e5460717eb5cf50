"""The waterfall of a run, laid out to be drawn: rows, places in per mille of the width, ticks, folded idle time. Pure.

Time in which everything waits is folded when it is long, so that what was done stays readable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from holdfast.agents.api.waits import Interval, without
from holdfast.agents.api.waterfall import Span
from holdfast.http.pages import words

MOST_ROWS = 400
_FOLDED = 60  # per mille of the width that a folded time takes
_MOST_FOLDS = 6
_WORTH_FOLDING = timedelta(seconds=2)
_STEPS = (1, 2, 5)  # of every power of ten, in milliseconds
_LONG_STEPS = (60_000, 120_000, 300_000, 600_000, 1_800_000, 3_600_000, 7_200_000, 21_600_000, 43_200_000, 86_400_000)
_WAITS = {
    "queue": "waits for a worker",
    "session": "waits for its session",
    "lane": "waits for its provider",
    "budget": "waits for a budget",
    "person": "waits for a person",
    "batch": "waits for a batch",
    "retry": "waits to be tried again",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WaterfallRow:
    """One span: `x` and `width` are per mille of the drawing. `broken`: it ended before its work did."""

    id: str
    kind: str
    depth: int
    label: str
    state: str
    x: int
    width: int
    lasts: bool
    broken: bool
    reason: str
    worker: str
    cost: Decimal
    tokens: int
    unknown: int
    took: str


@dataclass(frozen=True, slots=True)
class AxisTick:
    x: int
    label: str


@dataclass(frozen=True, slots=True)
class Fold:
    """A time in which nothing was done, drawn narrower than it was."""

    x: int
    width: int
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Waterfall:
    rows: Sequence[WaterfallRow]
    ticks: Sequence[AxisTick]
    folds: Sequence[Fold]
    left_out: int = 0


def lay_out(spans: Sequence[Span], now: datetime) -> Waterfall:
    """The spans below each other, each under what it is part of."""
    if not spans:
        return Waterfall(rows=(), ticks=(), folds=())
    scale = Scale(spans, now)
    ordered = list(_ordered(spans))
    rows = [_row(span, depth, scale, now) for span, depth in ordered[:MOST_ROWS]]
    left_out = max(0, len(ordered) - MOST_ROWS)
    return Waterfall(rows=rows, ticks=scale.ticks(), folds=scale.folds, left_out=left_out)


def _ordered(spans: Sequence[Span]) -> Iterable[tuple[Span, int]]:
    """A span, then what is part of it, the earlier first."""
    known = {each.id for each in spans}
    parts: dict[str | None, list[Span]] = {}
    for each in spans:
        parts.setdefault(each.parent if each.parent in known else None, []).append(each)
    stack = [(each, 0) for each in reversed(_by_time(parts.get(None, [])))]
    while stack:
        span, depth = stack.pop()
        yield span, depth
        stack += [(each, depth + 1) for each in reversed(_by_time(parts.pop(span.id, [])))]


def _by_time(spans: Iterable[Span]) -> list[Span]:
    return sorted(spans, key=lambda each: each.started_at)


def _row(span: Span, depth: int, scale: Scale, now: datetime) -> WaterfallRow:
    end = span.ended_at or now
    x = scale.x(span.started_at)
    return WaterfallRow(
        id=span.id,
        kind=span.kind,
        depth=depth,
        label=_label(span),
        state=span.name if span.kind == "wait" else span.state,
        x=x,
        width=max(1, scale.x(end) - x),
        lasts=span.ended_at is None,
        broken=span.kind == "attempt",
        reason=span.reason or "",
        worker=span.worker or "",
        cost=span.cost,
        tokens=span.tokens,
        unknown=span.unknown,
        took=words.span(end - span.started_at),
    )


def _label(span: Span) -> str:
    match span.kind:
        case "wait":
            return _WAITS.get(span.name, f"waits: {span.name}")
        case "attempt":
            how = {"lost": "died", "retried": "failed, tried again"}.get(span.state, span.state)
            return f"worker {span.worker} {how}" if span.worker else f"{span.name} {how}"
        case "turn":
            return f"turn {span.id.rpartition('/')[2]}: {span.name}"
        case _:
            return span.name


class Scale:
    """From time to per mille: every busy time alike, every long idle one at a fixed width."""

    def __init__(self, spans: Sequence[Span], now: datetime) -> None:
        begin = min(each.started_at for each in spans)
        end = max([begin + timedelta(milliseconds=1), *(each.ended_at or now for each in spans)])
        self._whole = Interval(begin, end)
        idle = _idle(spans, self._whole, now)
        folded = sum((each.end - each.begin for each in idle), timedelta())
        room = 1_000 - _FOLDED * len(idle)
        rest = max((end - begin) - folded, timedelta(milliseconds=1))
        self._rate = room / (rest / timedelta(milliseconds=1))  # per mille a millisecond
        self._idle = idle
        self.folds = [Fold(self.x(each.begin), _FOLDED, words.span(each.end - each.begin)) for each in idle]

    def x(self, at: datetime) -> int:
        """Where a time is drawn."""
        at = min(max(at, self._whole.begin), self._whole.end)
        place, last = 0.0, self._whole.begin
        for each in self._idle:
            if at <= each.begin:
                break
            place += (each.begin - last) / timedelta(milliseconds=1) * self._rate
            place += _FOLDED * min(1.0, (at - each.begin) / (each.end - each.begin))
            last = min(each.end, at)
        place += (at - last) / timedelta(milliseconds=1) * self._rate
        return min(1_000, round(place))

    def ticks(self) -> list[AxisTick]:
        """Round times since the beginning, those in a fold left out."""
        step = _step(140 / self._rate)
        begin, end = self._whole
        found: list[AxisTick] = []
        number = 0
        while begin + number * step <= end and number < 10_000 and len(found) < 12:
            at = begin + number * step
            if not any(each.begin < at < each.end for each in self._idle):
                found.append(AxisTick(self.x(at), words.span(number * step) if number else "0"))
            elif number:
                number = max(number, int((_fold_at(at, self._idle) - begin) / step))
            number += 1
        return found


def _fold_at(at: datetime, idle: Sequence[Interval]) -> datetime:
    return next(each.end for each in idle if each.begin < at < each.end)


def _step(least_ms: float) -> timedelta:
    """The next round step that is at least so long."""
    size = 1
    while size <= 10_000:
        for digit in _STEPS:
            if digit * size >= least_ms:
                return timedelta(milliseconds=digit * size)
        size *= 10
    days = 86_400_000 * max(1, round(least_ms / 86_400_000 + 0.5))
    return timedelta(milliseconds=next((each for each in _LONG_STEPS if each >= least_ms), days))


def _idle(spans: Sequence[Span], whole: Interval, now: datetime) -> list[Interval]:
    """The longest times in which everything waited, if folding them makes the rest clearer."""
    waited = {each.id: [] for each in spans}  # type: dict[str, list[Interval]]
    for each in spans:
        if each.kind == "wait" and each.parent in waited:
            waited[each.parent].append(Interval(each.started_at, each.ended_at or now))
    left = [whole]
    for each in spans:
        if each.kind in ("turn", "call", "attempt"):
            left = without(left, without([Interval(each.started_at, each.ended_at or now)], waited[each.id]))
    busy = (whole.end - whole.begin) - sum((each.end - each.begin for each in left), timedelta())
    least = max(_WORTH_FOLDING, busy / 2)
    long = sorted((each for each in left if each.end - each.begin > least), key=lambda each: each.begin - each.end)
    return sorted(long[:_MOST_FOLDS])
