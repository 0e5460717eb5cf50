"""Writes the reference pages that are made from code: states, settings, commands, the Python interface, routes.

So is the README's table of figures, from the page that `make bench` writes.

`make docs` writes them; `make check` runs this with --check and fails when a page no longer tells the truth.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from itertools import groupby
from pathlib import Path
from typing import Any

import click
from api_page import api
from llms_page import FILE as LLMS
from llms_page import llms
from routes_page import routes
from walks import PAGE as WALKS
from walks import architecture

from holdfast.agents.states import LIVES
from holdfast.cli import COMMANDS, group
from holdfast.cli.target import ORDER
from holdfast.kernel.states import JOB, TERMINAL, WORKER, Life, State
from holdfast.machines import meter, templates
from holdfast.resp.dispatch import GROUPS
from holdfast.settings import Settings
from holdfast.values.queues import written

ROOT = Path(__file__).parent.parent
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
        f"    {t.source} --> {target}: {t.verb}" for t in JOB.moves for target in t.targets if target is not t.source
    ]
    gone = [f"    {state} --> [*]" for state in State if state in TERMINAL]
    rows = [f"| {t.verb} | {t.source} | {', '.join(t.targets) or 'deleted'} | {t.meaning} |" for t in JOB.moves]
    return "\n".join(
        [
            "# The lives of jobs and workers",
            "",
            "A verb that is not in the table for a state leaves the row untouched. Final states never change.",
            "",
            "## The life of a job",
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
            *_life(WORKER),
        ]
    )


SUBJECTS = {
    "worker": ("a worker", "A pool opens a place for it, or it registers itself."),
    "run": ("a run", "`create` and `fork` begin it."),
    "turn": ("a turn", "A worker begins it before it asks the model."),
    "tool_call": ("a tool call", "While it is open, its job says whether it is pending or running."),
    "batch": ("a batch", "The first request of a lane opens it, or a batch is split, or one came too late."),
    "batch_request": ("a request of a batch", "A turn that may wait puts it into a batch."),
    "compaction": ("a compaction", "It begins before the summariser is asked."),
    "inquiry": ("an inquiry", "A run or a tool call waits for it."),
}


def agent_states() -> str:
    parts = [
        "# The lives of runs, turns, tool calls, batches and inquiries",
        "",
        "A verb that is not in the table for a state leaves the row as it is. Final states never change.",
        "",
    ]
    for life in LIVES:
        parts += _life(life)
    return "\n".join(parts)


def _life(life: Life[Any, Any]) -> Iterator[str]:
    title, beginning = SUBJECTS[life.table]
    person = ", ".join(f"`{verb}`" for verb in life.verbs if verb in life.by_person)
    yield from (f"## The life of {title}", "")
    yield f"{beginning} It begins as {_listed(life.born)}. Final: {_listed(s for s in life.states if s in life.final)}."
    if person:
        yield f"A person may use {person}."
    yield from ("", "| verb | from | to | when |", "|---|---|---|---|")
    for (verb, targets, meaning), alike in groupby(life.moves, lambda m: (m.verb, m.targets, m.meaning)):
        yield f"| {verb} | {_listed(m.source for m in alike)} | {_listed(targets) or 'deleted'} | {meaning} |"
    yield ""


def _listed(states: Iterable[str]) -> str:
    return ", ".join(states)


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
Every command of `holdfast`, with what its `--help` prints.

Exit codes: 0 done, 1 the answer is no, 2 called wrongly, 3 the store or a model's provider refused, 4 one of them is
unavailable, 70 a fault of Holdfast itself, 130 interrupted. An error is a line on stderr; with `--json` it is also
`{"error": "NotFound", "message": "there is no run …"}` on stdout."""


FOUND = """\
Every command works on one database, and some need the code of your program. The first of these that is there says
which:"""


def commands() -> str:
    order = [f"| {place} | {meaning} |" for place, meaning in ORDER]
    parts = ["# Commands", "", ERRORS, "", FOUND, "", "| named by | what it names |", "|---|---|", *order, ""]
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
        for name, each in sorted((name, each) for name, each in command.commands.items() if not each.hidden):
            yield from _help(each, f"{path} {name}")
        if not command.invoke_without_command:
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


LANGUAGE = """\
A machine is a YAML file. This page is made from the table that the loader checks files by, as is the JSON Schema
`holdfast/machines/flatmachine.schema.json`, which editors read: begin a file with
`# yaml-language-server: $schema=PATH`. [Machines](machines.md) is the tutorial."""

KINDS = {
    "machine": ("The file", ""),
    "data": ("`data`", ""),
    "settings": ("`settings`", ""),
    "state": (
        "A state",
        "In a state its parts are done in this order: `wait_for`, which stands alone; `action`; `launch`; `machine`;\n"
        "`agent`. Then the output is taken, and the first transition whose condition holds is followed.",
    ),
    "transition": ("A transition", ""),
    "execution": ("`execution`", ""),
    "tool_loop": ("`tool_loop`", ""),
    "agent": ("An agent that the file defines", "Profiles are read from `profiles.yml` in the same folder."),
}

