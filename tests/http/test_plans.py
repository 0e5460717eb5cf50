"""Plans: no statement of the API reads a large table from end to end, on either database, with any statistics."""

from __future__ import annotations

import re
from pathlib import Path

import apsw
import psycopg
import pytest

from holdfast.agents.statements import CallsSql, EndingsSql, RunCountsSql, RunListsSql, SearchSql
from holdfast.clock import Ports
from holdfast.kernel.drivers import connect
from holdfast.kernel.drivers.sqlite_file import add_functions
from holdfast.kernel.sql import Statement, catalogue, split
from holdfast.kernel.statements import TallySql
from holdfast.settings import Settings
from tests.agents.test_retention_plans import FILL, NUMBERS
from tests.support.plans import postgres_plan, sqlite_plan

GROUPS = (CallsSql, EndingsSql, RunCountsSql, RunListsSql, SearchSql, TallySql)
LARGE = (
    "run",
    "message",
    "turn",
    "tool_call",
    "session",
    "inquiry",
    "run_event",
    "job",
    "ended",
    "tally",
    "tally_time",
)
CALLS = """;
update holdfast.session set key = 'k' || id;
insert into holdfast.tool_call (id, run, turn, ordinal, tool_use_id, name, input, effect, state, created_at,
    finished_at)
select 'c' || n, 'r' || n, 1, 1, '', 't' || (n % 20), '{{}}', 'read',
    case when n % 10 = 0 then 'failed' else 'completed' end, n, n from {numbers}
"""
# By which index each begins.
FIRST: dict[Statement, str] = {
    CallsSql.calls_listed: "tool_call_listed",
    CallsSql.calls_failed: "tool_call_failed",
    CallsSql.calls_open: "tool_call_open",
    EndingsSql.ended_runs: "run_ended",
    EndingsSql.ended_turns: "turn_ended",
    EndingsSql.ended_calls: "tool_call_listed",
    EndingsSql.turns_in: "run_session",
    TallySql.ended_jobs: "ended_finished",
    TallySql.failures: "failure_group_last",
    TallySql.failures_of: "failure_group_tenant",
    SearchSql.sessions_keyed: "session_prefix",
}
# What ends at its first row or at a limit, and what is bounded by what is open.
BOUNDED = {TallySql.untallied_queues: "ended", CallsSql.calls_open: "tool_call"}


@pytest.mark.parametrize("filled", [False, True], ids=["empty", "filled"])
def test_postgres_walks_no_large_table(postgres_url: str, filled: bool) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as server:
        server.execute("set enable_seqscan = off")  # as the runtime does
        if filled:
            server.execute((FILL + CALLS).format(numbers=NUMBERS).encode())
            server.execute("analyze")
        for statement, rendered in catalogue(GROUPS, "postgres", "holdfast").items():
            plan = postgres_plan(server, rendered, generic=True).text
            assert not [table for table in LARGE if f"Seq Scan on {table} " in plan], f"{statement}\n{plan}"
            if filled or statement is not SearchSql.sessions_keyed:
                assert FIRST.get(statement, "") in plan, f"{statement}\n{plan}"


@pytest.mark.parametrize("filled", [False, True], ids=["empty", "filled"])
async def test_sqlite_walks_no_large_table(tmp_path: Path, filled: bool) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    database = connect(url, Settings(url=url), Ports())
    await database.open()
    await database.close()
    connection = apsw.Connection(str(tmp_path / "store.db"))
    add_functions(connection, now_us=lambda *_: 1_800_000_000_000_000, hint=lambda *_: 1)
    if filled:
        for text in (*split((FILL + CALLS).format(numbers=NUMBERS).replace("holdfast.", "")), "analyze"):
            list(connection.execute(text))
    for statement, rendered in catalogue(GROUPS, "sqlite", "").items():
        plan = sqlite_plan(connection, rendered).text
        scanned = [step for step in plan.splitlines() if re.match(r"SCAN (?!json_each|list|CONSTANT|\()", step)]
        assert not _whole(statement, scanned, " ".join(rendered.texts)), f"{statement}\n{plan}"
        assert FIRST.get(statement, "") in plan, f"{statement}\n{plan}"
    connection.close()


def _whole(statement: Statement, scanned: list[str], text: str) -> list[str]:
    """The scans of large tables, which a plan calls by the names that the statement gives them, but for those that a
    limit ends: an index in the order that is asked for."""
    found = []
    for step in scanned:
        name = step.split()[1]
        named = re.search(rf"\b(?:from|join) (\w+)(?: as)? {name}\b", text)
        table = named[1] if named else name
        ends = "USING" in step and "INDEX" in step and "limit" in text
        if table in LARGE and not ends and BOUNDED.get(statement) != table:
            found.append(step)
    return found
