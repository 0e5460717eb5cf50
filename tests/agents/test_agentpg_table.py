"""The table of AgentPG's sixty statements says which test shows each, and the tests say the same."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "reference" / "agentpg.md"
ROW = re.compile(r"^\| AP-(\d\d) \| (.+?) \| (.+?) \|$", re.MULTILINE)
NUMBER = re.compile(r"(?:AP-|ap_)(\d\d)")


def claims() -> dict[int, set[str]]:
    """Number -> the tests whose name or docstring has it, as `file::test`."""
    found: dict[int, set[str]] = {}
    files = [file for folder in ("agents", "chaos", "http") for file in (ROOT / "tests" / folder).glob("test_*.py")]
    for file in sorted(files):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef) and node.name.startswith("test_"):
                for number in NUMBER.findall(node.name + " " + (ast.get_docstring(node) or "")):
                    found.setdefault(int(number), set()).add(f"{file.name}::{node.name}")
    return found


def rows() -> dict[int, tuple[str, str]]:
    return {int(number): (statement, shown) for number, statement, shown in ROW.findall(TABLE.read_text())}


def test_the_table_has_every_statement_once() -> None:
    numbers = [int(number) for number, _, _ in ROW.findall(TABLE.read_text())]
    assert numbers == list(range(1, 61))


def test_the_table_and_the_tests_agree() -> None:
    shown = claims()
    for number, (_, text) in rows().items():
        named = set(re.findall(r"`(\w+\.py::\w+)`", text))
        if text.startswith("postponed:"):
            assert (named, number in shown) == (set(), False), f"AP-{number:02} is shown, and the table says postponed"
        else:
            assert named == shown.get(number), f"AP-{number:02}"
