"""The report: tables for the terminal, and the page docs/performance.md. Rendering only; nothing is measured here."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import get_args

from bench.contenders import CONTENDERS, HOLDFAST, Contender
from bench.figures import DISTURBED, Absence, Figure, Figures, Subject, Thrown, median, ratio, worst
from bench.targets import Judged, Verdict

Table = list[list[str]]

WIDTH = 118
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
KINDS = {
    "full": "What Holdfast, its peers and a bare loop did side by side: a full run.",
    "quick": "**A quick run**: fewer rounds and smaller numbers, to show that all works; a first look, not more.",
}
CAUTION = """
Compare figures of one run only: the contenders take turns, round by round, so that whatever else happens on the
machine hits all of them.
"""
AGAIN = """
To measure again: `make bench` on a machine that does nothing else, `make bench QUICK=1` for a first look, and
`make bench ONLY=drain,latency` for some of it, which leaves this page alone. `python -m bench --join` puts such a
part into the page; what was measured again, and when, is in the table above.
"""
LEGEND = """
The median of the rounds, the lowest and the highest. *Holdfast* is how many times Holdfast's figure is this one. CPU is
of the whole machine; *of it ours* is what the contender and its database used, without the benchmark itself. *Steal*
is the share of the CPU that the machine's neighbours took, *others* what other processes on it took, both at the worst
of the rounds that were kept. What a figure's settings were stands beside it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything the page tells. `works` are a title, how it was measured, and the keys of its figures."""

    scale: str
    rounds: str
    machine: Sequence[tuple[str, str]]
    contenders: Sequence[Contender]
    works: Sequence[tuple[str, str, Sequence[str]]]
    figures: Figures
    judged: Sequence[Judged]
    absences: Sequence[Absence]
    thrown: Sequence[Thrown]
    notes: str


def page(report: Report) -> str:
    lines = [
        "<!-- Written by `make bench`; what is said by hand is in bench/notes.md. -->",
        "",
        "# Performance",
        "",
        *_introduction(report),
        "",
        "## Targets",
        "",
        *_markdown(target_table(report.judged)),
        "",
        "## What is missed, and why",
        "",
        report.notes.strip(),
        "",
        "## Figures",
        "",
        *_wrapped(LEGEND),
    ]
    for title, how, keys in report.works:
        figures = [figure for key in keys for figure in ordered(report.figures.of(key))]
        if figures:
            lines += ["", f"### {title}", "", *_wrapped(how), ""]
            lines += _markdown(figure_table(report.figures, figures))
    lines += ["", "## Who took part", "", *_markdown(contender_table(report.contenders))]
    if report.absences:
        lines += [
            "",
            "## Not measured",
            "",
            *(f"- {a.work}: {a.contender}: {_cell(a.reason)}" for a in report.absences),
        ]
    return "\n".join(lines) + "\n"


def terminal(report: Report) -> str:
    lines: list[str] = []
    for title, _, keys in report.works:
        figures = [figure for key in keys for figure in ordered(report.figures.of(key))]
        if figures:
            lines += ["", title, *_aligned(figure_table(report.figures, figures))]
    lines += ["", "Targets", *_aligned(target_table(report.judged)), ""]
    lines += [f"not measured: {a.work}: {a.contender}: {a.reason}" for a in report.absences]
    lines += [summary(report.judged), disturbance(report.figures), thrown_away(report)]
    return "\n".join(lines)


def ordered(figures: Iterable[Figure]) -> list[Figure]:
    """As the contenders are listed, whoever was measured first; then what is no contender."""
    names = [each.name for each in CONTENDERS]
    return sorted(figures, key=lambda each: names.index(each.contender) if each.contender in names else len(names))


