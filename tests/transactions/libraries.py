"""Each library whose connections a caller may pass, driven the same way: one transaction, ended as the test says.

Libraries that block run in a thread of their own, as they would beside an event loop.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from typing import Any

import apsw
import asyncpg
import django
import psycopg
import sqlalchemy
from django.conf import settings as django_settings
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from holdfast import Holdfast, Job
from holdfast.client.jobs import JobFunction

LEDGER = "insert into ledger (note) values ('written by the caller')"


class Undo(Exception):
    """What the caller raises to have its transaction rolled back."""


class Library(ABC):
    """Calls of Holdfast in a transaction that the caller opened, wrote its own row in, and ends."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def enqueue(
        self, function: JobFunction[Any, Any], *args: Any, commit: bool = True, **options: Any
    ) -> Job[Any]:
        job: Job[Any] = await self.call(
            lambda tx, suffix: getattr(function, f"enqueue{suffix}")(*args, tx=tx, **options), commit
        )
        return job

    async def enqueue_many(
        self, function: JobFunction[Any, Any], items: Iterable[Any], *, commit: bool = True
    ) -> list[Job[Any]]:
        jobs: list[Job[Any]] = await self.call(
            lambda tx, suffix: getattr(function.options(tx=tx), f"enqueue_many{suffix}")(items), commit
        )
        return jobs

    async def signal(self, app: Holdfast, *args: Any, commit: bool = True, **options: Any) -> None:
        await self.call(lambda tx, suffix: (app.sync.signal if suffix else app.signal)(*args, tx=tx, **options), commit)

    @abstractmethod
    async def call(self, action: Callable[[Any, str], Any], commit: bool = True) -> Any:
        """Do `action` with the transaction's connection and the ending that the calls for it have."""

    async def alone(self, action: Callable[[Any, str], Any]) -> Any:
        """Do `action` with a connection that has no transaction open."""
        raise NotImplementedError


class Awaited(Library):
    async def call(self, action: Callable[[Any, str], Any], commit: bool = True) -> Any:
        result = None
        with suppress(Undo):
            async with self.transaction() as tx:
                await self.write(tx)
                result = await action(tx, "")
                if not commit:
                    raise Undo
        return result

    @abstractmethod
    def transaction(self) -> AbstractAsyncContextManager[Any]: ...

    @abstractmethod
    async def write(self, tx: Any) -> None: ...


class Blocking(Library):
    async def call(self, action: Callable[[Any, str], Any], commit: bool = True) -> Any:
        return await asyncio.to_thread(self._call, action, commit)

    def _call(self, action: Callable[[Any, str], Any], commit: bool) -> Any:
        result = None
        with suppress(Undo), self.transaction() as tx:
            self.write(tx)
            result = action(tx, "_sync")
            if not commit:
                raise Undo
        return result

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Any]: ...

    @abstractmethod
    def write(self, tx: Any) -> None: ...


class Asyncpg(Awaited):
    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        connection = await asyncpg.connect(self.url)
        try:
            async with connection.transaction():
                yield connection
        finally:
            await connection.close()

    async def write(self, tx: Any) -> None:
        await tx.execute(LEDGER)

    async def alone(self, action: Callable[[Any, str], Any]) -> Any:
        connection = await asyncpg.connect(self.url)
        try:
            return await action(connection, "")
        finally:
            await connection.close()


class AsyncpgPool(Asyncpg):
    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with (
            asyncpg.create_pool(self.url, min_size=1, max_size=1) as pool,
            pool.acquire() as connection,
            connection.transaction(),
        ):
            yield connection


class Psycopg(Blocking):
    @contextmanager
    def transaction(self) -> Iterator[Any]:
        with psycopg.connect(self.url) as connection:
            yield connection

    def write(self, tx: Any) -> None:
        tx.execute(LEDGER)

    async def alone(self, action: Callable[[Any, str], Any]) -> Any:
        def act() -> Any:
            with psycopg.connect(self.url, autocommit=True) as connection:
                return action(connection, "_sync")

        return await asyncio.to_thread(act)


class AsyncPsycopg(Awaited):
    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with await psycopg.AsyncConnection.connect(self.url) as connection:
            yield connection

    async def write(self, tx: Any) -> None:
        await tx.execute(LEDGER)

    async def alone(self, action: Callable[[Any, str], Any]) -> Any:
        async with await psycopg.AsyncConnection.connect(self.url, autocommit=True) as connection:
            return await action(connection, "")


class SqlAlchemyConnection(Blocking):
    @contextmanager
    def transaction(self) -> Iterator[Any]:
        with engine(self.url).begin() as connection:
            yield connection

    def write(self, tx: Any) -> None:
        tx.execute(sqlalchemy.text(LEDGER))


class SqlAlchemySession(SqlAlchemyConnection):
    @contextmanager
    def transaction(self) -> Iterator[Any]:
        with Session(engine(self.url)) as session, session.begin():
            yield session


