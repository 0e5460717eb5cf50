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
