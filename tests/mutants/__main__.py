"""`python -m tests.mutants [NAME...]`: plant each bug, one at a time, and run the tests that must notice it.

The tests must pass first, without a bug. Prints a line for each bug; the exit code is 1 if one of them survived, if
its anchor is lost, or if its tests fail anyway.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, NamedTuple

from tests.mutants.catalogue import MUTANTS
from tests.mutants.planting import AnchorLost, Mutant
from tests.support.postgres import running_cluster
from tests.support.warm import begin

ROOT: Final = Path(__file__).parents[2]
SIDE_BY_SIDE: Final = 2
PATIENCE: Final = 60  # seconds for a test
HANGS: Final = 30  # after which a test that passes without the bug has noticed it
HUNG: Final = 1200
ENDLESS: Final = 90  # for each test of a planted bug: a loop that never ends may swallow what interrupts it
IMPORTED: Final = ("-W", "ignore::pytest.PytestAssertRewriteWarning")  # the warm process has plugins' names imported
PRELOAD: Final = ("tests.support.preloaded", "_pytest.python", "psycopg")
# A bug that no longer is a program proves nothing.
BROKEN: Final = ("SyntaxError", "NameError", "IndentationError", "SQLError", "StatementDrift", "UndefinedColumn")


class Ran(NamedTuple):
    failed: dict[str, str]  # test -> reason
    trouble: str  # why nothing can be said
    is_endless: bool = False


class Verdict(NamedTuple):
    mutant: Mutant
    is_good: bool
    words: str
    seconds: float = 0.0


def main() -> int:
    chosen = parse(sys.argv[1:])
    if chosen.list:
        for mutant in MUTANTS.values():
            print(f"{mutant.name}: {mutant.what}")
        return 0
    mutants = [each for each in MUTANTS.values() if not chosen.names or matches(each.name, chosen.names)]
    if not mutants:
        print("no planted bug has such a name", file=sys.stderr)
        return 2
    begun = time.monotonic()
    with running_cluster() as cluster, ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        os.environ.setdefault("HOLDFAST_TEST_POSTGRES", cluster.url())
        named = {test for mutant in mutants for test in mutant.tests}
        lost = dict.fromkeys(lost_among(named), "there is no such test")
        healthy = run_tests(sorted(named - lost.keys()), "--timeout", str(PATIENCE), "-n", str(SIDE_BY_SIDE))
        healthy.failed.update({f"tests/{test}": why for test, why in lost.items()})
        if healthy.trouble:
            print(f"the tests could not run: {healthy.trouble}", file=sys.stderr)
            return 1
        bad = []
        misplaced = {mutant.name: lost_anchor(mutant) for mutant in mutants}  # here: two threads would import at once
        for verdict in pool.map(lambda mutant: judge(mutant, healthy, misplaced[mutant.name]), mutants):
            mark = "" if verdict.is_good else "  <<<"
            print(f"{verdict.mutant.name}: {verdict.words} ({verdict.seconds:.0f} s){mark}", flush=True)
            if not verdict.is_good:
                bad.append(verdict.mutant.name)
    print(f"{len(mutants) - len(bad)} of {len(mutants)} planted bugs noticed in {time.monotonic() - begun:.0f} s")
    if bad:
        print("not noticed: " + " ".join(bad))
    return 1 if bad else 0


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="only these; * stands for anything")
    parser.add_argument("--list", action="store_true", help="print every planted bug, and plant none")
    return parser.parse_args(words)


def matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def lost_anchor(mutant: Mutant) -> str:
    """What of its place is gone, if anything is."""
    try:
        mutant.check()
    except AnchorLost as lost:
        return str(lost)
    return ""


def judge(mutant: Mutant, healthy: Ran, lost: str) -> Verdict:
    """Whether each test of a planted bug notices it."""
    if lost:
        return Verdict(mutant, False, f"ANCHOR LOST: {lost}")
    for test in mutant.tests:
        if why := reasons_of(test, healthy):
            return Verdict(mutant, False, f"{test} FAILS WITHOUT IT: {brief(why[0])}")
    begun = time.monotonic()
    within = ENDLESS * len(mutant.tests)
    ran = run_tests(mutant.tests, "--timeout", str(HANGS), "--mutant", mutant.name, within=within)
    seconds = time.monotonic() - begun
    if ran.is_endless:
        return Verdict(mutant, True, "noticed: its tests, which pass without it, never end", seconds)
    if ran.trouble:
        return Verdict(mutant, False, f"COULD NOT RUN: {ran.trouble}", seconds)
    silent = [test for test in mutant.tests if not reasons_of(test, ran)]
    if silent:
        return Verdict(mutant, False, f"SURVIVED {' '.join(silent)}", seconds)
    first = next(iter(ran.failed.items()))
    if any(word in reason for reason in ran.failed.values() for word in BROKEN):
        return Verdict(mutant, False, f"THE PLANT IS BROKEN: {brief(first[1])}", seconds)
    return Verdict(mutant, True, f"noticed by {first[0].removeprefix('tests/')}: {brief(first[1])}", seconds)


def reasons_of(test: str, ran: Ran) -> list[str]:
    """Why the test failed, in any of its cases."""
    whole = f"tests/{test}"
    return [reason for failed, reason in ran.failed.items() if failed == whole or failed.startswith(f"{whole}[")]


def lost_among(tests: Iterable[str]) -> set[str]:
    """Those that pytest does not find."""
    named = {str(ROOT / "tests" / test): test for test in tests}
    words = ["-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", *IMPORTED, *named]
    code, said = ended(words, HUNG)
    if code == 0:
        return set()
    return {test for path, test in named.items() if f"not found: {path.partition('[')[0]}\n" in said}


def run_tests(tests: Sequence[str], *options: str, within: float = HUNG) -> Ran:
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "failures"
        named = [f"tests/{test}" for test in tests]
        words = ["-m", "pytest", "-q", *IMPORTED, "--one-database", "--record", str(record), *options, *named]
        code, said = ended(words, within)
        if code is None:
            return Ran({}, "it hangs", is_endless=True)
        if code not in (0, 1) or not record.exists():
            return Ran({}, "\n".join(said.strip().splitlines()[-8:]))
        lines = [json.loads(line) for line in record.read_text().splitlines()]
    return Ran({line["test"]: line["reason"] for line in lines if "test" in line}, "")


def ended(words: Sequence[str], within: float) -> tuple[int | None, str]:
    """The exit code of a warm Python with these words, and what it said; None if it did not end."""
    with tempfile.TemporaryFile("w+") as output:
        process = begin(*words, preload=PRELOAD, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        code: int | None = None
        try:
            code = process.wait(within)
        except subprocess.TimeoutExpired:
            process.kill()
        output.seek(0)
        return code, output.read()


def brief(reason: str) -> str:
    words = " ".join(reason.split())
    return words if len(words) < 100 else f"{words[:97]}..."


if __name__ == "__main__":
    sys.exit(main())
