"""Fixtures for every layer. `store` gives each test a fresh store on SQLite, and again on PostgreSQL."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import itertools
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import apsw
import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from holdfast import Holdfast
from holdfast.clock import Ports
from holdfast.errors import StoreUnavailable
from holdfast.kernel import migrate
from holdfast.kernel.drivers.postgres import PostgresDatabase
from holdfast.settings import Settings
from tests.compilation import share_compilation
from tests.support.pgbouncer import PgBouncer
from tests.support.places import assert_well_placed
from tests.support.postgres import Cluster, Server, running_cluster
from tests.support.processes import folder_in_memory
from tests.support.stores import SharedDatabase, Store, postgres_store, sqlite_store

pytest_plugins = ["tests.budgets", "tests.failures", "tests.selection", "tests.mutants.plugin"]

# SQLite waits for its disk at every commit, and no test cuts the power: what is temporary is in memory. Processes that
# tests start take the same folder from TMPDIR; whoever sets that chooses another one.
if "TMPDIR" not in os.environ and (memory := folder_in_memory()) is not None:
    tempfile.tempdir = os.environ["TMPDIR"] = str(memory)

# Our own server speaks no TLS, and whoever connects to it need not ask.
if "HOLDFAST_TEST_POSTGRES" not in os.environ:
    os.environ.setdefault("PGSSLMODE", "disable")

# Each client that could ask a provider reads the system's certificates, for 20 ms; here nobody asks one over TLS.
with contextlib.suppress(ImportError):
    import httpcore2

    httpcore2.default_ssl_context = functools.cache(httpcore2.default_ssl_context)

# A slow machine is no failure.
hypothesis_settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
hypothesis_settings.load_profile("patient")

BEHIND_POOLER = os.environ.get("HOLDFAST_TEST_PGBOUNCER") == "1"
DATABASES = ["postgres"] if BEHIND_POOLER else ["sqlite", "postgres"]
_numbers = itertools.count()


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Ten thousand collected tests are never garbage: nobody looks at them again at every collection of garbage."""
    gc.disable()
    try:
        share_compilation(session.config)
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as running:
        yield running


@pytest.fixture(scope="session")
def pooler(cluster: Cluster) -> Iterator[PgBouncer | None]:
    if not BEHIND_POOLER:
        yield None
        return
    assert isinstance(cluster, Server)
    with PgBouncer(cluster) as running:
        yield running


@pytest.fixture(scope="session")
def template(cluster: Cluster) -> Iterator[str]:
    """A database with Holdfast's tables, to be copied for each test."""
    name = f"holdfast_template_{os.getpid()}"
    url = cluster.create_database(name)
    asyncio.run(_migrate(url))
    yield name
    cluster.drop_database(name)


async def _migrate(url: str) -> None:
    await migrate.migrate(PostgresDatabase(url, Settings(), Ports()), "holdfast")


@pytest.fixture(scope="session")
def file_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with Holdfast's tables which does not know yet which file it is, to be copied for each test."""
    file = tmp_path_factory.mktemp("template") / "store.db"
    asyncio.run(Holdfast(f"sqlite:///{file}").migrate())
    with contextlib.closing(apsw.Connection(str(file))) as connection:
        connection.execute("update cluster set identity = ''")
    return file


@pytest.fixture
def postgres_url(cluster: Cluster, template: str) -> Iterator[str]:
    """The URL of a fresh, migrated database."""
    name = f"holdfast_{os.getpid()}_{next(_numbers)}"
    yield cluster.create_database(name, template=template)
    cluster.drop_database(name)


@pytest.fixture(scope="session")
def shared_database(cluster: Cluster, template: str) -> Iterator[SharedDatabase]:
    name = f"holdfast_shared_{os.getpid()}"
    shared = SharedDatabase(cluster.create_database(name, template=template))
    yield shared
    shared.close()
    cluster.drop_database(name)


@pytest.fixture(params=DATABASES)
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Place(NamedTuple):
    """Where a database is, through the pooler if there is one, and past it."""

    url: str
    direct: str


@pytest.fixture
def place(dialect: str, tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    """A fresh database of each kind, under the real clock."""
    if dialect == "sqlite":
        return fresh_file(tmp_path, request)
    return _reached(request, request.getfixturevalue("postgres_url"))


def fresh_file(folder: Path, request: pytest.FixtureRequest) -> Place:
    """A SQLite file as the first to open it would make it, in a sixth of the time."""
    file = folder / "store.db"
    shutil.copyfile(request.getfixturevalue("file_template"), file)
    return Place(f"sqlite:///{file}", f"sqlite:///{file}")


@pytest.fixture
def url(place: Place) -> str:
    return place.url


@pytest.fixture
def store_place(dialect: str, request: pytest.FixtureRequest) -> Place:
    """An empty database whose clock a test may move; the one of `place` if the test asks for that too."""
    if dialect == "sqlite" or "place" in request.fixturenames:
        place: Place = request.getfixturevalue("place")
        return place
    shared: SharedDatabase = request.getfixturevalue("shared_database")
    shared.empty()
    return _reached(request, shared.url)


def _reached(request: pytest.FixtureRequest, direct: str) -> Place:
    pooler: PgBouncer | None = request.getfixturevalue("pooler")
    return Place(direct if pooler is None else pooler.url(direct.rsplit("/", 1)[1]), direct)


class MakeStore(Protocol):
    async def __call__(self, **settings: Any) -> Store: ...


@pytest.fixture
async def make_store(dialect: str, tmp_path: Path, store_place: Place) -> AsyncIterator[MakeStore]:
    """Open a store with settings of the test's own; again to open the same data a second time."""
    async with AsyncExitStack() as stack:

        async def make(**settings: Any) -> Store:
            opening: AbstractAsyncContextManager[Store]
            if dialect == "sqlite":
                opening = sqlite_store(tmp_path, **settings)
            else:
                opening = postgres_store(store_place.url, store_place.direct, **settings)
            return await stack.enter_async_context(opening)

        yield make


@pytest.fixture
async def store(make_store: MakeStore) -> AsyncIterator[Store]:
    """A store as `make_store` opens it. Whatever the test did, each job stands in one place at its end."""
    store = await make_store()
    yield store
    try:
        await assert_well_placed(store.query)
    except StoreUnavailable:  # the test has closed it
        await assert_well_placed((await make_store()).query)
