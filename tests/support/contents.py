"""Everything that stands in a store, table by table: for tests of what must not, or must still, be there."""

from __future__ import annotations

from typing import Any

import apsw
import psycopg

from tests.support.schemas import sqlite_path

Contents = dict[str, list[tuple[Any, ...]]]


def contents_at(url: str) -> Contents:
    """The rows of every table, as text."""
    if url.startswith("sqlite"):
        connection = apsw.Connection(str(sqlite_path(url)))
        names = connection.execute("select name from sqlite_master where type = 'table' and name not like 'sqlite_%'")
        found = {name: list(connection.execute(f'select * from "{name}"')) for (name,) in list(names)}
        connection.close()
        return found
    with psycopg.connect(url, autocommit=True) as server:
        tables = server.execute("select tablename from pg_tables where schemaname = 'holdfast'").fetchall()
        return {name: server.execute(f'select * from holdfast."{name}"'.encode()).fetchall() for (name,) in tables}


def mentions(contents: Contents, text: str) -> dict[str, list[str]]:
    """Which rows of which tables contain a text."""
    found = {name: [repr(row) for row in rows if text in repr(row)] for name, rows in contents.items()}
    return {name: rows for name, rows in found.items() if rows}


def changed_at(url: str, statement: str) -> None:
    """Change rows behind the runtime's back, above all to make them older. `holdfast.` is the schema."""
    if url.startswith("sqlite"):
        connection = apsw.Connection(str(sqlite_path(url)))
        connection.set_busy_timeout(10_000)
        connection.execute(statement.replace("holdfast.", ""))
        connection.close()
        return
    with psycopg.connect(url, autocommit=True) as server:
        server.execute(statement.encode())
