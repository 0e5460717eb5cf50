"""A laid-out waterfall as SVG: bars, ticks and folds. Pure; classes only, because the page's policy forbids styles.

Places are percentages, so that it fits any width and its text is never distorted. A bar that would be too thin to see
has a mark of three pixels.
"""

from __future__ import annotations

from markupsafe import Markup

from holdfast.http.pages import words
from holdfast.http.pages.waterfall import AxisTick, Fold, Waterfall, WaterfallRow
from holdfast.shown_text import escaped, plural

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


def _fold(fold: Fold, height: int) -> Markup:
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