MORE = """\
## Templates

A text with `{{ … }}` or `{%% … %%}` is a [Jinja](https://jinja.palletsprojects.com/) template over plain data:
`context`, `input` and, after something was done, `output`. In a `foreach` there are the item and its `index` too. A
template that is one expression keeps the type of its value; in the middle of a text, a value that is not a text is
written as JSON. What is missing is undefined, so `default(10)` works, and null where it is stored. A text that is just
`context.x.y` is a path, and keeps the type of what it names.

Filters: %s. Functions: `range`, which gives a list. A template may not call anything else, and is stopped after
%s steps, %g seconds or %s characters.

`context.machine` has `execution_id`, `machine_name`, `parent_execution_id`, `spec_version`, `step`, `current_state` and
`depth`. After an error the context has `error`, `last_error` and `last_error_type`.

## Conditions

| | |
|---|---|
| compare | `==` `!=` `<` `<=` `>` `>=`; with null the last four are false |
| join | `and` `or` `not`, and brackets |
| compute | `+` `-` `*` `/` `%%` |
| read | `context.x`, `context["x"]`, `context.list[0]`, `context.list \\| length`; what is missing is null |
| write | `1`, `1.5`, `"text"`, `'text'`, `true`, `false`, `null` |

## Dialects

The field `spec_version` decides what a template with braces gives.

| `spec_version` | `"{{ context.n }}"` gives | `context.n` gives |
|---|---|---|
| below 1.0, such as `"0.8.3"` | the value with its type | the value with its type |
| 1.0 and above | a text | the value with its type |
"""


def language() -> str:
    from holdfast.machines.language import TABLES

    parts = ["# The language of machines", "", LANGUAGE, ""]
    for name, (title, words) in KINDS.items():
        parts += [f"## {title}", "", *([words, ""] if words else []), "| key | holds | meaning |", "|---|---|---|"]
        for key, each in TABLES[name].items():
            holds = ", ".join(f"`{one}`" for one in each.one_of) or " or ".join(_spoken(each.types))
            means = f"{each.means} Instead, {each.instead}." if each.instead else each.means
            parts.append(f"| `{key}`{' (needed)' if each.required else ''} | {holds} | {means} |")
        parts.append("")
    filters = ", ".join(f"`{name}`" for name in sorted(templates.FILTERS))
    limits = (f"{meter.MOST_STEPS:,}", meter.MOST_SECONDS, f"{meter.MOST_OUTPUT:,}")
    return "\n".join([*parts, MORE % (filters, *limits)])


def _spoken(types: Iterable[str]) -> list[str]:
    words = {"string": "text", "integer": "whole number", "number": "number", "object": "mapping", "array": "list"}
    found = [words.get(name, name) for name in types]
    return [word for word in found if not (word == "whole number" and "number" in found)]


def schema_text() -> str:
    from holdfast.machines.language import schema

    return json.dumps(schema(), indent=2) + "\n"


def picture() -> str:
    """The example of the guide, drawn by `holdfast machine draw`."""
    from holdfast.machines.bundle import load_file
    from holdfast.machines.drawing import svg

    return svg(load_file(ROOT / "examples" / "article.yml"))


def resp() -> str:
    """The commands of the Redis-protocol gateway, from its table."""
    lines = [
        "# Commands of the gateway",
        "",
        "What `holdfast resp` understands; [the guide](../resp.md) says how to use it. A command that changes",
        "something replies after its commit.",
    ]
    for title, listed in GROUPS.items():
        lines += ["", f"## {title}", "", "| command | does |", "|---|---|"]
        for each in listed:
            rate = f" At most {each.rate:,} calls a minute for each key." if each.rate else ""
            usage = f"{each.name} {each.arguments}".strip().replace("|", "\\|")
            lines.append(f"| `{usage}` | {each.summary}{rate} |")
    return "\n".join([*lines, ""])


PAGES: dict[str, Callable[[], str]] = {
    "states.md": states,
    "agent_states.md": agent_states,
    "settings.md": settings,
    "commands.md": commands,
    "resp.md": resp,
    "api.md": api,
    "routes.md": routes,
}


def main() -> None:
    pages = {FOLDER / name: NOTE + make() for name, make in PAGES.items()} | {README: figures()}
    pages[FOLDER.parent / "machine-language.md"] = NOTE + language()
    pages[FOLDER.parent / "images" / "machine-article.svg"] = picture()
    pages[ROOT / "src" / "holdfast" / "machines" / "flatmachine.schema.json"] = schema_text()
    pages[LLMS] = llms(pages)
    if "--check" not in sys.argv:
        pages[WALKS] = architecture()  # a test compares its lists: which module a walk passes is a matter of timing too
        for page, text in pages.items():
            page.write_text(text)
        return
    stale = [page.name for page, text in pages.items() if not page.exists() or page.read_text() != text]
    if stale:
        sys.exit(f"these are out of date: {', '.join(stale)}; run `make docs`")


if __name__ == "__main__":
    main()
