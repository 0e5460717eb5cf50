"""The table of AGX's 37 statements says which test shows each, and the tests say the same."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "reference" / "agx.md"
ROW = re.compile(r"^\| AGX-(\d\d) \| (.+?) \| (.+?) \|$", re.MULTILINE)
NUMBER = re.compile(r"(?:AGX-|agx_)(\d\d)")


def claims() -> dict[int, set[str]]:
    """Number -> the tests whose name or docstring has it, as `file::test`."""
    found: dict[int, set[str]] = {}
    for file in sorted((ROOT / "tests").glob("*/test_*.py")):
        if "agx_" not in file.read_text() or file == Path(__file__):
            continue
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef) and node.name.startswith("test_"):
                for number in NUMBER.findall(node.name + " " + (ast.get_docstring(node) or "")):
                    found.setdefault(int(number), set()).add(f"{file.name}::{node.name}")
    return found


def test_every_statement_has_a_test_and_the_table_names_it() -> None:
    rows = {int(number): shown for number, _, shown in ROW.findall(TABLE.read_text())}
    assert sorted(rows) == list(range(1, 38))
    assert {number: set(re.findall(r"`(\S+)`", shown)) for number, shown in rows.items()} == claims()
