"""The two databases have the same tables, as far as their types go."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import apsw
import pytest

from holdfast.clock import Ports
from holdfast.kernel import migrate
from holdfast.kernel.drivers import connect
from holdfast.kernel.sql import Dialect
from holdfast.kernel.sql.dialects import KEYS_WITHOUT_ROWID, PLACED
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


def test_the_rules_of_dialects_know_every_table_without_rowids(sqlite_url: str) -> None:
    connection = apsw.Connection(sqlite_url.removeprefix("sqlite:///"))
    found: dict[str, tuple[str, ...]] = {}
    for table, column in connection.execute(
        "select t.name, c.name from pragma_table_list as t join pragma_table_info(t.name) as c on c.pk > 0 "
        "where t.schema = 'main' and t.wr = 1 order by t.name, c.pk"
    ):
        found[table] = (*found.get(table, ()), column)
    connection.close()
    assert found == KEYS_WITHOUT_ROWID


def test_the_rules_of_dialects_know_what_the_trigger_of_jobs_writes(sqlite_url: str) -> None:
    connection = apsw.Connection(sqlite_url.removeprefix("sqlite:///"))
    ((text,),) = connection.execute("select sql from sqlite_schema where type = 'trigger' and name = 'job_ready'")
    connection.close()
    written = re.fullmatch(
        r"create trigger job_ready after insert on job when new.due_at is null begin "
        r"insert into ready \((.*?)\) values \((.*)\); end",
        " ".join(text.split()),
        re.I,
    )
    assert written is not None, text
    columns, values = written[1].split(", "), written[2].replace("new.", "").split(", ")
    assert dict(zip(columns, values, strict=True)) == PLACED


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
