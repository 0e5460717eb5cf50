"""Money: dated decimals, no multipliers, nothing free by accident."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from holdfast.errors import UsageError
from holdfast.models import Price, cost

MILLION = 1_000_000


def row(**given: Any) -> Price:
    made = {"model": "m", "kind": "input", "tier": "standard", "since": date(2026, 1, 1), "usd": Decimal(1)}
    return Price(**{**made, **given})


@pytest.mark.parametrize(
    ("model", "usage", "tier", "usd"),
    [
        ("claude-opus-5-5", {"input_tokens": MILLION, "output_tokens": MILLION}, "standard", "24"),
        ("claude-opus-5-5", {"input_tokens": MILLION, "output_tokens": MILLION}, "batch", "12"),
        ("claude-sonnet-5-5", {"input_tokens": 1, "output_tokens": 1}, "standard", "0.000012"),
        ("claude-sonnet-5-5", {"cache_read_input_tokens": MILLION}, "standard", "0.20"),
        ("claude-sonnet-5-5", {"cache_creation_input_tokens": MILLION}, "standard", "2.50"),
        ("claude-sonnet-5-5", {"cache_creation_input_tokens": MILLION,
                               "cache_creation": {"ephemeral_1h_input_tokens": MILLION}}, "standard", "4"),
        ("claude-sonnet-5-5", {"cache_creation_input_tokens": 3 * MILLION,
                               "cache_creation": {"ephemeral_1h_input_tokens": MILLION,
                                                  "ephemeral_5m_input_tokens": 2 * MILLION}}, "standard", "9"),
        ("claude-sonnet-5-5", {"cache_creation": {"ephemeral_5m_input_tokens": MILLION}}, "standard", "2.50"),
        ("claude-opus-5-5", {"server_tool_use": {"web_search_requests": 3, "web_fetch_requests": 1}}, "batch", "0.03"),
        ("claude-haiku-4-5-20251001", {"output_tokens": MILLION}, "standard", "5"),
        ("scripted:", {"input_tokens": MILLION, "output_tokens": MILLION}, "standard", "0"),
        ("scripted:priced", {"input_tokens": 100, "output_tokens": 10}, "standard", "0.0015"),
        ("claude-nobody", {}, "standard", "0"),
        ("claude-nobody", {"input_tokens": None, "service_tier": "standard"}, "standard", "0"),
    ],
)  # fmt: skip
def test_usage_becomes_money(model: str, usage: dict[str, Any], tier: Any, usd: str) -> None:
    assert cost(model, usage, tier) == Decimal(usd)


def test_a_long_prompt_may_cost_more_and_all_input_counts_as_prompt() -> None:
    short = {"input_tokens": 100_000, "output_tokens": 1000}
    long = {"input_tokens": 1, "cache_read_input_tokens": 60_000, "cache_creation_input_tokens": 40_000}
    assert cost("claude-haiku-5-5", short) == Decimal("0.0105")
    assert cost("claude-haiku-5-5", long) == Decimal("0.0000005") + Decimal("0.003") + Decimal("0.025")


def test_the_price_of_the_day_holds() -> None:
    prices = [row(), row(since=date(2026, 6, 1), usd=Decimal(2)), row(since=date(2026, 6, 1), usd=Decimal(9), above=10)]
    usage = {"input_tokens": 10}
    days = [None, date(2020, 1, 1), date(2026, 5, 31), datetime(2026, 6, 1, 12, tzinfo=UTC)]
    assert [cost("m", usage, "standard", prices, day) * 100_000 for day in days] == [2, 1, 1, 2]
    assert cost("m", {"input_tokens": 11}, "standard", prices) == Decimal(99) / MILLION


def test_prices_of_ones_own_come_first() -> None:
    prices = [row(model="claude-opus-5-5", usd=Decimal(3))]
    assert cost("claude-opus-5-5", {"input_tokens": MILLION, "output_tokens": MILLION}, prices=prices) == Decimal(23)


def test_a_missing_price_is_an_error_not_nothing() -> None:
    with pytest.raises(UsageError, match="no standard price for output of model 'm'"):
        cost("m", {"input_tokens": 1, "output_tokens": 1}, prices=[row()])


OPUS, HAIKU = "claude-opus-5-5", "claude-haiku-4-5"


def sampled(kind: str, tokens: int = MILLION, **more: Any) -> dict[str, Any]:
    return {"type": kind, "input_tokens": tokens, "output_tokens": 0, **more}


@pytest.mark.parametrize(
    ("usage", "usd"),
    [
        ({"input_tokens": 2 * MILLION, "iterations": [sampled("message"), sampled("message")]}, "8"),
        ({"input_tokens": MILLION, "iterations": [sampled("compaction"), sampled("message")]}, "8"),
        ({"input_tokens": MILLION, "iterations": [sampled("message"), sampled("advisor_message", model=HAIKU)]}, "5"),
        ({"input_tokens": 2 * MILLION,
          "iterations": [sampled("message", model=HAIKU), sampled("fallback_message", model=OPUS)]}, "5"),
        ({"input_tokens": 3 * MILLION, "iterations": [sampled("message")]}, "12"),
        ({"input_tokens": MILLION, "iterations": [sampled("message"), sampled("anything new")]}, "8"),
        ({"input_tokens": MILLION, "iterations": []}, "4"),
        ({"input_tokens": MILLION, "iterations": [sampled("message")],
          "server_tool_use": {"web_search_requests": 2}}, "4.02"),
    ],
    ids=["of a tool loop", "compaction", "an advisor", "a fallback", "not all told", "unknown", "none", "searches"],
)  # fmt: skip
def test_each_sampling_of_a_call_is_paid_for_once(usage: dict[str, Any], usd: str) -> None:
    assert cost(OPUS, usage) == Decimal(usd)


def test_the_size_of_a_prompt_is_that_of_each_sampling() -> None:
    """A tool loop of many small prompts is no long prompt."""
    small = [sampled("message", 60_000) for _ in range(3)]
    usage = {"input_tokens": 180_000, "iterations": small}
    assert cost("claude-haiku-5-5", usage) == 3 * cost("claude-haiku-5-5", {"input_tokens": 60_000})


@pytest.mark.parametrize(
    ("model", "usage", "asked", "usd"),
    [
        (OPUS, {"speed": "fast"}, "standard", "8"),
        ("claude-opus-4-6", {"speed": "fast"}, "standard", "30"),
        (OPUS, {"speed": "standard", "service_tier": "standard"}, "standard", "4"),
        (OPUS, {"service_tier": "batch"}, "batch", "2"),
        (OPUS, {"service_tier": "standard"}, "batch", "4"),
        (OPUS, {"inference_geo": "us"}, "standard", "4.4"),
        (OPUS, {"inference_geo": "us", "speed": "fast"}, "standard", "8.8"),
        (OPUS, {"inference_geo": "global"}, "standard", "4"),
    ],
)
def test_the_provider_says_how_a_call_was_served(model: str, usage: dict[str, Any], asked: Any, usd: str) -> None:
    assert cost(model, {"input_tokens": MILLION, **usage}, asked) == Decimal(usd)


@pytest.mark.parametrize("served", [{"speed": "warp"}, {"service_tier": "priority"}, {"service_tier": "flex"}])
def test_a_tier_without_a_price_is_charged_as_the_dearest(served: dict[str, Any]) -> None:
    usage = {"input_tokens": MILLION, **served}
    for model in (OPUS, HAIKU):
        assert cost(model, usage) >= cost(model, {**usage, "speed": "fast", "service_tier": None})
        assert cost(model, usage) == 6 * cost(model, {"input_tokens": MILLION})
    (tier,) = served.values()
    own = [row(model=OPUS, tier=tier, usd=Decimal(5))]
    assert cost(OPUS, usage, prices=own) == Decimal(5)


def test_a_batch_of_a_model_with_one_price_costs_that() -> None:
    assert cost("m", {"input_tokens": MILLION}, "batch", [row()]) == Decimal(1)


def test_a_snapshot_of_a_model_with_a_price_of_ones_own_has_that_price() -> None:
    assert cost("m-20270101", {"input_tokens": MILLION}, prices=[row()]) == Decimal(1)


def test_a_missing_price_says_how_to_give_one() -> None:
    with pytest.raises(
        UsageError, match=r"hf.budgets.prices = \[Price\(model='claude-nobody', kind=\"input\", tier=\"standard\""
    ):
        cost("claude-nobody", {"input_tokens": 1})
