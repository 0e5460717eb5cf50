"""Run the suite: `make test` and `make test-all` once, `make steady` many times on a machine that is kept busy.

One rule for a failure, wherever the suite runs: a test that failed is run once more, alone, at the end. If it passes
then, it is unsteady, which is a bug of the test or of the code, and it is named. The suite fails if a test fails twice,
or if more than three were unsteady. Where so many failed that it is broken anyhow, none is run again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

MOST_UNSTEADY = 3
MOST_AGAIN = 12  # failures that are run again
RECORDS = Path(".cache/steady")
NOTHING_SELECTED = 5  # pytest's exit code
RED, PLAIN = ("\033[31m", "\033[0m") if sys.stdout.isatty() else ("", "")


def parts_of(suite: str, jobs: int) -> list[list[str]]:
    """The arguments of pytest for each part.

    Chaos tests need a machine that is not busy with others, and where time is the subject they run alone.
    """
    alongside = ["-n", str(jobs), "--dist", "worksteal"]
    two = ["-n", "2", "--dist", "worksteal"]
    if suite == "test":
        return [
            [*alongside, "--budget=test", "-m", "not long and not chaos and not timed"],
            [*two, "--budget=chaos", "-m", "chaos and not long", "tests/chaos", "tests/e2e"],
            ["--budget=timed", "-m", "timed and not long", "tests/chaos"],
        ]
    return [
        [*alongside, "-m", "long and not chaos and not timed"],
        [*two, "-m", "chaos and long", "tests/chaos", "tests/e2e"],
        ["-m", "timed and long", "tests/chaos"],
    ]


class Failure(NamedTuple):
    test: str
    reason: str
    output: str


@dataclass(slots=True)
class Result:
    """One run of a suite."""

    passed: int = 0
    seconds: float = 0.0
    failures: tuple[Failure, ...] = ()
    failed_again: tuple[str, ...] = ()
    broken: bool = False  # pytest itself failed, or selected nothing in any part

    @property
    def unsteady(self) -> list[Failure]:
        return [each for each in self.failures if each.test not in self.failed_again]

    @property
    def is_ok(self) -> bool:
        return not self.broken and not self.failed_again and len(self.unsteady) <= MOST_UNSTEADY


def run_suite(suite: str, jobs: int, options: Sequence[str], log: int | None = None) -> Result:
    """Run every part, then what failed once more. `log`: where the output goes, instead of to the terminal."""
    begun = time.monotonic()
    result, codes = Result(), []
    failures: dict[str, Failure] = {}
    for part in parts_of(suite, jobs):
        code, passed, failed = run_pytest([*part, *options], log)
        codes.append(code)
        result.passed += passed
        failures |= {each.test: each for each in failed}
    result.failures = tuple(failures.values())
    if len(failures) <= MOST_AGAIN:
        again = {test: run_pytest(["-p", "no:xdist", test], log)[0] for test in failures}
        result.failed_again = tuple(test for test, code in again.items() if code != 0)
    else:
        result.failed_again = tuple(failures)
    known = {0, 1, NOTHING_SELECTED}
    result.broken = not known.issuperset(codes) or set(codes) == {NOTHING_SELECTED} or (1 in codes and not failures)
    result.seconds = time.monotonic() - begun
    return result


def run_pytest(arguments: Sequence[str], log: int | None) -> tuple[int, int, list[Failure]]:
    """Its exit code, how many tests passed, and what failed."""
    with tempfile.TemporaryDirectory(prefix="holdfast-suite-") as folder:
        record = Path(folder) / "record.jsonl"
        command = [sys.executable, "-m", "pytest", f"--record={record}", *arguments]
        code = subprocess.run(command, check=False, stdout=log, stderr=log).returncode
        lines = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
    passed = sum(line["counts"].get("passed", 0) for line in lines if "counts" in line)
    return code, passed, [Failure(**line) for line in lines if "test" in line]


def say_result(result: Result) -> None:
    """What a person must know of the failures, last on the screen."""
    if len(result.failures) > MOST_AGAIN:
        print(f"{RED}{len(result.failures)} tests failed, too many to run each once more{PLAIN}")
    else:
        for each in result.failures:
            how = "failed twice" if each.test in result.failed_again else "unsteady: failed beside others, passed alone"
            print(f"{RED}{how}: {each.test}\n    {first_line(each.reason)}{PLAIN}")
    unsteady = f"{len(result.unsteady)} unsteady"
    if len(result.unsteady) > MOST_UNSTEADY:
        unsteady += f" (at most {MOST_UNSTEADY} may be)"
    if result.broken:
        unsteady += ", and pytest itself failed"
    colour = "" if result.is_ok and not result.unsteady else RED
    counts = f"{result.passed} passed, {len(result.failed_again)} failed, {unsteady}"
    print(f"{colour}{counts}, in {result.seconds:.0f} s{PLAIN}")


def first_line(text: str) -> str:
    return next((line for line in text.splitlines() if line.strip()), "no message")[:200]


# A hog and a writer end with the process that started them, or after two hours.
HOG = """
import os, time
parent, end = os.getppid(), time.monotonic() + 7200
while os.getppid() == parent and time.monotonic() < end:
    sum(range(100_000))
