"""What `make test` runs, and what it leaves to `make test-all`. Both together are everything; nothing is skipped.

`long` is the mark of what waits for `make test-all`. A test bears it, or is given it here by one of two rules:

- A test that runs on both databases runs on SQLite in `make test`, and on PostgreSQL in `make test-all`. What is in
  `ON_BOTH`, and a test that is marked `both`, runs on both in `make test`: of the kernel the moves of a job, on which
  everything else stands, and of each layer above it the core, in which a difference between the databases would show.
  The other statements of the kernel are prepared on PostgreSQL there too, by `conformance/test_statements.py`.
- Of the cases of a test marked `sample(n)`, `make test` runs the first n, on PostgreSQL the first quarter of these, and
  at least one; they come in the order in which they are written. Tests in the folders of `SAMPLES` are treated as if
  they were marked so.

A test that exists on PostgreSQL alone is not touched by the first rule. Whoever names a test on the command line,
without `-m`, gets all of it on both databases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import pytest

ON_BOTH = (
    "tests/conformance/test_cancel.py",
    "tests/conformance/test_claim.py",
    "tests/conformance/test_complete.py",
    "tests/conformance/test_enqueue.py",
    "tests/conformance/test_epoch.py",
    "tests/conformance/test_families.py",
    "tests/conformance/test_fencing.py",
    "tests/conformance/test_hints.py",
    "tests/conformance/test_lanes.py",
    "tests/conformance/test_leases.py",
    "tests/conformance/test_statements.py",
    "tests/conformance/test_transitions.py",
    "tests/conformance/test_unique.py",
    "tests/conformance/test_upkeep.py",
    "tests/conformance/test_waiting.py",
    "tests/lockstep/",
    "tests/agents/test_agentpg_table.py",
    "tests/agents/test_conformance_claiming.py",
    "tests/agents/test_races.py",
    "tests/workers/test_wakeups.py",
)
SAMPLES = {
    "tests/agents/": 1,
    "tests/conformance/": 2,
    "tests/transactions/": 2,  # of 16 libraries whose transactions a caller may bring
}


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    collected = {item.nodeid for item in items}
    seen: Counter[tuple[str, str]] = Counter()
    for item in items:
        if leaves_postgres_to_test_all(item, collected) or is_past_its_sample(item, seen):
            item.add_marker(pytest.mark.long)


def leaves_postgres_to_test_all(item: pytest.Item, collected: set[str]) -> bool:
    if item.nodeid.startswith(ON_BOTH) or item.get_closest_marker("both") is not None:
        return False
    return has_twin(item.nodeid, collected)


def has_twin(nodeid: str, collected: Collection[str]) -> bool:
    """Whether this is a case on PostgreSQL whose like on SQLite is collected too."""
    test, _, case = nodeid.partition("[")
    return "postgres" in case and f"{test}[{case.replace('postgres', 'sqlite', 1)}" in collected


def is_past_its_sample(item: pytest.Item, seen: Counter[tuple[str, str]]) -> bool:
    """Count the case; is it one too many for `make test`?"""
    marked = item.get_closest_marker("sample")
    of_folder = [cases for folder, cases in SAMPLES.items() if item.nodeid.startswith(folder)]
    sample = marked.args if marked is not None else of_folder
    if not sample:
        return False
    test, _, case = item.nodeid.partition("[")
    database = "postgres" if "postgres" in case else "sqlite" if "sqlite" in case else ""
    seen[test, database] += 1
    (cases,) = sample
    return seen[test, database] > (max(1, int(cases) // 4) if database == "postgres" else int(cases))
