"""What the app is called by: present names, earlier ones, and what each of them refuses."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.app import core_of
from holdfast.errors import UsageError
from holdfast.models import Price, Script, say
from holdfast.renamed import _RENAMED
from holdfast.settings import Settings
from holdfast.values.page import cursor, place
from holdfast.workers.definitions import Registry
from holdfast.workers.layer import Layer
from holdfast.workers.slots import JOBS


def hf_without_a_database() -> Any:
    return Holdfast("sqlite:///unused.db", embedded=False)


@pytest.mark.parametrize("name", _RENAMED)
def test_an_earlier_name_works_and_warns(name: str) -> None:
    hf = hf_without_a_database()
    with pytest.warns(DeprecationWarning, match=f"hf.{name} is now "):
        found = getattr(hf, name)
    assert found is not None


def test_an_earlier_name_is_the_same_thing() -> None:
    hf = hf_without_a_database()
    with pytest.warns(DeprecationWarning, match="is now"):
        assert hf.url == hf.settings.url
    with pytest.warns(DeprecationWarning, match="is now"):
        assert hf.on_inquiry == hf.inquiries.on_open
    seen: list[str] = []
    with (
        pytest.warns(DeprecationWarning, match="is now"),
        hf.on_event(lambda event: seen.append(event.name), "job.enqueued") as one,
    ):
        assert one is not None


def test_prices_that_are_set_by_the_earlier_name_count() -> None:
    hf = hf_without_a_database()
    price = Price(model="m", kind="input", tier="standard", since=date(2026, 1, 1), usd=Decimal(1))
    with pytest.warns(DeprecationWarning, match="hf.budgets.prices"):
        hf.prices = [price]
    assert tuple(hf.budgets.prices) == (price,)


def test_other_names_are_not_there() -> None:
    with pytest.raises(AttributeError, match="'Holdfast' object has no attribute 'cancle'"):
        _ = hf_without_a_database().cancle
    assert not set(_RENAMED) & {name for name in dir(hf_without_a_database()) if not name.startswith("_")}


def test_a_url_that_is_set_by_the_earlier_name_counts() -> None:
    hf = hf_without_a_database()
    with pytest.warns(DeprecationWarning, match="hf.settings.url"):
        hf.url = "sqlite:///other.db"
    assert hf.settings.url == "sqlite:///other.db"
    with pytest.raises(AttributeError, match=r"hf\.replay cannot be set; it is now hf\.runs\.replay"):
        hf.replay = None


def test_settings_that_name_no_database_keep_it() -> None:
    hf = hf_without_a_database()
    hf.settings = Settings(concurrency=3)
    assert (hf.settings.url, hf.settings.concurrency) == ("sqlite:///unused.db", 3)
    hf.settings = Settings(url="sqlite:///other.db")
    assert hf.settings.url == "sqlite:///other.db"


async def test_events_come_from_a_cursor_or_go_to_a_function() -> None:
    with pytest.raises(UsageError, match="not both"):
        hf_without_a_database().events("x", after="", to=print)


async def test_a_script_is_checked_and_may_be_replaced() -> None:
    hf = hf_without_a_database()
    with pytest.raises(UsageError, match="script"):
        hf.script("guide", "nonsense")
    hf.script("guide", Script(say("one")))
    first = core_of(hf).book.open("scripted:guide")
    hf.script("guide", Script(say("two")))
    assert core_of(hf).book.open("scripted:guide") is not first


def test_prices_are_not_a_tenants() -> None:
    with pytest.raises(UsageError, match="for all tenants"):
        hf_without_a_database().tenant("acme").budgets.prices = []


@pytest.mark.parametrize("after", [cursor(10**40, "x"), "W" * 100_000, "x", 7])
def test_what_is_not_a_cursor_is_refused(after: object) -> None:
    with pytest.raises(UsageError, match="after is the next of a page"):
        place(after, int, str)


def test_a_layer_cannot_take_what_is_the_workers_own() -> None:
    class Greedy(Layer):
        name = "greedy"
        kinds = ("greedy:",)

    for changes in ({"slots": (JOBS,)}, {"hints": {"route": print}}):
        layer = type("Changed", (Greedy,), changes)()
        with pytest.raises(UsageError, match="names of their own"):
            Registry().plug_in(layer)
