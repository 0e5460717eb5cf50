"""`pytest --mutant NAME` runs tests with a bug planted, in this process and in those that tests start.

A process that a test starts plants what the variable `PLANTED_BUG` names: `tests.support.warm` asks for it.
"""

from __future__ import annotations

import os

import pytest

from tests.support.planted import VARIABLE, plant_named


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--mutant", metavar="NAME", help="plant this bug of tests/mutants before the tests run")


def pytest_configure(config: pytest.Config) -> None:
    name: str | None = config.getoption("mutant", None)
    if name is not None:
        os.environ[VARIABLE] = name
        plant_named(name)
