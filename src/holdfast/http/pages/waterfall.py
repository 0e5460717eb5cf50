"""The waterfall of a run, laid out to be drawn: rows, places in per mille of the width, ticks, folded idle time. Pure.

Time in which everything waits is folded when it is long, so that what was done stays readable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from markupsafe import Markup

from holdfast.agents.api.waterfall import Interval, Span, without
from holdfast.http.pages import words
from holdfast.text import escaped, plural

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
class FoldedTime:
    """A time in which nothing was done, drawn narrower than it was."""

    x: int
    width: int
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Waterfall:
    rows: Sequence[WaterfallRow]
    ticks: Sequence[AxisTick]
    folds: Sequence[FoldedTime]
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
        self.folds = [FoldedTime(self.x(each.begin), _FOLDED, words.span(each.end - each.begin)) for each in idle]

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


# A laid-out waterfall as SVG: bars, ticks and folds. Pure; classes only, because the page's policy forbids styles.
#
# Places are percentages, so that it fits any width and its text is never distorted. A bar that would be too thin to
# see
# has a mark of three pixels.


ROW = 24  # pixels; `--row` in the stylesheet has the same
_BAR = 14
_HEAD = 20
_THIN = 12  # per mille below which a bar may be thinner than three pixels


def draw(waterfall: Waterfall) -> Markup:
    """The picture; its rows stand beside a list of labels whose lines are as high."""
    height = _HEAD + ROW * len(waterfall.rows)
    parts = [
        Markup('<svg class="wf" width="100%" height="{h}" role="img" aria-label="Waterfall">').format(h=height),
        Markup("<title>Waterfall</title><desc>{}</desc>").format(_described(waterfall)),
        _hatching(),
        *(_fold(each, height) for each in waterfall.folds),
        *(_tick(each, height) for each in waterfall.ticks),
        *(_drawn(row, _HEAD + ROW * number) for number, row in enumerate(waterfall.rows)),
        Markup("</svg>"),
    ]
    return Markup("").join(parts)


def _hatching() -> Markup:
    return Markup(
        '<defs><pattern id="wf-hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><rect class="wf-hatch-ground" width="6" height="6"/>'
        '<line class="wf-hatch-line" x1="0" y1="0" x2="0" y2="6"/></pattern></defs>'
    )


def _described(waterfall: Waterfall) -> str:
    waits = sum(row.kind == "wait" for row in waterfall.rows)
    return f"{plural(len(waterfall.rows), 'row')}, {waits} of them waits; the list beside it says the same in words."


def _tick(tick: AxisTick, height: int) -> Markup:
    anchor = "start" if tick.x < 950 else "end"
    return Markup(
        '<line class="wf-tick" x1="{x}" y1="14" x2="{x}" y2="{h}"/>'
        '<text class="wf-tick-label" x="{x}" y="11" text-anchor="{anchor}">{label}</text>'
    ).format(x=_percent(tick.x), h=height, anchor=anchor, label=tick.label)


def _fold(fold: FoldedTime, height: int) -> Markup:
    return Markup(
        '<rect class="wf-fold" x="{x}" y="14" width="{w}" height="{h}">'
        "<title>{label} without work, folded</title></rect>"
    ).format(x=_percent(fold.x), w=_percent(fold.width), h=height - 14, label=fold.label)


def _drawn(row: WaterfallRow, top: int) -> Markup:
    y = top + (ROW - _BAR) // 2
    tone = words.state(row.state).tone
    kinds = ["wf-bar", f"wf-{row.kind}", f"tone-{tone}"]
    kinds += ["wf-lasts"] if row.lasts else []
    fill = Markup(' fill="url(#wf-hatch)"') if row.kind == "wait" else ""
    bar = Markup('<rect class="{kinds}"{fill} x="{x}" y="{y}" width="{w}" height="{h}" rx="2"/>').format(
        kinds=" ".join(kinds), fill=fill, x=_percent(row.x), y=y, w=_percent(row.width), h=_BAR
    )
    parts = [bar]
    if row.width < _THIN:
        place = Markup('<rect class="{kinds} wf-thin" x="{x}" y="{y}" width="3" height="{h}"/>')
        parts.append(place.format(kinds=" ".join(kinds), x=_percent(min(row.x, 997)), y=y, h=_BAR))
    if row.broken:
        parts.append(_break(row, y))
    if row.unknown:
        mark = Markup('<text class="wf-unknown" x="{x}" y="{y}" dx="4">?</text>')
        parts.append(mark.format(x=_percent(min(row.x + row.width, 985)), y=y + _BAR - 3))
    title = Markup("<title>{}</title>").format(_told(row))
    return (
        Markup('<g class="wf-row" data-row="{id}">').format(id=row.id) + title + Markup("").join(parts) + Markup("</g>")
    )


def _break(row: WaterfallRow, y: int) -> Markup:
    """A torn edge: the attempt did not get to its end."""
    return Markup(
        '<svg class="wf-break" x="{x}" y="{y}" width="8" height="{h}" overflow="visible">{path}</svg>'
    ).format(
        x=_percent(row.x + row.width),
        y=y,
        h=_BAR,
        path=Markup('<path d="M0,-2 L4,2 L0,6 L4,10 L0,14 L4,17"/>'),
    )


def _told(row: WaterfallRow) -> str:
    """One row in words."""
    parts = [row.label, row.took + (" so far" if row.lasts else "")]
    parts += [words.state(row.state).word] if row.kind not in ("wait", "attempt") else []
    parts += [row.reason] if row.reason else []
    parts += [f"by worker {row.worker}"] if row.worker and row.kind != "attempt" else []
    parts += [f"{words.money(row.cost)}, {words.count(row.tokens)} tokens"] if row.tokens else []
    parts += [f"{plural(row.unknown, 'purchase')} of unknown outcome"] if row.unknown else []
    return escaped(words.cut(" · ".join(parts), 500))


def _percent(per_mille: int) -> str:
    return f"{per_mille / 10:g}%"