"""
WRITER = """
import os, sys, tempfile, time
parent, end = os.getppid(), time.monotonic() + 7200
with tempfile.TemporaryFile(dir=sys.argv[1]) as file:
    while os.getppid() == parent and time.monotonic() < end:
        file.seek(0)
        file.write(os.urandom(1 << 16))
        file.flush()
        os.fsync(file.fileno())
"""


@contextlib.contextmanager
def busy_machine(hogs: int, folder: Path) -> Iterator[None]:
    """`hogs` processes that compute, and one that makes the disk flush."""
    load = [subprocess.Popen([sys.executable, "-I", "-c", HOG]) for _ in range(hogs)]
    load.append(subprocess.Popen([sys.executable, "-I", "-c", WRITER, str(folder)]))
    try:
        yield
    finally:
        for process in load:
            process.kill()
            process.wait()


def run_steady(suite: str, times: int, jobs: int, options: Sequence[str]) -> bool:
    """Run the suite `times` times in random orders, on a busier machine every other time; was every run clean?"""
    folder = RECORDS / time.strftime("%Y%m%d-%H%M%S")
    folder.mkdir(parents=True)
    cores = os.cpu_count() or 1
    ever: defaultdict[str, list[int]] = defaultdict(list)
    clean = 0
    for number in range(1, times + 1):
        seed = random.SystemRandom().randrange(1_000_000)
        hogs = cores if number % 2 else 2 * cores
        log = folder / f"round-{number}-seed-{seed}.log"
        with busy_machine(hogs, folder), log.open("w") as out:
            result = run_suite(suite, jobs, [f"--shuffle={seed}", *options], out.fileno())
        for each in result.failures:
            ever[each.test].append(seed)
            with (folder / "failures.txt").open("a") as file:
                file.write(f"{each.test}\nround {number}, seed {seed}, {hogs} hogs\n{each.output}\n\n")
        clean += result.is_ok and not result.failures
        print(
            f"round {number} of {times}: {result.passed} passed, {len(result.failures)} failed, "
            f"{len(result.failed_again)} of them twice, in {result.seconds:.0f} s beside {hogs} hogs, seed {seed}"
            f"{' (pytest failed, see ' + str(log) + ')' if result.broken else ''}",
            flush=True,
        )
    for test, seeds in sorted(ever.items(), key=lambda each: -len(each[1])):
        print(f"{RED}unsteady: {test}: {len(seeds)} of {times} rounds, seeds {', '.join(map(str, seeds))}{PLAIN}")
    print(f"steady: {clean} of {times} rounds of {suite} without a failure, {len(ever)} unsteady tests; see {folder}")
    return clean == times


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=["test", "test-all"])
    parser.add_argument("--jobs", type=int, default=4, help="processes for tests that may run side by side")
    parser.add_argument("--steady", type=int, metavar="TIMES", help="many times, in random order, on a busy machine")
    parser.add_argument("-k", help="pytest's -k")
    given = parser.parse_args()
    options = ["-k", given.k] if given.k else []
    if given.steady:
        return 0 if run_steady(given.suite, given.steady, given.jobs, options) else 1
    result = run_suite(given.suite, given.jobs, options)
    say_result(result)
    return 0 if result.is_ok else 1


if __name__ == "__main__":
    sys.exit(main())
