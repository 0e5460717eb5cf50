"""`holdfast sql`: the statements that the databases get, and how they would run them."""

from __future__ import annotations

import json
from pathlib import Path

import apsw
import pytest

from holdfast.kernel.drivers.sqlite_file import add_functions
from tests.support.commands import holdfast

_KEYS = {"name", "file", "cardinality", "texts"}


def test_all_statements_are_listed(tmp_path: Path) -> None:
    listed = json.loads(holdfast("sql", "--json", cwd=tmp_path).out)
    assert all(each.keys() == _KEYS for each in listed)
    places = {(each["name"], each["file"]): each for each in listed}
    assert len(places) == len(listed) > 700
    claim = places["claim", "kernel/sql/jobs.sql"]
    assert (claim["cardinality"], claim["texts"]) == ("many", 2)
    assert places["now", "kernel/sql/jobs.sql"]["texts"] == 1
    folders = {file.rpartition("/")[0] for _, file in places}
    assert folders == {"kernel/sql", "agents/sql", "access/sql", "resp/sql"}
    _, *rows = holdfast("sql", cwd=tmp_path).out.splitlines()
    assert [row.split()[:2] for row in rows] == [[each["name"], each["file"]] for each in listed]


def test_a_statement_is_printed_as_each_database_gets_it(tmp_path: Path) -> None:
    said = holdfast("sql", "take_notes", cwd=tmp_path)
    assert (
        said.out
        == """-- take_notes, from kernel/sql/lanes.sql; it answers with rows.

-- on postgres
-- Under the locks of the lanes.
-- $1 names
delete from holdfast.lane_note where lane = any(cast($1 as text[]))
returning id, lane, declares, concurrency, interval_us, burst;

-- on sqlite
-- Under the locks of the lanes.
delete from lane_note where lane in (select value from json_each(:names))
returning id, lane, declares, concurrency, interval_us, burst;
"""
    )
    assert list(tmp_path.iterdir()) == [], "it makes no database"


def test_what_is_printed_can_be_pasted(tmp_path: Path) -> None:
    """Into a shell whose connection has the functions that Holdfast adds."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    holdfast("migrate", "--url", url)
    connection = apsw.Connection(str(tmp_path / "store.db"))
    add_functions(connection, now_us=lambda: 7, hint=lambda _: 1)
    for name in ("wake", "finish", "unblock", "marked"):
        printed = holdfast("sql", name, cwd=tmp_path).out.partition("-- on sqlite")[2]
        values = dict.fromkeys(json.loads(holdfast("sql", name, "--json").out)["sqlite"]["parameters"], 1)
        list(connection.execute(f"begin; {printed} rollback", values))
    connection.close()


def test_lists_of_records_are_named_with_their_fields(tmp_path: Path) -> None:
    said = json.loads(holdfast("sql", "charge", "--json", cwd=tmp_path).out)
    fields = ["charges.name", "charges.free_at", "charges.opens_at", "charges.charged_at"]
    assert said["postgres"]["parameters"] == fields
    assert said["sqlite"]["parameters"] == ["charges"]
    assert "plan" not in said["sqlite"]
    out = holdfast("sql", "charge", cwd=tmp_path).out
    assert "-- $1 charges.name, $2 charges.free_at, $3 charges.opens_at, $4 charges.charged_at\n" in out
    assert "-- :charges is a JSON list, and each of its items a list: name, free_at, opens_at, charged_at\n" in out


@pytest.mark.parametrize("name", ["wake", "find_job", "now", "add_messages", "enqueue", "find_live"])
def test_a_plan_is_that_of_the_database(empty: str, dialect: str, name: str) -> None:
    """Of statements with one text and with two, with and without parameters, that read and that write."""
    said = json.loads(holdfast("sql", name, "--explain", "--url", empty, "--json").out)
    assert said.keys() == {*_KEYS, dialect}
    steps = said[dialect]["plan"]
    printed = holdfast("sql", name, "--explain", "--url", empty).out
    assert [line.removeprefix("-- ") for line in printed.splitlines()[-len(steps) :]] == (steps or [printed])
    if name == "wake":
        assert any("later_due" in step for step in steps)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("clame",), 2, "there is no statement 'clame'. Did you mean 'claim'? `holdfast sql` lists them."),
        (("--explain",), 2, "--explain takes the name of a statement"),
        (("list_keys",), 2, "several files have a statement 'list_keys': keys.list_keys, keyspace.list_keys"),
    ],
)
def test_what_names_no_statement_is_refused(
    tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    assert message in holdfast("sql", *arguments, cwd=tmp_path).refused(code)
