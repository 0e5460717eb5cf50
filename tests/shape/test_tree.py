"""The tree says what the product is: no dumping grounds, no empty names, no words of other layers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

import pytest
from suite import parts_of

from holdfast.kernel.sql import _HEADER
from tests.shape.tree import ROOT, SOURCE, listed, modules, named, source, statements

DUMPS = {"utils", "util", "helpers", "helper", "common", "misc", "base", "manager", "handler", "service"}
EMPTY_NAMES = re.compile(r"(Manager|Handler|Service|Impl|Util|Utils|Helper)$|^Base[A-Z]|^Base$")
SPELLED_OUT = {"WorkerPoolManager"}  # names of an outside interface, in facades/
ABOVE_WORKERS = {"agent", "agents", "prompt", "prompts", "tool", "tools"}
ABOVE_KERNEL = {*ABOVE_WORKERS, "model", "models"}
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")  # names are read as their words: max_concurrent_tools, ToolContext
DOCSTRING = re.compile(r'"""\s*[^"\s]')
CLASS = re.compile(r"^[ \t]*class (\w+)", re.MULTILINE)
FILES = [*modules(), *statements(), *sorted((SOURCE / "kernel" / "sql" / "migrations").glob("*.sql"))]


def test_there_is_a_tree_to_look_at() -> None:
    assert len(modules()) > 40
    assert len(statements("kernel")) >= 14
    assert len(statements("agents")) >= 16


def test_a_file_is_named_by_its_subject() -> None:
    dumps = [named(path) for path in FILES if path.stem in DUMPS]
    assert not dumps, listed(dumps)


def test_a_module_says_what_it_owns() -> None:
    untold = [named(path) for path in modules() if not DOCSTRING.match(source(path))]
    assert not untold, listed(untold)
    classes = [(named(path), name) for path in modules() for name in CLASS.findall(source(path))]
    assert len(classes) > 100
    empty = [pair for pair in classes if EMPTY_NAMES.search(pair[1]) and pair[1] not in SPELLED_OUT]
    assert not empty, listed(empty)


def said(words: set[str], paths: list[Path]) -> dict[str, list[str]]:
    """The lines in which one of these words stands, by file."""
    found = {named(path): [line for line in source(path).splitlines() if words_of(line) & words] for path in paths}
    return {name: lines for name, lines in found.items() if lines}


def words_of(line: str) -> set[str]:
    return {word.lower() for word in WORD.findall(line)}


def test_the_kernel_does_not_know_what_jobs_are_for() -> None:
    found = said(ABOVE_KERNEL, [*modules("kernel"), *statements("kernel")])
    assert not found, listed(found.items())


def test_workers_do_not_know_what_jobs_are_for() -> None:
    """Their models are those of pydantic."""
    found = said(ABOVE_WORKERS, modules("workers"))
    assert not found, listed(found.items())


@pytest.mark.parametrize(
    ("line", "is_said"),
    [
        ("slots = settings.max_concurrent_tools", True),
        ("class ToolContext:", True),
        ("    agents: tuple[str, ...]", True),
        ("-- An agent waits.", True),
        ("caps = settings.prompt_cap", True),
        ("from functools import partial", False),
        ("reagent = None", False),
    ],
)
def test_a_word_is_found_inside_names_too(line: str, is_said: bool) -> None:
    assert bool(words_of(line) & ABOVE_WORKERS) is is_said


def test_a_statement_begins_with_its_name() -> None:
    lines = [(named(path), line) for path in statements() for line in source(path).splitlines()]
    wrong = [pair for pair in lines if "name:" in pair[1] and not _HEADER.match(pair[1])]
    assert not wrong, listed(wrong)
    untold = [named(path) for path in statements() if not source(path).startswith("-- ")]
    assert not untold, f"a file says what its subject is:{listed(untold)}"


def test_what_has_two_texts_has_them_in_a_row_with_a_reason() -> None:
    wrong = [fork for path in statements() for fork in wrong_forks(path)]
    assert not wrong, listed(wrong)


def wrong_forks(path: Path) -> Iterator[tuple[str, str]]:
    """Each statement or part with two texts that does not stand as it should, and what is wrong with it."""
    lines = source(path).splitlines()
    headers = [(number, found) for number, line in enumerate(lines) if (found := _HEADER.match(line))]
    forked = [(number, found) for number, found in headers if found["dialect"]]
    names = [found["name"] or found["part"] for _, found in headers]
    for (first_at, first), second in zip_longest(forked[::2], forked[1::2]):
        name = first["name"] or first["part"]
        named_so = f"{named(path)}: {name}"
        if second is None or names.count(name) != 2 or name not in (second[1]["name"], second[1]["part"]):
            yield named_so, "it must stand twice, once in a row for each database"
        elif (first["dialect"], second[1]["dialect"]) != ("postgres", "sqlite"):
            yield named_so, "first the one for postgres, then the one for sqlite"
        elif first["many"] != second[1]["many"]:
            yield named_so, "both answer with as many rows, and both are parts or neither is"
        elif not any(lines[at + 1].startswith("-- ") for at in (first_at, second[0])):
            yield named_so, "why twice?"


def test_migrations_come_in_pairs() -> None:
    folder = SOURCE / "kernel" / "sql" / "migrations"
    pairs: dict[str, set[str]] = {}
    for path in folder.glob("*.sql"):
        found = re.fullmatch(r"(\d{4}_[a-z_]+)\.(sqlite|postgres)\.sql", path.name)
        assert found, path.name
        pairs.setdefault(found[1], set()).add(found[2])
    assert all(dialects == {"sqlite", "postgres"} for dialects in pairs.values())
    numbers = sorted(int(name[:4]) for name in pairs)
    assert numbers == list(range(1, len(numbers) + 1))


def test_tests_do_not_skip() -> None:
    """A difference between the two databases is a declared capability, tested both ways."""
    mark = "pytest." + "skip"
    users = [path for path in (SOURCE.parents[1] / "tests").rglob("*.py") if mark in path.read_text()]
    assert users == []


def test_marked_tests_stand_where_the_suite_looks_for_them() -> None:
    for mark in ("chaos", "timed"):
        of_test = [part for part in parts_of("test", 1) if f"{mark} and not long" in part]
        of_test_all = [part for part in parts_of("test-all", 1) if f"{mark} and long" in part]
        parts = [*of_test, *of_test_all]
        assert (len(of_test), len(of_test_all)) == (1, 1)
        looked = set.intersection(*({ROOT / word for word in part if word.startswith("tests/")} for part in parts))
        marked = [path for path in (ROOT / "tests").rglob("test_*.py") if f"pytest.mark.{mark}" in path.read_text()]
        assert marked
        astray = [path for path in marked if not any(folder in path.parents for folder in looked)]
        assert [path for path in astray if path != Path(__file__)] == []
