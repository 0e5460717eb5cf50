"""Apps on a fresh database of each kind, as the workers' tests have them, and models that say what a test wants."""

from __future__ import annotations

from tests.workers.conftest import hf, live_database, make_app, place

__all__ = ["hf", "live_database", "make_app", "place"]
