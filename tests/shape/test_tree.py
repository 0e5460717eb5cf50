"""The tree says what the product is: no dumping grounds, no endless files, no words of other layers."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from holdfast.kernel.sql import _HEADER
from tests.shape.tree import ROOT, SOURCE, modules, named, statements

LONGEST = 500
ONE_THING = {"testing/virtual_time.py": 650}  # an event loop; asyncio's own is three times as long
DUMPS = {"utils", "util", "helpers", "helper", "common", "misc", "base", "manager", "handler", "service"}
EMPTY_NAMES = re.compile(r"(Manager|Handler|Service|Impl|Util|Utils|Helper)$|^Base[A-Z]|^Base$")
OTHER_LAYERS = re.compile(r"\b(agents?|models?|prompts?|tools?)\b", re.I)
FILES = [*modules(), *statements(), *sorted((SOURCE / "kernel" / "sql" / "migrations").glob("*.sql"))]


def test_there_is_a_tree_to_look_at() -> None:
    assert len(modules()) > 40
    assert len(statements()) == 10


@pytest.mark.parametrize("path", FILES, ids=named)
def test_a_file_has_one_subject_and_an_end(path: Path) -> None:
    assert path.stem not in DUMPS
    longest = ONE_THING.get(named(path), LONGEST)
    assert len(path.read_text().splitlines()) <= longest, "ask what two things live here"


@pytest.mark.parametrize("path", modules(), ids=named)
def test_a_module_says_what_it_owns(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree)
    classes = [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    assert [name for name in classes if EMPTY_NAMES.search(name)] == []


@pytest.mark.parametrize("path", [*modules("kernel"), *statements()], ids=named)
def test_the_kernel_does_not_know_what_jobs_are_for(path: Path) -> None:
    found = [line for line in path.read_text().splitlines() if OTHER_LAYERS.search(line)]
    assert found == []


@pytest.mark.parametrize("path", statements(), ids=named)
def test_a_statement_begins_with_its_name(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert lines[0].startswith("-- "), "a file says what its subject is"
    for line in lines:
        if "name:" in line:
            assert _HEADER.match(line), line


@pytest.mark.parametrize("path", statements(), ids=named)
def test_a_forked_statement_stands_twice_in_a_row_with_a_reason(path: Path) -> None:
    lines = path.read_text().splitlines()
    headers = [(number, found) for number, line in enumerate(lines) if (found := _HEADER.match(line))]
    forked = [(number, found) for number, found in headers if found["dialect"]]
    for (_, first), (_, second) in zip(forked[::2], forked[1::2], strict=True):
        assert first["name"] == second["name"]
        assert (first["dialect"], second["dialect"]) == ("postgres", "sqlite")
        assert first["many"] == second["many"]
    places = [found["name"] for _, found in headers]
    for (first_at, first), (second_at, _) in zip(forked[::2], forked[1::2], strict=True):
        assert places.count(first["name"]) == 2
        reasons = [lines[at + 1] for at in (first_at, second_at)]
        assert any(reason.startswith("-- ") for reason in reasons), f"{first['name']}: why twice?"


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


def test_marked_tests_stand_where_the_makefile_looks_for_them() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for mark in ("chaos", "timed"):
        found = re.search(rf"part .*-m {mark} (.*); ", makefile)
        assert found is not None
        looked = tuple(ROOT / folder for folder in found[1].split())
        marked = [path for path in (ROOT / "tests").rglob("test_*.py") if f"pytest.mark.{mark}" in path.read_text()]
        assert marked
        astray = [path for path in marked if not any(folder in path.parents for folder in looked)]
        assert [path for path in astray if path != Path(__file__)] == []
