"""What retention removes is found by an index, on either database, whatever it believes about its tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from holdfast.agents.retention.records import ErasingSql, PruningSql, TotalsSql
from holdfast.clock import Ports
from holdfast.kernel.drivers import connect
from holdfast.kernel.drivers.sqlite_file import add_functions
from holdfast.kernel.sql import Statement, catalogue, split
from holdfast.settings import Settings
from tests.support.plans import postgres_plan, sqlite_plan

GROUPS = (PruningSql, TotalsSql, ErasingSql)
LARGE = ("run", "run_event", "turn", "session", "inquiry", "blob", "block", "message", "job", "idempotency")
# By which index each begins; SQLite names those of primary keys by itself.
FIRST: dict[Statement, str] = {
    PruningSql.ended_roots: "run_ended",
    PruningSql.ended_roots_of: "run_tenant_ended",
    PruningSql.prune_deltas: "run_event_seq",
    PruningSql.prune_events: "run_event_seq",
    PruningSql.prune_inquiries: "inquiry_run",
    PruningSql.old_sessions: "session_listed",
    PruningSql.old_sessions_of: "session_tenant",
    PruningSql.roots_in: "run_session",
    TotalsSql.keep_turns: "run_session",
}
FILL = """
insert into holdfast.session (id, tenant, depth, metadata, created_at, updated_at)
select 's' || n, 't' || (n % 50), 0, '{{}}', n, n from {numbers};
insert into holdfast.run (id, job, session, branch, ordinal, tenant, agent, agent_name, version, mode, state, root,
    depth, input, variables, metadata, options, created_at, finalized_at, outcome)
select 'r' || n, 1000000 + n, 's' || (n % 5000), '', 1, 't' || (n % 50), 'ag', 'a', 1, 'streaming', 'completed',
    'r' || n, 0, '{{}}', '{{}}', '{{}}', '{{}}', n, n, 'answered' from {numbers};
insert into holdfast.run_event (run, seq, at, type, data, tx)
select 'r' || (n % 5000), n / 5000 + 1, n, 'text_delta', '{{}}', 0 from {numbers};
insert into holdfast.turn (run, number, model, request_hash, fingerprint, state, epoch, token, started_at, ended_at)
select 'r' || n, 1, 'm', '', '', 'completed', 1, 1, n, n from {numbers};
insert into holdfast.inquiry (id, run, session, tenant, kind, call, name, digest, data, state, asked_at,
    decided_at)
select 'i' || n, 'r' || n, 's' || n, 't' || (n % 50), 'approval', 'c' || n, 't', '', '{{}}',
    case when n % 100 = 0 then 'open' else 'approved' end, n, case when n % 100 > 0 then n end from {numbers}
"""
NUMBERS = "(with recursive g (n) as (select 1 union all select n + 1 from g where n < 20000) select n from g) as g"


@pytest.mark.parametrize("filled", [False, True], ids=["empty", "filled"])
def test_postgres_prunes_by_index(postgres_url: str, filled: bool) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as server:
        server.execute("set enable_seqscan = off")  # as the runtime does
        if filled:
            server.execute(FILL.format(numbers=NUMBERS).encode())
            server.execute("analyze")
        for statement, rendered in catalogue(GROUPS, "postgres", "holdfast").items():
            plan = postgres_plan(server, rendered, generic=True).text
            if statement is not ErasingSql.agents_of:  # of which there are few
                assert not [table for table in LARGE if f"Seq Scan on {table} " in plan], f"{statement}\n{plan}"
            assert FIRST.get(statement, "") in plan, f"{statement}\n{plan}"
            if "ended_roots" in statement.name or "old_sessions" in statement.name:
                assert "Sort" not in plan, f"{statement}\n{plan}"


@pytest.mark.parametrize("filled", [False, True], ids=["empty", "filled"])
async def test_sqlite_prunes_by_index(tmp_path: Path, filled: bool) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    database = connect(url, Settings(url=url), Ports())
    await database.open()
    await database.close()
    connection = apsw.Connection(str(tmp_path / "store.db"))
    add_functions(connection, now_us=lambda *_: 1_800_000_000_000_000, hint=lambda *_: 1)
    if filled:
        for text in (*split(FILL.format(numbers=NUMBERS).replace("holdfast.", "")), "analyze"):
            list(connection.execute(text))
    for statement, rendered in catalogue(GROUPS, "sqlite", "").items():
        plan = sqlite_plan(connection, rendered).text
        assert _scanned(plan) == [], f"{statement}\n{plan}"
        assert FIRST.get(statement, "") in plan, f"{statement}\n{plan}"
        if "ended_roots" in statement.name or "old_sessions" in statement.name:
            assert "TEMP B-TREE" not in plan, f"{statement}\n{plan}"
    connection.close()


def _scanned(plan: str) -> list[Any]:
    """What is read whole, but for what was sent and what is small: schedules, agents, marks."""
    small = ("SCAN json_each", "SCAN schedule", "SCAN agent", "SCAN retention_mark")
    return [step for step in plan.splitlines() if step.startswith("SCAN ") and not step.startswith(small)]
