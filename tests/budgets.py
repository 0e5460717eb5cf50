"""How long each folder of tests took, beside what it may take.

A folder's seconds are those of all its tests, set-up and tear-down included, over all processes. A folder that is over
its budget is named and fails nothing: a slow machine is no failure. Make room in it, or raise its budget on purpose.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import pytest

# By the part of the suite that the Makefile runs. Three processes spend 180 seconds in a minute, and need 12 seconds
# before their first test. So the budgets of `test` are less than four minutes and a half, and those of `chaos` and
# `timed` one: together less than six.
BUDGETS: dict[str, dict[str, int]] = {
    "quick": {"tests/conformance": 60, "tests/shape": 15, "tests/unit": 45},
    "test": {
        "tests/agents": 142,
        "tests/attack": 1,
        "tests/chaos": 6,
        "tests/conformance": 104,
        "tests/e2e": 46,
        "tests/facades": 48,
        "tests/http": 113,
        "tests/interleaving": 7,
        "tests/lockstep": 9,
        "tests/machines": 24,
        "tests/models": 15,
        "tests/mutants": 20,
        "tests/pools": 12,
        "tests/resp": 60,
        "tests/shape": 13,
        "tests/simulation": 23,
        "tests/testing": 41,
        "tests/transactions": 12,
        "tests/unit": 12,
        "tests/workers": 108,
    },
    "chaos": {"tests/chaos": 62, "tests/e2e": 12},
    "timed": {"tests/chaos": 15},
}


class Budget:
    """The seconds of each folder in one run; under xdist, of all its processes."""

    def __init__(self, allowed: Mapping[str, int]) -> None:
        self._allowed = allowed
        self._used: defaultdict[str, float] = defaultdict(float)
        self._tests: defaultdict[str, set[str]] = defaultdict(set)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        folder = folder_of(report.nodeid)
        self._used[folder] += report.duration
        self._tests[folder].add(report.nodeid)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("seconds by folder, and budgets")
        for line in self.lines():
            terminalreporter.line(line)

    def lines(self) -> Iterator[str]:
        """One for each folder, the costliest first, and what is over its budget last."""
        over = []
        for folder, used in sorted(self._used.items(), key=lambda each: -each[1]):
            allowed = self._allowed.get(folder)
            beside = "no budget" if allowed is None else f"of {allowed:4}"
            yield f"{folder:24} {len(self._tests[folder]):5} tests {used:7.1f} s {beside}"
            if allowed is not None and used > allowed:
                over.append(folder)
        yield f"{'all':24} {sum(map(len, self._tests.values())):5} tests {sum(self._used.values()):7.1f} s"
        if over:
            yield f"over budget: {', '.join(over)}"


def folder_of(nodeid: str) -> str:
    """`tests/agents` for whatever is in it, however deep."""
    path = nodeid.partition("::")[0]
    return "/".join(path.split("/")[:-1][:2]) or "."


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--budget", choices=sorted(BUDGETS), help="say at the end what each folder took of this budget")


def pytest_configure(config: pytest.Config) -> None:
    part = config.getoption("budget", None)
    if part is not None and not hasattr(config, "workerinput"):  # xdist's own processes report to this one
        config.pluginmanager.register(Budget(BUDGETS[part]), "budget")
