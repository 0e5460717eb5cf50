"""Public values: how rows become them, how they become JSON, and how lists of them continue."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, dataclass, fields, is_dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import StrEnum
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, ClassVar, NamedTuple

import pytest

import holdfast.agents.values
import holdfast.values
from holdfast.client.results import Usage
from holdfast.errors import UsageError
from holdfast.values import Page, Stored, as_json, cursor, microseconds, moment, page_of, part_of, place, value_of

AT = datetime(2026, 3, 1, 10, 2, 31, 412_999, tzinfo=UTC)


class Row(NamedTuple):
    id: str
    seen_at: int
    gone_at: int | None
    body: str
    note: str | None
    live: int
    wait: int | None


@dataclass(frozen=True, kw_only=True)
class Value:
    SHOWN: ClassVar = ("loud",)

    id: str
    seen_at: datetime
    gone_at: datetime | None
    body: Stored
    note: Stored
    live: bool
    wait: timedelta | None
    made: int = 0
    _hidden: int = 1

    @property
    def loud(self) -> str:
        return self.id.upper()


ROW = Row("a", microseconds(AT), None, '{"n":[1,2]}', None, 1, 90_000_000)


def value() -> Value:
    return value_of(Value, ROW, made=3, _hidden=4)


def test_a_row_is_read_by_the_declared_types() -> None:
    read = value()
    assert (read.id, read.seen_at, read.gone_at, read.made) == ("a", AT, None, 3)
    assert (read.body, read.note) == ({"n": [1, 2]}, None)
    assert (read.live is True, read.wait) == (True, timedelta(seconds=90))


def test_a_value_is_json_with_what_its_class_shows() -> None:
    assert as_json(value()) == {
        "id": "a",
        "seen_at": "2026-03-01T10:02:31.412Z",
        "gone_at": None,
        "body": {"n": [1, 2]},
        "note": None,
        "live": True,
        "wait": "1m30s",
        "made": 3,
        "loud": "A",
    }


class Colour(StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (AT.astimezone(timezone(timedelta(hours=2))), "2026-03-01T10:02:31.412Z"),
        (timedelta(0), "0s"),
        (date(2026, 3, 1), "2026-03-01"),
        (Decimal("0.50"), "0.50"),
        (Colour.RED, "red"),
        ((1, [True, None]), [1, [True, None]]),
        ({"b", "a"}, ["a", "b"]),
        ({1: AT}, {"1": "2026-03-01T10:02:31.412Z"}),
        (Page([AT], next="x"), {"items": ["2026-03-01T10:02:31.412Z"], "next": "x", "looked": 1}),
        (Usage(1, 2, 3, 4, 5)._replace(turns=6), {**Usage(1, 2, 3, 4, 5, 6)._asdict(), "cost": "5E-9"}),
    ],
)
def test_everything_is_json(given: object, expected: object) -> None:
    shown = as_json(given)
    assert shown == expected
    assert json.loads(json.dumps(shown)) == shown
    assert type(as_json(Colour.RED)) is str


def test_a_time_is_exact_and_one_beyond_the_calendar_is_its_last_moment() -> None:
    assert microseconds(moment(1_762_336_951_412_999)) == 1_762_336_951_412_999
    assert moment(2**62) == datetime.max.replace(tzinfo=UTC)
    assert moment(None) is None


def public_values() -> list[type[Any]]:
    found: dict[str, type[Any]] = {}
    for package in (holdfast.values, holdfast.agents.values):
        parts = [each.name for each in iter_modules(getattr(package, "__path__", ()), f"{package.__name__}.")]
        for name in (package.__name__, *parts):
            found |= {
                kind.__name__: kind
                for kind in vars(import_module(name)).values()
                if isinstance(kind, type) and is_dataclass(kind) and kind.__module__ == name
            }
    return list(found.values())


def test_no_public_value_has_a_time_as_a_number() -> None:
    kinds = public_values()
    assert len(kinds) >= 20
    for kind in kinds:
        for field in fields(kind):
            if field.name.endswith("_at") or field.name in {"now", "until", "at"}:
                assert "datetime" in str(field.type), f"{kind.__name__}.{field.name}"
            assert not field.name.endswith("_us"), f"{kind.__name__}.{field.name}"


def test_a_public_value_does_not_change() -> None:
    for kind in public_values():
        with pytest.raises(FrozenInstanceError):
            setattr(object.__new__(kind), fields(kind)[0].name, 1)


def test_a_page_is_a_list_that_says_where_it_continues() -> None:
    rows = [3, 2, 1]
    page = page_of(rows, 3, str, lambda row: (row, "x"))
    assert page == page.items == ["3", "2", "1"]
    assert page.next is not None
    assert place(page.next, int, str) == (1, "x")
    assert page_of(rows, 4, str, lambda row: (row, "x")).next is None
    assert page_of([], 0, str, lambda row: (row,)).next is None


def test_a_list_that_is_read_whole_is_cut_into_pages() -> None:
    names = ["d", "a", "c", "b"]
    seen: list[str] = []
    after: str | None = None
    while True:
        page = part_of(names, 2, after, str)
        seen += page
        if page.next is None:
            break
        after = page.next
        names = [name for name in names if name != "b"]  # what stood last on the first page is gone by now
    assert seen == ["a", "b", "c", "d"]


def test_a_cursor_is_read_however_long_the_name_in_it() -> None:
    last = "ж" * 512
    after = cursor(7, last)
    assert place(after, int, str) == (7, last)
    assert len(after) < 512 * 3, "which is what it takes as UTF-8"


@pytest.mark.parametrize("after", [7, ("a", 1), "", "!", "bm9wZQ", cursor("a"), cursor(1, 2)])
def test_what_is_no_cursor_of_the_list_is_refused(after: object) -> None:
    with pytest.raises(UsageError, match="after must be what a page of the same list has"):
        place(after, int, str)
