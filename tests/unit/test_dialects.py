"""Dialects: one text of a statement, spelled for each database."""

from __future__ import annotations

from typing import get_args

import apsw
import pytest

from holdfast.errors import StatementDrift
from holdfast.kernel.sql import Dialect, spelled

FIELDS = {"items": ("id", "name")}


def sqlite(text: str) -> str:
    return spelled(text, FIELDS, "sqlite")


def postgres(text: str) -> str:
    return spelled(text, FIELDS, "postgres")


@pytest.mark.parametrize(
    "lock",
    [
        "for update",
        "for no key update",
        "for share",
        "for key share",
        "for update skip locked",
        "for update of j",
        "for update of j skip locked",
        "for update\n    skip locked",
    ],
)
def test_sqlite_is_spared_every_row_lock(lock: str) -> None:
    text = f"select 1 from (select seq from job j order by seq limit 3 {lock}) as k"
    assert sqlite(text) == "select 1 from (select seq from job j order by seq limit 3) as k"
    assert postgres(text) == text


@pytest.mark.parametrize("lock", ["for update nowait", "for x", "order by seq skip locked"])
def test_a_lock_that_no_rule_knows_is_refused(lock: str) -> None:
    with pytest.raises(StatementDrift, match=r"no rule gives .* to sqlite"):
        sqlite(f"select seq from job {lock}")


@pytest.mark.parametrize("dialect", get_args(Dialect))
def test_no_rule_looks_into_a_quoted_text(dialect: Dialect) -> None:
    quoted = (
        "'x for update' || 'rows(:ids)' || 'it''s = any(:ids), greatest(, ctid' || 'as uuid)' || 'indexed by x' || '@x'"
    )
    assert spelled(f"select {quoted}", FIELDS, dialect) == f"select {quoted}"


@pytest.mark.parametrize("dialect", get_args(Dialect))
def test_no_rule_looks_into_a_comment(dialect: Dialect) -> None:
    text = "select 1 -- for nobody, rows(of what, it's\nas one -- = any(array("
    assert spelled(text, FIELDS, dialect) == "select 1 \nas one "


def test_a_list_of_records_is_a_table() -> None:
    text = "select r.id from rows(:items) as r (id bigint, name text) where r.name = :name"
    assert postgres(text) == (
        "select r.id from unnest(cast(:items.id as bigint[]), cast(:items.name as text[])) as r (id, name) "
        "where r.name = :name"
    )
    assert sqlite(text) == (
        "select r.id from (select list.value ->> :items.id as id, list.value ->> :items.name as name "
        "from json_each(:items) as list) as r where r.name = :name"
    )


def test_a_list_is_a_table_of_one_column() -> None:
    text = "select r.seq from rows(:seqs) as r (seq bigint)"
    assert postgres(text) == "select r.seq from unnest(cast(:seqs as bigint[])) as r (seq)"
    assert sqlite(text) == "select r.seq from (select list.value as seq from json_each(:seqs) as list) as r"


def test_lists_of_one_length_are_a_table_with_a_column_each() -> None:
    text = "select m.seq, m.at from rows(:seqs, :ats) as m (seq bigint, at bigint) order by m.seq"
    assert postgres(text) == (
        "select m.seq, m.at from unnest(cast(:seqs as bigint[]), cast(:ats as bigint[])) as m (seq, at) order by m.seq"
    )
    connection = apsw.Connection(":memory:")
    rows = connection.execute(sqlite(text), {"seqs": "[3, 1, 2]", "ats": "[30, 10, null]"}).fetchall()
    assert rows == [(1, 10), (2, None), (3, 30)]


def test_the_rows_of_a_table_can_be_numbered() -> None:
    text = "select r.seq, r.place from rows(:seqs) with ordinality as r (seq bigint, place) order by r.place"
    assert postgres(text) == (
        "select r.seq, r.place from unnest(cast(:seqs as bigint[])) with ordinality as r (seq, place) order by r.place"
    )
    connection = apsw.Connection(":memory:")
    assert connection.execute(sqlite(text), {"seqs": "[30, 10]"}).fetchall() == [(30, 1), (10, 2)]


