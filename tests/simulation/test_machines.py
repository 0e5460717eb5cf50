"""Machines in worlds full of faults keep every promise, and each planted bug is noticed."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.kernel import waiting
from holdfast.kernel.ids import JobId, derived_id
from holdfast.kernel.leases import hold
from holdfast.kernel.statements import WaitingSql
from holdfast.machines import engine, family
from tests.simulation.run import Run, simulate

SEEDS = max(1, int(os.environ.get("HOLDFAST_SIMULATION_SEEDS", "18")) * 2 // 3)
CHAOS_S = 200.0
MOST_SEEDS = 30
Plant = Callable[[pytest.MonkeyPatch], None]


def play(seed: int, chaos_s: float = CHAOS_S) -> Run:
    return simulate(seed, kind="machines", chaos_s=chaos_s)


def test_a_world_of_machines_keeps_every_promise_and_replays() -> None:
    first, second = (play(1, CHAOS_S / 2) for _ in range(2))
    assert not first.problem, first.report
    assert first.trace_hash == second.trace_hash
    assert first.jobs > 50


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_machines_keep_every_promise_in_worlds_full_of_faults() -> None:
    for seed in range(2, 2 + SEEDS):
        run = play(seed)
        assert not run.problem, run.report


def _draw_launch_ids_anew(patch: pytest.MonkeyPatch) -> None:
    numbers = itertools.count()

    def drawn(ctx: Any, what: str, count: int) -> list[JobId]:
        salt = next(numbers) if what.endswith("launch") else ""
        return [derived_id(ctx.id, what, number, salt) for number in range(count)]

    patch.setattr(family, "child_ids", drawn)


def _run_the_last_state_again(patch: pytest.MonkeyPatch) -> None:
    real = engine.MachineAttempt._stored

    async def forgetful(self: Any, before: Any) -> Any:
        place = await real(self, before)
        if self._number < 2 or place is None or place.has_ended:
            return place
        if await self._ctx.ledger.find_step(family.checkpoint_name(self._number)) is not None:
            return place
        self._number -= 1
        return None

    patch.setattr(engine.MachineAttempt, "_stored", forgetful)


def _take_signals_outside_the_checkpoint(patch: pytest.MonkeyPatch) -> None:
    async def take_signal(tx: Any, lease: Any, channel: str, step: str) -> waiting.TakenSignal:
        await waiting.lock_channel(tx, channel)
        fence = await hold(tx, lease)
        taken = await tx.one(WaitingSql.take_signal, channel=channel)
        return waiting.TakenSignal(None if taken is None else taken.payload, fence.now)

    patch.setattr(waiting, "take_signal", take_signal)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "plant", [_run_the_last_state_again, _draw_launch_ids_anew, _take_signals_outside_the_checkpoint]
)
def test_the_mutant_is_caught(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in range(1, 1 + MOST_SEEDS):
        run = play(seed)
        if run.problem:
            print(f"{plant.__name__}: caught by seed {seed}: {run.problem.splitlines()[0][:120]}")
            return
    pytest.fail(f"{MOST_SEEDS} seeds did not notice")
