"""How a database would run a statement: which indexes of the job table it reads, and what it reads whole."""

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
_STEP = re.compile(r"(SCAN|SEARCH) (?:job|j|k)\b(?: EXISTS)?(?: USING (?:COVERING )?(INTEGER PRIMARY KEY|INDEX \w+))?")

TABLE = "the table itself"


class Read(NamedTuple):
    """One scan of the job table; `whole`: from end to end."""

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
    server.execute(f"set plan_cache_mode = force_{'generic' if generic else 'custom'}_plan")
    server.execute(f"prepare probe as {rendered.texts[0]}".encode())
    try:
        ((types,),) = server.execute(_TYPES).fetchall()
        values = f"({', '.join(SAMPLES[type] for type in types)})" if types else ""
        ((found,),) = server.execute(f"explain (format json) execute probe{values}".encode()).fetchall()
        text = "\n".join(row[0] for row in server.execute(f"explain execute probe{values}".encode()).fetchall())
    finally:
        server.execute("deallocate probe")
    return Plan(frozenset(_reads(found[0]["Plan"], limited=False)), text)


def _reads(node: dict[str, Any], *, limited: bool) -> Iterator[Read]:
    kind, index = node["Node Type"], node.get("Index Name")
    if node.get("Relation Name") == "job" and kind == "Seq Scan":
        yield Read(TABLE, whole=True)
    elif index is not None and index.startswith("job_"):
        aimed = not _ANY_VALUE.fullmatch(node.get("Index Cond", "(x IS NOT NULL)"))
        yield Read(index, whole=not aimed and not (limited and "Filter" not in node))
    limited = kind == "Limit" or (limited and kind in _PASSING_ON)
    for child in node.get("Plans", []):
        yield from _reads(child, limited=limited)


def sqlite_plan(connection: apsw.Connection, rendered: Rendered) -> Plan:
    reads: set[Read] = set()
    lines: list[str] = []
    values = {parameter.name: None for parameter in rendered.parameters}
    for text in rendered.texts:
        steps = [row[3] for row in list(connection.execute(f"explain query plan {text}", values))]
        for match in filter(None, map(_STEP.match, steps)):
            index = (match[2] or "").removeprefix("INDEX ").replace("INTEGER PRIMARY KEY", "job_pkey")
            reads.add(Read(index or TABLE, whole=match[1] == "SCAN"))
        lines += steps
    return Plan(frozenset(reads), "\n".join(lines))
