"""The table of Universal Agent's 37 statements says which test shows each, and the tests say the same."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "reference" / "universal-agent.md"
ROW = re.compile(r"^\| UA-(\d\d) \| (.+?) \| (.+?) \|$", re.MULTILINE)
NUMBER = re.compile(r"(?:UA-|ua_)(\d\d)")


def claims() -> dict[int, set[str]]:
    """Number -> the tests whose name or docstring has it, as `file::test`."""
    found: dict[int, set[str]] = {}
    files = [*(ROOT / "tests" / "facades").glob("test_*.py"), ROOT / "tests" / "chaos" / "test_universal_agent.py"]
    for file in sorted(files):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef) and node.name.startswith("test_"):
                for number in NUMBER.findall(node.name + " " + (ast.get_docstring(node) or "")):
                    found.setdefault(int(number), set()).add(f"{file.name}::{node.name}")
    return found


def test_the_table_has_every_statement_once() -> None:
    assert [int(number) for number, _, _ in ROW.findall(TABLE.read_text())] == list(range(1, 38))


def test_the_table_and_the_tests_agree() -> None:
    shown = claims()
    for number, _, text in ROW.findall(TABLE.read_text()):
        assert set(re.findall(r"`(\w+\.py::\w+)`", text)) == shown.get(int(number)), f"UA-{number}"
