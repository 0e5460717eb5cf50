"""Plans: every statement finds its jobs by an index, whatever the database believes about the table.

Tens of thousands of finished jobs stand beside a few live ones. What is bounded by nature (running jobs) may be
read whole; the table, the backlog, and what is scheduled may not.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from holdfast.agents.statements import GROUPS as AGENTS
from holdfast.clock import Ports
from holdfast.kernel.drivers import connect
from holdfast.kernel.drivers.postgres import PostgresDatabase
from holdfast.kernel.drivers.sqlite_file import add_functions
from holdfast.kernel.sql import Statement, catalogue
from holdfast.kernel.statements import GROUPS as KERNEL
from holdfast.kernel.statements import Jobs, Lanes, Leases, Queues, Retention, Waiting, Workers
from holdfast.settings import Settings
from tests.support.plans import Plan, postgres_plan, sqlite_plan

GROUPS = (*KERNEL, *AGENTS)

EXPECTED: dict[Statement, set[str]] = {
    Jobs.claim: {"job_claim", "job_pkey"},
    Jobs.heads: {"job_claim"},
    Jobs.complete: {"job_pkey"},
    Jobs.lock_jobs: {"job_pkey"},
    Jobs.settle_parent: {"job_pkey"},
    Jobs.find_job: {"job_id"},
    Jobs.find_ended: {"job_id"},
    Jobs.list_jobs: {"job_pkey"},
    Jobs.seq_before: {"job_pkey"},
    Jobs.find_running: {"job_running"},
    Jobs.jobs_by_seq: {"job_pkey"},
    Lanes.candidates: {"job_claim"},
    Lanes.lane_states: {"job_lane", "job_gate"},
    Lanes.take: {"job_pkey"},
    Lanes.unblock: {"job_gate", "job_pkey"},
    Leases.renew: {"job_pkey"},
    Leases.held_tokens: {"job_pkey"},
    Leases.find_lapsed: {"job_running"},
    Leases.next_expiry: {"job_running"},
    Leases.try_lock_jobs: {"job_pkey"},
    Leases.expire: {"job_pkey"},
    Waiting.wake: {"job_due", "job_pkey"},
    Waiting.find_overdue: {"job_deadline"},
    Waiting.signal: {"job_channel"},
    Waiting.list_children: {"job_parent"},
    Waiting.cancellable_children: {"job_parent"},
    Waiting.cancellable_pending: {"job_claim"},
    Waiting.cancellable_blocked: {"job_blocked"},
    Waiting.cancellable_later: {"job_later"},
    Waiting.cancellable_running: {"job_running"},
    Workers.look: {"job_running", "job_due", "job_deadline", "job_claim"},
}
# PostgreSQL locks those who wait, in order, before it wakes them.
ALSO_ON_POSTGRES: dict[Statement, set[str]] = {Waiting.signal: {"job_pkey"}}
# SQLite looks for the attempts to write before it changes the rows; after ANALYZE by worker and seq.
ALSO_ON_SQLITE: dict[Statement, set[str]] = {Jobs.complete: {"job_running"}, Lanes.candidates: {"job_pkey"}}

# Once a minute one worker of the fleet may also look at every channel and every route with live jobs.
CLEAN_UP = {
    "job_running",
    "job_channel",
    "job_later",
    "job_claim",
    "job_blocked",
    "job_lane",
    "job_lane_later",
    "job_lane_ended",
}

# What stops by itself: at a count's cap, or at the first entry of an index.
BOUNDED: dict[Statement, set[str]] = {
    Queues.count_blocked: {"job_gate"},
    Retention.finished_queues: {"job_finished"},
}

# 50,000 jobs, of which each thousand has one running, two waiting, two scheduled and a hundred pending; there are
# 25 routes, and deadlines here and there.
FILL = """
insert into holdfast.job (id, kind, queue, route, tenant, state, priority, worker, lease_until, claimed_at, epoch,
    token, max_attempts, max_rescues, due_at, deadline_at, created_at, finished_at, channel, parent, payload, metadata)
select {id}, 'work', 'default', n % 25, '', state, 100, case when state = 'running' then n % 8 end,
    case when state = 'running' then 1900000000000000 end, 1, 1, 1, 3, 5,
    case when state = 'scheduled' then 1900000000000000 + n end,
    case when n % 70 = 6 then 1900000000000000 end, 1,
    case when state in ('succeeded', 'failed') then 1 end, case when state = 'waiting' then 'c' || n end,
    case when n % 50 = 8 then n - 1 end, '{{"payload":"of some length, as they have"}}', '{{}}'
