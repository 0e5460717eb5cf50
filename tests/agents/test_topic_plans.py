"""Topics: a reader that has read all events but the last pays for the last, however many there were before."""

from __future__ import annotations

from pathlib import Path

import apsw
import psycopg
import pytest

from holdfast.agents.statements import EventsSql
from holdfast.clock import Ports
from holdfast.kernel.drivers import connect
from holdfast.kernel.drivers.sqlite_file import add_functions
from holdfast.kernel.sql import catalogue
from holdfast.settings import Settings
from tests.support.plans import postgres_plan, sqlite_plan


async def test_sqlite_finds_the_next_events_by_index(tmp_path: Path) -> None:
    """All its events have the transaction 0, so the place must be part of the search."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    database = connect(url, Settings(url=url), Ports())
    await database.open()
    await database.close()
    connection = apsw.Connection(str(tmp_path / "store.db"))
    add_functions(connection, now_us=lambda *_: 1_800_000_000_000_000, hint=lambda *_: 1)
    plan = sqlite_plan(connection, catalogue((EventsSql,), "sqlite", "")[EventsSql.topics_after]).text
    connection.close()
    assert "run_event_topic (epoch=? AND tx=? AND pos>?)" in plan, plan
    assert "run_event_topic (epoch=? AND tx>?)" in plan, plan


@pytest.mark.parametrize("filled", [False, True], ids=["empty", "filled"])
def test_postgres_finds_the_next_events_by_index(postgres_url: str, filled: bool) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as server:
        server.execute("set enable_seqscan = off")  # as the runtime does
        if filled:
            server.execute(
                "insert into holdfast.run_event (run, seq, at, type, data, topic, epoch, tx) "
                "select 'r', n, n, 't', '{}', 'topic', 1, n from generate_series(1, 20000) as g (n); analyze"
            )
        statement = catalogue((EventsSql,), "postgres", "holdfast")[EventsSql.topics_after]
        plan = postgres_plan(server, statement, generic=True).text
    assert plan.count("Index Scan using run_event_topic") == 3, plan
    assert "Bitmap" not in plan, plan
