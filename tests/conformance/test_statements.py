"""Statements: the SQL files and the Python that declares them agree, and both databases accept what they say."""

from __future__ import annotations

import re
import types
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

import pytest

from holdfast import access, agents, kernel
from holdfast.access.records import GROUPS as ACCESS
from holdfast.agents.statements import GROUPS as AGENTS
from holdfast.errors import StatementDrift
from holdfast.kernel.ids import JobId
from holdfast.kernel.sql import (
    Dialect,
    Exec,
    Many,
    One,
    Rendered,
    Statement,
    Statements,
    catalogue,
    render,
    render_lent,
    sources,
)
from holdfast.kernel.statements import GROUPS as KERNEL
from tests.support.stores import Store

GROUPS = (*KERNEL, *AGENTS, *ACCESS)
DIALECTS: tuple[Dialect, ...] = ("sqlite", "postgres")


class Item(NamedTuple):
    id: int
    name: str


def group(file: Path, text: str, **declared: Any) -> type[Statements]:
    """A small file of statements, and the class that declares them."""
    file.write_text(text)
    made = types.new_class(
        "Small",
        (Statements,),
        {"file": str(file), "rows": {"items": Item}},
        lambda body: body.update(__annotations__=declared),
    )
    assert issubclass(made, Statements)
    return made


GOOD = """
-- What the file is about.

-- name: find :one
select id, name from holdfast.item where id = :id;

-- name: add :exec on postgres
insert into holdfast.item select * from unnest(cast(:items.id as bigint[]), cast(:items.name as text[]));

-- name: add :exec on sqlite
-- Forked for the list.
insert into holdfast.item select value ->> :items.id, value ->> :items.name from json_each(:items);
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "small.sql"


def bind(made: type[Statements]) -> dict[str, dict[str, Rendered]]:
    return {d: {s.name: r for s, r in catalogue((made,), d, "hf").items()} for d in DIALECTS}


def test_a_file_and_its_class_that_agree_are_rendered_for_each_database(file: Path) -> None:
    made = bind(group(file, GOOD, find=One[Item], add=Exec))
    assert made["postgres"]["find"].texts == ("select id, name from hf.item where id = $1",)
    assert made["sqlite"]["find"].texts == ("select id, name from item where id = :id",)
    assert made["postgres"]["add"].parameters == (("items", 0), ("items", 1))
    assert "value ->> 0, value ->> 1 from json_each(:items)" in made["sqlite"]["add"].texts[0]


PARTS = """
-- What the file is about.

-- part: contains on postgres
name @> cast(:name as jsonb)

-- part: contains on sqlite
-- Its own reason.
json_contains(name, :name)

-- part: found
id = :id and @contains

-- name: find :one
select id, name from holdfast.item where @found;

