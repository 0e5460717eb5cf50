"""Databases as earlier releases left them: their rows, and what is in a database now, in words that can be compared."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import psycopg
from psycopg.types.string import TextLoader

Row = dict[str, Any]

_HISTORIES = {7: Path(__file__).with_name("schema_7.json")}  # written by the code of that schema


class History(NamedTuple):
    """All rows of all tables, and the last number that each numbered table gave."""

    numbers: dict[str, int]
    tables: dict[str, dict[str, list[Any]]]

    def rows(self, table: str) -> list[Row]:
        part = self.tables[table]
        return [dict(zip(part["columns"], row, strict=True)) for row in part["rows"]]


def history(schema: int, name: str) -> History:
    """`jobs`: one of each kind, in every state. `runs`: agents' runs, asked, answered, cancelled, under way."""
    return History(**json.loads(_HISTORIES[schema].read_text("utf-8"))[name])


def load(url: str, past: History) -> None:
    """Fill the empty tables of that schema."""
    if url.startswith("sqlite:///"):
        with closing(apsw.Connection(url.removeprefix("sqlite:///"))) as file, file:
            for table, part in past.tables.items():
                file.execute(f"delete from {table}")
                file.executemany(_insert(table, part["columns"], "", "?"), part["rows"])
            for table, number in past.numbers.items():
                file.execute("delete from sqlite_sequence where name = ?", [table])
                file.execute("insert into sqlite_sequence (name, seq) values (?, ?)", [table, number])
        return
    with psycopg.connect(url) as server:
        for table, part in past.tables.items():
            server.execute(f"delete from holdfast.{table}".encode())
            insert = _insert(f"holdfast.{table}", part["columns"], "overriding system value ", "%s")
            server.cursor().executemany(insert.encode(), part["rows"])
        for table, number in past.numbers.items():
            server.execute(f"select setval('holdfast.{table}_seq_seq', {number})".encode())


def rows(url: str, relation: str) -> list[Row]:
    """What a table or a view has, in one order; JSON and ids as text."""
    if url.startswith("sqlite:///"):
        with closing(apsw.Connection(url.removeprefix("sqlite:///"))) as file:
            names = [row[0] for row in file.execute("select name from pragma_table_info(?)", [relation])]
            found = list(file.execute(f"select * from {relation}"))
        return _named(names, found)
    with psycopg.connect(url) as server:
        for type in ("json", "jsonb", "uuid"):
            server.adapters.register_loader(type, TextLoader)
        cursor = server.execute(f"select * from holdfast.{relation}".encode())
        names = [column.name for column in cursor.description or []]
        return _named(names, cursor.fetchall())


def last_number(url: str, table: str) -> int:
    """The last number that a numbered table gave, whether or not its row is still there."""
    if url.startswith("sqlite:///"):
        with closing(apsw.Connection(url.removeprefix("sqlite:///"))) as file:
            ((number,),) = list(file.execute("select seq from sqlite_sequence where name = ?", [table]))
            return int(number)
    with psycopg.connect(url) as server:
        found = server.execute(f"select last_value, is_called from holdfast.{table}_seq_seq".encode()).fetchone()
        assert found is not None
        return int(found[0]) if found[1] else 0


def _named(names: list[str], found: Iterable[tuple[Any, ...]]) -> list[Row]:
    return sorted((dict(zip(names, row, strict=True)) for row in found), key=lambda row: json.dumps([*row.values()]))


def _insert(table: str, columns: list[str], overriding: str, mark: str) -> str:
    return f"insert into {table} ({', '.join(columns)}) {overriding}values ({', '.join(mark for _ in columns)})"
