"""The documentation does not lie: what a page shows is run, and every command in it exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.shape.tree import listed
from tests.support.commands import environment, python
from tests.support.snippets import blocks, check_command, commands

ROOT = Path(__file__).parents[2]
RUNNER = ROOT / "tests" / "support" / "snippets.py"
PAGES = [
    ROOT / "README.md",
    ROOT / "llms.txt",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name != "decisions"),
]
# `make test` runs the first: a page with programs and commands, and not as long as the README.
RUN = sorted(
    (
        page
        for page in PAGES
        if page.name != "testing.md"  # tests/testing/test_docs.py runs it
        and any(block.language in ("python", "console") for block in blocks(page.read_text()))
    ),
    key=lambda page: page.name != "brokers.md",
)


def _named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def test_there_is_something_to_run() -> None:
    assert {"README.md", "docs/quickstart.md", "docs/recipes.md", "docs/flow.md"} <= set(map(_named, RUN))


@pytest.mark.sample(1)
@pytest.mark.parametrize("page", RUN, ids=_named)
def test_what_a_page_shows_is_what_happens(page: Path, tmp_path: Path) -> None:
    said = python(str(RUNNER), str(page), cwd=tmp_path, env=environment(PYTHONWARNINGS="error::RuntimeWarning"))
    assert said.code == 0, said.out + said.err


def test_every_command_and_option_exists() -> None:
    wrong = []
    told = [(_named(page), command) for page in PAGES for command in commands(page.read_text())]
    for page, command in told:
        try:
            check_command(command)
        except click.UsageError as problem:
            wrong.append(f"{page}: {command}: {problem.format_message()}")
    assert not wrong, listed(wrong)


def test_every_link_leads_somewhere() -> None:
    broken = [f"{_named(page)}: {target}" for page in PAGES for target in _broken_links(page)]
    assert not broken, listed(broken)


def _broken_links(page: Path) -> Iterator[str]:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text()):
        file = page.parent / target if target else page
        if not file.exists():
            yield target
        elif anchor and anchor not in _anchors(file.read_text()):
            yield f"{target}#{anchor}"


@pytest.mark.parametrize(
    "command", ["holdfast jbos ls", "holdfast jobs ls --stat failed", "holdfast jobs ls --limit x"]
)
def test_a_wrong_command_is_noticed(command: str) -> None:
    with pytest.raises(click.UsageError):
        check_command(command)


def _anchors(page: str) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
