"""`pytest --mutant NAME` runs tests with a bug planted, in this process and in those that tests start.

A process that a test starts plants what the variable `PLANTED_BUG` names: `tests.support.warm` asks for it.
"""

from __future__ import annotations

import os

import pytest

from tests.selection import has_twin
from tests.support.planted import VARIABLE, plant_named


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--mutant", metavar="NAME", help="plant this bug of tests/mutants before the tests run")
    parser.addoption(
        "--one-database",
        action="store_true",
        help="leave out what runs on SQLite too, unless it is named with its case",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("one_database", False):
        collected = {item.nodeid for item in items}
        left_out = [each for each in items if each.nodeid not in config.args and has_twin(each.nodeid, collected)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [each for each in items if each not in left_out]


def pytest_configure(config: pytest.Config) -> None:
    name: str | None = config.getoption("mutant", None)
    if name is not None:
        os.environ[VARIABLE] = name
        plant_named(name)
