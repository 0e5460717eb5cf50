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

from holdfast.access.records import GROUPS as ACCESS
from holdfast.agents.statements import GROUPS as AGENTS
from holdfast.clock import Ports
from holdfast.kernel.drivers import connect
from holdfast.kernel.drivers.postgres import PostgresDatabase
from holdfast.kernel.drivers.sqlite_file import add_functions
from holdfast.kernel.sql import Statement, catalogue, split
from holdfast.kernel.statements import GROUPS as KERNEL
from holdfast.kernel.statements import (
    BrokersSql,
    CancelSql,
    CrowdSql,
    JobsSql,
    LanesSql,
    LeasesSql,
    ListingSql,
    QueuesSql,
    RetentionSql,
    TallySql,
    WaitingSql,
    WatchSql,
    WorkersSql,
)
from holdfast.settings import Settings
from tests.support.plans import LEASES, TABLES, Plan, postgres_plan, sqlite_plan

GROUPS = (*KERNEL, *AGENTS, *ACCESS)

# The statements of every job's way, and those that sweep: by these indexes and no others.
EXPECTED: dict[Statement, set[str]] = {
    JobsSql.claim: {"ready_pkey", "job_pkey"},
    JobsSql.claim_one: {"ready_pkey", "job_pkey"},
    JobsSql.heads: {"ready_pkey"},
    JobsSql.finish: {"lease_pkey"},
    JobsSql.complete: {"lease_pkey", "job_pkey"},
    JobsSql.lock_anchors: {"job_pkey"},
    JobsSql.lock_places: {"job_pkey", "ready_pkey", "later_pkey", "lease_pkey", "ended_pkey"},
    JobsSql.lock_leases: {"lease_pkey"},
    JobsSql.wake_parent: {"later_pkey"},
    ListingSql.seq_before: {"job_pkey"},
    ListingSql.jobs_beside: {"job_id"},
    LanesSql.candidates: {"ready_pkey"},
    LeasesSql.renew: {"lease_pkey"},
    BrokersSql.find_unanswered: {"lease_pkey"},
    WaitingSql.hold: {"lease_pkey"},
    WaitingSql.wake: {"later_due", "later_pkey"},
    WaitingSql.find_overdue: {"ready_deadline", "later_deadline", "job_pkey"},
    CancelSql.cancel: {"job_pkey", "ready_pkey", "later_pkey"},
    CancelSql.cancellable_ready: {"ready_pkey", "job_pkey"},
    CancelSql.cancellable_later: {"later_route", "job_pkey"},
    CancelSql.cancellable_children: {"job_parent", "ended_pkey", "lease_pkey"},
    WorkersSql.look: {"ready_pkey", "ready_deadline", "later_due", "later_deadline", "lease_worker"},
}
# What SQLite looks up again between the statements that PostgreSQL has as one.
ALSO_ON_SQLITE: dict[Statement, set[str]] = {
    JobsSql.claim: {"lease_worker", "lease_pkey"},
    JobsSql.claim_one: {"lease_worker", "lease_pkey"},
    JobsSql.finish: {"ended_pkey", "lease itself", "sqlite_autoindex_attempt_1"},
    JobsSql.complete: {"ended_pkey", "lease itself", "later_pkey", "sqlite_autoindex_attempt_1"},
}
ALSO_ON_POSTGRES: dict[Statement, set[str]] = {}

# Once a minute one worker of the fleet may also look at every channel, lane and route with live jobs.
CLEAN_UP = {"later_channel", "later_route", "later_lane", "ready_pkey", "ready_lane", "ended_lane"}

# What stops by itself: at a count's cap, or at the first entry of an index.
BOUNDED: dict[Statement, set[str]] = {
    QueuesSql.count_blocked: {"later_blocked"},
    RetentionSql.finished_queues: {"ended_finished"},
    TallySql.untallied_queues: {"ended_finished"},
    TallySql.queue_to_count_again: {"ended_finished"},
    LanesSql.open_stranded: {"later_blocked"},
    CrowdSql.ready_routes: {"ready itself"},
    WatchSql.stranded_lanes: {"later_blocked"},
    WatchSql.retried_most: {"sqlite_autoindex_attempt_1", "attempt_pkey"},
    WatchSql.misplaced: {"job itself", "ready itself", "ended itself", "later itself", "later_route"},
}

# 50,000 jobs, of which each thousand has one running, twenty waiting, twenty scheduled and a hundred pending; there are
# 25 routes, and deadlines here and there.
FILL = """
insert into holdfast.job (id, kind, queue, route, tenant, priority, max_attempts, max_rescues, deadline_at, created_at,
    parent, payload, metadata)
select {id}, 'work', 'default', n % 25, '', 100, 3, 5, case when n % 70 = 6 then 1900000000000000 end, 1,
    case when n % 50 = 8 then n - 1 end, '{{"payload":"of some length, as they have"}}', '{{}}'
from {numbers};
delete from holdfast.ready;
insert into holdfast.lease (seq, worker, epoch, token, lease_until, claimed_at, route, attempts, rescues, kind, queue)
select seq, seq % 8, 1, 1, 1900000000000000, 1, route, 0, 0, kind, queue from holdfast.job where seq % 1000 = 1;
insert into holdfast.later (seq, route, slot, token, priority, attempts, rescues, state, due_at, deadline_at, channel)
select seq, route, 0, 1, priority, 0, 0, case when seq % 100 in (2, 3) then 'waiting' else 'scheduled' end,
    case when seq % 100 in (4, 5) then 1900000000000000 + seq end, deadline_at,
    case when seq % 100 in (2, 3) then 'c' || seq end
from holdfast.job where seq % 100 in (2, 3, 4, 5);
insert into holdfast.ready (route, slot, seq, token, priority, attempts, rescues, deadline_at)
select route, 0, seq, 1, priority, 0, 0, deadline_at from holdfast.job where seq % 10 = 6;
insert into holdfast.ended (seq, token, finished_at, worker, epoch, claimed_at, attempts, rescues, state, queue,
    outcome)
select seq, 1, 1, 1, 1, 1, 1, 0, case when seq % 10 = 7 then 'failed' else 'succeeded' end, queue,
    case when seq % 10 = 7 then 'failed' else 'succeeded' end
from holdfast.job where seq % 10 <> 6 and seq % 1000 <> 1 and seq % 100 not in (2, 3, 4, 5);
insert into holdfast.attempt (job, epoch, token, worker, outcome, started_at, ended_at)
select seq, 1, 0, 1, 'released', 1, 1 from holdfast.job where seq % 3 = 0
"""
NUMBERS = "(with recursive g (n) as (select 1 union all select n + 1 from g where n < 50000) select n from g) as g"
ANALYZED = pytest.mark.parametrize("analyzed", [False, True], ids=["without statistics", "analyzed"])