class SqlAlchemyScopedSession(SqlAlchemyConnection):
    @contextmanager
    def transaction(self) -> Iterator[Any]:
        session = scoped_session(sessionmaker(engine(self.url)))
        try:
            with session.begin():
                yield session
        finally:
            session.remove()


class SqlAlchemyAsyncConnection(Awaited):
    driver = "asyncpg"

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with self.engine().begin() as connection:
            yield connection

    async def write(self, tx: Any) -> None:
        await tx.execute(sqlalchemy.text(LEDGER))

    def engine(self) -> Any:
        return create_async_engine(over(self.url, self.driver), poolclass=NullPool)


class SqlAlchemyAsyncConnectionOverPsycopg(SqlAlchemyAsyncConnection):
    driver = "psycopg"


class SqlAlchemyAsyncSession(SqlAlchemyAsyncConnection):
    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with AsyncSession(self.engine()) as session, session.begin():
            yield session


class SqlAlchemyAsyncScopedSession(SqlAlchemyAsyncConnection):
    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        session = async_scoped_session(async_sessionmaker(self.engine()), scopefunc=asyncio.current_task)
        try:
            async with session.begin():
                yield session
        finally:
            await session.remove()


class SqlAlchemySessionInsideAsync(SqlAlchemyAsyncSession):
    """`await session.run_sync(...)`: a session that blocks, over a driver that is awaited."""

    async def call(self, action: Callable[[Any, str], Any], commit: bool = True) -> Any:
        return await super().call(lambda tx, _: tx.run_sync(lambda session: action(session, "_sync")), commit)


class Django(Blocking):
    """`django.db.connections["default"]`."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        if not django_settings.configured:
            parts = psycopg.conninfo.conninfo_to_dict(url)
            names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
            database = {name: parts.get(key) or "" for name, key in names.items()}
            django_settings.configure(
                DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", **database}}, LOGGING_CONFIG=None
            )
            django.setup()

    def connection(self) -> Any:
        from django.db import connections

        return connections["default"]

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        from django.db import transaction

        connection = self.connection()
        try:
            with transaction.atomic():
                yield connection
        finally:
            connection.close()

    def write(self, tx: Any) -> None:
        with tx.cursor() as cursor:
            cursor.execute(LEDGER)

    async def alone(self, action: Callable[[Any, str], Any]) -> Any:
        def act() -> Any:
            connection = self.connection()
            try:
                return action(connection, "_sync")
            finally:
                connection.close()

        return await asyncio.to_thread(act)


class DjangoDefault(Django):
    """`django.db.connection`, which stands for the thread's default connection."""

    def connection(self) -> Any:
        from django.db import connection

        return connection


class Apsw(Blocking):
    @contextmanager
    def transaction(self) -> Iterator[Any]:
        connection = file_connection(self.url)
        try:
            with connection:
                yield connection
        finally:
            connection.close()

    def write(self, tx: Any) -> None:
        tx.execute(LEDGER)

    async def alone(self, action: Callable[[Any, str], Any]) -> Any:
        connection = file_connection(self.url)
        try:
            return action(connection, "_sync")
        finally:
            connection.close()


class ApswAwaited(Awaited):
    """The same connection in async code: it blocks, but only as long as a file does."""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        connection = file_connection(self.url)
        try:
            with connection:
                yield connection
        finally:
            connection.close()

    async def write(self, tx: Any) -> None:
        tx.execute(LEDGER)


def over(url: str, driver: str) -> str:
    """The URL as SQLAlchemy wants it."""
    return url.replace("postgresql://", f"postgresql+{driver}://", 1)


def engine(url: str, **options: Any) -> sqlalchemy.Engine:
    return sqlalchemy.create_engine(over(url, "psycopg"), poolclass=NullPool, **options)


def file_connection(url: str) -> apsw.Connection:
    connection = apsw.Connection(url.removeprefix("sqlite:///"))
    connection.set_busy_timeout(5_000)
    return connection


ON_POSTGRES: tuple[type[Library], ...] = (
    Asyncpg,
    AsyncpgPool,
    Psycopg,
    AsyncPsycopg,
    SqlAlchemyConnection,
    SqlAlchemySession,
    SqlAlchemyScopedSession,
    SqlAlchemyAsyncConnection,
    SqlAlchemyAsyncConnectionOverPsycopg,
    SqlAlchemyAsyncSession,
    SqlAlchemyAsyncScopedSession,
    SqlAlchemySessionInsideAsync,
    Django,
    DjangoDefault,
)
ON_SQLITE: tuple[type[Library], ...] = (Apsw, ApswAwaited)
# Those first of which `make test` runs every case: one of each kind.
FIRST: tuple[type[Library], ...] = (Asyncpg, Apsw, Psycopg, SqlAlchemyAsyncSession, Django)
EVERY = (*FIRST, *(each for each in (*ON_POSTGRES, *ON_SQLITE) if each not in FIRST))
