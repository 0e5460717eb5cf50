"""Tables as either database describes them, in words that can be compared."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import psycopg

# What stands for what: PostgreSQL's types, and those of SQLite's strict tables.
TYPES = {
    "bigint": "integer",
    "integer": "integer",
    "smallint": "integer",
    "text": "text",
    "uuid": "text",
    "json": "text",
    "jsonb": "text",
    "bytea": "blob",
    "double precision": "real",
}


class Column(NamedTuple):
    name: str
    type: str
    required: bool
    default: str | None


class Index(NamedTuple):
    name: str
    unique: bool
    columns: tuple[str, ...]
    predicate: str


class Table(NamedTuple):
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    checks: frozenset[str]
    indexes: frozenset[Index]


Tables = dict[str, Table]
IDENTITY = "the next number"


def tables_at(url: str) -> Tables:
    """Holdfast's tables in the database that a URL names."""
    if url.startswith("sqlite:///"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        try:
            return _sqlite(connection)
        finally:
            connection.close()
    with psycopg.connect(url) as server:
        return _postgres(server)


def objects_at(url: str) -> dict[str, str]:
    """Everything by kind and name that is not a table, as its database spells it: views, functions, indexes."""
    if url.startswith("sqlite:///"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        try:
            rows = list(
                connection.execute("select type || ' ' || name, sql from sqlite_master where name not like 'sqlite_%'")
            )
        finally:
            connection.close()
        return dict(rows)
    with psycopg.connect(url) as server:
        return dict(
            server.execute("""
            select 'view ' || viewname, definition from pg_views where schemaname = 'holdfast'
            union all select 'function ' || proname, pg_get_functiondef(oid) from pg_proc
                where pronamespace = to_regnamespace('holdfast')
            union all select 'index ' || indexname, indexdef from pg_indexes where schemaname = 'holdfast'
            union all select 'table ' || relname, array_to_string(reloptions, ',') from pg_class
                where relnamespace = to_regnamespace('holdfast') and relkind = 'r'
            """).fetchall()
        )


def sqlite_path(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


def plain(expression: str | None) -> str:
    """An expression without what only one of the two databases writes: casts, brackets, case, arrays."""
    text = re.sub(r"\s+", " ", (expression or "").lower())
    text = re.sub(r"::[a-z]+(\[\])?", "", text)
    text = re.sub(r"= any \(+array\[([^\]]*)\]\)*", r"in \1", text)
    return re.sub(r"[()\s]", "", text)


def _postgres(server: psycopg.Connection[Any]) -> Tables:
    names = server.execute("select tablename from pg_tables where schemaname = 'holdfast' order by 1").fetchall()
    return {name: _postgres_table(server, f"holdfast.{name}") for (name,) in names}


def _postgres_table(server: psycopg.Connection[Any], name: str) -> Table:
    columns = server.execute(
        """
        select attname, format_type(atttypid, null), attnotnull, attidentity <> '', pg_get_expr(adbin, adrelid)
        from pg_attribute left join pg_attrdef on adrelid = attrelid and adnum = attnum
        where attrelid = %s::regclass and attnum > 0 and not attisdropped order by attnum
        """,
        [name],
    ).fetchall()
    indexes = server.execute(
        """
        select relname, indisunique, indisprimary, pg_get_expr(indpred, indrelid),
            array(select pg_get_indexdef(indexrelid, k, true) from generate_series(1, indnkeyatts) as k)
        from pg_index join pg_class on pg_class.oid = indexrelid where indrelid = %s::regclass
        """,
        [name],
    ).fetchall()
    checks = server.execute(
        "select pg_get_expr(conbin, conrelid) from pg_constraint where conrelid = %s::regclass and contype = 'c'",
        [name],
    ).fetchall()
    return Table(
        tuple(
            Column(column, TYPES[type], required, IDENTITY if identity else default and default.removesuffix("::text"))
            for column, type, required, identity, default in columns
        ),
        next(tuple(parts) for _, _, primary, _, parts in indexes if primary),
        frozenset(plain(check) for (check,) in checks),
        frozenset(
            Index(index, unique, tuple(parts), plain(predicate))
            for index, unique, primary, predicate, parts in indexes
            if not primary
        ),
    )


def _sqlite(connection: apsw.Connection) -> Tables:
    rows = connection.execute(
        "select name, sql from sqlite_master where type = 'table' and name not like 'sqlite_%' order by name"
    )
    return {name: _sqlite_table(connection, name, sql) for name, sql in list(rows)}


def _sqlite_table(connection: apsw.Connection, name: str, sql: str) -> Table:
    columns = list(connection.execute("select name, type, [notnull], dflt_value, pk from pragma_table_info(?)", [name]))
    counted = "autoincrement" in sql
    indexes = connection.execute("select name, [unique], origin from pragma_index_list(?)", [name])
    return Table(
        tuple(
            Column(column, type.lower(), bool(required or pk), IDENTITY if counted and pk else default)
            for column, type, required, default, pk in columns
        ),
        tuple(column for _, column in sorted((pk, column) for column, _, _, _, pk in columns if pk)),
        frozenset(plain(check) for check in _checks(sql)),
        frozenset(_sqlite_index(connection, *row[:2]) for row in list(indexes) if row[2] == "c"),
    )


def _sqlite_index(connection: apsw.Connection, name: str, unique: int) -> Index:
    columns = tuple(row[0] for row in list(connection.execute("select name from pragma_index_info(?)", [name])))
    ((sql,),) = list(connection.execute("select sql from sqlite_master where name = ?", [name]))
    _, _, predicate = sql.partition(" where ") if " where " in sql else sql.partition("\n    where ")
    return Index(name, bool(unique), columns, plain(predicate))


def _checks(sql: str) -> list[str]:
    """The text in the brackets of every CHECK of a `create table`."""
    found = []
    for match in re.finditer(r"\bcheck\s*\(", sql):
        depth = end = 0
        for end in range(match.end() - 1, len(sql)):
            depth += {"(": 1, ")": -1}.get(sql[end], 0)
            if depth == 0:
                break
        found.append(sql[match.end() : end])
    return found
