"""SQL past the kernel, for what a test must know or break in a store that a program has open."""

from __future__ import annotations

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
