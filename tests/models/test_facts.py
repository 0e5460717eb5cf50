"""Model facts are data: looked up, overridden, and the reason why an option is refused before anything is sent."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from holdfast.errors import UsageError
from holdfast.models import check, facts_for
from holdfast.models.facts import names, shipped
from holdfast.models.prices import counted, shipped_prices


def test_every_model_the_sdk_lists_is_known() -> None:
    from anthropic.types import Model

    literal, _ = get_args(Model)
    for name in get_args(literal):
        assert facts_for(name).window >= 200_000


def test_every_model_has_every_price_in_every_tier() -> None:
    kinds = set(counted({})) - {"web_search"}
    have = {(price.model, price.tier, price.kind) for price in shipped_prices() if price.above == 0}
    for name in names():
        assert {(name, tier, kind) for tier in ("standard", "batch") for kind in kinds} <= have


def test_every_row_says_where_it_comes_from() -> None:
    assert all(row["source"] for row in shipped()["models"])


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("claude-opus-5-5", "claude-opus-5-5"),
        ("claude-opus-5", "claude-opus-5"),
        ("claude-haiku-4-5-20251001", "claude-haiku-4-5"),
        ("claude-sonnet-5-5-20260928", "claude-sonnet-5-5"),
        ("claude-sonnet-5-5-2026-09-28", "claude-sonnet-5-5"),
        ("claude-sonnet-5-5@20260928", "claude-sonnet-5-5"),
        ("claude-opus-5-5-latest", "claude-opus-5-5"),
        ("scripted:", "scripted"),
        ("scripted:refund", "scripted"),
        ("scripted:priced", "scripted:priced"),
    ],
)
def test_a_model_is_found_by_name_alias_or_snapshot(model: str, name: str) -> None:
    assert facts_for(model).name == name


def test_of_a_name_that_only_looks_similar_little_is_assumed(caplog: pytest.LogCaptureFixture) -> None:
    facts, *_ = [facts_for("claude-opus-5-9") for _ in range(3)]
    assert (facts.listed, facts.window, facts.max_output) == (False, 200_000, 64_000)
    assert (facts.strict_tools, facts.batch, facts.thinking_types) == (False, False, ())
    assert facts.window <= min(facts_for(name).window for name in names())
    assert facts.max_output <= min(facts_for(name).max_output for name in names())
    (warned,) = [record.getMessage() for record in caplog.records]
    assert "'claude-opus-5-9' is not among the models that are known here: check its name" in warned
    assert "hf.budgets.prices" in warned


def test_what_a_model_takes_that_is_not_listed_is_the_providers_business() -> None:
    check("claude-opus-5-9", {"temperature": 0.5, "thinking": {"type": "anew"}, "max_tokens": 500_000, "effort": "low"})


def test_facts_can_be_overridden_and_added() -> None:
    overrides: dict[str, dict[str, Any]] = {
        "claude-opus-5-5": {"window": 500_000},
        "claude-next-6": {"window": 2_000_000, "max_output": 256_000, "thinking_types": ["adaptive"]},
    }
    assert facts_for("claude-opus-5-5", overrides).window == 500_000
    assert facts_for("claude-opus-5-5", overrides).max_output == 128_000
    assert facts_for("claude-next-6", overrides).thinking_types == ("adaptive",)
    with pytest.raises(UsageError, match="there is no fact 'windo'"):
        facts_for("claude-opus-5-5", {"claude-opus-5-5": {"windo": 1}})
    with pytest.raises(UsageError, match="the facts of model 'x' are incomplete"):
        facts_for("x", {"x": {"window": 1}})


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        ("claude-sonnet-5-5", {"temperature": 0.2}, "does not take temperature: it no longer has sampling"),
        ("claude-opus-4-8", {"top_k": 5}, "does not take top_k"),
        ("claude-opus-5-5", {"thinking": {"type": "disabled"}}, "thinking.type disabled: it takes adaptive; it always"),
        ("claude-sonnet-5-5", {"thinking": {"type": "disabled"}}, "it takes adaptive, between_tools"),
        ("claude-haiku-4-5", {"thinking": {"type": "adaptive"}}, "it takes enabled, disabled"),
        ("claude-haiku-4-5", {"thinking": {"type": "enabled"}, "temperature": 1}, "with thinking"),
        ("claude-haiku-4-5", {"effort": "high"}, "does not take effort"),
        ("claude-opus-5-5", {"tool_choice": {"type": "any"}}, "cannot be forced to use a tool"),
        ("claude-opus-5-5", {"max_tokens": 200_000}, "max_tokens 200000: it writes between 1 and 128000"),
        ("claude-mythos-preview", {}, "was retired on 2026-06-30"),
    ],
)
def test_what_a_model_does_not_take_is_refused_with_the_reason(model: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check(model, options)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("claude-sonnet-5-5", {"effort": "high", "max_tokens": 4096, "thinking": {"type": "between_tools"}}),
        ("claude-haiku-4-5", {"temperature": 0.2, "tool_choice": {"type": "any"}}),
        ("scripted:", {"temperature": 0.2, "effort": "low"}),
        ("claude-opus-5-5", {"output_schema": {"type": "object"}, "temperature": None}),
    ],
)
def test_what_it_takes_passes(model: str, options: dict[str, Any]) -> None:
    check(model, options)


def test_an_override_changes_what_is_refused() -> None:
    check("claude-sonnet-5-5", {"temperature": 1}, {"claude-sonnet-5-5": {"sampling": True}})
    with pytest.raises(UsageError, match="no structured output"):
        check("scripted:", {"output_schema": {}}, {"scripted": {"structured_output": False}})
