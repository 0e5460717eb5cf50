"""Real processes and real signals, on a fresh database of each kind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.settings import Settings
from tests.chaos import jobs
from tests.chaos.crew import Crew
from tests.chaos.scene import Scene, Witness
from tests.chaos.watch import Watch

OUTCOME = pytest.StashKey[pytest.TestReport]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    report: pytest.TestReport = yield
    if report.when == "call":
        item.stash[OUTCOME] = report
    return report


@pytest.fixture
def crew(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Crew]:
    folder = tmp_path / "crew"
    folder.mkdir()
    with Crew(folder) as crew:
        yield crew
        report = request.node.stash.get(OUTCOME, None)
        if report is not None and report.failed:
            print(crew.report())


@pytest.fixture
async def watch(url: str) -> AsyncIterator[Watch]:
    async with Watch(url) as watch:
        yield watch


@pytest.fixture
async def scene(url: str, tmp_path: Path, watch: Watch, crew: Crew) -> AsyncIterator[Scene]:
    jobs.hf.settings = Settings(url=url)
    yield Scene(url, tmp_path, jobs.hf, watch, crew, Witness(tmp_path / "witness.txt"))
    await jobs.hf.close()
