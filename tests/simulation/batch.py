"""Many seeds: each judged, some run twice, and all of them together asked whether they saw enough."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tests.simulation.agent_mutants import MUTANTS as AGENT_MUTANTS
from tests.simulation.broker_mutants import MUTANTS as BROKER_MUTANTS
from tests.simulation.mutants import MUTANTS
from tests.simulation.pool_mutants import MUTANTS as POOL_MUTANTS
from tests.simulation.rare import AGENT_EVENTS, EVENTS, Rare
from tests.simulation.resp_mutants import MUTANTS as RESP_MUTANTS
from tests.simulation.run import Kind, Run, simulate

SEES_ALL = 100  # a batch of so many seeds must have seen every rare event


class Checked(NamedTuple):
    run: Run
    replayed: bool


def check(
    seed: int,
    *,
    replay_every: int = 0,
    mutant: str | None = None,
    kind: Kind = "jobs",
    chaos_s: float | None = None,
) -> Checked:
    """Run a seed; twice, and to the same trace, if it is its turn."""
    plant = next(
        (
            m.plant
            for m in (*MUTANTS, *AGENT_MUTANTS, *POOL_MUTANTS, *BROKER_MUTANTS, *RESP_MUTANTS)
            if m.name == mutant
        ),
        None,
    )
    run = simulate(seed, sabotage=plant, kind=kind, chaos_s=chaos_s)
    if not replay_every or seed % replay_every or run.problem:
        return Checked(run, replayed=False)
    again = simulate(seed, sabotage=plant, kind=kind, chaos_s=chaos_s)
    if again.trace_hash != run.trace_hash:
        problem = f"replay: the trace of seed {seed} is {run.trace_hash}, then {again.trace_hash}"
        run = replace(run, problem=problem, report=problem)
    both = replace(run, cpu_s=run.cpu_s + again.cpu_s, virtual_s=run.virtual_s + again.virtual_s)
    return Checked(both, replayed=True)


def check_world(world: tuple[int, Kind], *, replay_every: int, mutant: str | None) -> Checked:
    """For a pool of processes, which import this module and not the program's own."""
    seed, kind = world
    return check(seed, kind=kind, replay_every=replay_every, mutant=mutant)


@dataclass(slots=True)
class Batch:
    runs: int = 0
    replays: int = 0
    kinds: set[Kind] = field(default_factory=set)
    failed: list[tuple[int, Kind]] = field(default_factory=list)
    hours: float = 0.0
    cpu_s: float = 0.0
    callbacks: int = 0
    commits: int = 0
    jobs: int = 0
    rare: Rare = field(default_factory=Rare)

    def add(self, checked: Checked) -> None:
        run = checked.run
        self.runs += 1
        self.kinds.add(run.kind)
        self.replays += checked.replayed
        self.hours += run.virtual_s / 3600
        self.cpu_s += run.cpu_s
        self.callbacks += run.callbacks
        self.commits += run.commits
        self.jobs += run.jobs
        self.rare.update(run.rare)
        if run.problem:
            self.failed.append((run.seed, run.kind))

    @property
    def blind_spots(self) -> list[str]:
        """What a batch of this size should have seen in such worlds."""
        seen = (*(EVENTS if "jobs" in self.kinds else ()), *(AGENT_EVENTS if "agents" in self.kinds else ()))
        return self.rare.blind_spots(seen) if self.runs >= SEES_ALL * len(self.kinds) else []

    def exit_code(self) -> int:
        return 1 if self.failed or self.blind_spots else 0

    def line(self, seeds: int) -> str:
        return f"{self.runs}/{seeds} seeds, {self.hours:.1f} hours, {self.cpu_s:.0f} CPU-seconds"

    def summary(self) -> str:
        speed = self.hours / self.cpu_s if self.cpu_s else 0.0
        lines = [
            f"{self.runs} seeds ({self.replays} replayed), {self.hours:.1f} simulated cluster-hours, "
            f"{speed:.2f} per CPU-second",
            f"{self.jobs:,} jobs, {self.commits:,} transactions judged, {self.callbacks:,} callbacks",
            "rare events:",
            *self.rare.table(),
        ]
        lines += [f"blind spot: never saw {name!r}: {(EVENTS | AGENT_EVENTS)[name]}" for name in self.blind_spots]
        lines += [
            f"failed: seed {seed}; replay it with: make sim SEEDS=1 SEED={seed} WORLD={kind}"
            for seed, kind in self.failed
        ]
        return "\n".join(lines)
