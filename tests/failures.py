"""Options of pytest for `tools/suite.py`: failures as a file that a program can read, and tests in random order."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", type=Path, metavar="FILE", help="write each failure to FILE, a line of JSON each")
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run the tests in a random order, which SEED repeats")


def pytest_configure(config: pytest.Config) -> None:
    file: Path | None = config.getoption("record", None)
    if file is not None and not hasattr(config, "workerinput"):  # xdist's own processes report to this one
        config.pluginmanager.register(FailureRecord(file), "failure-record")


@pytest.hookimpl(trylast=True)  # after tests/selection.py, which counts the cases of a test in their order
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seed: int | None = config.getoption("shuffle", None)
    if seed is not None:
        random.Random(seed).shuffle(items)


class FailureRecord:
    """Writes `{"test", "reason", "output"}` for each failure, and the counts of the run as the last line."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._counts: Counter[str] = Counter()
        file.write_text("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._add(report)
        if report.failed or report.when == "call":
            self._counts[report.outcome] += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._add(report)

    def pytest_sessionfinish(self) -> None:
        self._write({"counts": dict(self._counts)})

    def _add(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        crash = getattr(report.longrepr, "reprcrash", None)
        reason = crash.message if crash is not None else report.longreprtext
        parts = [report.longreprtext, *(f"---- {name}\n{text}" for name, text in report.sections)]
        self._write({"test": report.nodeid, "reason": reason, "output": "\n".join(parts)})

    def _write(self, line: dict[str, object]) -> None:
        with self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")
