"""Apps on a fresh database of each kind, as the workers' tests have them, and models that say what a test wants."""

from __future__ import annotations

import pytest

from holdfast.agents.runs.end import AgentJobs
from holdfast.testing import Labs
from tests.conftest import MakeStore
from tests.support.lives import OneRun
from tests.testing.conftest import databases, labs
from tests.testing.conftest import emptied as server
from tests.workers.conftest import hf, live_database, make_app, place

__all__ = ["databases", "hf", "labs", "live_database", "make_app", "place", "server"]


@pytest.fixture
def provided(labs: Labs, monkeypatch: pytest.MonkeyPatch) -> Labs:
    """Labs for apps that have a key to a provider."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-simulated")
    return labs


@pytest.fixture
async def one(make_store: MakeStore) -> OneRun:
    """A run on a store whose clock the test moves; `bring` puts it into a state."""
    return OneRun(await make_store(layers=[AgentJobs()]))


@pytest.fixture
def keyless(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Nothing here says who pays a provider."""
    for name in ("API_KEY", "AUTH_TOKEN", "BASE_URL", "PROFILE", "CONFIG_DIR"):
        monkeypatch.delenv(f"ANTHROPIC_{name}", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
