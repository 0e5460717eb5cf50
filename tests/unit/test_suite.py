"""What `make test` does with a test that fails: `tools/suite.py` on a project of three tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from suite import MOST_UNSTEADY, Failure, Result

ROOT = Path(__file__).parents[2]
SETTINGS = """
[pytest]
addopts = --disable-plugin-autoload -p xdist -p tests.budgets -p tests.failures
markers =
    long
    chaos
    timed
"""
TESTS = """
from pathlib import Path

def test_passes(): pass

def test_fails_once():
    first = not Path("seen").exists()
    Path("seen").touch()
    assert not first, "the first time"

def test_fails(): assert False, "every time"
"""
FAIL_ONCE = """
from pathlib import Path
import pytest

@pytest.mark.parametrize("name", {names})
def test_fails_once(name):
    first = not Path(name).exists()
    Path(name).touch()
    assert not first
"""


def run_suite(folder: Path, tests: str) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text(SETTINGS)
    for part in ("chaos", "e2e"):
        (folder / "tests" / part).mkdir(parents=True)
    (folder / "tests/test_all.py").write_text(tests)
    return subprocess.run(
        [sys.executable, ROOT / "tools/suite.py", "test", "--jobs", "1"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_what_failed_is_run_again_alone_and_named(tmp_path: Path) -> None:
    ended = run_suite(tmp_path, TESTS)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "unsteady: failed beside others, passed alone: tests/test_all.py::test_fails_once\n" in ended.stdout
    assert "    AssertionError: the first time\n" in ended.stdout
    assert "failed twice: tests/test_all.py::test_fails\n" in ended.stdout
    assert "\n1 passed, 1 failed, 1 unsteady, in " in ended.stdout


def test_each_of_four_unsteady_tests_is_named(tmp_path: Path) -> None:
    names = [f"test_{number}" for number in range(MOST_UNSTEADY + 1)]
    ended = run_suite(tmp_path, FAIL_ONCE.format(names=names))
    assert ended.returncode == 1, ended.stdout + ended.stderr
    for name in names:
        assert (
            f"unsteady: failed beside others, passed alone: tests/test_all.py::test_fails_once[{name}]\n"
            in ended.stdout
        )
    assert "\n0 passed, 0 failed, 4 unsteady (at most 3 may be), in " in ended.stdout


def test_more_than_three_unsteady_tests_fail_the_suite() -> None:
    unsteady = [Failure(f"test_{number}", "", "") for number in range(MOST_UNSTEADY + 1)]
    assert Result(failures=tuple(unsteady[:-1])).is_ok
    assert not Result(failures=tuple(unsteady)).is_ok
    assert not Result(failures=(unsteady[0],), failed_again=("test_0",)).is_ok
    assert not Result(broken=True).is_ok
