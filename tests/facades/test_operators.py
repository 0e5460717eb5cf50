"""The document's three queries for operators are right on both databases, whatever the day."""

from __future__ import annotations

import contextlib
from typing import Any

import apsw
import psycopg
from psycopg.rows import dict_row

from holdfast.facades.universal_agent.runtime_db import RuntimeDb
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