-- name: add :exec
insert into holdfast.item (id) values (:id);
"""


def test_a_part_may_have_a_text_for_each_database(file: Path) -> None:
    made = bind(group(file, PARTS, find=One[Item], add=Exec))
    assert made["postgres"]["find"].texts == (
        "select id, name from hf.item where id = $1 and name @> cast($2 as jsonb)",
    )
    assert made["sqlite"]["find"].texts == ("select id, name from item where id = :id and json_contains(name, :name)",)
    assert made["sqlite"]["add"].texts == ("insert into item (id) values (:id)",)
    assert [source.dialect for source in sources(str(file))] == ["sqlite", "postgres", None]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD.replace("find", "fetch"), "disagree on sqlite about: fetch, find"),
        (GOOD + "\n-- name: extra :exec\nselect 1;\n", "disagree on sqlite about: extra"),
        (GOOD.replace("-- name: add :exec on postgres", "-- name: add :exec on sqlite"), "twice for sqlite"),
        (GOOD.replace(":one", ":many"), r"small.sql:find is :many in SQL and one in Python"),
        (GOOD.replace("json_each(:items)", "json_each(:items), json_each(:more)"), "add .* take different parameters"),
        (GOOD.replace(":items.name", ":items.nickname"), ":items.nickname is not a field"),
        (GOOD.replace(":items.name", ":others.name"), ":others.name is not a field"),
        (GOOD.split("-- name: add :exec on sqlite", maxsplit=1)[0], "disagree on sqlite about: add"),
        (GOOD.replace("where id", "where @who and id"), "small.sql:find: '@who' is not a part of this file"),
        (PARTS.replace("contains(name, :name)", "contains(name, :more)"), "find .* take different parameters"),
    ],
    ids=[
        "another name",
        "one too many",
        "twice for one database",
        "cardinality",
        "uneven forks",
        "unknown field",
        "unknown rows",
        "a fork without its twin",
        "an unknown part",
        "uneven parts",
    ],
)
def test_a_file_that_drifted_from_its_class_is_refused(file: Path, text: str, message: str) -> None:
    made = group(file, text, find=One[Item], add=Exec)
    with pytest.raises(StatementDrift, match=message):
        bind(made)


def test_parameters_are_numbered_once_in_order_of_appearance() -> None:
    rendered = render("select :b, :a, :b, :items.name", {"items": Item._fields}, "postgres", "hf")
    assert rendered.texts == ("select $1, $2, $1, $3",)
    assert [parameter.name for parameter in rendered.parameters] == ["b", "a", "items"]


def test_what_looks_like_a_parameter_in_text_or_comment_is_none() -> None:
    text = "-- not :this\nselect 'nor :that' || :one -- nor :these\n, '-- text' ;"
    for dialect in DIALECTS:
        rendered = render(text, {}, dialect, "hf")
        assert [parameter.name for parameter in rendered.parameters] == ["one"]
        assert "'nor :that'" in rendered.texts[0]
        assert "'-- text'" in rendered.texts[0]
        assert "this" not in rendered.texts[0]


def test_membership_in_a_list_is_spelled_for_each_database() -> None:
    text = "select 1 where a = any(cast(:list as bigint[])) or b = any(:list)"
    assert render(text, {}, "postgres", "hf").texts == ("select 1 where a = any(cast($1 as bigint[])) or b = any($1)",)
    member = "in (select value from json_each(:list))"
    assert render(text, {}, "sqlite", "hf").texts == (f"select 1 where a {member} or b {member}",)


def test_a_lent_connection_is_given_the_placeholders_of_its_library() -> None:
    text = "select :b, :a, :b, :items.name from holdfast.item where x like '50%' -- 100%"
    dollar = render_lent(text, {"items": Item._fields}, {}, "hf", "dollar")
    assert dollar.texts[0].rstrip() == "select $1, $2, $1, $3 from hf.item where x like '50%'"
    named = render_lent(text, {"items": Item._fields}, {}, "hf", "pyformat")
    assert named.texts[0].rstrip() == "select %(p1)s, %(p2)s, %(p1)s, %(p3)s from hf.item where x like '50%%'"
    assert dollar.parameters == named.parameters
    assert named.arguments({"a": 1, "b": 2, "items": [Item(3, "c"), Item(4, "d")]}) == [2, 1, ["c", "d"]]


def test_what_a_lent_connection_may_encode_in_its_own_way_travels_as_text() -> None:
    text = "select cast(:items.name as json[]), cast(:ids as uuid[]), cast(:n as bigint[]), :payload"
    rendered = render_lent(text, {"items": Item._fields}, {"payload": "json"}, "hf", "dollar")
    assert rendered.texts[0] == (
        "select cast(cast($1 as text[]) as json[]), cast(cast($2 as text[]) as uuid[]), cast($3 as bigint[]), "
        "cast(cast($4 as text) as json)"
    )


def test_a_script_for_sqlite_is_run_statement_by_statement() -> None:
    rendered = render("delete from holdfast.a where x = :x;\nselect ';' as no_end;\n", {}, "sqlite", "")
    assert rendered.texts == ("delete from a where x = :x", "select ';' as no_end")


def test_every_file_of_statements_is_looked_at() -> None:
    """A group that no check knows of may drift, walk a table, or be used by nobody."""
    folders = {f"{layer.__name__}.sql": Path(layer.__path__[0], "sql") for layer in (kernel, agents, access)}
    files = {(package, file.name) for package, folder in folders.items() for file in folder.glob("*.sql")}
    assert {(made.package, made.file) for made in GROUPS} == files


def every_statement() -> list[Statement]:
    return [statement for made in GROUPS for statement in made.declared.values()]


async def test_every_statement_prepares_and_answers_its_records_fields_in_their_order(store: Store) -> None:
    dialect = store.database.dialect
    for statement, rendered in catalogue(GROUPS, dialect, store.settings.schema).items():
        told = [await store.setting.columns(text) for text in rendered.texts]
        answers = [columns for columns in told if columns]
        assert len(answers) <= 1, f"{statement}: of several texts, one answers"
        columns = answers[0] if answers else []
        if isinstance(statement, One | Many):
            assert tuple(column.name for column in columns) == statement.record._fields, statement
            hints = get_type_hints(statement.record)
            for column in columns:
                assert column.type in (None, _plain(hints[column.name])), (statement, column)


def _plain(hint: Any) -> Any:
    """The type behind an optional one, or behind a new name for it."""
    (plain,) = [part for part in get_args(hint) or (hint,) if part is not type(None)]
    return getattr(plain, "__supertype__", plain)


def test_every_statement_is_used_under_its_name() -> None:
    files = [path for layer in (kernel, agents, access) for path in Path(layer.__path__[0]).rglob("*.py")]
    code = "\n".join(path.read_text() for path in files if path.name != "statements.py")
    unused = [str(s) for made in GROUPS for s in made.declared.values() if f"{made.__name__}.{s.name}" not in code]
    assert unused == []


def test_names_are_unique_across_files() -> None:
    names = [statement.name for statement in every_statement()]
    assert sorted(names) == sorted(set(names))


def test_an_order_has_one_name(tmp_path: Path) -> None:
    text = "-- name: find :many\nselect @place from holdfast.job j where (@place) < (1, 2, 3) order by @arrival(j)"
    small = group(tmp_path / "small.sql", text, find=Many[Item])
    (rendered,) = catalogue((small,), "postgres", "x").values()
    assert rendered.texts == (
        "select priority, slot, seq from x.job j where (priority, slot, seq) < (1, 2, 3) order by j.priority, j.seq",
    )


@pytest.mark.parametrize("package", [kernel, agents])
def test_no_statement_spells_the_order_of_jobs_itself(package: types.ModuleType) -> None:
    """It did in 25 places, and they drifted apart. Migrations are as they were released."""
    spelled = re.compile(r"(order by |\()(\w+\.)?(priority|slot)\b,.*")
    files = [*Path(package.__path__[0], "sql").glob("*.sql")]
    assert files
    found = [(file.name, match[0]) for file in files for match in spelled.finditer(file.read_text("utf-8"))]
    assert found == []


class Schedule(NamedTuple):
    name: str
    last_job: JobId | None
    now: int


def test_columns_are_the_fields_of_the_declared_record(file: Path) -> None:
    text = """
