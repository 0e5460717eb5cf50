"""Plans: no statement that the API reads with walks a large table, on either database, with any statistics."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from holdfast.access.principals import Principal
from holdfast.agents.compaction.records import CompactionsSql
from holdfast.agents.money.records import BudgetsSql
from holdfast.agents.people.records import InquiriesSql, InquiryListsSql
from holdfast.agents.statements import (
    ActivitySql,
    CallListsSql,
    CallsSql,
    EndingsSql,
    EventsSql,
    IdsSql,
    MarkedRunsSql,
    MessagesSql,
    OverviewsSql,
    RunListsSql,
    RunsSql,
    RunTreesSql,
    SearchSql,
    SessionListsSql,
    SessionsSql,
)
from holdfast.clock import Ports
from holdfast.http import web
from holdfast.kernel.drivers import connect
from holdfast.kernel.drivers.sqlite_file import add_functions
from holdfast.kernel.sql import Statement, catalogue, split
from holdfast.kernel.statements import ListingSql, TallySql, WorkersSql
from holdfast.settings import Settings
from tests.agents.test_retention_plans import FILL, NUMBERS
from tests.http.client import Client
from tests.http.test_api import guide
from tests.http.test_security import ENDPOINTS, call
from tests.support.apps import MakeApp, working
from tests.support.plans import postgres_nodes, sqlite_plan
from tests.support.sent import Statements

GROUPS = (
    ActivitySql,
    BudgetsSql,
    CallListsSql,
    CallsSql,
    CompactionsSql,
    EndingsSql,
    EventsSql,
    OverviewsSql,
    IdsSql,
    InquiriesSql,
    InquiryListsSql,
    ListingSql,
    RunTreesSql,
    MarkedRunsSql,
    MessagesSql,
    RunListsSql,
    RunsSql,
    SearchSql,
    SessionListsSql,
    SessionsSql,
    TallySql,
    WorkersSql,
)
LARGE = (
    "run",
    "message",
    "block",
    "turn",
    "tool_call",
    "session",
    "inquiry",
    "compaction",
    "run_event",
    "job",
    "ended",
    "tally",
    "tally_time",
)
# What lists and counts read with. Of these nothing may be read that no limit ends, and nothing left out before one.
LISTS = (CallListsSql, InquiryListsSql, RunListsSql, SessionListsSql)
LISTED = {
    *(statement for group in LISTS for statement in group.declared.values()),
    ListingSql.jobs_troubled,
    ListingSql.count_jobs_troubled,
    ListingSql.count_jobs,
    MessagesSql.list_messages,
    MessagesSql.latest_messages,
    InquiriesSql.open_inquiries,
    InquiriesSql.inquiries_below,
    InquiriesSql.last_decided,
}
# Columns of which one value may be in most rows: who finds by them alone, and then filters, may read all.
COMMON = frozenset({"tenant", "agent", "name", "state", "queue", "subject", "grain", "live", "branch"})
MORE = """;
update holdfast.session set key = 'k' || id, parent = case when created_at % 3 = 0 then 's' || (created_at % 700) end;
update holdfast.run set agent = 'ag' || (job % 50);
update holdfast.run set finalized_at = null, outcome = null, state = 'pending' where job % 100 = 0;
update holdfast.run set outcome = null, state = 'failed' where job % 100 = 1;
insert into holdfast.tool_call (id, run, turn, ordinal, tool_use_id, name, input, effect, state, created_at,
    finished_at)
select 'c' || n, 'r' || n, 1, 1, '', 't' || (n % 20), '{{}}', 'read',
    case when n % 10 = 0 then 'failed' else 'completed' end, n, n from {numbers};
