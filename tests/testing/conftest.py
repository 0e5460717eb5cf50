"""Labs on a database of each kind, and projects whose tests are run as a user runs them."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.settings import Settings
from holdfast.testing import Labs
from holdfast.testing.databases import SERVER_VARIABLE, Databases, FreshDatabase, FreshFile, PostgresServer
from tests.support.commands import Said, environment, python
from tests.support.emptied import EmptiedDatabases
from tests.support.postgres import Cluster

LEFT_OUT = ("-p", "no:cacheprovider", "-p", "no:schemathesis")  # which takes time to import
SETTINGS = """
[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
filterwarnings = error
"""


@pytest.fixture(scope="session")
def server(cluster: Cluster) -> Iterator[PostgresServer]:
    server = PostgresServer(cluster.url())
    yield server
    asyncio.run(server.close())


@pytest.fixture(scope="session")
def emptied(cluster: Cluster) -> Iterator[EmptiedDatabases]:
    """For tests whose subject is not the lab: import it as `server`."""
    server = EmptiedDatabases(PostgresServer(cluster.url()))
    yield server
    asyncio.run(server.close())


class CopiedFiles:
    """SQLite files as the first to open them would make them, in a fraction of the time."""

    def __init__(self, template: Path) -> None:
        self._template = template

    async def make(self, settings: Settings) -> FreshDatabase:
        file = FreshFile()
        shutil.copyfile(self._template, file.url.removeprefix("sqlite:///"))
        return file


@pytest.fixture
def databases(dialect: str, request: pytest.FixtureRequest) -> Databases:
    if dialect == "sqlite":
        return CopiedFiles(request.getfixturevalue("file_template"))
    server: Databases = request.getfixturevalue("server")
    return server


@pytest.fixture
def labs(databases: Databases) -> Iterator[Labs]:
    """What the plugin's fixture is, on both databases."""
    labs = Labs(databases)
    yield labs
    labs.close()


@pytest.fixture
def hf(tmp_path: Path) -> Holdfast:
    """An app whose own database nobody ever opens: its folder cannot be made."""
    (tmp_path / "file").touch()
    return Holdfast(f"sqlite:///{tmp_path / 'file' / 'own.db'}")


class Project:
    """A folder with tests in it."""

    def __init__(self, folder: Path, server: str) -> None:
        self.folder = folder
        self._server = server
        self.write("pytest.ini", SETTINGS)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def test(self, *words: str, **variables: str) -> Said:
        """Run pytest in it, as a user does."""
        env = environment(**{SERVER_VARIABLE: self._server, **variables})
        return python("-m", "pytest", *LEFT_OUT, *words, cwd=self.folder, env=env)


@pytest.fixture
def project(tmp_path: Path, cluster: Cluster) -> Project:
    return Project(tmp_path, cluster.url())


def counts(said: Said) -> dict[str, int]:
    """How many tests passed, failed and so on, by pytest's last line."""
    last = said.out.strip().splitlines()[-1]
    return {
        what: int(number) for number, what in re.findall(r"(\d+) (passed|failed|errors?|deselected|warnings?)", last)
    }
