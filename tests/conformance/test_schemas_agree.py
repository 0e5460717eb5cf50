"""The two databases have the same tables, as far as their types go."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.clock import Ports
from holdfast.kernel import migrate
from holdfast.kernel.drivers import connect
from holdfast.kernel.sql import Dialect
from holdfast.settings import Settings
from tests.support.schemas import Table, Tables, objects_at, tables_at

NAMES = {
    *("schema", "cluster", "queue", "route", "job", "attempt", "idempotency", "worker", "duty", "lane", "schedule"),
    *("step", "channel", "signal", "cancellation", "reader"),
    *("agent", "agent_version", "session", "run", "message", "block", "blob", "turn", "tool_call", "run_event"),
    *("provider_lane", "inquiry", "steer", "batch", "batch_request", "compaction"),
    *("budget", "budget_use", "reservation"),
}


@pytest.fixture(scope="module")
def sqlite_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("schema") / "store.db"
    url = f"sqlite:///{path}"

    async def make() -> None:
        database = connect(url, Settings(url=url), Ports())
        await database.open()
        await database.close()

    asyncio.run(make())
    return url


@pytest.fixture
def both(sqlite_url: str, postgres_url: str) -> tuple[Tables, Tables]:
    return tables_at(sqlite_url), tables_at(postgres_url)


def test_the_tables_are_the_same(both: tuple[Tables, Tables]) -> None:
    sqlite, postgres = both
    assert set(sqlite) == set(postgres) == NAMES


@pytest.mark.parametrize("part", Table._fields)
def test_each_table_agrees_in_its(both: tuple[Tables, Tables], part: str) -> None:
    sqlite, postgres = both
    for name in sorted(NAMES):
        assert getattr(sqlite[name], part) == getattr(postgres[name], part), name


def test_the_comparison_sees_what_it_compares(both: tuple[Tables, Tables]) -> None:
    job = both[0]["job"]
    assert len(job.columns) > 30
    assert len(job.checks) == 9
    assert {index.name for index in job.indexes} >= {"job_id", "job_claim", "job_running", "job_due"}
    assert next(index for index in job.indexes if index.name == "job_claim") == (
        "job_claim",
        False,
        ("route", "priority", "slot", "seq"),
        "state='pending'andgateisnull",
    )


def test_the_readable_views_are_the_same(sqlite_url: str, postgres_url: str) -> None:
    views = [{name for name in objects_at(url) if name.startswith("view ")} for url in (sqlite_url, postgres_url)]
    assert (
        views[0]
        == views[1]
        == {
            *("view job_readable", "view attempt_readable", "view worker_readable", "view paused_route", "view run_now")
        }
    )


def test_no_index_holds_what_a_renewal_changes(both: tuple[Tables, Tables]) -> None:
    for tables in both:
        for index in tables["job"].indexes:
            assert "lease_until" not in index.columns
            assert "lease_until" not in index.predicate


def test_the_clock_is_stable_so_that_an_index_can_be_asked_for_a_time(postgres_url: str) -> None:
    assert " STABLE " in objects_at(postgres_url)["function now_us"]


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_every_migration_says_what_code_it_still_serves(dialect: Dialect) -> None:
    assert all(1 <= m.oldest_code <= m.number for m in migrate.migrations(dialect))
