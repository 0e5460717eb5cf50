"""Planted bugs: mistakes that engines really made. The tests of crashes must notice each of them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.kernel import waiting
from holdfast.kernel.ids import JobId, derived_id
from holdfast.kernel.leases import hold
from holdfast.kernel.statements import WaitingSql
from holdfast.machines import engine, family
from holdfast.machines.stepping import MachinePlace
from holdfast.testing import Labs
from holdfast.testing.crew import Stuck
from tests.machines.conftest import WriteMachine
from tests.machines.test_crashes import repeated_nothing, survived

pytestmark = [pytest.mark.long, pytest.mark.slow]


@pytest.fixture
def dialect() -> str:
    return "sqlite"


async def test_launch_ids_that_are_drawn_anew(
    hf: Holdfast, labs: Labs, write: WriteMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = itertools.count()

    def drawn(ctx: Any, what: str, count: int) -> list[JobId]:
        salt = next(numbers) if what.endswith("launch") else ""
        return [derived_id(ctx.id, what, number, salt) for number in range(count)]

    monkeypatch.setattr(family, "child_ids", drawn)
    with pytest.raises(AssertionError):
        await survived(hf, labs, write, None, signal_first=True)


async def test_a_resume_that_runs_the_last_state_again(
    hf: Holdfast, labs: Labs, write: WriteMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = engine.MachineAttempt._stored

    async def forgetful(self: Any, before: MachinePlace | None) -> MachinePlace | None:
        place = await real(self, before)
        if self._number < 2 or place is None or place.has_ended:
            return place
        if await self._ctx.ledger.find_step(family.checkpoint_name(self._number)) is not None:
            return place
        self._number -= 1
        return None

    monkeypatch.setattr(engine.MachineAttempt, "_stored", forgetful)
    with pytest.raises(AssertionError):
        await repeated_nothing(hf, labs, write)


async def test_a_signal_that_is_taken_outside_the_checkpoint(
    hf: Holdfast, labs: Labs, write: WriteMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def take_signal(tx: Any, lease: Any, channel: str, step: str) -> waiting.TakenSignal:
        fence = await hold(tx, lease)
        taken = await tx.one(WaitingSql.take_signal, channel=channel)
        return waiting.TakenSignal(None if taken is None else taken.payload, fence.now)

    monkeypatch.setattr(waiting, "take_signal", take_signal)
    with pytest.raises((AssertionError, Stuck)):
        await survived(hf, labs, write, None, signal_first=True)
