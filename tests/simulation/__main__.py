"""`make sim SEEDS=n SEED=first`: run seeds, replay some, and tell what happened."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from multiprocessing import get_context

from tests.simulation.agent_mutants import MUTANTS as AGENT_MUTANTS
from tests.simulation.batch import Batch, Checked, check_world
from tests.simulation.broker_mutants import MUTANTS as BROKER_MUTANTS
from tests.simulation.mutants import MUTANTS
from tests.simulation.pool_mutants import MUTANTS as POOL_MUTANTS
from tests.simulation.resp_mutants import MUTANTS as RESP_MUTANTS
from tests.simulation.run import WORLDS, Kind


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many worlds to run")
    parser.add_argument("--seed", type=int, default=1, help="the first of them")
    parser.add_argument("--replay-every", type=int, default=50, metavar="N", help="run each Nth twice; 0: none")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes to run them in")
    mutants = [mutant.name for mutant in (*MUTANTS, *AGENT_MUTANTS, *POOL_MUTANTS, *BROKER_MUTANTS, *RESP_MUTANTS)]
    parser.add_argument("--mutant", choices=mutants, help="plant this bug")
    parser.add_argument("--world", choices=list(WORLDS), help="worlds of this kind alone; else of each")
    given = parser.parse_args()
    seeds = range(given.seed, given.seed + given.seeds)
    task = partial(check_world, replay_every=given.replay_every, mutant=given.mutant)
    worlds = [(seed, kind) for seed in seeds for kind in ([given.world] if given.world else WORLDS)]
    batch = Batch()
    for checked in _each(task, worlds, min(given.jobs, len(worlds))):
        batch.add(checked)
        _progress(batch, len(worlds))
        if checked.run.problem:
            print(f"\n\n{checked.run.report}\n", file=sys.stderr)
            break
    _progress(batch, len(worlds), end="\n")
    print(batch.summary())
    return batch.exit_code()


def _each(task: partial[Checked], worlds: Sequence[tuple[int, Kind]], jobs: int) -> Iterator[Checked]:
    if jobs <= 1:
        yield from map(task, worlds)
        return
    with get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(task, worlds)


def _progress(batch: Batch, worlds: int, end: str = "") -> None:
    if sys.stdout.isatty():
        print(f"\r{batch.line(worlds)}", end=end, flush=True)
    elif end or batch.runs % 20 == 0:
        print(batch.line(worlds), flush=True)


if __name__ == "__main__":
    sys.exit(main())