def figure_table(all_figures: Figures, figures: Iterable[Figure]) -> Table:
    table = [
        ["work", "contender", "median", "min to max", "Holdfast", "CPU µs/job", "of it ours", "steal", "others", "note"]
    ]
    shown: Subject | None = None
    for figure in figures:
        table.append(
            [
                figure.subject.title if figure.subject != shown else "",
                figure.contender,
                f"{number(figure.median)} {figure.subject.unit}".strip(),
                f"{number(min(figure.values))} to {number(max(figure.values))}" if len(figure.samples) > 1 else "",
                _multiple(all_figures, figure),
                number(figure.cpu_us),
                number(figure.own_us),
                share(figure.steal),
                share(figure.others),
                _note(figure),
            ]
        )
        shown = figure.subject
    return table


def target_table(judged: Iterable[Judged]) -> Table:
    table = [["work", "", "target", "measured", ""]]
    for each in judged:
        target = each.target
        limit = f"{target.sense} {number(target.limit)} {target.unit}".strip()
        measured = f"{number(each.measured)} {target.unit}".strip() if each.verdict != "not measured" else ""
        verdict = f"{each.verdict}, disturbed" if each.disturbed else each.verdict
        table.append([target.work, target.what, limit, measured, verdict])
    return table


def contender_table(contenders: Iterable[Contender]) -> Table:
    table = [["contender", "store", "versions", "how it is run"]]
    for each in contenders:
        table.append([each.name, each.store, ", ".join(each.requires) or "this repository", each.about])
    return table


def summary(judged: Sequence[Judged]) -> str:
    counts = Counter(each.verdict for each in judged)
    return "targets: " + (
        ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict]) or "none"
    )


def disturbance(figures: Figures) -> str:
    """How much of the machine others had while we measured."""
    taken = [sample.steal + sample.others for figure in figures for sample in figure.samples]
    if math.isnan(median(taken)):
        return "how busy it was is not known"
    return f"others had {100 * median(taken):.0f} % of it in the median run, {100 * worst(taken):.0f} % in the worst"


def thrown_away(report: Report) -> str:
    """How often others spoiled a run, and what was done about it."""
    share = f"more than {100 * DISTURBED:.0f} % of the machine"
    spoiled = [figure for figure in report.figures if figure.disturbed]
    if not report.thrown and not spoiled:
        return f"no run was one in which others had {share}"
    works = Counter(each.work for each in report.thrown)
    where = f" ({', '.join(f'{work} {count}' for work, count in works.items())})" if works else ""
    said = f"runs in which others had {share} were thrown away and repeated: {len(report.thrown)}{where}"
    if not spoiled:
        return f"{said}; no figure holds one"
    kept = "figures that hold one, because its repeats were no better or too many"
    return f"{said}; {kept}: {len(spoiled)}, see their notes"


def number(value: float) -> str:
    """Enough digits to compare by, and no more."""
    if math.isnan(value):
        return ""
    size = abs(value)
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def share(value: float) -> str:
    return "" if math.isnan(value) else f"{100 * value:.0f} %"


def _note(figure: Figure) -> str:
    spoiled = f"disturbed in {figure.disturbed} of {len(figure.samples)} rounds" if figure.disturbed else ""
    return "; ".join(filter(None, [figure.note, spoiled]))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _multiple(figures: Figures, figure: Figure) -> str:
    mine = figures.find(figure.subject.key, HOLDFAST)
    if mine is None or figure.contender == HOLDFAST:
        return ""
    times = number(ratio(mine, figure))
    return f"{times}×" if times else ""


def _introduction(report: Report) -> list[str]:
    said = [
        KINDS[report.scale],
        report.rounds,
        f"{summary(report.judged).capitalize()}.",
        CAUTION,
        f"The targets are meant for a quiet machine; {disturbance(report.figures)}.",
        f"{_sentence(thrown_away(report))}.",
    ]
    facts = [["measured on", ""], *([name, text] for name, text in report.machine)]
    return [*_wrapped(" ".join(said)), "", *_markdown(facts), "", *_wrapped(AGAIN)]


def _markdown(table: Table) -> list[str]:
    head, *rows = ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in table]
    return [head, "|" + "---|" * len(table[0]), *rows]


def _aligned(table: Table) -> list[str]:
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), WIDTH, break_long_words=False, break_on_hyphens=False)
