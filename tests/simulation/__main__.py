"""`make sim SEEDS=n SEED=first`: run seeds, replay some, and tell what happened."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from functools import partial
from multiprocessing import get_context

from tests.simulation.batch import Batch, Checked, check
from tests.simulation.mutants import MUTANTS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many worlds to run")
    parser.add_argument("--seed", type=int, default=1, help="the first of them")
    parser.add_argument("--replay-every", type=int, default=50, metavar="N", help="run each Nth twice; 0: none")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes to run them in")
    parser.add_argument("--mutant", choices=[mutant.name for mutant in MUTANTS], help="plant this bug")
    given = parser.parse_args()
    seeds = range(given.seed, given.seed + given.seeds)
    task = partial(check, replay_every=given.replay_every, mutant=given.mutant)
    batch = Batch()
    for checked in _each(task, seeds, min(given.jobs, given.seeds)):
        batch.add(checked)
        _progress(batch, given.seeds)
        if checked.run.problem:
            print(f"\n\n{checked.run.report}\n", file=sys.stderr)
            break
    _progress(batch, given.seeds, end="\n")
    print(batch.summary())
    return batch.exit_code()


def _each(task: partial[Checked], seeds: range, jobs: int) -> Iterator[Checked]:
    if jobs <= 1:
        yield from map(task, seeds)
        return
    with get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(task, seeds)


def _progress(batch: Batch, seeds: int, end: str = "") -> None:
    if sys.stdout.isatty():
        print(f"\r{batch.line(seeds)}", end=end, flush=True)
    elif end or batch.runs % 20 == 0:
        print(batch.line(seeds), flush=True)


if __name__ == "__main__":
    sys.exit(main())
