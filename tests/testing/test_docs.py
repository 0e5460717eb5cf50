"""docs/testing.md does not lie: its programs are run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.commands import python
from tests.testing.conftest import Project, counts

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"


def test_the_programs_of_the_guide_do_what_it_says(project: Project) -> None:
    programs = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE.read_text(), re.DOTALL))
    assert set(programs) == {"shop.py", "test_shop.py", "test_crash.py", "program.py", "desk.py", "test_desk.py"}
    for name, text in programs.items():
        project.write(name, text)
    said = project.test("--holdfast-db=sqlite")
    assert counts(said) == {"passed": 8}, said
    assert python("program.py", cwd=project.folder) == (0, "the bytes of a.png, 800 wide\n", "")
