"""Dialects: one text of a statement, spelled for each database."""

from __future__ import annotations

from typing import get_args

import apsw
import pytest

from holdfast.errors import StatementDrift
from holdfast.kernel.sql.dialects import Dialect, spelled

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
    with pytest.raises(StatementDrift, match="is not a row lock"):
        sqlite(f"select seq from job {lock}")


@pytest.mark.parametrize("dialect", get_args(Dialect))
def test_no_rule_looks_into_a_quoted_text(dialect: Dialect) -> None:
    quoted = "'x for update' || 'rows(:ids)' || 'it''s = any(:ids), greatest, ctid' || 'as uuid)' || 'indexed by x'"
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
    text = "select 1 fetch first 3 rows with ties"
    assert postgres(text) == text


def test_membership_is_spelled_for_sqlite() -> None:
    assert sqlite("a = any(cast(:l as bigint[])) or b = any(:l) or c <> all(cast(:l as text[]))") == (
        "a in (select value from json_each(:l)) or b in (select value from json_each(:l)) "
        "or c not in (select value from json_each(:l))"
    )
    assert sqlite("a = any(array(select f(b) from c where d = any(array(select e)))) and g") == (
        "a in (select f(b) from c where d in (select e)) and g"
    )


def test_types_and_functions_have_other_names_on_sqlite() -> None:
    assert sqlite("cast(:a as uuid), cast(b as jsonb), cast(c as bigint), greatest(a, least(b, c)), t.ctid") == (
        "cast(:a as text), cast(b as text), cast(c as bigint), max(a, min(b, c)), t.rowid"
    )


def test_sqlite_compares_bytes_anyway() -> None:
    text = 'select a from b where a collate "C" >= :low order by a collate "C"'
    assert sqlite(text) == "select a from b where a >= :low order by a"
    assert postgres(text) == text


def test_postgres_is_spared_the_name_of_an_index_and_contains_by_an_operator() -> None:
    text = "select 1 from a indexed by a_b where json_contains(metadata, :metadata) and x"
    assert postgres(text) == "select 1 from a where metadata @> cast(:metadata as jsonb) and x"
    assert sqlite(text) == text


def test_a_value_of_an_object_is_read_by_an_operator_on_postgres() -> None:
    assert postgres("select json_value(metadata, :key)") == "select cast(metadata -> cast(:key as text) as text)"


def test_sqlite_asks_nothing_of_other_transactions() -> None:
    assert sqlite("select pg_advisory_xact_lock(hashtextextended(a, f(1))), pg_notify(b, 'x') from c") == (
        "select null, null from c"
    )
    assert sqlite("cast(cast(pg_current_xact_id() as text) as bigint)") == "cast(cast(0 as text) as bigint)"
    assert sqlite("a < pg_snapshot_xmin(pg_current_snapshot())") == "a < 9223372036854775807"


def test_a_lateral_probe_is_a_plain_join_on_sqlite() -> None:
    text = (
        "select a.n, k.m from a cross join lateral (select k.n, k.m from b k where k.n = a.n offset 0) as k where a.p"
    )
    assert sqlite(text) == "select a.n, k.m from a cross join b k on (k.n = a.n) where a.p"
    assert postgres(text) == text
    locked = (
        "select k.m from a cross join lateral (\n select k.m from b k where k.n = a.n for update skip locked\n) as k"
    )
    assert sqlite(locked) == "select k.m from a cross join b k on (k.n = a.n)"


def test_a_lateral_join_with_the_first_rows_of_a_query_is_a_join_with_those_rows_on_sqlite() -> None:
    text = "select a.n, k.m from a cross join lateral (select k.m from b k where k.n = a.n order by k.m limit :n) as k"
    assert sqlite(text) == (
        "select a.n, k.m from a cross join b k on (k.rowid) in "
        "(select k.rowid from b k where k.n = a.n order by k.m limit :n)"
    )
    connection = apsw.Connection(":memory:")
    connection.execute("create table a (n); create table b (n, m)")
    connection.execute(
        "insert into a values (1), (2), (3); insert into b values (1, 3), (1, 1), (1, 2), (2, 5), (4, 6)"
    )
    assert sorted(connection.execute(sqlite(text), {"n": 2})) == [(1, 1), (1, 2), (2, 5)]
    assert sorted(connection.execute(sqlite(text.replace(":n", "1")))) == [(1, 1), (2, 5)]


