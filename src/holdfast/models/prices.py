"""What a call costs: dated rows per (model, kind, tier, prompt size), decimals, no multipliers.

The provider's whole usage object goes in, as it is stored. A kind that was used and has no price is an error, never
free: a budget that counts unknown prices as nothing is no budget.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal

from holdfast.errors import UsageError
from holdfast.models.facts import facts_for, shipped

Tier = Literal["standard", "batch"]
_MILLION = Decimal(1_000_000)
_ANY = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """USD for a million tokens of one kind (of `web_search`: requests), in prompts of more than `above` tokens."""

    model: str
    kind: str
    tier: Tier
    since: date
    usd: Decimal
    above: int = 0

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Price:
        return cls(**{**row, "since": date.fromisoformat(row["since"]), "usd": Decimal(row["usd"])})


@functools.cache
def shipped_prices() -> tuple[Price, ...]:
    return tuple(map(Price.read, shipped()["prices"]))


@functools.cache
def _shipped_by_name() -> Mapping[tuple[str, str, str], list[Price]]:
    """Every turn asks for a few of some hundred rows."""
    rows: dict[tuple[str, str, str], list[Price]] = {}
    for row in shipped_prices():
        rows.setdefault(_key(row), []).append(row)
    return rows


def _key(row: Price) -> tuple[str, str, str]:
    return row.model, row.kind, row.tier


def cost(
    model: str,
    usage: Mapping[str, Any],
    tier: Tier = "standard",
    prices: Sequence[Price] | None = None,
    at: date | datetime | None = None,
) -> Decimal:
    """The price in USD of what `usage` says, on the day `at` (none: the latest prices).

    Rows given in `prices` come before the shipped ones. Raises `UsageError` where a price is missing.
    """
    day = at.date() if isinstance(at, datetime) else at
    size = prompt_size(usage)
    total = Decimal(0)
    for kind, count in counted(usage).items():
        if count:
            total += price(model, kind, tier, prices, day, size).usd * count / _MILLION
    return total


def price(  # noqa: PLR0917  # a row is named by all of them
    model: str, kind: str, tier: Tier, prices: Sequence[Price] | None = None, at: date | None = None, size: int = 0
) -> Price:
    """The row that holds for a prompt of `size` tokens on a day; before the first row's day, the first."""
    names = _names(model)
    for name in names if prices else ():
        if found := _chosen([row for row in prices or () if _key(row) == (name, kind, tier)], at, size):
            return found
    for name in names:
        if found := _chosen(_shipped_by_name().get((name, kind, tier), ()), at, size):
            return found
    raise UsageError(f"there is no {tier} price for {kind} of model {model!r}; give one, or 0 if it is free.")


@functools.lru_cache
def _names(model: str) -> tuple[str, ...]:
    try:
        return model, facts_for(model).name, _ANY
    except UsageError:
        return model, _ANY


def _chosen(rows: Iterable[Price], at: date | None, size: int) -> Price | None:
    fit = sorted((row for row in rows if row.above == 0 or size > row.above), key=lambda row: (row.since, row.above))
    if not fit:
        return None
    begun = [row for row in fit if at is None or row.since <= at] or [row for row in fit if row.since == fit[0].since]
    return max(begun, key=lambda row: (row.since, row.above))


def prompt_size(usage: Mapping[str, Any]) -> int:
    """All input tokens, cached or not: what the bands of a price go by."""
    kinds = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    return sum(usage.get(kind) or 0 for kind in kinds)


def counted(usage: Mapping[str, Any]) -> dict[str, int]:
    """What is paid for, by kind. Cache writes whose duration the provider does not say are of five minutes."""
    split = usage.get("cache_creation") or {}
    hour = split.get("ephemeral_1h_input_tokens") or 0
    written = usage.get("cache_creation_input_tokens")
    short = split.get("ephemeral_5m_input_tokens") or 0 if written is None else max(0, written - hour)
    return {
        "input": usage.get("input_tokens") or 0,
        "output": usage.get("output_tokens") or 0,
        "cache_write_5m": short,
        "cache_write_1h": hour,
        "cache_read": usage.get("cache_read_input_tokens") or 0,
        "web_search": (usage.get("server_tool_use") or {}).get("web_search_requests") or 0,
    }
