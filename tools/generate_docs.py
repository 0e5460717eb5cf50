"""Writes the reference pages that are made from code: states, settings, commands, the Python interface.

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


def commands() -> str:
    parts = ["# Commands", ""]
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


PAGES: dict[str, Callable[[], str]] = {
    "states.md": states,
    "settings.md": settings,
    "commands.md": commands,
    "api.md": api,
}


def main() -> None:
    stale: list[str] = []
    for name, make in PAGES.items():
        page = FOLDER / name
        text = NOTE + make()
        if "--check" in sys.argv:
            if not page.exists() or page.read_text() != text:
                stale.append(name)
        else:
            page.write_text(text)
    if stale:
        sys.exit(f"docs/reference is out of date ({', '.join(stale)}): run `make docs`")


if __name__ == "__main__":
    main()