def test_a_table_without_rowids_is_addressed_by_its_primary_key() -> None:
    text = "from a cross join lateral (select k.seq from holdfast.ready k where k.route = a.n limit 1) as k"
    assert sqlite(text) == (
        "from a cross join holdfast.ready k on (k.route, k.priority, k.slot, k.seq) = "
        "(select k.route, k.priority, k.slot, k.seq from holdfast.ready k where k.route = a.n limit 1)"
    )
    text = (
        "delete from holdfast.ready where ctid = any(array(select k.ctid from a join holdfast.ready k on k.seq = a.n))"
    )
    assert sqlite(text) == (
        "delete from holdfast.ready where (route, priority, slot, seq) in "
        "(select k.route, k.priority, k.slot, k.seq from a join holdfast.ready k on k.seq = a.n)"
    )
    assert sqlite("delete from b where ctid = any(array(select k.ctid from b k))") == (
        "delete from b where (rowid) in (select k.rowid from b k)"
    )


@pytest.mark.parametrize(
    "join",
    [
        "cross join lateral (select k.n from b k where k.n = a.n offset 0) as l",
        "cross join lateral (select k.n + 1 as n from b k where k.n = a.n offset 0) as k",
        "cross join lateral (select k.n from b k join c on c.n = k.n where k.n = a.n offset 0) as k",
        "cross join lateral (select max(k.n) from b k where k.n = a.n) as k",
        "cross join lateral (select k.n from b k where k.n = a.n limit 1 offset 3) as k",
    ],
)
def test_a_lateral_join_that_no_rule_knows_is_refused(join: str) -> None:
    with pytest.raises(StatementDrift, match="lateral"):
        sqlite(f"select 1 from a {join}")


def test_what_an_insert_returns_can_be_selected() -> None:
    text = "with new as (insert into a (n) values (1) returning n, m) select n, m + 1 as p from new"
    assert sqlite(text) == "insert into a (n) values (1) returning n, m + 1 as p"
    assert postgres(text) == text


PLACES = (
    "with new as (insert into holdfast.job (id, route, priority, slot, lane, cost, tenant, deadline_at) values (:id) "
    "returning route, slot, seq, priority, case when lane is not null then cost end as cost, deadline_at, lane, "
    "case when slot > 0 then tenant end as tenant), "
    "placed as (insert into holdfast.ready (route, slot, seq, token, priority, attempts, rescues, cost, deadline_at, "
    "lane, tenant) select route, slot, seq, 0, priority, 0, 0, cost, deadline_at, lane, tenant from new) "
    "select seq from new"
)
PLACES_PLAIN = (
    "with new as (insert into holdfast.job (id, route, priority, deadline_at) values (:id) "
    "returning route, seq, priority, deadline_at), "
    "placed as (insert into holdfast.ready (route, slot, seq, token, priority, attempts, rescues, deadline_at) "
    "select route, 0, seq, 0, priority, 0, 0, deadline_at from new) select seq from new"
)


@pytest.mark.parametrize("text", [PLACES, PLACES_PLAIN])
def test_sqlite_places_a_new_job_by_a_trigger(text: str) -> None:
    insert = text.removeprefix("with new as (").partition(" returning ")[0]
    assert sqlite(text) == f"{insert} returning seq"
    assert postgres(text) == text
    for other in (text.replace("holdfast.job", "holdfast.run"), text.replace("holdfast.ready", "holdfast.ended")):
        with pytest.raises(StatementDrift, match="SQLite has no CTE that changes rows"):
            sqlite(other)


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        (PLACES, "seq, 0, priority", "seq, 1, priority"),
        (PLACES, "lane, tenant from new", "lane, null from new"),
        (PLACES, "case when slot > 0 then tenant end as tenant", "tenant"),
        (PLACES, "case when lane is not null then cost end as cost", "cost"),
        (PLACES, ", tenant) select", ") select"),
        (PLACES, "from new)", "from new where seq > 7)"),
        (PLACES, "(id, route", "(id, due_at, route"),
        (PLACES_PLAIN, "(id, route", "(id, slot, route"),
        (PLACES_PLAIN, "(id, route", "(id, lane, route"),
        (PLACES_PLAIN, "rescues, deadline_at) select route, 0, seq, 0, priority, 0, 0, deadline_at from", "rescues) "
         "select route, 0, seq, 0, priority, 0, 0 from"),
        (PLACES_PLAIN, "from new)", "from job)"),
    ],
)  # fmt: skip
def test_what_the_trigger_would_place_otherwise_is_refused(text: str, old: str, new: str) -> None:
    assert old in text
    with pytest.raises(StatementDrift, match="does not write what the trigger of job writes"):
        sqlite(text.replace(old, new))


def test_sqlite_is_spared_ties_within_a_query() -> None:
    text = "select n from (select n from a order by n fetch first :n rows with ties) as t order by n, m limit :n"
    assert sqlite(text) == "select n from (select n from a order by n) as t order by n, m limit :n"
    assert postgres(text) == text