from (
    select n, case when n % 1000 = 1 then 'running' when n % 1000 in (2, 3) then 'waiting'
        when n % 1000 in (4, 5) then 'scheduled' when n % 10 = 6 then 'pending'
        when n % 10 = 7 then 'failed' else 'succeeded' end as state
    from {numbers}
) as made
"""
NUMBERS = "(with recursive g (n) as (select 1 union all select n + 1 from g where n < 50000) select n from g) as g"
ANALYZED = pytest.mark.parametrize("analyzed", [False, True], ids=["without statistics", "analyzed"])


def problems(plans: dict[Statement, Plan], also: dict[Statement, set[str]]) -> str:
    found = []
    for statement, plan in plans.items():
        expected = EXPECTED.get(statement, plan.indexes)
        allowed = CLEAN_UP if statement.name.startswith("prune_") else {"job_running"} | BOUNDED.get(statement, set())
        if not (plan.walks <= allowed and expected <= plan.indexes <= expected | also.get(statement, set())):
            found.append(f"{statement} walks {plan.walks}, reads {plan.indexes}\n{plan.text}")
    return "\n\n".join(found)


@pytest.fixture
def server(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("alter table holdfast.job set (autovacuum_enabled = off)")
        yield connection


def postgres_plans(server: psycopg.Connection[Any], *, generic: bool) -> dict[Statement, Plan]:
    statements = catalogue(GROUPS, "postgres", "holdfast")
    return {statement: postgres_plan(server, rendered, generic=generic) for statement, rendered in statements.items()}


@ANALYZED
def test_postgres_finds_jobs_by_index(server: psycopg.Connection[Any], analyzed: bool) -> None:
    server.execute(FILL.format(id="gen_random_uuid()", numbers=NUMBERS).encode())
    if analyzed:
        server.execute("analyze")
    assert problems(postgres_plans(server, generic=True), ALSO_ON_POSTGRES) == ""
    assert problems(postgres_plans(server, generic=False), ALSO_ON_POSTGRES) == ""


async def test_postgres_finds_jobs_by_index_with_plans_kept_since_the_table_was_empty(postgres_url: str) -> None:
    """As the runtime's own connections make them; statistics come after twenty thousand changes."""
    database = PostgresDatabase(postgres_url, Settings(url=postgres_url), Ports())
    await database.open()
    async with database.connection() as connection:
        chosen = await connection.fetch("select name, setting from pg_settings where source = 'session'")
    await database.close()
    with psycopg.connect(postgres_url, autocommit=True) as server:
        for name, setting in chosen:
            server.execute("select set_config(%s, %s, false)", [name, setting])
        assert problems(postgres_plans(server, generic=True), ALSO_ON_POSTGRES) == ""


@ANALYZED
def test_postgres_looks_at_no_lease_and_asks_once_which_routes_are_paused(
    server: psycopg.Connection[Any], analyzed: bool
) -> None:
    """A look costs the same however many jobs run, and each served route is held against a hashed set."""
    server.execute(FILL.format(id="gen_random_uuid()", numbers=NUMBERS).encode())
    if analyzed:
        server.execute("analyze")
    server.execute("set enable_seqscan = off")  # as the runtime does
    statements = catalogue(GROUPS, "postgres", "holdfast")
    plans = {
        statement: postgres_plan(server, statements[statement], generic=True)
        for statement in (Workers.look, Jobs.heads, Jobs.claim, Lanes.candidates)
    }
    assert plans[Workers.look].walks == set()
    assert "lease_until" not in plans[Workers.look].text
    for statement, plan in plans.items():
        assert "hashed SubPlan" in plan.text, statement
        by = "route_queue" if statement in (Workers.look, Jobs.heads) else "route_pkey"
        assert by in plan.text, statement


@ANALYZED
async def test_sqlite_finds_jobs_by_index(tmp_path: Path, analyzed: bool) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    database = connect(url, Settings(url=url), Ports())
    await database.open()
    await database.close()
    connection = apsw.Connection(str(tmp_path / "store.db"))
    add_functions(connection, now_us=lambda *_: 1_800_000_000_000_000, hint=lambda *_: 1)
    empty = {s: sqlite_plan(connection, rendered) for s, rendered in catalogue(GROUPS, "sqlite", "").items()}
    fill = FILL.format(id="lower(hex(randomblob(16)))", numbers=NUMBERS).replace("holdfast.", "")
    for statement in (fill, "analyze") if analyzed else (fill,):
        list(connection.execute(statement))
    full = {s: sqlite_plan(connection, rendered) for s, rendered in catalogue(GROUPS, "sqlite", "").items()}
    connection.close()
    assert problems(empty, ALSO_ON_SQLITE) == ""
    assert problems(full, ALSO_ON_SQLITE) == ""
