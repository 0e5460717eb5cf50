"""`python -m bench`: set up, measure, print, write the page."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TypeVar

import click

from bench import machine, report
from bench.catalogue import WORKS, Work
from bench.contenders import CONTENDERS
from bench.environments import told
from bench.places import LAST, NOTES, PAGE
from bench.players import scratch_folder
from bench.progress import Progress
from bench.results import Results
from bench.scale import FULL, QUICK, Scale
from bench.session import Session
from bench.targets import judge_all

Names = frozenset[str] | None
T = TypeVar("T")


def _names(known: list[str]) -> Callable[[click.Context, click.Parameter, str | None], Names]:
    def parse(_context: click.Context, _parameter: click.Parameter, text: str | None) -> Names:
        if text is None:
            return None
        given = frozenset(name.strip() for name in text.split(",") if name.strip())
        if unknown := sorted(given - set(known)):
            raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(known)}.")
        return given

    return parse


@click.command()
@click.option("--quick", is_flag=True, help="Fewer rounds and smaller numbers.")
@click.option("--only", callback=_names([work.name for work in WORKS]), help="Only these works, separated by commas.")
@click.option(
    "--contenders",
    callback=_names(list(dict.fromkeys(each.name for each in CONTENDERS))),
    help="Only these contenders, separated by commas.",
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write every sample to this file.")
@click.option("--page", type=click.Path(path_type=Path), help="Write the page here; default: docs/performance.md.")
@click.option("--again", is_flag=True, help="Measure nothing: make the page of the last complete run again.")
@click.option(
    "--join",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Measure nothing: put what --json wrote after a part into the last complete run, and make its page again.",
)
def command(  # noqa: PLR0917  the options of the command
    quick: bool,
    only: Names,
    contenders: Names,
    json_file: Path | None,
    page: Path | None,
    again: bool,
    join: Path | None,
) -> None:
    """Measure Holdfast, its peers and a bare loop of SQL, interleaved, on a throw-away PostgreSQL.

    The page is written when everything was measured; after a part of it only where --page says so.
    """
    complete = only is None and contenders is None
    if again or join:
        if not LAST.is_file():
            raise click.UsageError("there is no complete run to make the page from; run `make bench` first.")
        results = Results.load(LAST)
        if join:
            results = results.joined(Results.load(join))
            results.save(LAST)
    else:
        results = measure(QUICK if quick else FULL, only, contenders)
        if complete:
            results.save(LAST)
    told_all = report_on(results)
    click.echo(report.terminal(told_all))
    if json_file is not None:
        results.save(json_file)
    target = page or (PAGE if complete else None)
    if target is not None:
        target.write_text(report.page(told_all))
        click.echo(f"written to {target.name}")


def measure(scale: Scale, only: Names, contenders: Names) -> Results:
    signal.signal(signal.SIGTERM, _leave)
    works = [work for work in WORKS if only is None or work.name in only]
    progress = Progress()
    with scratch_folder(), Session(scale, contenders, progress) as session:
        finish = {work.name: attempted(session, work, partial(work.begin, session)) for work in works}
        for work in works:
            attempted(session, work, partial(work.measure, session))
            if then := finish[work.name]:
                attempted(session, work, then)
        facts = [*machine.describe(session.postgres.facts(), session.sqlite.folder), ("duration", lasted(session.took))]
    progress.clear()
    return Results(
        scale=scale.name,
        machine=facts,
        works=[work.name for work in works],
        contenders=list(dict.fromkeys(each.name for each in CONTENDERS if session.has(each.name))),
        figures=session.figures,
        absences=session.absences,
        thrown=session.thrown,
    )


def attempted(session: Session, work: Work, do: Callable[[], T]) -> T | None:
    session.work = work.name
    begun = time.monotonic()
    try:
        return do()
    except Exception as problem:  # noqa: BLE001  what was measured so far must not be lost with it
        session.absent("all", told(problem))
        return None
    finally:
        session.took[work.name] += time.monotonic() - begun


def lasted(took: Mapping[str, float]) -> str:
    """How long all works took, in minutes, and each of them."""
    each = ", ".join(f"{name} {seconds / 60:.1f}" for name, seconds in took.items() if seconds >= 1)
    return f"{sum(took.values()) / 60:.1f} minutes" + (f": {each}" if each else "")


def report_on(results: Results) -> report.Report:
    scale = FULL if results.scale == FULL.name else QUICK
    works = [work for work in WORKS if work.name in results.works]
    return report.Report(
        scale=scale.name,
        rounds=f"{scale.rounds} rounds of the drain by one process and of the enqueue one by one, {scale.long_rounds} "
        f"of most else, {scale.slow_rounds} of peers that are far behind and of what hardly varies, "
        f"{scale.steady_rounds} of the steady state.",
        machine=results.machine,
        contenders=[each for each in CONTENDERS if each.name in results.contenders],
        works=[(work.title, work.module.HOW, work.keys) for work in works],
        figures=results.figures,
        judged=judge_all(results.figures, results.works, full=scale is FULL),
        absences=results.absences,
        thrown=results.thrown,
        notes=NOTES.read_text(),
    )


def _leave(_signal: int, _frame: FrameType | None) -> None:
    """End as by Ctrl-C: whatever was started is stopped on the way out."""
    sys.exit(143)


if __name__ == "__main__":
    command()
