"""Tables: what fits a terminal, what a pipe gets, and what text from outside cannot do."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from holdfast.cli.tables import (
    Column,
    DualCell,
    TableStyle,
    cell_text,
    fitted,
    heading,
    print_table,
    relative,
    short_name,
    styled_lines,
)
from holdfast.values import moment

NOW = 1_800_000_000_000_000
SECOND = 1_000_000
COLUMNS = (
    Column("ID", "id", of="job"),
    Column("NAME"),
    Column("STATE", "state"),
    Column("NOTE", "name", rank=2),
    Column("USD", "money", rank=1),
    Column("AT", "time", rank=3),
)
ID = "01a1e53e-a4bd-74b2-ae80-18d0366914e2"


def lines(*cells: object, width: int = 80, columns: tuple[Column, ...] = COLUMNS, wide: bool = False) -> list[str]:
    look = TableStyle(terminal=True, wide=wide, width=width, now=NOW, ids={"job": 8})
    texts = [[cell_text(column, cell, look) for column, cell in zip(columns, cells, strict=True)]]
    return [line.plain for line in styled_lines(columns, texts, look)]


def test_a_narrow_terminal_loses_the_least_important_columns_first() -> None:
    row = (ID, "mail.send", "failed", "no such page", "0.25", moment(NOW - 180 * SECOND))
    assert lines(*row) == [
        "ID        NAME       STATE   NOTE           USD  AT",
        "01a1e53e  mail.send  failed  no such page  0.25  3 min ago",
    ]
    assert lines(*row, width=50)[0].split() == ["ID", "NAME", "STATE", "NOTE", "USD"]
    assert lines(*row, width=40)[0].split() == ["ID", "NAME", "STATE", "USD"]
    assert lines(*row, width=30)[0].split() == ["ID", "NAME", "STATE"]
    whole = lines(*row, width=30, wide=True)
    assert whole[1] == f"{ID}  mail.send  failed  no such page  0.25  2027-01-15T07:57:00.000Z"


JOBS = (
    Column("ID", "id"),
    Column("KIND", "name"),
    Column("QUEUE", rank=3, least=7),
    Column("TENANT", rank=1, sparse=True),
    Column("RESCUES", "number"),
    Column("COST", "money", rank=1),
)


def jobs(width: int, *rows: tuple[str, ...], wide: bool = False) -> list[str]:
    return [line.plain for line in styled_lines(JOBS, rows, TableStyle(terminal=True, wide=wide, width=width))]


def test_what_says_nothing_goes_first_and_the_function_stays() -> None:
    row = ("01a1e53e", "storefront.workers.mail.send_order", "mails", "-", "0", "0.0000")
    assert jobs(80, row)[0].split() == ["ID", "KIND", "QUEUE", "RESCUES", "COST"], "there are no tenants"
    assert jobs(75, row, (*row[:3], "acme", "0", "0.0000"))[0].split() == ["ID", "KIND", "QUEUE", "TENANT", "RESCUES"]
    assert jobs(60, row)[1] == "01a1e53e  storefront.workers.mail.send_order  mails        0"
    assert jobs(53, row)[1] == "01a1e53e  storefront.workers.mail.send_order  mails"
    assert jobs(45, row)[1] == "01a1e53e  …workers.mail.send_order      mails"
    assert jobs(36, row)[1] == "01a1e53e  …mail.send_order     mails"
    assert jobs(26, row)[1] == "01a1e53e  …mail.send_order"
    assert jobs(22, row)[1] == "01a1e53e  …send_order"
    assert jobs(40, (*row[:4], "2", "0.0000"))[1] == "01a1e53e  …send_order     mails        2"
    assert jobs(10, row, wide=True)[0].split() == [column.title for column in JOBS]


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (25, "shop.mail.send_order_late"),
        (24, "…mail.send_order_late"),
        (20, "…send_order_late"),
        (15, "send_order_late"),
        (11, "send_…_late"),
        (3, "s…e"),
    ],
)
def test_a_name_keeps_its_end(width: int, shown: str) -> None:
    assert short_name("shop.mail.send_order_late", width) == shown


def test_a_long_text_is_cut_and_the_id_is_not() -> None:
    assert lines(ID, "a" * 200, "failed", None, "1", None, width=40)[1] == "01a1e53e  aaaaaaaaaaaaaaaa…  failed    1"


@given(
    st.lists(st.tuples(*[st.text(max_size=60)] * len(COLUMNS)), min_size=1, max_size=4),
    st.integers(min_value=12, max_value=130),
)
def test_nothing_is_wider_than_the_terminal(rows: list[tuple[str, ...]], width: int) -> None:
    look = TableStyle(terminal=True, width=width, now=NOW)
    texts = [[cell_text(column, cell, look) for column, cell in zip(COLUMNS, row, strict=True)] for row in rows]
    for line in styled_lines(COLUMNS, texts, look):
        assert cell_len(line.plain) <= width
        assert line.plain.isprintable()


def test_what_is_left_makes_texts_whole() -> None:
    columns = (Column("A"), Column("B"))
    assert fitted(columns, [10, 100], 80) == {0: 10, 1: 68}
    assert fitted(columns, [60, 60], 80) == {0: 39, 1: 39}
    assert fitted((Column("A"), Column("B", "prose")), [50, 200], 80) == {0: 50, 1: 28}, "prose is wrapped"


def test_money_has_its_points_below_each_other() -> None:
    columns = (Column("USD", "money"),)
    texts = [["25"], ["0.001219"], ["400.5"]]
    shown = [line.plain for line in styled_lines(columns, texts, TableStyle(terminal=True))]
    assert shown == ["       USD", " 25", "  0.001219", "400.5"]


def test_a_heading_keeps_the_end_of_a_long_name() -> None:
    look = TableStyle(terminal=True, width=30, database="sqlite /a/very/long/path/to/the/shop.db")
    assert heading("jobs", look) == "jobs in …g/path/to/the/shop.db"
    assert heading("jobs", TableStyle()) == "jobs"


@pytest.mark.parametrize(
    ("ago", "said"),
    [
        (0, "now"),
        (45, "45 s ago"),
        (150, "2 min ago"),
        (7_300, "2 h ago"),
        (3 * 86_400, "3 d ago"),
        (-600, "in 10 min"),
    ],
)
def test_times_are_told_from_now(ago: int, said: str) -> None:
    assert relative(moment(NOW) - timedelta(seconds=ago), NOW) == said


def test_a_time_that_is_to_come_is_due_when_it_has_passed() -> None:
    column, look = Column("NEXT", "time", late="due"), TableStyle(terminal=True, now=NOW)
    assert cell_text(column, moment(NOW - 11_000_000), look) == "due"
    assert cell_text(column, moment(NOW + 11_000_000), look) == "in 11 s"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain [red]words[/red]", "plain [red]words[/red]"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("two\nlines\t", "two\\nlines\\t"),
        ("left\u202eright\u200b", "left\\u202eright\\u200b"),
        ("日本\u3000語", "日本 語"),
        ("\x9b31m\x85", "\\x9b31m\\x85"),
        ("warm\u2600\ufe0f", "warm\u2600"),
    ],
)
def test_text_cannot_command_the_terminal(text: str, shown: str) -> None:
    assert cell_text(Column("NOTE"), text, TableStyle()) == shown


def test_markup_in_data_is_only_text(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    print_table([Column("NOTE")], [["[bold]:smile: [link=x]y"]], TableStyle(terminal=True), empty="")
    assert capsys.readouterr().out.splitlines()[1] == "[bold]:smile: [link=x]y"


def test_a_pipe_gets_everything_and_no_colours(capsys: pytest.CaptureFixture[str]) -> None:
    row = (ID, "日本" * 40, "failed", None, "0.25", moment(NOW))
    print_table(COLUMNS, [row, (ID, "b", "failed", DualCell("five", [5]), "1", None)], TableStyle(), empty="")
    heading, first, second = capsys.readouterr().out.splitlines()
    assert heading.split() == [column.title for column in COLUMNS]
    assert first.split() == [ID, "日本" * 40, "failed", "-", "0.25", "2027-01-15T08:00:00.000Z"]
    assert second.split() == [ID, "b", "failed", "five", "1", "-"]
    assert cell_len(first.partition("failed")[0]) == cell_len(second.partition("failed")[0])
