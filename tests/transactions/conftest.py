"""An app, and a caller beside it with a connection of its own to the same database."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast
from tests.conftest import fresh_file
from tests.support.apps import MakeApp, settings_with
from tests.support.postgres import Cluster
from tests.support.stores import SharedDatabase
from tests.transactions.libraries import EVERY, ON_SQLITE, Library, file_connection

Query = Callable[[str], list[tuple[Any, ...]]]


@pytest.fixture(scope="session")
def callers_database(cluster: Cluster, template: str) -> Iterator[SharedDatabase]:
    name = f"holdfast_callers_{os.getpid()}"
    shared = SharedDatabase(cluster.create_database(name, template=template))
    with psycopg.connect(shared.url) as connection:
        connection.execute("create table ledger (note text)")
    yield shared
    shared.close()
    cluster.drop_database(name)


@pytest.fixture
def postgres(callers_database: SharedDatabase) -> str:
    """The URL of an empty PostgreSQL database."""
    callers_database.empty()
    with psycopg.connect(callers_database.url) as connection:
        connection.execute("truncate ledger")
    return callers_database.url


@pytest.fixture
def sqlite(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """The URL of an empty SQLite database."""
    url = fresh_file(tmp_path, request).url
    connection = file_connection(url)
    connection.execute("create table ledger (note text)")
    connection.close()
    return url


@pytest.fixture(params=EVERY, ids=lambda kind: kind.__name__)
def library(request: pytest.FixtureRequest) -> Library:
    """Each library with a database that it can reach; ask for it before the app."""
    kind: type[Library] = request.param
    return kind(request.getfixturevalue("sqlite" if kind in ON_SQLITE else "postgres"))


@pytest.fixture
def url(library: Library) -> str:
    return library.url


@pytest.fixture
async def make_app(url: str) -> AsyncIterator[MakeApp]:
    made: list[Holdfast] = []

    def make(*, embedded: bool = True, **settings: Any) -> Holdfast:
        app = Holdfast(url, settings=settings_with(**{"drain_grace": "5s", **settings}), embedded=embedded)
        made.append(app)
        return app

    yield make
    for app in reversed(made):
        await app.close()


@pytest.fixture
def hf(make_app: MakeApp) -> Holdfast:
    return make_app(embedded=False)


@pytest.fixture
def query(url: str) -> Query:
    """SQL past everything, on a connection of its own."""

    def ask(text: str) -> list[tuple[Any, ...]]:
        if url.startswith("sqlite"):
            connection = file_connection(url)
            try:
                return [tuple(row) for row in connection.execute(text.replace("holdfast.", ""))]
            finally:
                connection.close()
        with psycopg.connect(url, autocommit=True) as connected:
            cursor = connected.execute(text.encode())
            return cursor.fetchall() if cursor.description else []

    return ask
