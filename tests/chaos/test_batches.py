"""Batch mode with real processes: killed around the submit and at any moment, and every bill is explained."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from holdfast.models.prices import cost
from holdfast.models.simulator import SimulatedProvider, simulator
from holdfast.settings import Settings
from tests.chaos import agents
from tests.chaos.agents import APP, caller
from tests.chaos.crew import Crew, Member
from tests.chaos.overnight import overnight
from tests.chaos.scene import Scene, Witness
from tests.chaos.watch import Watch
from tests.support.apps import eventually

pytestmark = pytest.mark.chaos

QUICKLY: dict[str, Any] = {
    "rescue_backoff": "50ms",
    "presence_grace": "100ms",
    "batch_wait": "300ms",
    "batch_grace": "1s",
    "batch_poll_interval": "300ms",
}


@pytest.fixture
async def scene(
    url: str, tmp_path: Path, watch: Watch, crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Scene]:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-simulated")
    agents.hf.settings = Settings(url=url)
    yield Scene(url, tmp_path, agents.hf, watch, crew, Witness(tmp_path / "witness.txt"))
    await agents.hf.close()


def worker(scene: Scene, provider: SimulatedProvider, **settings: Any) -> Member:
    return scene.worker(app=APP, provider_url=provider.url, **{**QUICKLY, **settings})


@pytest.mark.long
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("point", "moment", "submits"),
    [("take", "before", 1), ("intend", "after", 2), ("apply", "after", 1)],
    ids=["K10", "intended", "results applied"],
)
async def test_a_worker_killed_around_a_batch_costs_nothing_twice(
    scene: Scene, point: str, moment: str, submits: int
) -> None:
    """K10 and its neighbours: the batch is adopted or collected by another; nothing is bought again."""
    async with simulator(batch_seconds=1.0) as provider:
        chosen = {**QUICKLY, "provider_url": provider.url}
        given = [f"{name}={value}" for name, value in chosen.items() if name != "rescue_backoff"]
        dying = scene.crew.script("doomed_agents", scene.url, "", point, moment, 1, *given)
        runs = [
            await caller.enqueue(f"Word {n}", mode="batch", variables={"witness": str(scene.witness)}) for n in range(4)
        ]
        assert await dying.leaves() == -9
        await worker(scene, provider).says("registered as")
        results = [await run.result() for run in runs]
        assert {result.outcome for result in results} == {"answered"}
        billed = [line for line in provider.lines if line["event"] == "billed"]
        assert len(billed) == 8
        ours = sum((result.usage.cost for result in results), Decimal(0))
        assert ours == sum(cost(line["model"], line["usage"], "batch") for line in billed)
        first = [row for row in await agents.hf.batches.list() if row.unknown]
        assert len(first) == (1 if point == "intend" or (point, moment) == ("take", "before") else 0)
        assert all(row.attempts == submits for row in first)


@pytest.mark.long
async def test_runs_in_batch_mode_survive_a_night_of_kills(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-simulated")
    report = await overnight(url, runs=12, folder=tmp_path, pause=2, batch_seconds=1.0, most_kills=1)
    assert report.answered == report.runs
    assert report.kills >= 1
    assert report.recorded == 2 * report.runs
    assert report.recorded <= report.bought <= report.recorded + report.unknown
    assert (report.ours == report.theirs) == (report.bought == report.recorded)


async def _settled(provider: SimulatedProvider) -> bool:
    return all(batch["processing_status"] == "ended" for batch in provider.batches)


async def test_cancel_reaches_the_provider(scene: Scene) -> None:
    async with simulator(batch_seconds=600.0) as provider:
        await worker(scene, provider).says("registered as")
        runs = [await caller.enqueue(f"Word {n}", mode="batch") for n in range(3)]
        await eventually(lambda: _pending(provider))
        for run in runs:
            await run.cancel()
        await eventually(lambda: _settled(provider))
        assert not [line for line in provider.lines if line["event"] == "billed"]
        await asyncio.gather(*(run.refresh() for run in runs))
        assert {run.state for run in runs} == {"cancelled"}


async def _pending(provider: SimulatedProvider) -> bool:
    return len(provider.batches) == 1
