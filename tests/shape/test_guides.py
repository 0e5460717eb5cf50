"""The tables of the guides name what the code has, all of it."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest
from llms_page import beginning_of

from holdfast import events
from holdfast.agents.events.log import Topic
from holdfast.models.simulator.state import FAULTS, MATCHES

DOCS = Path(__file__).parents[2] / "docs"


def linked(page: Path) -> set[Path]:
    """What the links of a page lead to."""
    return {(page.parent / link).resolve() for link in re.findall(r"\]\(([^)#:]+)", page.read_text())}


def rows(page: str) -> list[list[str]]:
    """The cells of every row of every table on a page."""
    lines = [line for line in (DOCS / page).read_text().splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_every_event_is_described_with_its_fields() -> None:
    described = {row[0].strip("`"): row[1:] for row in rows("events.md") if len(row) == 3}
    common = {field.name for field in fields(events.Event)}
    for kind, type in events.TYPES.items():
        named, words = described[kind.__name__]
        assert named == f"`{type}`"
        mine = {field.name for field in fields(kind)} - common
        told = set(re.findall(r"`([a-z_ ]+)`", words)[0].split()) if mine else set()
        assert told == mine, kind.__name__


def test_every_topic_is_described() -> None:
    described = {row[0].strip("`") for row in rows("events.md") if len(row) == 2}
    assert {f"holdfast_{topic}" for topic in get_args(Topic)} <= described


def test_every_rule_of_the_provider_simulator_is_described() -> None:
    described = {row[0].strip("`") for row in rows("models.md") if len(row) == 2}
    assert MATCHES.keys() | FAULTS.keys() <= described


def test_the_first_page_leads_to_every_other() -> None:
    """Decisions have a list of their own."""
    pages = {page for page in DOCS.rglob("*.md") if page.parent.name != "decisions" or page.name == "README.md"}
    missing = {page.relative_to(DOCS) for page in pages - linked(DOCS / "README.md")}
    assert missing == {Path("README.md")}


def test_llms_txt_lists_every_page() -> None:
    """Of decisions, their list."""
    assert linked(DOCS.parent / "llms.txt") >= linked(DOCS / "README.md") & set(DOCS.rglob("*.md"))


def test_a_page_says_what_it_is_about_in_its_first_sentence() -> None:
    assert beginning_of("<!-- note -->\n# Jobs\n\nA [job](x.md) is a row. It runs.\n\n## More") == (
        "Jobs",
        "A job is a row. It runs.",
    )
    long = "A durable job is a row in a table of your database."
    assert beginning_of(f"# Jobs\n\n{long} It runs.") == ("Jobs", long)
    for wrong in ("# Jobs\n\n## Kinds\n\nA job is a row.", "# Jobs\n\n```sh\nls\n```", "Jobs are rows.\n\nThey run."):
        with pytest.raises(ValueError, match="does not begin"):
            beginning_of(wrong)


def test_every_picture_is_on_a_page() -> None:
    shown = {path for page in DOCS.rglob("*.md") for path in linked(page)}
    assert {picture.name for picture in DOCS.rglob("*.svg") if picture not in shown} == set()


def test_every_test_that_the_page_of_security_names_exists() -> None:
    """And each chapter of the standard has a row, with a test unless Holdfast does nothing of it."""
    chapters = [row for row in rows("security.md") if re.match(r"V\d+ ", row[0])]
    assert [int(row[0].split()[0][1:]) for row in chapters] == list(range(1, 18))
    untested = {row[0].split()[0] for row in chapters if "::" not in row[-1]}
    assert untested <= {"V9", "V10", "V17"}
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (DOCS / "security.md").read_text())
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (DOCS.parent / path).exists()
        or not re.search(rf"^ *(?:async )?def {name}\(", (DOCS.parent / path).read_text(), re.MULTILINE)
    ]
    assert missing == []
