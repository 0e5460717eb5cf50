"""The document's three queries for operators are right on both databases, whatever the day."""

from __future__ import annotations

import contextlib
from typing import Any

import apsw
import psycopg
import pytest
from psycopg.rows import dict_row

from holdfast import Holdfast
from holdfast.errors import QueryTooLong, UsageError
from holdfast.facades.universal_agent.runtime_db import RuntimeDb, connect_runtime_db
from holdfast.facades.universal_agent.state import (
    acquire_run_lease,
    complete_run,
    fail_run,
    get_run,
    queue_run,
    request_run_cancel,
    requeue_run,
)
from tests.conftest import Place
from tests.facades.documented import block
from tests.facades.test_leases import SHORT, patiently, take_over
from tests.support.apps import MakeApp

NO_QUERIES = (
    "insert into run_attempts (run_id) values ('x')",
    "update runs set status = 'completed'",
    "delete from job",
    "pragma query_only = off",
    "set default_transaction_read_only = off",
    "set statement_timeout = 0",
    "attach database 'other.db' as other",
    "begin",
    "commit",
    "vacuum into 'copy.db'",
    "copy job to program 'true'",
    "",
)
LEAVES = (  # each would stay in the session, which others use next
    "select set_config('statement_timeout', '0', false)",
    "select set_config('default_transaction_read_only', 'off', false)",
    "select pg_advisory_lock(7053)",
)


def asked(place: Place, query: str) -> list[dict[str, Any]]:
    """What an operator sees who opens the database: on PostgreSQL with the search_path that the guide names."""
    if place.direct.startswith("sqlite"):
        with contextlib.closing(apsw.Connection(place.direct.removeprefix("sqlite:///"))) as connection:
            connection.row_trace = lambda cursor, row: dict(
                zip([name for name, _ in cursor.get_description()], row, strict=True)
            )
            return list(connection.execute(query))
    with psycopg.connect(place.direct, options="-c search_path=holdfast,public", row_factory=dict_row) as server:
        return server.execute(query).fetchall()


def queries() -> list[str]:
    """As the document prints them."""
    return [each.strip() for each in block("database_queries.sql").split(";") if each.strip()]


def ids(rows: list[dict[str, Any]]) -> list[str]:
    return [row["run_id"] for row in rows]


def test_active_queued_and_stale_runs(conn: RuntimeDb, place: Place) -> None:
    active, queued, stale = queries()
    for n in range(3):
        queue_run(conn, f"run_{n}", f"Prompt {n}", "/srv/project", max_iterations=5)
    assert ids(asked(place, queued)) == ["run_0", "run_1", "run_2"]
    acquire_run_lease(conn, "run_0", "worker_1", 3_600)
    acquire_run_lease(conn, "run_1", "worker_2", SHORT)
    assert ids(asked(place, queued)) == ["run_2"]
    assert sorted(ids(asked(place, active))) == ["run_0", "run_1"]
    patiently(lambda: ids(asked(place, stale)) == ["run_1"])
    (row,) = [row for row in asked(place, active) if row["run_id"] == "run_0"]
    run = get_run(conn, "run_0")
    assert run is not None
    assert {name: row[name] for name in run} == run
    assert row["max_iterations"] == 5


def test_runs_and_attempts_agree_with_the_functions(conn: RuntimeDb, place: Place) -> None:
    for name in ("done", "bad", "gone", "asked"):
        queue_run(conn, name, "Hello")
    acquire_run_lease(conn, "done", "worker_1", SHORT)
    take_over(conn, "worker_2", "done")
    complete_run(conn, "done", "worker_2")
    acquire_run_lease(conn, "bad", "worker_1", 60)
    fail_run(conn, "bad", "worker_1", "no", "worker_exception")
    requeue_run(conn, "bad")
    acquire_run_lease(conn, "bad", "worker_3", 60)
    request_run_cancel(conn, "gone")
    acquire_run_lease(conn, "asked", "worker_4", 60)
    request_run_cancel(conn, "asked")
    for row in asked(place, "select * from runs"):
        run = get_run(conn, row["run_id"])
        assert run is not None
        assert {name: row[name] for name in run} == run
    found = asked(place, "select * from run_attempts order by run_id, attempt_number")
    assert [(row["run_id"], row["attempt_number"], row["status"], row["failure_class"]) for row in found] == [
        ("asked", 1, "running", None),
        ("bad", 1, "failed", "worker_exception"),
        ("bad", 2, "running", None),
        ("done", 1, "lost", None),
        ("done", 2, "completed", None),
    ]
    assert [row["lease_owner"] for row in found] == ["worker_4", "worker_1", "worker_3", "worker_1", "worker_2"]


