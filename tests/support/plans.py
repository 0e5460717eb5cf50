"""How a database would run a statement: which indexes of the jobs' tables it reads, and what it reads whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import apsw
import psycopg

from holdfast.kernel.sql import Rendered

# A value of each type that a statement takes, for plans made for given values.
SAMPLES = {
    "bigint": "7",
    "integer": "7",
    "double precision": "0",
    "text": "'x'",
    "uuid": "'00000000-0000-7000-8000-000000000000'",
    "json": "'{}'",
    "jsonb": "'{}'",
    "bigint[]": "'{1,2,3}'",
    "integer[]": "'{1,2,3}'",
    "text[]": "'{1,2,3}'",  # which is also JSON, for those who cast it
    "json[]": "'{1,2,3}'",
    "jsonb[]": "'{1,2,3}'",
    "uuid[]": "'{00000000-0000-7000-8000-000000000000}'",
}
# Nodes that ask no more of what is below them than is asked of them.
_PASSING_ON = ("LockRows", "Result", "Subquery Scan")
_ANY_VALUE = re.compile(r"\(\w+ IS NOT NULL\)")  # a condition that every entry of a partial index meets
_TYPES = "select parameter_types::text[] from pg_prepared_statements where name = 'probe'"
_STEP = re.compile(
    r"(SCAN|SEARCH) (\w+)\b(?: EXISTS)?(?: USING (?:COVERING )?(INTEGER PRIMARY KEY|PRIMARY KEY|INDEX \w+))?"
)
_NAMED = re.compile(r"\b(?:from|join|into|update) (?:holdfast\.)?(\w+)(?: as)?(?: (\w+))?")

# What may hold a row for every job there is. `lease` is bounded by the slots of all workers.
TABLES = ("job", "ready", "later", "lease", "ended", "attempt")
LEASES = {"lease_pkey", "lease_worker", "lease_lane", "lease itself"}


class Read(NamedTuple):
    """One scan of a table; `whole`: from end to end."""

    by: str
    whole: bool


class Plan(NamedTuple):
    reads: frozenset[Read]
    text: str

    @property
    def indexes(self) -> set[str]:
        return {read.by for read in self.reads}

    @property
    def walks(self) -> set[str]:
        """What is read from end to end."""
        return {read.by for read in self.reads if read.whole}


def postgres_plan(server: psycopg.Connection[Any], rendered: Rendered, *, generic: bool) -> Plan:
    """The plan for any values, as one is kept with a prepared statement, or for those of `SAMPLES`."""
    top, text = postgres_nodes(server, rendered, generic=generic)
    return Plan(frozenset(_reads(top, limited=False)), text)


def postgres_nodes(
    server: psycopg.Connection[Any], rendered: Rendered, *, generic: bool = True
) -> tuple[dict[str, Any], str]:
    """A plan as the server tells it, and as text."""
    server.execute(f"set plan_cache_mode = force_{'generic' if generic else 'custom'}_plan")
    server.execute(f"prepare probe as {rendered.texts[0]}".encode())
    try:
        ((types,),) = server.execute(_TYPES).fetchall()
        values = f"({', '.join(SAMPLES[type] for type in types)})" if types else ""
        ((found,),) = server.execute(f"explain (format json) execute probe{values}".encode()).fetchall()
        text = "\n".join(row[0] for row in server.execute(f"explain execute probe{values}".encode()).fetchall())
    finally:
        server.execute("deallocate probe")
    return found[0]["Plan"], text


def _reads(node: dict[str, Any], *, limited: bool) -> Iterator[Read]:
    kind, index, table = node["Node Type"], node.get("Index Name"), node.get("Relation Name")
    if table in TABLES and kind == "Seq Scan":
        yield Read(f"{table} itself", whole=not (limited and "Filter" not in node))
    elif index is not None and index.split("_")[0] in TABLES:
        condition = node.get("Index Cond", "(x IS NOT NULL)")
        aimed = not _ANY_VALUE.fullmatch(condition) and not (index == "later_route" and "route" not in condition)
        yield Read(index, whole=not aimed and not (limited and "Filter" not in node))
    if (
        kind == "Nested Loop"
        and "Join Filter" in node
        and _is_list(node["Plans"][1])
        and any(_reads(node["Plans"][0], limited=False))
    ):
        yield Read("one list for each entry of another", whole=True)
    limited = kind == "Limit" or (limited and kind in _PASSING_ON)
    for child in node.get("Plans", []):
        yield from _reads(child, limited=limited)


def _is_list(node: dict[str, Any]) -> bool:
    """What was sent, or what a part of the statement found: it has no index, so each look reads it whole."""
    return node["Node Type"] in ("CTE Scan", "Function Scan") or (
        node["Node Type"] == "Materialize" and _is_list(node["Plans"][0])
    )


def sqlite_plan(connection: apsw.Connection, rendered: Rendered) -> Plan:
    reads: set[Read] = set()
    lines: list[str] = []
    values = {parameter.name: None for parameter in rendered.parameters}
    for text in rendered.texts:
        steps = [row[3] for row in list(connection.execute(f"explain query plan {text}", values))]
        called = _aliases(connection, text)
        for match in filter(None, (_STEP.match(step) for step in steps if "VIRTUAL TABLE" not in step)):
            by = (match[3] or "").removeprefix("INDEX ")
            for table in called.get(match[2], ()):
                if not by.startswith(TABLES) or by.startswith(f"{table}_"):
                    key = f"{table}_pkey" if "PRIMARY KEY" in by else by
                    reads.add(Read(key or f"{table} itself", whole=match[1] == "SCAN"))
        lines += steps
    return Plan(frozenset(reads), "\n".join(lines))


def _aliases(connection: apsw.Connection, text: str) -> dict[str, set[str]]:
    """Which tables each name in a plan may stand for. A view's own names are in it too."""
    views = dict(connection.execute("select name, sql from sqlite_schema where type = 'view'"))
    named = _NAMED.findall(text)
    for view, body in views.items():
        if any(table == view for table, _ in named):
            named += _NAMED.findall(body)
    called: dict[str, set[str]] = {}
    for table, alias in named:
        if table in TABLES:
            called.setdefault(alias or table, set()).add(table)
            called.setdefault(table, set()).add(table)
    return called
