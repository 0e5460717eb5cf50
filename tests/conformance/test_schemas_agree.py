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
from tests.support.table_owners import KEEPS_A_NAME, OWNERS, SHARED

_WHOSE = {"tenant", "space"}  # columns that name a tenant


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
    assert set(sqlite) == set(postgres) == OWNERS.keys()


def test_a_table_that_says_whose_its_rows_are_is_erased_or_says_why_not(both: tuple[Tables, Tables]) -> None:
    for tables in both:
        whose = {name for name, table in tables.items() if _WHOSE & {column.name for column in table.columns}}
        assert {name for name in whose if OWNERS[name].erased == SHARED} == set()
        assert whose | {"budget"} >= KEEPS_A_NAME  # which names a tenant as its subject


@pytest.mark.parametrize("part", Table._fields)
def test_each_table_agrees_in_its(both: tuple[Tables, Tables], part: str) -> None:
    sqlite, postgres = both
    for name in sorted(OWNERS):
        assert getattr(sqlite[name], part) == getattr(postgres[name], part), name


def test_the_comparison_sees_what_it_compares(both: tuple[Tables, Tables]) -> None:
    later = both[0]["later"]
    assert len(later.columns) > 12
    assert len(later.checks) == 1
    assert later.key == ("seq",)
    assert {index.name for index in later.indexes} >= {"later_route", "later_due", "later_channel", "later_blocked"}
    assert next(index for index in later.indexes if index.name == "later_blocked") == (
        "later_blocked",
        False,
        ("lane", "priority", "slot", "seq"),
        "state='blocked'",
    )


def test_the_readable_views_are_the_same(sqlite_url: str, postgres_url: str) -> None:
    views = [{name for name in objects_at(url) if name.startswith("view ")} for url in (sqlite_url, postgres_url)]
    assert (
        views[0]
        == views[1]
        == {
            *("view job_now", "view attempt_now", "view run_now", "view paused_route"),
            *("view job_readable", "view attempt_readable", "view worker_readable"),
            *("view runs", "view run_attempts"),
            *("view worker_registry", "view work_pool"),
        }
    )


def test_no_index_holds_what_a_renewal_changes(both: tuple[Tables, Tables]) -> None:
    for tables in both:
        for index in tables["lease"].indexes:
            assert "lease_until" not in index.columns
            assert "lease_until" not in index.predicate


def test_the_clock_is_stable_so_that_an_index_can_be_asked_for_a_time(postgres_url: str) -> None:
    assert " STABLE " in objects_at(postgres_url)["function now_us"]


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_every_migration_says_what_code_it_still_serves(dialect: Dialect) -> None:
    assert all(1 <= m.oldest_code <= m.number for m in migrate.migrations(dialect))