def problems(plans: dict[Statement, Plan], also: dict[Statement, set[str]]) -> str:
    found = []
    for statement, plan in plans.items():
        expected = EXPECTED.get(statement, plan.indexes)
        allowed = (
            LEASES | CLEAN_UP
            if statement.name.startswith(("prune_", "old_"))
            else LEASES | BOUNDED.get(statement, set())
        )
        if not (plan.walks <= allowed and expected <= plan.indexes <= expected | also.get(statement, set())):
            found.append(f"{statement} walks {plan.walks}, reads {plan.indexes}\n{plan.text}")
    return "\n\n".join(found)


@pytest.fixture
def server(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("set enable_seqscan = off")  # as the runtime does
        for table in TABLES:
            connection.execute(f"alter table holdfast.{table} set (autovacuum_enabled = off)".encode())
        yield connection


def postgres_plans(server: psycopg.Connection[Any], *, generic: bool) -> dict[Statement, Plan]:
    statements = catalogue(GROUPS, "postgres", "holdfast")
    return {statement: postgres_plan(server, rendered, generic=generic) for statement, rendered in statements.items()}


@pytest.mark.sample(1)
@ANALYZED
def test_postgres_finds_jobs_by_index(server: psycopg.Connection[Any], analyzed: bool) -> None:
    server.execute(FILL.format(id="gen_random_uuid()", numbers=NUMBERS).encode())
    if analyzed:
        server.execute("analyze")
    assert problems(postgres_plans(server, generic=True), ALSO_ON_POSTGRES) == ""
    assert problems(postgres_plans(server, generic=False), ALSO_ON_POSTGRES) == ""


@pytest.mark.long
def test_postgres_finds_jobs_by_index_with_plans_made_while_nothing_was_to_be_done(
    server: psycopg.Connection[Any],
) -> None:
    """VACUUM has found the tables of what goes on empty; the plans it leads to are kept when they are full again."""
    server.execute(FILL.format(id="gen_random_uuid()", numbers=NUMBERS).encode())
    server.execute("delete from holdfast.ready; delete from holdfast.later; delete from holdfast.lease")
    server.execute("vacuum (truncate off, analyze)")
    assert problems(postgres_plans(server, generic=True), ALSO_ON_POSTGRES) == ""


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


@pytest.mark.sample(1)
@ANALYZED
def test_postgres_looks_at_no_lease_and_asks_once_which_routes_are_paused(
    server: psycopg.Connection[Any], analyzed: bool
) -> None:
    """A look costs the same however many jobs run, and each served route is held against a hashed set."""
    server.execute(FILL.format(id="gen_random_uuid()", numbers=NUMBERS).encode())
    if analyzed:
        server.execute("analyze")
    statements = catalogue(GROUPS, "postgres", "holdfast")
    plans = {
        statement: postgres_plan(server, statements[statement], generic=True)
        for statement in (WorkersSql.look, JobsSql.heads, JobsSql.claim, LanesSql.candidates)
    }
    assert plans[WorkersSql.look].walks == set()
    assert "lease_until" not in plans[WorkersSql.look].text
    for statement, plan in plans.items():
        assert "hashed SubPlan" in plan.text, statement
        by = "route_queue" if statement in (WorkersSql.look, JobsSql.heads) else "route_pkey"
        assert by in plan.text, statement


@pytest.mark.sample(1)
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
    for statement in (*split(fill), "analyze") if analyzed else split(fill):
        list(connection.execute(statement))
    full = {s: sqlite_plan(connection, rendered) for s, rendered in catalogue(GROUPS, "sqlite", "").items()}
    connection.close()
    assert problems(empty, ALSO_ON_SQLITE) == ""
    assert problems(full, ALSO_ON_SQLITE) == ""


async def test_sqlite_finds_where_jobs_are_without_lists_in_between(tmp_path: Path) -> None:
    """There are no locks to be taken table by table, so one join finds them."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    database = connect(url, Settings(url=url), Ports())
    await database.open()
    await database.close()
    connection = apsw.Connection(str(tmp_path / "store.db"))
    add_functions(connection, now_us=lambda *_: 1_800_000_000_000_000, hint=lambda *_: 1)
    statements = catalogue(KERNEL, "sqlite", "")
    for statement in (JobsSql.lock_places, JobsSql.try_lock_places):
        plan = sqlite_plan(connection, statements[statement]).text
        assert "MATERIALIZE" not in plan, plan
    connection.close()