def test_what_is_written_beside_is_written_first_on_sqlite() -> None:
    text = "with one as (insert into a values (1)), two as (select 2 as n) insert into b select n from two"
    assert sqlite(text) == "insert into a values (1);\nwith two as (select 2 as n) insert into b select n from two"
    assert sqlite("with one as (delete from a) select 1") == "delete from a;\nselect 1"
    assert postgres(text) == text


def test_a_move_is_an_insert_and_a_delete_on_sqlite() -> None:
    text = (
        "with gone as (delete from a where n = any(array(select n from a limit 3 for update)) returning *) "
        "insert into b (n, m) select g.n, m from gone g returning n"
    )
    assert sqlite(text) == (
        "insert into b (n, m) select g.n, m from a as g where n in (select n from a order by n limit 3);\n"
        "delete from a where n in (select n from a order by n limit 3) returning n"
    )
    assert sqlite("with gone as (delete from a where n = 1 returning n) insert into b (n) select n from gone") == (
        "insert into b (n) select n from a as gone where n = 1;\ndelete from a where n = 1"
    )


@pytest.mark.parametrize(
    ("query", "ordered"),
    [
        ("select k.n from a k limit :n", "select k.n from a k order by k.n limit :n"),
        ("select k.n from a k order by k.m limit :n", "select k.n from a k order by k.m, k.n limit :n"),
        ("select k.n from a k order by k.m,\n k.n\nlimit 3", "select k.n from a k order by k.m,\n k.n\nlimit 3"),
        ("select n from a order by n limit 3", "select n from a order by n limit 3"),
        ("select n from a order by f(m, n) limit 3", "select n from a order by f(m, n), n limit 3"),
        ("select n from a order by n + 0 limit 3", "select n from a order by n + 0, n limit 3"),
        (
            "select n from a where m = (select m from c order by p limit 1) limit :limit",
            "select n from a where m = (select m from c order by p, m limit 1) order by n limit :limit",
        ),
        ("select n from a where :limit > 0", "select n from a where :limit > 0"),
    ],
)
def test_both_halves_of_a_move_find_the_same_rows(query: str, ordered: str) -> None:
    """The condition is evaluated twice: a limit without a total order could choose other rows each time."""
    text = (
        f"with gone as (delete from a where n = any(array({query})) returning *) insert into b (n) select n from gone"
    )
    assert (
        sqlite(text)
        == f"insert into b (n) select n from a as gone where n in ({ordered});\ndelete from a where n in ({ordered})"
    )
    assert postgres(text) == text


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("(n, m) in (select n, m from a order by n limit 3)", "must select one column"),
        ("n in (select n + 1 from a order by n limit 3)", "must select one column"),
        ("n = 1 limit 3", "belongs to no query"),
    ],
)
def test_a_move_with_a_limit_and_no_total_order_is_refused(condition: str, message: str) -> None:
    with pytest.raises(StatementDrift, match=message):
        sqlite(f"with gone as (delete from a where {condition} returning n) insert into b (n) select n from gone")


def test_a_move_that_chooses_by_where_it_moves_to_is_refused() -> None:
    """The insert would change what the delete chooses."""
    condition = "n = 1 and not exists (select 1 from holdfast.b b where b.n = a.n)"
    with pytest.raises(StatementDrift, match=r"'gone' is chosen by holdfast\.b"):
        sqlite(
            f"with gone as (delete from holdfast.a where {condition} returning n) "
            f"insert into holdfast.b (n) select n from gone"
        )


@pytest.mark.parametrize(
    "text",
    [
        "with gone as (delete from a where n = 1 returning n) select n from gone",
        "with new as (update a set n = 1 returning n) select n from new",
        "with new as (insert into a values (1) returning n) select n from new where n > 0",
        "with new as (insert into a values (1) returning n) insert into b (n) select n from new",
        "with gone as (delete from a where n = 1 returning n) insert into b (n) select n from gone where n > 0",
    ],
)
def test_any_other_change_within_a_query_is_refused_for_sqlite(text: str) -> None:
    with pytest.raises(StatementDrift, match="SQLite has no CTE that changes rows"):
        sqlite(text)


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
    ],
)
def test_what_sqlite_does_not_know_and_no_rule_knows_is_refused(use: str) -> None:
    with pytest.raises(StatementDrift, match=r"no rule gives .* to sqlite"):
        sqlite(use)


@pytest.mark.parametrize("use", ["json_contains(f(a, b), :c)", "json_value(f(a), :c)", "json_each(:l)"])
def test_what_postgres_does_not_know_and_no_rule_knows_is_refused(use: str) -> None:
    with pytest.raises(StatementDrift, match=r"no rule gives .* to postgres"):
        postgres(use)


def test_a_parenthesis_that_is_not_closed_is_refused() -> None:
    with pytest.raises(StatementDrift, match="not closed"):
        sqlite("a = any(array(select 1)")
