"""The pytest plugin: a fixture, `holdfast`, and an option, `--holdfast-db`.

The fixture is not async and has no opinion on what runs the test's event loop.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Generator, Iterator

import pytest

from holdfast.errors import UsageError
from holdfast.testing.databases import Databases, PostgresServer, SqliteFiles, postgres_server
from holdfast.testing.labs import Labs

_NOT_RUN = """this test is async, and nothing runs async tests here. Do one of these:
- Install pytest-asyncio, and add to pyproject.toml:
    [tool.pytest.ini_options]
    asyncio_mode = "auto"
- Mark the test: @pytest.mark.asyncio (pytest-asyncio) or @pytest.mark.anyio (anyio).
- Write the test without async: def test_...(holdfast): lab = holdfast.use_sync(hf)"""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("holdfast").addoption(
        "--holdfast-db",
        choices=("sqlite", "postgres", "all"),
        default="sqlite",
        help="the database of tests that use the holdfast fixture; all: each of them runs on both",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "holdfast_db" in metafunc.fixturenames and metafunc.config.getoption("--holdfast-db") == "all":
        metafunc.parametrize("holdfast_db", ["sqlite", "postgres"], indirect=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Say in which run of `crash_everywhere` a test failed: its loop cannot, it never hears of it."""
    try:
        return (yield)
    except BaseException as problem:
        labs = getattr(item, "funcargs", {}).get("holdfast")
        for note in labs.notes() if isinstance(labs, Labs) else ():
            problem.add_note(note)
        raise


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Say what an async test needs when nothing is there to run it. A plugin that runs one gives pytest another
    function, or comes first."""
    if "holdfast" in pyfuncitem.fixturenames and inspect.iscoroutinefunction(pyfuncitem.obj):
        pytest.fail(_NOT_RUN, pytrace=False)


@pytest.fixture
def holdfast(holdfast_db: Databases) -> Iterator[Labs]:
    """Labs for your app: `lab = await holdfast.use(hf)` binds it to a fresh database until the test ends."""
    labs = Labs(holdfast_db)
    yield labs
    labs.close()


@pytest.fixture
def holdfast_db(request: pytest.FixtureRequest) -> Databases:
    """Where the labs of this test get their databases from; see --holdfast-db."""
    kind = getattr(request, "param", request.config.getoption("--holdfast-db"))
    if kind == "sqlite":
        return SqliteFiles()
    server: Databases = request.getfixturevalue("holdfast_postgres")
    return server


@pytest.fixture(scope="session")
def holdfast_postgres() -> Iterator[PostgresServer]:
    """The PostgreSQL server on which labs make databases."""
    try:
        url = postgres_server()
    except UsageError as problem:
        pytest.fail(str(problem), pytrace=False)
    server = PostgresServer(url)
    yield server
    asyncio.run(server.close())
