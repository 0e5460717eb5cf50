"""A backup of all rows, restored in place under whoever uses the database, as by an operator in a hurry.

The server, the file and the sessions stay the same, so nothing but the rows tells that time went back.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from types import TracebackType
from typing import Self

import apsw
import psycopg

_TABLES = "select tablename from pg_tables where schemaname = 'holdfast' and tablename <> 'schema'"
_SEQUENCES = "select sequencename, coalesce(last_value, 0) from pg_sequences where schemaname = 'holdfast'"


class Backup:
    """Of the database behind a URL, as it is when this is entered."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._sequences: list[tuple[str, int]] = []

    @property
    def _file(self) -> Path | None:
        return Path(self._url.removeprefix("sqlite:///")) if self._url.startswith("sqlite:") else None

    def __enter__(self) -> Self:
        if self._file is not None:
            with contextlib.closing(apsw.Connection(str(self._file))) as connection:
                connection.execute(f"vacuum into '{self._file}.backup'")
            return self
        with psycopg.connect(self._url) as connection:
            connection.execute("create schema backup")
            for table in self._tables(connection):
                connection.execute(f"create table backup.{table} as table holdfast.{table}".encode())
            self._sequences = connection.execute(_SEQUENCES).fetchall()
        return self

    async def restore(self) -> None:
        """In one transaction, so that others see either state."""
        await asyncio.to_thread(self._restore)

    def _restore(self) -> None:
        if self._file is not None:
            self._restore_file(self._file)
            return
        while True:
            with contextlib.suppress(psycopg.errors.DeadlockDetected), psycopg.connect(self._url) as connection:
                tables = self._tables(connection)
                connection.execute(f"truncate {', '.join(f'holdfast.{table}' for table in tables)}".encode())
                for table in tables:
                    rows = f"insert into holdfast.{table} overriding system value table backup.{table}"
                    connection.execute(rows.encode())
                for sequence, last in self._sequences:
                    connection.execute(f"select setval('holdfast.{sequence}', {max(last, 1)}, {last > 0})".encode())
                return

    def _restore_file(self, file: Path) -> None:
        with contextlib.closing(apsw.Connection(str(file))) as connection:
            connection.set_busy_timeout(60_000)
            connection.execute(f"attach '{file}.backup' as backup")
            named = "select name from backup.sqlite_master where type = 'table'"
            tables = [name for (name,) in connection.execute(named) if name not in ("schema", "sqlite_stat1")]
            connection.execute("begin immediate")
            for table in tables:
                connection.execute(f"delete from main.{table}")
                connection.execute(f"insert into main.{table} select * from backup.{table}")
            connection.execute("commit")

    def _tables(self, connection: psycopg.Connection) -> list[str]:
        return [row[0] for row in connection.execute(_TABLES)]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is None:
            with psycopg.connect(self._url) as connection:
                connection.execute("drop schema backup cascade")
