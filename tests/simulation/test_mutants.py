"""The simulation notices every planted bug, soon."""

from __future__ import annotations

import pytest

from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.run import simulate

MOST_SEEDS = 40
CHAOS_S = 600.0


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_the_mutant_is_caught(mutant: Mutant) -> None:
    for seed in (*range(mutant.soon, MOST_SEEDS + 1), *range(1, mutant.soon)):
        run = simulate(seed, sabotage=mutant.plant, chaos_s=CHAOS_S)
        if run.problem:
            print(f"{mutant.name}: caught by seed {seed}: {run.problem.splitlines()[0][:120]}")
            return
    pytest.fail(f"{mutant.what}: {MOST_SEEDS} seeds did not notice")