-- name: find :one
select :columns from holdfast.item where note <> 'not :columns' -- nor these :columns
;

-- name: find_all :many
select :columns(i) from holdfast.item i where i.id = :id;
"""
    made = bind(group(file, text, find=One[Item], find_all=Many[Schedule]))
    assert made["sqlite"]["find"].texts[0].strip() == "select id, name from item where note <> 'not :columns'"
    assert made["postgres"]["find_all"].texts == (
        "select i.name, cast(i.last_job as text) as last_job, hf.now_us() as now from hf.item i where i.id = $1",
    )
    assert made["postgres"]["find"].parameters == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("insert into holdfast.item select :columns", "small.sql:add: :columns has no meaning"),
        (
            "select 1 from rows(:items) as i (nickname text)",
            "small.sql:add: :items.nickname",
        ),
        (
            "select 1 from rows(:items)",
            "small.sql:add: 'rows\\(:items\\)' is not of the form",
        ),
        ("select id from holdfast.item for update nowait", "small.sql:add: no rule gives .nowait. to sqlite"),
    ],
    ids=["columns", "rows", "no table", "lock"],
)
def test_a_use_that_no_rule_knows_is_refused_with_the_statements_name(file: Path, text: str, message: str) -> None:
    made = group(file, f"-- name: add :exec\n{text};\n", add=Exec)
    with pytest.raises(StatementDrift, match=message):
        bind(made)
