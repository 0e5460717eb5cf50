"""Agents in worlds full of faults keep every promise, and each planted bug is noticed.

HOLDFAST_SIMULATION_SEEDS=n runs two thirds as many of them.
"""

from __future__ import annotations

import os

import pytest

from tests.simulation.agent_mutants import MUTANTS
from tests.simulation.batch import Batch, check
from tests.simulation.mutants import Mutant
from tests.simulation.rare import AGENT_EVENTS
from tests.simulation.run import simulate

SEEDS = max(1, int(os.environ.get("HOLDFAST_SIMULATION_SEEDS", "18")) * 2 // 3)
CHAOS_S = 300.0
MOST_SEEDS = 60


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_runs_keep_every_promise_in_worlds_full_of_faults() -> None:
    batch = Batch()
    for seed in range(1, 1 + SEEDS):
        checked = check(seed, replay_every=25, kind="agents", chaos_s=CHAOS_S)
        assert not checked.run.problem, checked.run.report
        batch.add(checked)
    print(batch.summary())
    blind = batch.rare.blind_spots(AGENT_EVENTS)
    assert not blind, f"blind spots of the simulation: {blind}"


@pytest.mark.long
def test_a_world_of_runs_replays_exactly() -> None:
    first, second = (simulate(1, kind="agents", chaos_s=120) for _ in range(2))
    assert first.trace_hash == second.trace_hash
    assert not first.problem, first.report
    assert first.jobs > 10


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_the_mutant_is_caught(mutant: Mutant) -> None:
    for seed in (*range(mutant.soon, MOST_SEEDS + 1), *range(1, mutant.soon)):
        run = simulate(seed, sabotage=mutant.plant, kind="agents", chaos_s=CHAOS_S)
        if run.problem:
            print(f"{mutant.name}: caught by seed {seed}: {run.problem.splitlines()[0][:120]}")
            return
    pytest.fail(f"{mutant.what}: {MOST_SEEDS} seeds did not notice")
