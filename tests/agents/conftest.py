"""Apps on a fresh database of each kind, as the workers' tests have them, and models that say what a test wants."""

from __future__ import annotations

import pytest

from holdfast.testing import Labs
from tests.testing.conftest import databases, labs, server
from tests.workers.conftest import hf, live_database, make_app, place

__all__ = ["databases", "hf", "labs", "live_database", "make_app", "place", "server"]


@pytest.fixture
def provided(labs: Labs, monkeypatch: pytest.MonkeyPatch) -> Labs:
    """Labs for apps that have a key to a provider."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-simulated")
    return labs
