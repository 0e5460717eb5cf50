"""SQL past the kernel, for what a test must know or break in a store that a program has open."""

from __future__ import annotations

import re
from typing import Any

import apsw
import psycopg

from tests.conftest import Place


def query(place: Place, text: str) -> list[tuple[Any, ...]]:
    """Rows of a statement written with `holdfast.` as its schema."""
    if place.url.startswith("sqlite"):
        connection = apsw.Connection(place.url.removeprefix("sqlite:///"))
        connection.set_busy_timeout(5_000)
        try:
            return [tuple(row) for row in connection.execute(text.replace("holdfast.", ""))]
        finally:
            connection.close()
    with psycopg.connect(place.direct, autocommit=True) as connected:
        cursor = connected.execute(text.encode())
        return cursor.fetchall() if cursor.description else []


def lift_checks(place: Place) -> None:
    """Let the tables hold what a later release may put into them: none of their checks refuses anything any more."""
    if not place.url.startswith("sqlite"):
        found = query(
            place,
            "select conrelid::regclass::text, conname from pg_constraint "
            "where contype = 'c' and connamespace = 'holdfast'::regnamespace",
        )
        for table, name in found:
            query(place, f"alter table {table} drop constraint {name}")
        return
    connection = apsw.Connection(place.url.removeprefix("sqlite:///"))
    try:
        (version,) = next(connection.execute("pragma schema_version"))
        connection.execute("pragma writable_schema = on")
        for name, text in list(connection.execute("select name, sql from sqlite_schema where type = 'table'")):
            lifted = re.sub(r"\bcheck\s*\(", "check (true or ", text)
            connection.execute("update sqlite_schema set sql = ? where type = 'table' and name = ?", [lifted, name])
        connection.execute(f"pragma schema_version = {version + 1}")
    finally:
        connection.close()
