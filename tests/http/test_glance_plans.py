"""Plans of what pages read at a glance: no table is read from end to end, on either database."""

from __future__ import annotations

import re
from pathlib import Path

import apsw
import psycopg
import pytest

from holdfast.agents.compaction.records import CompactionsSql
from holdfast.agents.statements import MarkedRunsSql, OverviewsSql
from holdfast.clock import Ports
from holdfast.kernel.drivers import connect
from holdfast.kernel.drivers.sqlite_file import add_functions
from holdfast.kernel.sql import Dialect, Rendered, catalogue, split
from holdfast.settings import Settings
from tests.agents.test_retention_plans import FILL, NUMBERS
from tests.support.plans import postgres_plan, sqlite_plan

LARGE = ("run", "message", "turn", "tool_call", "session")
# A look that a limit ends walks an index of what it looks at.
LIMITED = re.compile(r"SCAN run USING INDEX run_(?:listed|tenant)")


def glances(dialect: Dialect, schema: str) -> list[tuple[str, Rendered]]:
    found = catalogue((CompactionsSql, OverviewsSql, MarkedRunsSql), dialect, schema)
    ours = [*OverviewsSql.declared.values(), *MarkedRunsSql.declared.values(), CompactionsSql.recent_usage]
    return [(statement.name, found[statement]) for statement in ours]


@pytest.mark.long
def test_postgres_reads_glances_by_indexes(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as server:
        server.execute("set enable_seqscan = off")  # as the runtime does
        server.execute(FILL.format(numbers=NUMBERS).encode())
        server.execute("analyze")
        for name, rendered in glances("postgres", "holdfast"):
            plan = postgres_plan(server, rendered, generic=True).text
            assert not [table for table in LARGE if f"Seq Scan on {table} " in plan], f"{name}\n{plan}"


@pytest.mark.long
async def test_sqlite_reads_glances_by_indexes(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    database = connect(url, Settings(url=url), Ports())
    await database.open()
    await database.close()
    connection = apsw.Connection(str(tmp_path / "store.db"))
    add_functions(connection, now_us=lambda *_: 1_800_000_000_000_000, hint=lambda *_: 1)
    for text in (*split(FILL.format(numbers=NUMBERS).replace("holdfast.", "")), "analyze"):
        list(connection.execute(text))
    for name, rendered in glances("sqlite", ""):
        plan = sqlite_plan(connection, rendered).text
        walks = [
            step for step in plan.splitlines() if re.match(r"SCAN (?:r|m|n|c|a|s|t|run|message|tool_call)\b", step)
        ]
        assert [step for step in walks if not LIMITED.match(step)] == [], f"{name}\n{plan}"
    connection.close()
