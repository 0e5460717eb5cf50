"""Writes the reference pages that are made from code: states, settings, commands, the Python interface.

So is the README's table of figures, from the page that `make bench` writes.

`make docs` writes them; `make check` runs this with --check and fails when a page no longer tells the truth.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

import click
from api_page import api

from holdfast.cli import COMMANDS, group
from holdfast.cli.settings import written
from holdfast.kernel.states import TERMINAL, TRANSITIONS, State
from holdfast.settings import Settings

FOLDER = Path(__file__).parent.parent / "docs" / "reference"
README = Path(__file__).parent.parent / "README.md"
FIGURES, END = "<!-- figures -->", "<!-- end of figures -->"
CONTENDERS = {
    "holdfast": "Holdfast",
    "pgqueuer": "pgqueuer",
    "procrastinate": "procrastinate",
    "saq": "SAQ",
    "celery": "Celery, Redis",
    "huey": "huey",
}
WORKS = {
    "run, one worker process": "Drain: drain, one worker process",
    "run, two worker processes": "Drain: drain, two worker processes",
    "enqueue, one by one": "Enqueue: enqueue, one by one",
    "enqueue, 1,000 a call": "Enqueue: enqueue, 1,000 a call",
    "run on SQLite, one process": "SQLite: drain, one process",
}
NOTE = "<!-- Made by `make docs`; edit the code it comes from. -->\n"


def states() -> str:
    edges = [
        f"    {t.source} --> {target}: {t.verb}" for t in TRANSITIONS for target in t.targets if target is not t.source
    ]
    gone = [f"    {state} --> [*]" for state in State if state in TERMINAL]
    rows = [f"| {t.verb} | {t.source} | {', '.join(t.targets) or 'deleted'} | {t.meaning} |" for t in TRANSITIONS]
    return "\n".join(
        [
            "# The life of a job",
            "",
            "A verb that is not in the table for a state leaves the job untouched. Terminal states never change.",
            "",
            "```mermaid",
            "stateDiagram-v2",
            "    [*] --> pending: enqueue",
            "    [*] --> scheduled: enqueue",
            *edges,
            *gone,
            "```",
            "",
            "| verb | from | to | when |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def settings() -> str:
    rows = [f"| `{f.name}` | `{written(f.default)}` | {f.metadata['doc']} |" for f in fields(Settings)]
    return "\n".join(
        [
            "# Settings",
            "",
            "Give one as `Settings(name=...)`, as `holdfast worker --set name=value`, or as `HOLDFAST_NAME` in the",
            "environment. Durations are written `500ms`, `10s`, `1h30m`, `7d`; sizes are bytes.",
            "",
            "| setting | default | meaning |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


ERRORS = """\
Exit codes: 0 done, 1 the answer is no, 2 called wrongly, 3 the store or a model's provider refused, 4 one of them is
unavailable, 70 a fault of Holdfast itself, 130 interrupted. An error is a line on stderr; with `--json` it is also
`{"error": "NotFound", "message": "there is no run …"}` on stdout."""


def commands() -> str:
    parts = ["# Commands", "", ERRORS, ""]
    context = click.Context(group, info_name="holdfast", max_content_width=100)
    for name in COMMANDS:
        command = group.get_command(context, name)
        assert command is not None
        parts += _help(command, f"holdfast {name}")
    return "\n".join(parts)


def _help(command: click.Command, path: str) -> Iterator[str]:
    context = click.Context(command, info_name=path, max_content_width=100)
    context.terminal_width = 100
    if isinstance(command, click.Group):
        for name, each in sorted(command.commands.items()):
            yield from _help(each, f"{path} {name}")
        return
    yield from (f"## {path}", "", "```text", command.get_help(context).rstrip(), "```", "")


def figures() -> str:
    """The README, with its comparison taken from the page that `make bench` writes."""
    text = README.read_text()
    before, _, rest = text.partition(FIGURES)
    _, _, after = rest.partition(END)
    assert after, f"{README.name} has no place for figures"
    measured = _measured((FOLDER.parent / "performance.md").read_text())
    rows = [
        f"| {title} | {' | '.join(measured.get((work, who), '–') for who in CONTENDERS)} |"
        for title, work in WORKS.items()
    ]
    head = f"| | {' | '.join(CONTENDERS.values())} |\n|{'---|' * (len(CONTENDERS) + 1)}"
    return "\n".join([before + FIGURES, head, *rows, END + after])


def _measured(page: str) -> dict[tuple[str, str], str]:
    """Work and contender, and the median of each that is a rate."""
    found: dict[tuple[str, str], str] = {}
    section = work = ""
    for line in page.splitlines():
        section = line.removeprefix("### ") if line.startswith("### ") else section
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) > 3 and cells[2].endswith(" jobs/s"):
            work = cells[0] or work
            found[f"{section}: {work}", cells[1]] = cells[2].removesuffix(" jobs/s")
    return found


PAGES: dict[str, Callable[[], str]] = {
    "states.md": states,
    "settings.md": settings,
    "commands.md": commands,
    "api.md": api,
}


def main() -> None:
    pages = {FOLDER / name: NOTE + make() for name, make in PAGES.items()} | {README: figures()}
    if "--check" not in sys.argv:
        for page, text in pages.items():
            page.write_text(text)
        return
    stale = [page.name for page, text in pages.items() if not page.exists() or page.read_text() != text]
    if stale:
        sys.exit(f"these are out of date: {', '.join(stale)}; run `make docs`")


if __name__ == "__main__":
    main()