def test_ua_37_the_documents_queries_run_on_the_connection_itself(conn: RuntimeDb) -> None:
    active, queued, stale = queries()
    for n in range(3):
        queue_run(conn, f"run_{n}", f"Prompt {n}", "/srv/project")
    acquire_run_lease(conn, "run_0", "worker_1", 3_600)
    acquire_run_lease(conn, "run_1", "worker_2", SHORT)
    assert [row["run_id"] for row in conn.execute(queued)] == ["run_2"]
    assert sorted(row["run_id"] for row in conn.execute(active)) == ["run_0", "run_1"]
    patiently(lambda: [row["run_id"] for row in conn.execute(stale)] == ["run_1"])
    (row,) = conn.execute("SELECT run_id, status AS now FROM runs WHERE run_id = ?;  -- one", ["run_0"]).fetchall()
    assert (row, row[0], row["NOW"], row.keys(), dict(row)) == (
        *(("run_0", "running"), "run_0", "running", ["run_id", "now"]),
        {"run_id": "run_0", "now": "running"},
    )
    with pytest.raises(IndexError, match="no column 'nope' among run_id, now"):
        row["nope"]
    named = "select ':run ?' as words, run_id from runs where run_id = :run or run_id = cast(:other as text)"
    cursor = conn.execute(named, {"run": "run_1", "other": "run_1"})
    assert (cursor.fetchone(), cursor.fetchone()) == ((":run ?", "run_1"), None)
    empty = conn.execute("select run_id from runs where status = 'nope'")
    assert [column[0] for column in empty.description] == ["run_id"]


def test_ua_37_what_is_no_query_is_refused(conn: RuntimeDb) -> None:
    for sql in NO_QUERIES:
        with pytest.raises(UsageError, match="a query begins with SELECT, WITH, VALUES, EXPLAIN"):
            conn.execute(sql)


def test_ua_37_a_query_that_writes_is_refused_and_nothing_is_changed(conn: RuntimeDb, place: Place) -> None:
    queue_run(conn, "run_1", "Hello")
    writes = ["with x as (select 1) delete from alias", "with x as (select 1) update job set layer = 'x'"]
    if not place.direct.startswith("sqlite"):
        writes += [
            "with x as (delete from alias returning name) select * from x",
            "explain analyze delete from alias",
            "select * from alias for update",
            "select 1 as one into made",
        ]
    for sql in writes:
        with pytest.raises(UsageError, match="a query may only read"):
            conn.execute(sql)
    assert conn.execute("select status from runs").fetchall() == [("queued",)]


def test_a_query_that_is_wrong_says_why(conn: RuntimeDb) -> None:
    numbers = "with recursive n(n) as (select 1 union all select n + 1 from n where n < {}) select n from n"
    assert len(conn.execute(numbers.format(10_000)).fetchall()) == 10_000
    for sql, parameters, why in (
        ("select 1; delete from alias", (), "one statement"),
        ("select * from nope", (), "the database refuses the query: .*nope"),
        ("select 1 where 1 = ? or 1 = ?", [1], "1 value"),
        ("select 1", [1], "1 value"),
        ("select :other", {"one": 1}, "names :other"),
        (numbers.format(10_001), (), "more than 10,000 rows"),
    ):
        with pytest.raises(UsageError, match=why):
            conn.execute(sql, parameters)
    assert conn.execute("select 1").fetchall() == [(1,)]


def test_ua_37_a_query_ends_after_its_time_and_leaves_nothing_behind(make_app: MakeApp) -> None:
    app = make_app(web_patience="200ms", embedded=False)
    with connect_runtime_db(app) as conn:
        queue_run(conn, "run_1", "Hello")
        on_postgres = not app.settings.url.startswith("sqlite")
        for sql in LEAVES if on_postgres else ():
            conn.execute(sql)
        endless = "with recursive n(n) as (select 1 union all select n + 1 from n) select count(*) from n"
        for _ in range(2):
            with pytest.raises(QueryTooLong, match="web_patience"):
                conn.execute(endless)
        if on_postgres:
            locks = "select count(*) from pg_locks where locktype = 'advisory' and objid = 7053"
            assert conn.execute(locks).fetchall() == [(0,)]
            reads = "select current_setting('default_transaction_read_only')"
            assert conn.execute(reads).fetchall() == [("on",)]
        with pytest.raises(UsageError, match="only read"):
            conn.execute("with x as (select 1) delete from alias")


async def test_ua_37_async_code_awaits_a_query(answering: Holdfast) -> None:
    conn = connect_runtime_db(answering)
    await conn.runs.queue("run_1", "Hello")
    cursor = await conn.runs.execute("select run_id, status from runs")
    assert [tuple(row) for row in cursor] == [("run_1", "queued")]
    await conn.aclose()
