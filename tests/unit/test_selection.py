"""`make test` and `make test-all` share the tests between them, and nothing is left out of both."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.selection import ON_BOTH
from tests.support.commands import environment, python

ROOT = Path(__file__).parents[2]
CONFTEST = """
import pytest

pytest_plugins = ["tests.selection"]


def pytest_configure(config):
    for mark in ("long", "both", "sample"):
        config.addinivalue_line("markers", mark)


@pytest.fixture(params=["sqlite", "postgres"])
def dialect(request):
    return request.param
"""
TESTS = """
import pytest

def test_plain(): ...

def test_on_each(dialect): ...

@pytest.mark.both
def test_core(dialect): ...

@pytest.mark.long
def test_tail(): ...

@pytest.mark.parametrize("dialect", ["postgres"])
def test_alone(dialect): ...

@pytest.mark.sample(2)
@pytest.mark.parametrize("n", range(4))
def test_cases(n): ...

@pytest.mark.sample(1)
@pytest.mark.parametrize("n", range(2))
def test_cases_on_each(n, dialect): ...

@pytest.mark.both
@pytest.mark.sample(1)
@pytest.mark.parametrize("n", range(2))
def test_cases_on_both(n, dialect): ...

@pytest.mark.both
@pytest.mark.sample(8)
@pytest.mark.parametrize("n", range(9))
def test_many_on_both(n, dialect): ...
"""
IN_TEST = {
    "test_plain",
    "test_on_each[sqlite]",
    "test_core[sqlite]",
    "test_core[postgres]",
    "test_alone[postgres]",
    "test_cases[0]",
    "test_cases[1]",
    "test_cases_on_each[sqlite-0]",
    "test_cases_on_both[sqlite-0]",
    "test_cases_on_both[postgres-0]",
    *(f"test_many_on_both[sqlite-{n}]" for n in range(8)),
    *(f"test_many_on_both[postgres-{n}]" for n in range(2)),
}
LEFT = {
    "test_on_each[postgres]",
    "test_tail",
    "test_cases[2]",
    "test_cases[3]",
    "test_cases_on_each[sqlite-1]",
    "test_cases_on_each[postgres-0]",
    "test_cases_on_each[postgres-1]",
    "test_cases_on_both[sqlite-1]",
    "test_cases_on_both[postgres-1]",
    "test_many_on_both[sqlite-8]",
    *(f"test_many_on_both[postgres-{n}]" for n in range(2, 9)),
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_shared.py").write_text(TESTS)
    return tmp_path


def selected(project: Path, *words: str) -> set[str]:
    asked = ["-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *words]
    said = python(*asked, cwd=project, env=environment(PYTHONPATH=str(ROOT), PYTEST_DISABLE_PLUGIN_AUTOLOAD="1"))
    return {line.partition("::")[2] for line in said.lines if "::" in line}


def test_each_case_runs_in_one_of_the_two(project: Path) -> None:
    assert selected(project, "-m", "not long") == IN_TEST
    assert selected(project, "-m", "long") == LEFT


@pytest.mark.long
def test_who_names_no_mark_gets_everything(project: Path) -> None:
    assert selected(project) == IN_TEST | LEFT
    assert selected(project, "test_shared.py::test_on_each[postgres]", "-m", "not long") == {"test_on_each[postgres]"}


def test_what_runs_on_both_exists() -> None:
    files = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")]
    assert [prefix for prefix in ON_BOTH if not any(file.startswith(prefix) for file in files)] == []
