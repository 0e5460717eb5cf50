"""Charts, drawn as SVG: a line of points, bars by day, a bar of states, a gauge. Pure; classes only.

Each has a title and a description, so that who does not see it is told the same. Places are percentages or a fixed
box, so that nothing moves when figures change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Literal

from markupsafe import Markup

from holdfast.http.api.seen import PrincipalScope
from holdfast.http.pages.filters import now_of
from holdfast.text import escaped
from holdfast.values.jobs import StatRecord

Number = int | float | Decimal

_WIDE, _HIGH = 120, 28
_BARS = 96


def sparkline(points: Sequence[Number], title: str, *, tone: str = "runs") -> Markup:
    """A small line of how something went, oldest first."""
    figures = [float(each) for each in points] or [0.0]
    top = max(*figures, 0.0) or 1.0
    step = _WIDE / max(1, len(figures) - 1)
    places = " ".join(f"{step * n:.1f},{_HIGH - 2 - (_HIGH - 4) * each / top:.1f}" for n, each in enumerate(figures))
    if len(figures) == 1:
        places += f" {_WIDE}.0,{places.partition(',')[2]}"
    said = f"{len(points)} values, from {_plain(min(figures))} to {_plain(max(figures))}, last {_plain(figures[-1])}"
    line = Markup('<polyline class="chart-line tone-{}" points="{}"/>').format(tone, places)
    return _picture("spark", f"0 0 {_WIDE} {_HIGH}", title, said, line)


def bars(figures: Sequence[tuple[str, Number]], title: str, *, unit: str = "", tone: str = "accent") -> Markup:
    """One bar for each day, or whatever is named; the highest fills the height."""
    top = max((float(value) for _, value in figures), default=0.0) or 1.0
    slot = 1_000 / max(1, len(figures))
    parts = []
    for number, (name, value) in enumerate(figures):
        height = max(1.0 if value else 0.0, _BARS * float(value) / top)
        parts.append(
            Markup(
                '<g class="chart-slot"><title>{name}: {unit}{value}</title>'
                '<rect class="chart-ground" x="{ground}%" y="0" width="{whole}%" height="{all}"/>'
                '<rect class="chart-bar tone-{tone}" x="{x}%" y="{y}" width="{w}%" height="{h}" rx="1"/></g>'
            ).format(
                name=escaped(name),
                unit=unit,
                value=_plain(value),
                ground=_place(slot * number),
                whole=_place(slot),
                all=_BARS,
                tone=tone,
                x=_place(slot * (number + 0.12)),
                w=_place(slot * 0.76),
                y=f"{_BARS - height:.1f}",
                h=f"{height:.1f}",
            )
        )
    said = "; ".join(f"{name}: {unit}{_plain(value)}" for name, value in figures[-31:]) or "nothing"
    return _picture("bars", None, title, said, Markup("").join(parts), height=_BARS)


def stacked(figures: Sequence[tuple[str, Number, str]], title: str) -> Markup:
    """What something is made of, in one bar: name, number, tone."""
    whole = float(sum(value for _, value, _ in figures)) or 1.0
    place, parts = 0.0, []
    for name, value, tone in figures:
        wide = 1_000 * float(value) / whole
        if value:
            part = Markup(
                '<rect class="chart-part tone-{}" x="{}%" y="0" width="{}%" height="10"><title>{}: {}</title></rect>'
            )
            parts.append(part.format(tone, _place(place), _place(wide), escaped(name), _plain(value)))
        place += wide
    ground = Markup('<rect class="chart-ground" x="0" y="0" width="100%" height="10"/>')
    said = ", ".join(f"{_plain(value)} {name}" for name, value, _ in figures if value) or "nothing"
    return _picture("stack", None, title, said, ground + Markup("").join(parts), height=10)


def share(part: Number, whole: Number) -> Markup:
    """How much of a sum something is; never red, because a large part is no failure."""
    wide = min(1.0, float(part) / float(whole)) if whole else 0.0
    content = Markup('<rect class="chart-part tone-accent" x="0" y="0" width="{}%" height="10" rx="2"/>')
    return _picture("share", None, "Share", f"{wide:.0%}", content.format(_place(1_000 * wide)), height=10)


def gauge(used: Number, most: Number | None, title: str, *, reserved: Number = 0) -> Markup:
    """How much of something is used, and how much more is reserved. Red begins at nine tenths."""
    whole = float(most) if most else 0.0
    share = min(1.0, float(used) / whole) if whole else 0.0
    more = min(1.0 - share, float(reserved) / whole) if whole else 0.0
    tone = "failed" if share + more >= 0.9 else "person" if share + more >= 0.75 else "runs"
    parts = [
        Markup('<rect class="chart-ground" x="0" y="0" width="100%" height="10" rx="2"/>'),
        Markup('<rect class="chart-part tone-{}" x="0" y="0" width="{}%" height="10" rx="2"/>').format(
            tone, _place(1_000 * share)
        ),
    ]
    if more:
        wide = Markup('<rect class="chart-reserved tone-{}" x="{}%" y="0" width="{}%" height="10"/>')
        parts.append(wide.format(tone, _place(1_000 * share), _place(1_000 * more)))
    said = f"{_plain(used)} of {_plain(most) if most else 'no limit'}" + (
        f", and {_plain(reserved)} reserved" if reserved else ""
    )
    return _picture("gauge", None, title, said, Markup("").join(parts), height=10)


def _picture(kind: str, box: str | None, title: str, said: str, content: Markup, *, height: int = _HIGH) -> Markup:
    title, said = escaped(title), escaped(said)
    size = (
        Markup('viewBox="{}" width="{}" height="{}"').format(box, _WIDE, _HIGH)
        if box
        else Markup('width="100%" height="{}"').format(height)
    )
    head = Markup('<svg class="chart chart-{}" {} role="img" aria-label="{}: {}">')
    return (
        head.format(kind, size, title, said)
        + Markup("<title>{}</title><desc>{}</desc>").format(title, said)
        + content
        + Markup("</svg>")
    )


def _place(per_mille: float) -> str:
    return f"{per_mille / 10:.2f}".rstrip("0").rstrip(".") or "0"


def _plain(value: Number) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    number = float(value)
    return f"{number:,.0f}" if number == int(number) and abs(number) >= 1 else f"{number:,.4g}"


# Trends: how often something ended in each of the last 24 hours, as a small line.


def by_hour(seen: PrincipalScope, found: Sequence[StatRecord]) -> list[int]:
    """The counts of the last 24 hours, the oldest first, with none where nothing ended."""
    counts: Counter[datetime] = Counter()
    for each in found:
        counts[each.at] += each.count
    last = now_of(seen).replace(minute=0, second=0, microsecond=0)
    return [counts[last - timedelta(hours=back)] for back in range(23, -1, -1)]


def trends(seen: PrincipalScope, failed: Sequence[StatRecord], by: Literal["source", "kind"]) -> Mapping[str, str]:
    """A line of failures for each agent or kind of job, by its name."""
    apart: dict[str, list[StatRecord]] = {}
    for each in failed:
        apart.setdefault(getattr(each, by), []).append(each)
    return {
        name: sparkline(by_hour(seen, rows), "Failures of all its kinds, by hour", tone="failed")
        for name, rows in apart.items()
    }
