"""Pools in worlds full of faults are never too large, finish all work, and each planted bug is noticed."""

from __future__ import annotations

import pytest

from tests.simulation.batch import check
from tests.simulation.mutants import Mutant
from tests.simulation.pool_mutants import MUTANTS
from tests.simulation.run import simulate

CHAOS_S = 300.0
MOST_SEEDS = 30


def test_a_world_with_a_pool_keeps_every_promise() -> None:
    checked = check(4, replay_every=1, kind="pools", chaos_s=120)
    assert not checked.run.problem, checked.run.report


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", [1, 6, 11, 16])
def test_worlds_with_pools_keep_every_promise(first: int) -> None:
    for seed in range(first, first + 5):
        run = simulate(seed, kind="pools", chaos_s=CHAOS_S)
        assert not run.problem, run.report


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_the_mutant_is_caught(mutant: Mutant) -> None:
    for seed in (*range(mutant.soon, MOST_SEEDS + 1), *range(1, mutant.soon)):
        run = simulate(seed, sabotage=mutant.plant, kind="pools", chaos_s=CHAOS_S)
        if run.problem:
            print(f"{mutant.name}: caught by seed {seed}: {run.problem.splitlines()[0][:120]}")
            return
    pytest.fail(f"{mutant.what}: {MOST_SEEDS} seeds did not notice")
