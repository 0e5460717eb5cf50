"""A notebook, or an interactive session: cells are added and run again while a worker is at work."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.commands import program, python

CELLS = """
from holdfast import Holdfast
hf = Holdfast("sqlite:///notebook.db")

@hf.tool
def weather(city: str) -> str:
    "The weather."
    return f"sunny in {city}"

guide = hf.agent("guide", model="scripted:", tools=[weather])
print(guide.run_sync("Oslo").text)

@hf.tool
def weather(city: str) -> str:
    "The weather, once more."
    return f"rainy in {city}"

guide = hf.agent("guide", model="scripted:", tools=[weather])
print(guide.run_sync("Oslo").text)

@hf.tool
def tide(city: str) -> str:
    "The tide."
    return f"high in {city}"

sailor = hf.agent("sailor", model="scripted:", tools=[tide])
print(sailor.run_sync("Bergen").text)
"""


@pytest.mark.long
def test_cells_are_added_and_run_again(tmp_path: Path) -> None:
    assert python("-c", CELLS, cwd=tmp_path) == (0, "sunny in Oslo\nrainy in Oslo\nhigh in Bergen\n", "")


def test_a_program_that_declares_a_tool_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "twice.py").write_text(CELLS)
    said = program("twice.py", cwd=tmp_path)
    assert (said.code, said.out) == (1, "sunny in Oslo\n")
    assert "two functions are declared as job 'tool:weather'" in said.err
