"""What the pages deny is not there, and nothing that is there is denied: docs/claims.toml has both, side by side."""

from __future__ import annotations

import importlib
import inspect
import re
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest

from holdfast.cli import group
from holdfast.errors import BadUrl
from holdfast.http.security.roles import TABLE as ROUTES
from holdfast.kernel.drivers import dialect_of
from holdfast.resp.dispatch import TABLE as REDIS

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "llms.txt",
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("docs/reference/*.md")),
]
CLAIMS = tomllib.loads((ROOT / "docs/claims.toml").read_text())
PACKAGE = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

ABSENT = re.compile(r"## What (?:is not (?:there|here)|Holdfast does not do)$")  # a section of denials
DENIES = re.compile(
    r"^(?:\W*)There (?:is|are) no(?:ne)? (?!way to )"
    r"|\b[Hh]oldfast (?:has no|does not (?:have|support|speak|offer|provide|import|replay))"
    r"|\bnot (?:there|supported)(?::| \|)|\b(?:not supported|none yet)\."
    r"|\b[Oo]nly (?:Python|Claude|Anthropic)\b|\bother than (?:Python|Claude|Anthropic)\b"
    r"|\b[Nn]o (?:web|UI|dashboard|pickle)\b"
)
# Migrations between schemas that no release ever had.
HISTORY = re.compile(
    r"\b[Ss]chema \d|\b[Ss]teps? \d+ (?:builds?|moves?)|[Mm]igration \d|\bearlier release|\bversion before\b"
)


def paragraphs(text: str) -> Iterator[tuple[str, str]]:
    """Each paragraph, bullet and row of a table outside of code, in one line, and the heading above it."""
    heading = ""
    prose = re.sub(r"<!--.*?-->|^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    for part in re.split(r"\n\s*\n|\n(?=- |\d+\. |\||#)", prose):
        line = " ".join(part.split()).removeprefix("- ")
        if line.startswith("#"):
            heading = line
        elif line:
            yield heading, line


def denials(text: str) -> Iterator[str]:
    """The sentences that say that something is not there. Of what a section of denials lists, that is the first."""
    for heading, line in paragraphs(text):
        sentences = re.split(r"(?<=\.) |(?<=\.\*\*) ", line)
        if ABSENT.match(heading):
            yield sentences[0]
            sentences = sentences[1:]
        yield from (sentence for sentence in sentences if DENIES.search(sentence))


def helps(command: click.Command, path: str) -> Iterator[tuple[str, str]]:
    """Each command, and what its `--help` says."""
    context = click.Context(command, info_name=path)
    yield f"{path} --help", command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from helps(found, f"{path} {name}")


@cache
def denied() -> dict[str, str]:
    """Every such sentence, and where it stands."""
    texts = [*((page.name, page.read_text()) for page in PAGES), *helps(group, "holdfast")]
    return {sentence: where for where, text in reversed(texts) for sentence in denials(text)}


def names(path: str) -> Any:
    """What this dotted name means; None when there is no such thing."""
    module, _, name = path.rpartition(".")
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        return getattr(names(module), name, None) if module else None


def has_command(words: str) -> bool:
    command: click.Command | None = group
    for word in words.split():
        command = command.get_command(click.Context(command), word) if isinstance(command, click.Group) else None
    return command is not None


def has_option(words: str) -> bool:
    path, name, *types = words.split()
    owner = names(path)
    assert owner is not None, path
    declared = {**getattr(owner, "__annotations__", {}), **{each.name: each.annotation for each in _parameters(owner)}}
    return name in declared and all(word in str(declared[name]) for word in types)


def _parameters(owner: Any) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(owner).parameters.values())
    except ValueError:
        return []


def has_scheme(scheme: str) -> bool:
    try:
        dialect_of(f"{scheme}://server/database")
    except BadUrl:
        return False
    return True


PROBES: dict[str, Callable[[str], bool]] = {
    "command": has_command,
    "name": lambda path: names(path) is not None,
    "option": has_option,
    "extra": lambda name: name in PACKAGE["optional-dependencies"],
    "route": lambda route: route in ROUTES,
    "redis": lambda name: name in REDIS,
    "system": lambda name: any(each.startswith("Operating System") and name in each for each in PACKAGE["classifiers"]),
    "scheme": has_scheme,
}


def finds(probe: str) -> bool:
    kind, _, what = probe.partition(": ")
    return PROBES[kind](what)


def test_what_a_page_denies_is_listed() -> None:
    listed = {sentence for each in CLAIMS["absence"] for sentence in each["sentences"]}
    unlisted = [f"{page}: {sentence}" for sentence, page in denied().items() if sentence not in listed]
    assert not unlisted, "add them to docs/claims.toml with a probe, if they are true"
    assert not listed - denied().keys(), "no page says this any more: remove it from docs/claims.toml"


@pytest.mark.parametrize("absence", CLAIMS["absence"], ids=lambda absence: absence["id"])
def test_what_is_denied_is_not_there(absence: dict[str, Any]) -> None:
    assert ("probes" in absence) != ("reason" in absence), "an absence has probes, or a reason why none can find it"
    for probe in absence.get("probes", ()):
        assert not finds(probe), f"{probe} is there: correct the pages that say {absence['sentences']}"


@pytest.mark.parametrize("feature", CLAIMS["feature"], ids=lambda feature: feature["id"])
def test_what_is_there_is_not_denied(feature: dict[str, Any]) -> None:
    for probe in feature["there"]:
        assert finds(probe), probe
    words = re.compile(feature["denial"], re.IGNORECASE)
    assert not [f"{page}: {sentence}" for sentence, page in denied().items() if words.search(sentence)]


def test_a_denial_is_noticed_wherever_it_stands() -> None:
    page = """# A page

Text first. There is no web UI. Another sentence. Holdfast has no
dashboard, sadly.

| you | we |
|---|---|
| maps | not there: draw them |

## What is not there

- Web monitoring: `holdfast top` runs in a terminal. It is fine.
- **Go.** Only Python runs jobs.
"""
    assert list(denials(page)) == [
        "There is no web UI.",
        "Holdfast has no dashboard, sadly.",
        "| maps | not there: draw them |",
        "Web monitoring: `holdfast top` runs in a terminal.",
        "**Go.**",
        "Only Python runs jobs.",
    ]


def test_the_quick_start_has_every_extra() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/quickstart.md").read_text(), flags=re.MULTILINE)
    assert sorted(rows) == sorted(PACKAGE["optional-dependencies"])


def test_no_page_explains_the_migrations_of_a_release_that_nobody_has() -> None:
    told = [(page.name, line) for page in PAGES for _, line in paragraphs(page.read_text()) if HISTORY.search(line)]
    assert not told
