"""Apps on a fresh database of each kind, closed when the test ends."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from tests.conftest import Place, fresh_file
from tests.support.apps import MakeApp, settings_with
from tests.support.postgres import Cluster
from tests.support.stores import SharedDatabase

_numbers = itertools.count()


@pytest.fixture(scope="session")
def live_database(cluster: Cluster, template: str) -> Iterator[SharedDatabase]:
    """Under the real clock, unlike the one that conformance tests share."""
    name = f"holdfast_live_{os.getpid()}_{next(_numbers)}"
    shared = SharedDatabase(cluster.create_database(name, template=template))
    yield shared
    shared.close()
    cluster.drop_database(name)


@pytest.fixture
def place(dialect: str, tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    if dialect == "sqlite":
        return fresh_file(tmp_path, request)
    shared: SharedDatabase = request.getfixturevalue("live_database")
    shared.empty()
    return Place(shared.url, shared.url)


@pytest.fixture
async def make_app(place: Place) -> AsyncIterator[MakeApp]:
    """Make an app with settings of the test's own; several share the database."""
    made: list[Holdfast] = []

    def make(*, embedded: bool = True, **settings: Any) -> Holdfast:
        app = Holdfast(place.url, settings=settings_with(**{"drain_grace": "5s", **settings}), embedded=embedded)
        made.append(app)
        return app

    yield make
    for app in reversed(made):
        await app.close()


@pytest.fixture
def hf(make_app: MakeApp) -> Holdfast:
    return make_app()
