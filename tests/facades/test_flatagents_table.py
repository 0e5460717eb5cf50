"""The table of FlatAgents' 37 statements says which test shows each; the tests are there, and say the same."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "reference" / "flatagents.md"
ROW = re.compile(r"^\| FA-(\d\d) \| (.+?) \| (.+?) \|$", re.MULTILINE)
NUMBER = re.compile(r"fa_(\d\d)")


def known_tests() -> set[str]:
    """Every test of the two folders, as `file::test`."""
    found = set()
    for folder in ("facades", "machines"):
        for file in (ROOT / "tests" / folder).glob("test_*.py"):
            for node in ast.parse(file.read_text()).body:
                if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef) and node.name.startswith("test_"):
                    found.add(f"{file.name}::{node.name}")
    return found


def rows() -> dict[int, set[str]]:
    return {
        int(number): set(re.findall(r"`(\w+\.py::\w+)`", text)) for number, _, text in ROW.findall(TABLE.read_text())
    }


def test_the_table_has_every_statement_once() -> None:
    assert [int(number) for number, _, _ in ROW.findall(TABLE.read_text())] == list(range(1, 38))


def test_the_table_and_the_tests_agree() -> None:
    known, shown = known_tests(), rows()
    assert {name for names in shown.values() for name in names} <= known
    assert all(shown.values())
    for number, names in shown.items():
        assert any(f"::test_fa_{number:02}_" in name for name in names), f"FA-{number:02} has no test of its own"
    numbered = {name: [int(each) for each in NUMBER.findall(name)] for name in known}
    for name, numbers in numbered.items():
        for number in numbers:
            assert name in shown[number], name