@pytest.mark.parametrize(
    ("use", "message"),
    [
        ("rows(:items)", "is not of the form"),
        ("rows(:items) as r", "is not of the form"),
        ("rows (:items) as r (id bigint)", "is not of the form"),
        ("rows(:items) as r (id)", "a type for each column"),
        ("rows(:items) as r (id bigint, place)", "a type for each column"),
        ("rows(:items) with ordinality as r (id bigint, place bigint)", "a type for each column"),
        ("rows(items) as r (id bigint)", "needs parameters"),
        ("rows(:items.id) as r (id bigint)", "needs parameters"),
        ("rows(:items) as r (nickname text)", ":items.nickname is not a field"),
        ("rows(:seqs) as r (seq bigint, token bigint)", "one column for each list"),
        ("rows(:seqs, :tokens) as r (seq bigint)", "one column for each list"),
    ],
)
@pytest.mark.parametrize("dialect", get_args(Dialect))
def test_a_table_that_no_rule_knows_is_refused(use: str, message: str, dialect: Dialect) -> None:
    with pytest.raises(StatementDrift, match=message):
        spelled(f"select 1 from {use}", FIELDS, dialect)


def test_a_window_or_a_fetch_may_say_rows() -> None:
    text = "select 1 fetch first 3 rows only"
    assert postgres(text) == sqlite(text) == text


def test_membership_is_spelled_for_sqlite() -> None:
    assert sqlite("a = any(cast(:l as bigint[])) or b = any(:l) or c <> all(cast(:l as text[]))") == (
        "a in (select value from json_each(:l)) or b in (select value from json_each(:l)) "
        "or c not in (select value from json_each(:l))"
    )
    assert sqlite("a = any(array(select f(b) from c where d = any(array(select e)))) and g") == (
        "a in (select f(b) from c where d in (select e)) and g"
    )


def test_types_and_functions_have_other_names_on_sqlite() -> None:
    text = "cast(:a as uuid), cast(b as jsonb), cast(c as bigint), greatest(a, least(b, c)), f.least"
    assert sqlite(text) == "cast(:a as text), cast(b as text), cast(c as bigint), max(a, min(b, c)), f.least"
    assert postgres(text) == text


@pytest.mark.parametrize(
    "use",
    [
        "a = any( :l )",
        "a = any (:l)",
        "a > any(:l)",
        "a <> all (:l)",
        "array(select 1)",
        "select n from unnest(cast(:l as bigint[])) as r (n)",
        "select n from a order by n fetch first :n rows with ties",
        "select n from a left join lateral (select 1) as k on true",
        "with a as (select 1), b as (delete from c returning n) select n from b",
        "with a as (select 1), b as (\n  update c set n = 1) select 1",
        "pg_backend_pid()",
        "a @> b",
        "delete from a where ctid = 1",
        'select a from b order by a collate "C"',
        "strpos(a, b)",
        "with gone as (delete from a where n = 1 returning n) insert into b (n) select n from gone",
    ],
)
def test_what_sqlite_does_not_know_and_no_rule_knows_is_refused(use: str) -> None:
    with pytest.raises(StatementDrift, match=r"no rule gives .* to sqlite"):
        sqlite(use)


@pytest.mark.parametrize(
    "use",
    [
        "json_contains(f(a, b), :c)",
        "json_value(f(a), :c)",
        "json_each(:l)",
        "from a indexed by b",
        "a.rowid",
        "instr(a, b)",
    ],
)
def test_what_postgres_does_not_know_and_no_rule_knows_is_refused(use: str) -> None:
    with pytest.raises(StatementDrift, match=r"no rule gives .* to postgres"):
        postgres(use)


def test_a_parenthesis_that_is_not_closed_is_refused() -> None:
    with pytest.raises(StatementDrift, match="not closed"):
        sqlite("a = any(array(select 1)")
