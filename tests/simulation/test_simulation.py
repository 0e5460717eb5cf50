"""A batch of seeds is clean, sees every rare event, and replays. HOLDFAST_SIMULATION_SEEDS=n runs n of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.simulation.batch import Batch, check
from tests.simulation.mutants import MUTANTS
from tests.simulation.rare import EVENTS, Rare
from tests.simulation.run import simulate

SEEDS_EACH = 6
CHAOS_S = 300.0  # of the world in `make test`
CHUNKS = max(1, int(os.environ.get("HOLDFAST_SIMULATION_SEEDS", "24")) // SEEDS_EACH)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_worlds_full_of_faults_keep_every_promise(chunk: int, testrun_uid: str) -> None:
    batch = Batch()
    for seed in range(1 + chunk * SEEDS_EACH, 1 + (chunk + 1) * SEEDS_EACH):
        checked = check(seed, replay_every=25)
        assert not checked.run.problem, checked.run.report
        batch.add(checked)
    print(batch.summary())
    _see_together(chunk, testrun_uid, batch.rare)


def test_a_world_full_of_faults_keeps_every_promise() -> None:
    """The first of them, for `make test`."""
    checked = check(1, replay_every=25, chaos_s=CHAOS_S)
    assert not checked.run.problem, checked.run.report


def _see_together(chunk: int, testrun_uid: str, rare: Rare) -> None:
    """The chunks may run in several processes; the last to end judges what all of them saw."""
    folder = Path(tempfile.gettempdir()) / f"holdfast-simulation-{testrun_uid}"
    folder.mkdir(exist_ok=True)
    mine = folder / f"{chunk}.json"
    mine.with_suffix(".part").write_text(json.dumps(rare))
    mine.with_suffix(".part").rename(mine)
    seen = list(folder.glob("*.json"))
    if len(seen) == CHUNKS:
        together = Rare()
        for file in seen:
            together.update(json.loads(file.read_text()))
        blind = [f"{name}: {EVENTS[name]}" for name in together.blind_spots()]
        assert not blind, f"blind spots of the simulation: {blind}"


@pytest.mark.long
@pytest.mark.parametrize("seed", [7, 8])
def test_a_seed_replays_exactly_in_another_process(seed: int) -> None:
    told = f"from tests.simulation.run import simulate; print(simulate({seed}, chaos_s=120).trace_hash)"
    environment = {**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": os.pathsep.join(sys.path)}
    other = subprocess.run([sys.executable, "-c", told], env=environment, capture_output=True, text=True, check=True)
    first, second = simulate(seed, chaos_s=120), simulate(seed, chaos_s=120)
    assert first.trace_hash == second.trace_hash == other.stdout.strip()
    assert first.commits > 100


def test_a_failing_seed_tells_all_that_is_needed() -> None:
    mutant = next(m for m in MUTANTS if m.name == "rescues not counted")
    run = next(run for seed in range(1, 10) if (run := simulate(seed, sabotage=mutant.plant)).problem)
    assert run.problem.startswith("I8 (attempts are the ended claims)")
    for part in ("options:", "lease_ttl=", "crash_s=", "last commits:", "expire", f"SEED={run.seed}"):
        assert part in run.report
