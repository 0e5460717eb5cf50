"""Brokers in worlds full of faults lose no job, and each planted bug is noticed."""

from __future__ import annotations

import pytest

from tests.simulation.batch import check
from tests.simulation.broker_mutants import MUTANTS
from tests.simulation.mutants import Mutant
from tests.simulation.run import simulate

CHAOS_S = 300.0
MOST_SEEDS = 30


def test_a_world_with_brokers_keeps_every_promise() -> None:
    checked = check(2, replay_every=1, kind="brokers", chaos_s=120)
    assert not checked.run.problem, checked.run.report


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", [1, 6, 11, 16])
def test_worlds_with_brokers_keep_every_promise(first: int) -> None:
    for seed in range(first, first + 5):
        run = simulate(seed, kind="brokers", chaos_s=CHAOS_S)
        assert not run.problem, run.report


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_the_mutant_is_caught(mutant: Mutant) -> None:
    for seed in (*range(mutant.soon, MOST_SEEDS + 1), *range(1, mutant.soon)):
        run = simulate(seed, sabotage=mutant.plant, kind="brokers", chaos_s=CHAOS_S)
        if run.problem:
            print(f"{mutant.name}: caught by seed {seed}: {run.problem.splitlines()[0][:120]}")
            return
    pytest.fail(f"{mutant.what}: {MOST_SEEDS} seeds did not notice")