insert into holdfast.message (id, session, branch, ordinal, role, run, turn, kind, created_at)
select 'm' || n, 's' || (n % 10), '', n, 'user', 'r' || n, 1, 'prompt', n from {numbers}
"""
# By which index each begins.
FIRST: dict[Statement, str] = {
    CallListsSql.calls_listed: "tool_call_listed",
    CallListsSql.count_calls_listed: "tool_call_listed",
    CallListsSql.calls_failed: "tool_call_failed",
    CallListsSql.count_calls_failed: "tool_call_failed",
    CallListsSql.calls_open: "tool_call_open",
    EndingsSql.ended_runs: "run_ended",
    EndingsSql.ended_turns: "turn_ended",
    EndingsSql.ended_calls: "tool_call_listed",
    EndingsSql.turns_in: "run_session",
    InquiryListsSql.inquiries_open: "inquiry_open",
    InquiryListsSql.inquiries_decided: "inquiry_decided",
    InquiryListsSql.inquiries_of_tenant: "inquiry_tenant",
    InquiryListsSql.inquiries_of_run: "inquiry_run",
    ListingSql.jobs_troubled: "job_troubled",
    ListingSql.count_jobs_troubled: "job_troubled",
    MessagesSql.list_messages: "message_place",
    MessagesSql.latest_messages: "message_place",
    MessagesSql.messages_of_run: "message_run",
    SessionListsSql.sessions_all: "session_listed",
    SessionListsSql.sessions_of_tenant: "session_tenant",
    SessionListsSql.sessions_of_parent: "session_parent",
    SessionListsSql.metadata_values_of: "session_tenant",
    TallySql.ended_jobs: "ended_finished",
    TallySql.failures: "failure_group_last",
    TallySql.failures_of: "failure_group_tenant",
    SearchSql.sessions_keyed: "session_prefix",
    WorkersSql.lives_of_worker: "worker_named",
}
# What ends at its first row or at a limit, and what is bounded by what is open or by a stretch of time.
BOUNDED: dict[Statement, str] = {
    TallySql.untallied_queues: "ended",
    CallListsSql.calls_open: "tool_call",
    CallListsSql.count_calls_open: "tool_call",
}


@pytest.mark.long
@pytest.mark.parametrize("filled", [False, True], ids=["empty", "filled"])
def test_postgres_walks_no_large_table(postgres_url: str, filled: bool) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as server:
        server.execute("set enable_seqscan = off")  # as the runtime does
        if filled:
            server.execute((FILL + MORE).format(numbers=NUMBERS).encode())
            server.execute("analyze")
        for statement, rendered in catalogue(GROUPS, "postgres", "holdfast").items():
            top, text = postgres_nodes(server, rendered)
            assert not [table for table in LARGE if f"Seq Scan on {table} " in text], f"{statement}\n{text}"
            if filled and statement in LISTED:
                walked = [each for each in _walks(top, limited=False) if BOUNDED.get(statement) != each]
                assert not walked, f"{statement} walks {walked}\n{text}"
            if filled or statement is not SearchSql.sessions_keyed:
                assert FIRST.get(statement, "") in text, f"{statement}\n{text}"


def _walks(node: dict[str, Any], *, limited: bool) -> Iterator[str]:
    """The large tables that a plan reads without a bound: neither aimed at a few rows, nor in an order that a limit
    ends. A filter below a limit may leave out any number of rows before the limit is reached."""
    kind, table = node["Node Type"], node.get("Relation Name")
    if table in LARGE and kind in ("Seq Scan", "Index Scan", "Index Only Scan"):
        found = set(re.findall(r"\(?(\w+) = ", node.get("Index Cond", "")))
        aimed = bool(found - COMMON)
        if not aimed and (kind == "Seq Scan" or not limited or "Filter" in node):
            yield str(table)
    limited = kind == "Limit" or (limited and kind in ("Result", "Subquery Scan", "LockRows", "Nested Loop", "Append"))
    for number, child in enumerate(node.get("Plans", [])):
        yield from _walks(child, limited=limited and (number == 0 or kind != "Nested Loop"))


@pytest.mark.parametrize("filled", [False, True], ids=["empty", "filled"])
async def test_sqlite_walks_no_large_table(tmp_path: Path, filled: bool) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    database = connect(url, Settings(url=url), Ports())
    await database.open()
    await database.close()
    connection = apsw.Connection(str(tmp_path / "store.db"))
    add_functions(connection, now_us=lambda *_: 1_800_000_000_000_000, hint=lambda *_: 1)
    if filled:
        for text in (*split((FILL + MORE).format(numbers=NUMBERS).replace("holdfast.", "")), "analyze"):
            list(connection.execute(text))
    for statement, rendered in catalogue(GROUPS, "sqlite", "").items():
        plan = sqlite_plan(connection, rendered).text
        made = "|".join(
            ["json_each", "list", "CONSTANT", r"\(", *re.findall(r"(?:CO-ROUTINE|MATERIALIZE) (\w+)", plan)]
        )
        scanned = [step for step in plan.splitlines() if re.match(rf"SCAN (?!(?:{made})\b|\()", step)]
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


# Statements about what is small, or is one row by its key: their plans are judged elsewhere, or need no judgement.
ELSEWHERE = {
    *("agents.sql", "audit.sql", "batches.sql", "brokers.sql", "capsules.sql", "forks.sql", "jobs.sql", "plans.sql"),
    *("pools.sql", "provider_lanes.sql", "pruning.sql", "queues.sql", "requests.sql", "schedules.sql", "tokens.sql"),
    *("logins.sql", "watch.sql", "why.sql"),
}


async def test_the_api_reads_by_no_other_statement(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    hf = make_app(embedded=False)
    async with working(hf):
        asked = await guide(hf).enqueue("Hello")
        await asked.result()
    run = await hf.runs.get(asked.id)
    statements = Statements(monkeypatch, "postgres" if "postgres" in hf.settings.url else "sqlite")
    numbers = itertools.count()
    client = Client(web(hf, who=lambda _: Principal(f"ann {next(numbers)}", "admin"), gateway="guide"))
    for endpoint, id in itertools.product(ENDPOINTS, (run.id, run.session, "guide")):
        if endpoint.method == "GET" and not endpoint.path.endswith(("/events", "/stream")):
            await call(client, endpoint, id)
    assert {each.file for each in statements.all} <= {group.file for group in GROUPS} | ELSEWHERE
