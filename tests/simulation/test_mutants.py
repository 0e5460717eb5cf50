"""The simulation notices every planted bug, soon."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from tests.simulation import agent_mutants, broker_mutants, pool_mutants, resp_mutants
from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.run import WORLDS, Kind, simulate
from tests.simulation.swarm import draw
from tests.support.virtual_time import VirtualLoop

MOST_SEEDS = 40
CHAOS_S = 600.0


@pytest.mark.parametrize(
    ("kind", "mutants"),
    [
        ("jobs", MUTANTS),
        ("agents", agent_mutants.MUTANTS),
        ("brokers", broker_mutants.MUTANTS),
        ("pools", pool_mutants.MUTANTS),
        ("resp", resp_mutants.MUTANTS),
    ],
)
def test_every_bug_can_be_planted(kind: Kind, mutants: Sequence[Mutant]) -> None:
    """A statement that was rewritten may have lost the words that a bug replaces."""
    for mutant in mutants:
        loop = VirtualLoop(Random(1))
        world = WORLDS[kind](loop, draw(1, chaos_s=CHAOS_S))
        mutant.plant(world)
        world.store.file.close()
        loop.close()


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
