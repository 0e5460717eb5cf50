"""A million runs that have ended, and a session with a hundred thousand messages, written by SQL on both databases.

What is copied is a run that Holdfast has played itself, with its job, its session and its turn; so a new column needs
no change here. The copies have ids and times in one order, older than the run they are of. One in a hundred has failed.
They are of a hundred tenants, and as after some days: their messages and events are pruned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import apsw
import psycopg

TENANTS = 100
_APART = 1_000_000  # microseconds between two runs
_SLICE = 50_000
_FAILED = "n.n % 100 = 0"
_WHEN = f"- cast(:last + 1 - n.n as bigint) * {_APART}"

_RUN, _SESSION, _MESSAGE = "8000", "9000", "a000"


class Line(Protocol):
    """One of the two databases."""

    series: str  # the numbers from :first to :upto, as n
    overriding: str

    def id(self, kind: str) -> str:
        """An id for each number, in the order of the numbers."""

    def run(self, text: str, **values: Any) -> list[tuple[Any, ...]]: ...

    def columns(self, table: str) -> list[str]: ...


class PostgresLine:
    series = "generate_series(cast(:first as bigint), cast(:upto as bigint)) as n (n)"
    overriding = "overriding system value"

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        self._connection = connection

    def id(self, kind: str) -> str:
        return f"lpad(to_hex(n.n), 8, '0') || '-0000-7000-{kind}-' || lpad(to_hex(n.n), 12, '0')"

    def run(self, text: str, **values: Any) -> list[tuple[Any, ...]]:
        written = text.replace("%", "%%")
        for name in values:
            written = written.replace(f":{name}", f"%({name})s")
        found = self._connection.execute(written.encode(), values)
        return found.fetchall() if found.description else []

    def columns(self, table: str) -> list[str]:
        asked = (
            "select column_name from information_schema.columns where table_schema = 'holdfast' and table_name = :table"
        )
        return [str(name) for (name,) in self.run(asked, table=table)]


class SqliteLine:
    series = (
        "(with recursive k (n) as (select :first union all select n + 1 from k where n < :upto) select n from k) as n"
    )
    overriding = ""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def id(self, kind: str) -> str:
        return f"printf('%08x-0000-7000-{kind}-%012x', n.n, n.n)"

    def run(self, text: str, **values: Any) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self._connection.execute(text.replace("holdfast.", ""), values)]

    def columns(self, table: str) -> list[str]:
        return [str(row[1]) for row in self._connection.execute(f"pragma table_info({table})")]


@contextmanager
def line_to(url: str) -> Iterator[Line]:
    if url.startswith("sqlite"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        try:
            yield SqliteLine(connection)
        finally:
            connection.close()
    else:
        with psycopg.connect(url, autocommit=True) as postgres:
            yield PostgresLine(postgres)


def copy_run(url: str, run: str, runs: int) -> None:
    """So many copies of a run that has ended, older than it."""
    with line_to(url) as line:
        ((seq, session),) = line.run("select job, session from holdfast.run where id = :run", run=run)
        ((taken,),) = line.run("select max(seq) from holdfast.job")
        own = {"job": seq, "ended": seq, "session": session, "run": run, "turn": run}
        for first in range(1, runs + 1, _SLICE):
            span = {"first": first, "upto": min(first + _SLICE - 1, runs), "last": runs}
            for (table, key), changes in _changes(line, int(taken)).items():
                _copy(line, table, f"t.{key} = :own", changes, {**span, "own": own[table]})
        line.run("delete from holdfast.ready where seq > :taken", taken=taken)  # where SQLite puts every new job
        if not line.overriding:
            line.run("analyze")
        else:
            line.run(
                "select setval(pg_get_serial_sequence('holdfast.job', 'seq'), (select max(seq) from holdfast.job))"
            )


def _changes(line: Line, taken: int) -> Mapping[tuple[str, str], Mapping[str, str]]:
    """What is other in a copy, by table and its key. `taken` is the last seq that is not free."""
    id, of_session = line.id(_RUN), line.id(_SESSION)
    as_uuid = f"cast({id} as uuid)" if line.overriding else id
    tenant, job = f"'tenant ' || (n.n % {TENANTS})", f"cast({taken} + n.n as bigint)"
    times = {name: f"t.{name} {_WHEN}" for name in ("created_at", "updated_at", "claimed_at", "finished_at")}
    times |= {name: f"t.{name} {_WHEN}" for name in ("started_at", "progressed_at", "finalized_at", "ended_at")}
    state = f"case when {_FAILED} then 'failed' else t.state end"
    outcome = f"case when {_FAILED} then {{}} else t.outcome end"
    failed = {"state": state, "error": f"case when {_FAILED} then {{}} else t.error end"}
    problem = (
        'cast(\'{"type":"streaming_error","message":"it failed"}\' as json)'
        if line.overriding
        else ('\'{"type":"streaming_error","message":"it failed"}\'')
    )
    of_ended = {name: each.format(problem) for name, each in failed.items()}
    of_run = {name: each.format("'it failed'") for name, each in failed.items()}
    of_copy = {"id": id, "root": id, "job": job, "session": of_session, "tenant": tenant, "events": "0"}
    return {
        ("job", "seq"): {**times, "seq": job, "id": as_uuid, "tenant": tenant},
        ("ended", "seq"): {**times, **of_ended, "seq": job, "outcome": outcome.format("'failed'")},
        ("session", "id"): {**times, "id": of_session, "tenant": tenant, "key": "null"},
        ("run", "id"): {**times, **of_run, **of_copy, "outcome": outcome.format("null")},
        ("turn", "run"): {**times, "run": id},
    }


def copy_message(url: str, message: str, messages: int) -> None:
    """So many copies of a message behind it in its session, by turns of the user and the model."""
    with line_to(url) as line:
        id = line.id(_MESSAGE)
        role = "case when n.n % 2 = 0 then 'user' else 'assistant' end"
        kind = "case when n.n % 2 = 0 then 'prompt' else 'answer' end"
        changes = {"id": id, "ordinal": "t.ordinal + n.n + 1000", "role": role, "kind": kind}
        span = {"first": 1, "upto": messages, "own": message}
        _copy(line, "message", "t.id = :own", changes, span)
        _copy(line, "block", "t.message = :own", {"message": id}, span)


def _copy(line: Line, table: str, which: str, changes: Mapping[str, str], values: Mapping[str, Any]) -> None:
    columns = line.columns(table)
    exprs = ", ".join(changes.get(name, f"t.{name}") for name in columns)
    text = (
        f"insert into holdfast.{table} ({', '.join(columns)}) {line.overriding} select {exprs} "
        f"from holdfast.{table} as t cross join {line.series} where {which} order by n.n"
    )
    line.run(text, **{name: value for name, value in values.items() if f":{name}" in text})
