"""The suite says what each folder of tests took, beside its budget."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from tests.budgets import BUDGETS, Budget
from tests.support.commands import environment, python

ROOT = Path(__file__).parents[2]
CONFTEST = """
from tests import budgets

budgets.BUDGETS["test"] = {"tests/quick": 1_000_000, "tests/slow": 0}
pytest_plugins = ["tests.budgets"]
"""
TESTS = """
import pytest

@pytest.mark.parametrize("n", range(4))
def test_something(n):
    assert n < 3
"""


def report(nodeid: str, when: Literal["setup", "call", "teardown"], seconds: float) -> pytest.TestReport:
    return pytest.TestReport(nodeid, ("", None, ""), {}, "passed", None, when, duration=seconds)


def lines_after(allowed: dict[str, int], *reports: pytest.TestReport) -> list[str]:
    budget = Budget(allowed)
    for each in reports:
        budget.pytest_runtest_logreport(each)
    return [" ".join(line.split()) for line in budget.lines()]


def test_a_folder_is_charged_for_set_up_call_and_tear_down() -> None:
    test = "tests/a/test_x.py::test_y"
    phases = [report(test, "setup", 2.0), report(test, "call", 3.0), report(test, "teardown", 1.0)]
    assert lines_after({"tests/a": 7}, *phases) == ["tests/a 1 tests 6.0 s of 7", "all 1 tests 6.0 s"]


def test_what_is_over_its_budget_is_named() -> None:
    said = lines_after(
        {"tests/a": 1, "tests/b": 9},
        report("tests/a/deep/test_x.py::test_y", "call", 2.0),
        report("tests/b/test_x.py::test_y", "call", 3.0),
        report("tests/c/test_x.py::test_y", "call", 1.0),
    )
    assert said == [
        "tests/b 1 tests 3.0 s of 9",
        "tests/a 1 tests 2.0 s of 1",
        "tests/c 1 tests 1.0 s no budget",
        "all 3 tests 6.0 s",
        "over budget: tests/a",
    ]


@pytest.mark.long
@pytest.mark.parametrize("processes", ["0", "2"])
def test_it_is_printed_for_all_processes_and_fails_nothing(processes: str, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for folder in ("quick", "slow"):
        (tmp_path / "tests" / folder).mkdir(parents=True)
        (tmp_path / "tests" / folder / f"test_{folder}.py").write_text(TESTS)
    env = environment(PYTHONPATH=str(ROOT), PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    words = ["--budget=test", "-p", "xdist", "-n", processes, "--rootdir=.", "-p", "no:cacheprovider", "-k", "not 3"]
    said = python("-m", "pytest", *words, cwd=tmp_path, env=env)
    assert said.code == 0, said.out + said.err
    told = [" ".join(line.split()) for line in said.out.splitlines()]
    assert [line for line in told if line.startswith("tests/quick 3 tests") and line.endswith("s of 1000000")]
    assert [line for line in told if line.startswith("tests/slow 3 tests") and line.endswith("s of 0")]
    assert "over budget: tests/slow" in told
    assert "seconds by folder" not in python("-m", "pytest", *words[1:], cwd=tmp_path, env=env).out


def test_every_folder_of_tests_has_a_budget_in_every_part_that_names_it() -> None:
    with_tests = {f"tests/{path.parent.name}" for path in (ROOT / "tests").glob("*/test_*.py")}
    assert set(BUDGETS["test"]) == with_tests
    for part in BUDGETS.values():
        assert part.keys() <= with_tests


def test_all_budgets_together_are_less_than_six_minutes() -> None:
    """`make test` runs its parts one after the other, on 3, 2 and 1 processes; each needs a while to begin."""
    spent = {part: sum(BUDGETS[part].values()) for part in ("test", "chaos", "timed")}
    assert 15 + spent["test"] / 3 + spent["chaos"] / 2 + spent["timed"] <= 360
