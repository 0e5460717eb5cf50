"""docs/testing.md does not lie: its programs are run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.commands import python
from tests.testing.conftest import Project, counts

SUPPORT = """
from decimal import Decimal
import pytest

from holdfast import Holdfast

hf = Holdfast("sqlite:///support.db")


@hf.tool(effect="read")
async def find_order(number: str) -> dict[str, str]:
    return {"number": number}


@hf.tool(effect="idempotent", approve=lambda call: call.input["amount"] > 50)
async def refund(number: str, amount: Decimal) -> str:
    return f"refunded {amount}"


support = hf.agent("support", model="claude-sonnet-5-5", tools=[find_order, refund])
"""
TESTS = """
from holdfast.testing import Script, call, say
from support import hf, support

async def test_big_refund_waits_for_a_person(holdfast):
    lab = await holdfast.use(hf, Script(
        call("find_order", number="A1"),
        call("refund", number="A1", amount="80"),
        say("Done: 80 euros.")))

    run = await support.enqueue("My order A1 never came.")
    await lab.drain()
    assert run.state == "awaiting_input"

    await lab.approve(run)
    await lab.drain()
    assert await run.text() == "Done: 80 euros."
    assert lab.calls("refund") == [{"number": "A1", "amount": "80"}]

async def test_survives_a_crash_at_every_commit(holdfast):
    async for lab in holdfast.crash_everywhere(hf, Script.cassette("refund.json")):
        run = await support.enqueue("My order A1 never came.")
        await lab.drain()
        assert (await run.text()).startswith("Done") and lab.rebought == []
"""
CASSETTE = """[
    {"call": ["find_order", {"number": "A1"}]},
    {"call": ["refund", {"number": "A1", "amount": "20"}]},
    {"say": "Done: 20 euros."}
]"""
PAGE = Path(__file__).parents[2] / "docs" / "testing.md"


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "expected"),
    [(("-k", "not survives"), {"passed": 17, "deselected": 2}), ((), {"passed": 19})],
    ids=["without those that kill a worker at every commit", "all"],
)
def test_the_programs_of_the_guide_do_what_it_says(
    project: Project, words: tuple[str, ...], expected: dict[str, int]
) -> None:
    programs = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE.read_text(), re.DOTALL))
    assert len(programs) == 12
    for name, text in programs.items():
        project.write(name, text)
    said = project.test("--holdfast-db=sqlite", *words)
    assert counts(said) == expected, said
    assert python("program.py", cwd=project.folder) == (0, "the bytes of a.png, 800 wide\n", "")


@pytest.mark.long
def test_an_agent_is_tested_in_as_few_lines_as_was_designed(project: Project) -> None:
    for name, text in (("support.py", SUPPORT), ("test_support.py", TESTS), ("refund.json", CASSETTE)):
        project.write(name, text)
    said = project.test("--holdfast-db=sqlite")
    assert counts(said) == {"passed": 2}, said
