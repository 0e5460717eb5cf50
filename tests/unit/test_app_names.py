"""What the app is called by, and what each name refuses."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.agents.core import AgentsCore
from holdfast.app import Part, core_of
from holdfast.errors import UsageError
from holdfast.models import Script, say
from holdfast.settings import Settings
from holdfast.values import cursor, place
from holdfast.workers.definitions import Registry
from holdfast.workers.layer import Layer
from holdfast.workers.slots import JOBS


def hf_without_a_database() -> Any:
    return Holdfast("sqlite:///unused.db", embedded=False)


class Billing:
    def __init__(self, core: AgentsCore) -> None:
        self.core = core


class BillingLayer(Layer):
    name = "billing"
    kinds = ("bill:",)


class Shop(Holdfast):
    """What a third party adds to the app."""

    billing: Part[Billing] = Part(f"{__name__}:Billing", layer=f"{__name__}:BillingLayer")


def layers_of(app: Holdfast) -> list[str]:
    return sorted(layer.name for layer in core_of(app).registry.layers)


def test_a_part_is_made_of_the_core_when_it_is_first_asked_for() -> None:
    shop = Shop("sqlite:///unused.db")
    assert "billing" not in vars(shop)
    assert shop.billing is shop.billing
    assert shop.billing.core is core_of(shop)
    assert Shop("sqlite:///unused.db").billing is not shop.billing


def test_the_layers_of_parts_are_there_before_anything_is_asked_for() -> None:
    assert layers_of(hf_without_a_database()) == ["agents", "machines", "resp"]
    shop = Shop("sqlite:///unused.db")
    assert layers_of(shop) == ["agents", "billing", "machines", "resp"]
    with pytest.raises(UsageError, match="billing"):
        shop.job(name="bill:ann")(lambda: None)


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


def test_a_name_that_is_misspelled_is_refused() -> None:
    with pytest.raises(AttributeError, match="'Holdfast' object has no attribute 'cancle'"):
        _ = hf_without_a_database().cancle


def test_prices_are_not_a_tenants() -> None:
    with pytest.raises(UsageError, match="for all tenants"):
        hf_without_a_database().tenant("acme").budgets.prices = []


@pytest.mark.parametrize("after", [cursor(10**40, "x"), "W" * 100_000, "x", 7])
def test_what_is_not_a_cursor_is_refused(after: object) -> None:
    with pytest.raises(UsageError, match="after must be what a page of the same list has"):
        place(after, int, str)


def test_a_layer_cannot_take_what_is_the_workers_own() -> None:
    class Greedy(Layer):
        name = "greedy"
        kinds = ("greedy:",)

    for changes in ({"slots": (JOBS,)}, {"hints": {"route": print}}):
        layer = type("Changed", (Greedy,), changes)()
        with pytest.raises(UsageError, match="names of their own"):
            Registry().plug_in(layer)
